"""The output shape of a layer with code, which the layer tells itself: Keras asks it, without values. Runs in the trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from mop_udf.errors import first_line
from mop_udf.training import custom_layers, sizes
from mop_udf.training.models import ConfigurationError, normalise

NAME = "asked"
LARGEST = 2**31 - 1  # dimension of an output
DTYPES = (
    "float32",
    "int32",
)  # of the inputs: a layer is asked with the second where it refuses the first, as embeddings may


def told(
    layer: Mapping[str, Any], shapes: Sequence[Sequence[int | None]], listed: bool, custom: custom_layers.Custom
) -> dict[str, Any]:
    """{"shape": of a layer's output for a row, None where it has several outputs}, or {"refused": why it takes no such inputs}.

    `layer`: its JSON; `shapes`: of its inputs for a row; `listed`: it takes them as a list. Weights are not allocated.
    """
    answers = (_told(layer, shapes, listed, custom, dtype) for dtype in DTYPES)
    first = next(answers)
    if "refused" not in first:
        return first
    second = next(answers)
    return first if "refused" in second else second


def _told(
    layer: Mapping[str, Any],
    shapes: Sequence[Sequence[int | None]],
    listed: bool,
    custom: custom_layers.Custom,
    dtype: str,
) -> dict[str, Any]:
    """See `told`. `dtype`: of the inputs."""
    inputs = [_input(f"in_{number}", shape, dtype) for number, shape in enumerate(shapes)]
    tensors = [_tensor(one["name"], shape, dtype) for one, shape in zip(inputs, shapes, strict=True)]
    call: dict[str, Any] = {"args": [tensors] if listed else tensors, "kwargs": {}}
    asked = {**layer, "config": {**layer["config"], "name": NAME}, "name": NAME, "inbound_nodes": [call]}
    config = {
        "name": "net",
        "layers": [*inputs, asked],
        "input_layers": [[one["name"], 0, 0] for one in inputs],
        "output_layers": [[NAME, 0, 0]],
    }
    net = {"class_name": "Functional", "module": "keras.src.models.functional", "config": config}
    try:
        checked = normalise(json.dumps(net), custom=custom)
        with sizes.unallocated(), custom_layers.scope():
            model = keras.models.model_from_json(json.dumps(checked))
            outputs = [tuple(output.shape) for output in keras.tree.flatten(model.get_layer(NAME).output)]
    except ConfigurationError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"refused": f"takes no input of shape {_show(shapes)}: {first_line(error)}"}
    if len(outputs) != 1:
        return {"shape": None}
    if not outputs[0] or outputs[0][0] is not None:
        return {"refused": f"puts out {list(outputs[0])}, which has no dimension for the rows"}
    if any(size is not None and not 0 < size <= LARGEST for size in outputs[0][1:]):
        return {"refused": f"puts out {list(outputs[0])}, where each dimension must be from 1 to {LARGEST}"}
    return {"shape": list(outputs[0][1:])}


def _input(name: str, shape: Sequence[int | None], dtype: str) -> dict[str, Any]:
    config = {"batch_shape": [None, *shape], "name": name, "dtype": dtype}
    own = {"module": "keras.layers", "class_name": "InputLayer", "config": config, "registered_name": None}
    return {**own, "name": name, "inbound_nodes": []}


def _tensor(name: str, shape: Sequence[int | None], dtype: str) -> dict[str, Any]:
    config = {"shape": [None, *shape], "dtype": dtype, "keras_history": [name, 0, 0]}
    return {"class_name": "__keras_tensor__", "config": config}


def _show(shapes: Sequence[Sequence[int | None]]) -> str:
    return ", ".join("(" + ", ".join("any" if n is None else str(n) for n in shape) + ")" for shape in shapes)

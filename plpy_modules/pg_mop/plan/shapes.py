"""The shapes of layers, from their JSON alone, and what does not fit together.

Keras decides in a trainer; this module finds the misfits that the JSON shows, so that they need no training. A shape is that
of one row, without the batch; None is a shape that only the built model knows. Pure Python, without Keras.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pg_mop.plan.arithmetic import LAYERS

Size = int | None  # None: a length that the JSON leaves open
Known = tuple[Size, ...]
Shape = Known | None

MERGES = frozenset("Add Average Maximum Minimum Multiply Subtract".split())  # whose inputs have equal shapes
JOINS = frozenset((*MERGES, "Concatenate"))
SEVERAL = frozenset(("GRU", "LSTM", "MultiHeadAttention", "SimpleRNN"))  # may take other inputs besides the first
MOST_SIZE = 2**31 - 1
# stand for an open length: a length of the output that differs between them is open, too
STANDS = (10_007, 20_011)

RANKS = {
    **{
        f"{kind}{rank}D": rank + 1
        for rank in (1, 2, 3)
        for kind in (
            "Conv AveragePooling MaxPooling GlobalAveragePooling GlobalMaxPooling ZeroPadding Cropping UpSampling "
            "SpatialDropout"
        ).split()
    },
    **{f"Conv{rank}DTranspose": rank + 1 for rank in (1, 2, 3)},
    **{f"{kind}Conv{rank}D": rank + 1 for rank in (1, 2) for kind in ("Depthwise", "Separable")},
    **dict.fromkeys(("GRU", "LSTM", "SimpleRNN"), 2),
    "RepeatVector": 1,
}
# arguments that are sizes: an integer above 0, or a list of them
SIZES = frozenset(
    """
units filters kernel_size pool_size strides dilation_rate n output_dim input_dim num_heads key_dim value_dim groups
depth_multiplier size
""".split()
)
# arguments without which Keras does not make a layer -> classes
NEEDED = {
    "activation": "Activation",
    "axes": "Dot",
    "cell": "RNN",
    "cells": "StackedRNNCells",
    "dims": "Permute",
    "equation output_shape": "EinsumDense",
    "factor": "RandomBrightness RandomContrast RandomRotation",
    "filters kernel_size": "Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D "
    "ConvLSTM3D SeparableConv1D SeparableConv2D",
    "head_dim num_query_heads num_key_value_heads": "GroupQueryAttention",
    "height width": "CenterCrop RandomCrop Resizing",
    "height_factor": "RandomZoom",
    "height_factor width_factor": "RandomTranslation",
    "input_dim output_dim": "Embedding",
    "kernel_size": "DepthwiseConv1D DepthwiseConv2D",
    "layer": "Bidirectional SpectralNormalization TimeDistributed",
    "n": "RepeatVector",
    "num_heads key_dim": "MultiHeadAttention",
    "pool_size": "AveragePooling1D AveragePooling2D AveragePooling3D",
    "rate": "AlphaDropout Dropout GaussianDropout SpatialDropout1D SpatialDropout2D SpatialDropout3D",
    "scale": "Rescaling",
    "stddev": "GaussianNoise",
    "target_shape": "Reshape",
    "units": "Dense GRU GRUCell LSTM LSTMCell SimpleRNN SimpleRNNCell",
}
NEEDED_BY = {kind: names.split() for names, kinds in NEEDED.items() for kind in kinds.split()}
OPTIONAL = frozenset(("strides", "value_dim"))  # may be null


class Misfit(ValueError):
    """Layers, or values of their arguments, that do not fit together; the text says why."""


def check_values(class_name: str, config: Mapping[str, Any]) -> None:
    """Raises Misfit for a size that is not an integer above 0, and for a rate that is not a number from 0 to 1."""
    for key, value in config.items():
        if key in SIZES and class_name in LAYERS and not (value is None and key in OPTIONAL):
            values = value if isinstance(value, list) and value else [value]
            if not all(isinstance(v, int) and not isinstance(v, bool) and 0 < v <= MOST_SIZE for v in values):
                raise Misfit(f"{key} of {class_name} must be an integer above 0, not {_short(value)}")
        if key == "rate" and "Dropout" in class_name and not (_is_number(value) and 0 <= value <= 1):
            raise Misfit(f"rate of {class_name} must be a number from 0 to 1, not {_short(value)}")


def check_needed(class_name: str, config: Mapping[str, Any]) -> None:
    """Raises Misfit for a layer without an argument that Keras needs to make it."""
    lacking = next((name for name in NEEDED_BY.get(class_name, ()) if name not in config), None)
    if lacking is not None:
        raise Misfit(f"{class_name} needs {lacking}")


def output_shape(class_name: str, config: Mapping[str, Any], shapes: Sequence[Shape]) -> Shape:
    """The shape of a layer's output. `shapes`: of its inputs.

    Raises Misfit where the layer cannot take them.

    >>> output_shape("Dense", {"units": 3}, [(8,)]), output_shape("Add", {}, [(4, 1), (4, 2)])
    ((3,), (4, 2))
    >>> output_shape("Conv2D", {"filters": 8, "kernel_size": 5}, [(28, None, 1)])
    (24, None, 8)
    """
    if class_name == "InputLayer":
        declared = config.get("batch_shape") or config.get("batch_input_shape")
        return tuple(declared[1:]) if isinstance(declared, list) else None
    check_needed(class_name, config)
    check_values(class_name, config)
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes) or class_name not in LAYERS:
        return None
    if class_name in MERGES:
        if class_name == "Subtract" and len(known) != 2:
            raise Misfit(f"Subtract takes two inputs, not {len(known)}")
        return merged(class_name, known)
    if class_name == "Concatenate":
        return _concatenated(config, known)
    if len(known) > 1 and class_name not in SEVERAL:
        raise Misfit(f"{class_name} takes one input, not {len(known)}")
    shape = known[0]
    wanted = RANKS.get(class_name)
    if wanted is not None and len(shape) != wanted:
        raise Misfit(f"{class_name} takes an input of {wanted} dimension{'s' * (wanted > 1)}, not {_show(shape)}")
    if class_name in ("MultiHeadAttention", "PReLU", "Normalization"):
        return shape if class_name != "MultiHeadAttention" else None
    if not shape and class_name in ("Dense", "Embedding"):
        raise Misfit(f"{class_name} takes an input of at least one dimension")
    try:
        _check_windows(class_name, config, shape)
        _check_forms(class_name, config, shape)
        first, second = (LAYERS[class_name](config, [_filled(shape, stand)])[0] for stand in STANDS)
    except Misfit:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise Misfit(f"{class_name} has arguments that cannot be read: {_short(dict(config))}") from None
    return tuple(a if a == b else None for a, b in zip(first, second))


def merged(class_name: str, shapes: Sequence[Known]) -> Known:
    """The shape of a merge, by the rules of broadcasting. Raises Misfit."""
    made: list[Size] = []
    for place in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-place] for shape in shapes if place <= len(shape)}
        above = sizes - {1, None}
        if len(above) > 1:
            raise Misfit(f"{class_name} takes inputs of equal shapes, not {', '.join(map(_show, shapes))}")
        made.append(above.pop() if above else None if None in sizes else 1)
    return tuple(reversed(made))


def _concatenated(config: Mapping[str, Any], shapes: Sequence[Known]) -> Known:
    rank = len(shapes[0])
    axis = config.get("axis", -1)
    if not isinstance(axis, int) or isinstance(axis, bool) or not (-rank <= axis <= rank and axis):
        raise Misfit(f"Concatenate has axis {_short(axis)}, its inputs have {rank} dimensions")
    place = axis - 1 if axis > 0 else rank + axis
    if any(len(shape) != rank for shape in shapes):
        raise Misfit(f"Concatenate takes inputs of equal ranks, not {', '.join(map(_show, shapes))}")
    made: list[Size] = []
    for at, sizes in enumerate(zip(*shapes)):
        if at == place:
            made.append(None if None in sizes else sum(size or 0 for size in sizes))
            continue
        different = set(sizes) - {None}
        if len(different) > 1:
            raise Misfit(f"Concatenate takes inputs that differ along one axis, not {', '.join(map(_show, shapes))}")
        made.append(different.pop() if different else None)
    return tuple(made)


def spatial(config: Mapping[str, Any], shape: Known) -> tuple[Known, Size]:
    """(spatial sizes, channels) of a shape."""
    if config.get("data_format") == "channels_first":
        return shape[1:], shape[0]
    return shape[:-1], shape[-1]


def _check_windows(class_name: str, config: Mapping[str, Any], shape: Known) -> None:
    """Raises Misfit for a window larger than its input, and for groups that do not divide the channels."""
    key = (
        "pool_size"
        if "Pooling" in class_name and not class_name.startswith("Global")
        else "kernel_size"
        if "Conv" in class_name and "Transpose" not in class_name
        else None
    )
    sizes, channels = spatial(config, shape) if len(shape) > 1 else ((), None)
    if key is not None and config.get("padding", "valid") == "valid":
        default = 2 if key == "pool_size" else 1
        window, apart = _each(config.get(key, default), len(sizes)), _each(config.get("dilation_rate", 1), len(sizes))
        for size, k, wide in zip(sizes, window, apart):
            if size is not None and (k - 1) * wide + 1 > size:
                raise Misfit(f"the window of {class_name}, {k}, is larger than its input of shape {_show(shape)}")
    groups, filters = config.get("groups", 1), config.get("filters", 1)
    numbers = [n for n in (filters, channels) if isinstance(n, int)]
    if key == "kernel_size" and isinstance(groups, int) and any(n % groups for n in numbers):
        raise Misfit(f"{groups} groups of {class_name} do not divide {channels} channels and {filters} filters")
    if class_name.startswith("Cropping"):
        rank = len(shape) - 1
        given = config.get("cropping", 1)
        pairs = [given] if rank == 1 and isinstance(given, list) else given
        for size, ends in zip(sizes, pairs if isinstance(pairs, list) else [pairs] * rank):
            cut = sum(ends) if isinstance(ends, list) else 2 * ends
            if size is not None and size <= cut:
                raise Misfit(f"{class_name} cuts {cut} of an input of shape {_show(shape)}")


def _check_forms(class_name: str, config: Mapping[str, Any], shape: Known) -> None:
    """Raises Misfit for a Reshape or Permute of another input."""
    if class_name == "Permute":
        dims = config.get("dims")
        if not isinstance(dims, list) or sorted(map(repr, dims)) != sorted(repr(n + 1) for n in range(len(shape))):
            raise Misfit(f"Permute has dims {_short(dims)} for an input of shape {_show(shape)}")
    if class_name == "Reshape" and None not in shape:
        target, total = config.get("target_shape"), math.prod(size or 1 for size in shape)
        if not isinstance(target, list) or not all(isinstance(n, int) for n in target):
            raise Misfit(f"Reshape has target_shape {_short(target)}")
        given = math.prod(n for n in target if n > 0)
        if total != given if all(n > 0 for n in target) else not given or total % given:
            raise Misfit(f"Reshape to {_short(target)} does not take an input of shape {_show(shape)}")


def _each(value: Any, rank: int) -> list[int]:
    values = value if isinstance(value, list) else [value] * rank
    return [v if isinstance(v, int) and not isinstance(v, bool) else 1 for v in values]


def _filled(shape: Known, stand: int) -> tuple[int, ...]:
    return tuple(stand if size is None else size for size in shape)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _show(shape: Known) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


def _short(value: Any) -> str:
    try:
        return repr(value)[:100]
    except ValueError:  # an integer too long to print
        return "a number of very many digits"

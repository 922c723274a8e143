"""The inputs and outputs of a checked architecture: their shapes, widths and names.

Standard library only.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mop_udf.architecture.architecture import ArchitectureError, is_reference
from mop_udf.architecture.architecture_classes import MODELS

NO_SHAPE = "an output of the architecture must have a known shape, not"
END_NAMES = {"input_layers": "inputs", "output_layers": "outputs"}
WITH_UNITS = ("Dense",)  # layers whose `units` is the last dimension of their output
KEEP_SHAPE = frozenset(
    """
Activation ActivityRegularization AlphaDropout BatchNormalization Dropout ELU GaussianDropout GaussianNoise Identity
LayerNormalization LeakyReLU PReLU ReLU Softmax UnitNormalization
""".split()
)


def input_shapes(architecture: dict[str, Any]) -> list[list[int | None]]:
    """Shapes of the model's inputs, without the batch dimension, in the order of the inputs.

    `architecture` as `check` gives it. Raises ArchitectureError where no layer states its input shape.
    """
    shapes, layers = {}, _layers(architecture)
    if architecture["class_name"] == "Sequential" and layers and layers[0]["class_name"] in MODELS:
        return input_shapes(layers[0])
    for number, layer in enumerate(layers):
        shape = layer["config"].get("batch_shape", layer["config"].get("batch_input_shape"))
        if isinstance(shape, list):
            shapes[str(layer["config"].get("name", number))] = shape[1:]
    if not shapes:
        raise ArchitectureError("the architecture does not state its input shape (batch_shape, batch_input_shape)")
    order = _ends(architecture, "input_layers")  # (a dictionary is sorted by name)
    return [shapes[n] for n in order] if set(order) == set(shapes) else list(shapes.values())


def output_widths(architecture: dict[str, Any], outputs: int = 1) -> list[int | None]:
    """Widths of the model's outputs, in order; None for a width that only the built model knows.

    `architecture` as `check` gives it. A width is known where the output comes from a layer with `units`, possibly
    through layers that keep its shape. Raises ArchitectureError where the model has another number of outputs.
    """
    config = architecture["config"]
    if architecture["class_name"] == "Sequential":
        ends: Any = [len(config["layers"]) - 1]
    else:
        ends = config.get("output_layers")
        if isinstance(ends, dict):
            ends = [ends[name] for name in sorted(ends)]
        ends = [ends] if is_reference(ends) else ends
        if not isinstance(ends, list) or not all(map(is_reference, ends)):
            return [None] * outputs
        ends = [end[0] for end in ends]
    if len(ends) != outputs:
        raise ArchitectureError(f"the architecture has {len(ends)} output{'s' if len(ends) > 1 else ''}, not {outputs}")
    return [_width(architecture, end) for end in ends]


def named(architecture: dict[str, Any], key: str) -> list[str] | None:
    """The sorted names of a model's inputs or outputs, if it has several in a dictionary; Keras takes them in this
    order.

    `key`: "input_layers" or "output_layers". None: the model knows them by position. `architecture` as `check` gives
    it. Raises ArchitectureError for a dictionary that contains lists or is contained in one.
    """
    if architecture["class_name"] == "Sequential":
        layers = architecture["config"]["layers"]
        inner = layers[0 if key == "input_layers" else -1] if layers else None
        return named(inner, key) if inner is not None and inner["class_name"] in MODELS else None
    ends = architecture["config"].get(key)
    if isinstance(ends, dict) and all(map(is_reference, ends.values())):
        return sorted(ends) if len(ends) > 1 else None
    if _has_dictionary(ends):
        raise ArchitectureError(
            f"the architecture has its {END_NAMES[key]} in a dictionary together with lists: give it a "
            f"dictionary, or a list, alone"
        )
    return None


def output_names(architecture: dict[str, Any]) -> list[str] | None:
    """The names of a model's outputs, in order, as Keras has them; None where only the built model knows them."""
    if names := named(architecture, "output_layers"):
        return names
    ends = architecture["config"].get("output_layers")
    ends = [ends] if is_reference(ends) else ends
    return [end[0] for end in ends] if isinstance(ends, list) and all(map(is_reference, ends)) else None


def by_position(architecture: dict[str, Any]) -> dict[str, Any]:
    """An architecture with lists in place of dictionaries of inputs and outputs, in Keras' order."""
    config = dict(architecture["config"])
    for key in END_NAMES:
        if isinstance(config.get(key), dict) and all(map(is_reference, config[key].values())):
            ends = [config[key][name] for name in sorted(config[key])]
            config[key] = ends if len(ends) > 1 else ends[0]
    return {**architecture, "config": config}


def name_misfit(architecture: dict[str, Any], key: str, columns: Iterable[str]) -> tuple[str, str] | None:
    """(problem, hint) where an architecture names its inputs or outputs (`named`), but not as these columns; else None.

    The columns must have the names in the same order. Raises ArchitectureError as `named` does.
    """
    names = named(architecture, key)
    if names is None or names == list(columns):
        return None
    problem = (
        f"the architecture has its {END_NAMES[key]} in a dictionary, which Keras reads in the order "
        f"{', '.join(names)}, and the columns are {', '.join(columns)}"
    )
    if sorted(columns) == names:
        return problem, f"Give the columns in that order, when they are packed, too: ARRAY{names}."
    end = END_NAMES[key][:-1]
    of = f"[model.{end}[name] for name in {names}]"
    made = f"{of}, model.output" if end == "input" else f"model.input, {of}"
    return problem, f"A list is matched by position: keras.Model({made}), in the order of the columns."


def _has_dictionary(value: Any) -> bool:
    return isinstance(value, dict) or isinstance(value, list) and any(map(_has_dictionary, value))


def is_known(shape: Sequence[int | None]) -> bool:
    """True for an output shape that can be compared with a row's classes or numbers: [width], or [steps, width]."""
    return len(shape) > 0 and None not in shape


def output_misfit(widths: Sequence[int | None], wanted: dict[str, Any]) -> str | None:
    """The problem of outputs with `widths` (None: unknown) for rows as `wanted` describes them, or None.

    `wanted`: {"widths", "what", "table"} and, where an output may have one unit for two classes, {"one_unit"}, and where rows
    have vectors for several steps, {"steps": the dimensions before the widths}.
    """
    one_unit = wanted.get("one_unit", [False] * len(wanted["widths"]))
    if all(
        width in (None, given) or (width == 1 and one)
        for width, given, one in zip(widths, wanted["widths"], one_unit, strict=True)
    ):
        return None
    has, given = (values[0] if len(values) == 1 else values for values in (widths, wanted["widths"]))
    return f'the architecture outputs {has} {wanted["what"]} but "{wanted["table"]}" has {given}'


def _width(architecture: dict[str, Any], end: Any) -> int | None:
    """The output width of a layer, given by its number in a Sequential or by its name; None where it is not stated."""
    layers, sequential = architecture["config"]["layers"], architecture["class_name"] == "Sequential"
    names = {} if sequential else {layer["name"]: layer for layer in layers}
    for _ in layers:
        layer = layers[end] if sequential and end >= 0 else names.get(end)
        if layer is None or layer["class_name"] not in (*WITH_UNITS, *KEEP_SHAPE):
            return None
        if layer["class_name"] in WITH_UNITS:
            units = layer["config"].get("units")
            return units if isinstance(units, int) and not isinstance(units, bool) else None
        if sequential:
            end -= 1
            continue
        calls = layer["inbound_nodes"]
        if len(calls) != 1 or not calls[0]["args"] or not isinstance(calls[0]["args"][0], dict):
            return None
        history = calls[0]["args"][0].get("config", {}).get("keras_history")
        end = history[0] if is_reference(history) else None
    return None


def _ends(architecture: dict[str, Any], key: str) -> list[str]:
    """Names of the layers that a functional model lists under `key`: [[name, node, tensor], ...] or one such list."""
    listed = architecture["config"].get(key) if isinstance(architecture.get("config"), dict) else None
    if isinstance(listed, dict):
        listed = [listed[name] for name in sorted(listed)]
    if isinstance(listed, list) and listed and isinstance(listed[0], str):
        listed = [listed]
    if not isinstance(listed, list):
        return []
    return [end[0] for end in listed if isinstance(end, list) and end and isinstance(end[0], str)]


def _layers(architecture: dict[str, Any]) -> list[dict[str, Any]]:
    config = architecture.get("config")
    layers = config if isinstance(config, list) else isinstance(config, dict) and config.get("layers")
    if not isinstance(layers, list) or not all(
        isinstance(x, dict) and isinstance(x.get("config"), dict) for x in layers
    ):
        raise ArchitectureError("the architecture has no list of layers")
    return layers

"""Prediction within a backend: a dense net as operations on NumPy arrays.

Nets of the layers below answer without a Keras process; others keep the trainer. A layer is registered here, by `layer`, and
nowhere else. Each is compared with Keras on random shapes and values (tests/training/test_forward.py).

The weights of a model are a flat array in the order of Keras' get_weights(): layer by layer, by their depth in the graph.
`_in_keras_order` finds that order from the JSON. A model within a model, such as a member of an ensemble (ensemble.py), is one
layer there, with the weights of its own in their order; here its layers are steps as all others.

ONNX Runtime (1.32, one thread) would compute more layers. For one row of a net 32-128-64-2 it takes 8 us and NumPy 18; for
10,000 rows, both take 3 to 6 ms. But it takes 51 MiB of each session (NumPy 10, which is loaded anyway), it starts a thread in
the backend, and a fault in its native code would end the backend, and with it every session of the server.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mop_udf.architecture.architecture import ArchitectureError, check, is_reference
from mop_udf.architecture.architecture_classes import MODELS
from pg_mop.backend.arrays import np
from pg_mop.inference.activations import ACTIVATIONS, Function, elu, leaky_relu, softmax

Config = Mapping[str, Any]
Operation = Callable[..., "np.ndarray"]  # arrays [rows, ...] -> an array [rows, ...]
Shape = tuple[int, ...]
MOST_ELEMENTS = 1 << 20  # of a row of an array: another role may have written the net
MOST_WEIGHT_BYTES = 16 << 20  # of the weights of a net that a session keeps
# Of the largest array, of as many rows as are computed together: arrays of 1 MiB stay in the processor's cache, and memory for
# larger ones comes anew from the system each time. So the rows take half the time of those in arrays of 16 MiB.
BLOCK_ELEMENTS = 1 << 18


class Unsupported(ValueError):
    """The net has something that is not computed here; the text names it."""


class Weights:
    """The weights of a net, from which each layer takes its own in turn."""

    def __init__(self, flat: np.ndarray) -> None:
        self.flat, self.taken = flat, 0

    def take(self, *shape: int) -> np.ndarray:
        """The next array of this shape. Raises Unsupported where too few weights are left."""
        size = math.prod(shape)
        if self.taken + size > len(self.flat):
            raise Unsupported("other weights than the architecture needs")
        self.taken += size
        return self.flat[self.taken - size : self.taken].reshape(shape)


LAYERS: dict[str, Callable[[Config, Weights, list[Shape]], Operation]] = {}


def layer(*names: str) -> Callable[[Any], Any]:
    """Register the maker of an operation for layers of Keras: `make(config, weights, shapes)`; `shapes`: those of a row of each
    input. It raises Unsupported."""

    def register(make: Any) -> Any:
        LAYERS.update(dict.fromkeys(names, make))
        return make

    return register


Step = tuple[Operation, tuple[int, ...]]  # an operation, and the numbers of the arrays that it takes


@dataclass
class Net:
    """A net: each of its `steps` appends an array to those of the inputs."""

    steps: list[Step]
    outputs: list[int]
    shapes: list[Shape]  # of a row of each output
    widest: int  # elements of a row of the largest array

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs [rows, ...] of inputs [rows, ...] in the model's order, as float32."""
        rows = max(1, BLOCK_ELEMENTS // self.widest)
        with np.errstate(all="ignore"):  # (NaN and infinity go through, as in Keras)
            if len(arrays[0]) <= rows:
                return self._compute(arrays)
            starts = range(0, len(arrays[0]), rows)
            blocks = [self._compute([array[start : start + rows] for array in arrays]) for start in starts]
        return [np.concatenate(parts) for parts in zip(*blocks)]

    @functools.cached_property
    def _needless(self) -> list[list[int]]:
        """The numbers of the arrays that no step after each one needs: a net of many members has many arrays."""
        last = {place: step for step, (_, places) in enumerate(self.steps) for place in places}
        needless: list[list[int]] = [[] for _ in self.steps]
        for place, step in last.items():
            if place not in self.outputs:
                needless[step].append(place)
        return needless

    def _compute(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values: list[Any] = [np.asarray(array, "<f4") for array in arrays]
        for (operation, places), needless in zip(self.steps, self._needless):
            values.append(operation(*[values[place] for place in places]))
            for place in needless:
                values[place] = None
        return [values[place] for place in self.outputs]


@functools.lru_cache(256)
def obstacle(text: str, weight_bytes: int) -> str | None:
    """What of an architecture (JSON) with so many bytes of weights is not computed here; None where all is."""
    try:
        if weight_bytes > MOST_WEIGHT_BYTES:
            raise Unsupported(f"more than {MOST_WEIGHT_BYTES >> 20} MB of weights")
        net = _compiled(check(text), Weights(np.broadcast_to(np.float32(0), weight_bytes // 4)))
        if [len(shape) for shape in net.shapes] != [1]:
            raise Unsupported("an output of several steps, or several outputs")
    except Unsupported as reason:
        return str(reason)
    except (ArchitectureError, LookupError, TypeError, ValueError, ArithmeticError):
        # (the values of the JSON, which another role may have written, make no net: Keras says why)
        return "an architecture that Keras must judge"
    return None


def compiled(architecture: Config, weights: bytes) -> Net:
    """The net of a checked architecture (mop_udf.architecture) with float32 weights. Raises Unsupported."""
    return _compiled(architecture, Weights(np.frombuffer(weights, "<f4")))


def _compiled(architecture: Config, own: Weights) -> Net:
    names, nodes, _ = _graph(architecture)
    shapes = [_bounded(_input_shape(nodes[name][0])) for name in names]
    steps: list[Step] = []
    outputs = _append(architecture, list(range(len(names))), own, steps, shapes)
    if own.taken != len(own.flat):
        raise Unsupported("other weights than the architecture needs")
    return Net(steps, outputs, [shapes[number] for number in outputs], max(map(math.prod, shapes)))


def _append(architecture: Config, inputs: list[int], own: Weights, steps: list[Step], shapes: list[Shape]) -> list[int]:
    """Append the steps of a model; returns the numbers of its outputs. `inputs`: the numbers of the arrays that it takes;
    `shapes`: of a row of each array by now."""
    names, nodes, ends = _graph(architecture)
    if [shapes[number] for number in inputs] != [_input_shape(nodes[name][0]) for name in names]:
        raise Unsupported("a model within the model that takes other shapes")
    place = dict(zip(names, inputs))
    for name in _in_keras_order(names, nodes, ends):
        if name in place:
            continue
        node, parents = nodes[name]
        kind, config = node["class_name"], node["config"]
        given = [place[parent] for parent in parents]
        if str(node.get("registered_name") or "").startswith("pg_mop"):
            raise Unsupported(f"layer {kind}")
        if kind in MODELS:
            outputs = _append(node, given, own, steps, shapes)
            if len(outputs) != 1:
                raise Unsupported("a model within the model with several outputs")
            place[name] = outputs[0]
            continue
        if kind not in LAYERS:
            raise Unsupported(f"layer {kind}")
        if _dtype(config) != "float32":
            raise Unsupported(f"dtype {_dtype(config)}")
        operation = LAYERS[kind](config, own, [shapes[number] for number in given])
        with np.errstate(all="ignore"):
            row = operation(*(np.zeros((1, *shapes[number]), "<f4") for number in given))
        place[name] = len(shapes)
        shapes.append(row.shape[1:])
        steps.append((operation, tuple(given)))
    return [place[end] for end in ends]


# --- the graph ----------------------------------------------------------------------------------------------------------
Nodes = dict[str, tuple[Config, list[str]]]  # layer -> (its object, the layers that it reads)


def _graph(architecture: Config) -> tuple[list[str], Nodes, list[str]]:
    """(inputs, {layer: (object, parents)}, outputs) of a model. Raises Unsupported."""
    config, nodes = architecture["config"], Nodes()
    if architecture["class_name"] == "Sequential":
        last: list[str] = []
        for number, node in enumerate(config["layers"]):
            shape = node["config"].get("batch_shape")
            if not number and node["class_name"] != "InputLayer":
                if not isinstance(shape, list):
                    raise Unsupported("a Sequential model without an input layer")
                first = {"class_name": "InputLayer", "config": {"batch_shape": shape}}
                nodes["an input of its own"] = first, []
                last = ["an input of its own"]
            name = str(node["config"].get("name", number))
            if name in nodes:
                raise Unsupported("two layers of one name")
            nodes[name], last = (node, last), [name]
        return [next(iter(nodes))], nodes, last
    for node in config["layers"]:
        calls = node.get("inbound_nodes") or []
        if len(calls) > 1:
            raise Unsupported("a layer that is called several times")
        nodes[node.get("name") or node["config"]["name"]] = node, _parents(calls[0]) if calls else []
    return _ends(config["input_layers"]), nodes, _ends(config["output_layers"])


def _parents(call: Any) -> list[str]:
    """The layers that a call of a layer reads. Raises Unsupported."""
    if not isinstance(call, dict) or not _is_empty(list(call.get("kwargs", {}).values())):
        raise Unsupported("a call with arguments")
    parents = []
    for argument in call.get("args", ()):
        for tensor in argument if isinstance(argument, list) else [argument]:
            if not isinstance(tensor, dict) or tensor.get("class_name") != "__keras_tensor__":
                raise Unsupported("a call with constants")
            name, node, output = tensor["config"]["keras_history"]
            if node or output:
                raise Unsupported("a layer with several outputs")
            parents.append(name)
    return parents


def _is_empty(argument: Any) -> bool:
    """Whether an argument says nothing: training=False is what is computed here; `mask` has a None for each input."""
    return all(map(_is_empty, argument)) if isinstance(argument, list) else not argument


def _ends(ends: Any) -> list[str]:
    """The layers of a model's inputs or outputs, in Keras' order."""
    if isinstance(ends, dict):
        ends = [ends[name] for name in sorted(ends)]
    ends = [ends] if is_reference(ends) else ends
    if not isinstance(ends, list) or not all(map(is_reference, ends)):
        raise Unsupported("nested inputs or outputs")
    return [end[0] for end in ends]


def _in_keras_order(inputs: Sequence[str], nodes: Nodes, outputs: Sequence[str]) -> list[str]:
    """The layers in the order of Keras' get_weights(): by decreasing distance from the outputs; those of equal distance in the
    order in which a depth-first search from the outputs meets them."""
    met: dict[str, int] = {}
    finished: list[str] = []
    for output in outputs:
        below = [(output, iter(nodes[output][1]))]
        if output in met:
            continue
        met[output] = len(met)
        while below:
            name, parents = below[-1]
            parent = next((p for p in parents if p not in met), None)
            if parent is None:
                finished.append(name)
                below.pop()
            else:
                met[parent] = len(met)
                below.append((parent, iter(nodes[parent][1])))
    depths: dict[str, int] = {}
    for name in reversed(finished):
        depth = depths.setdefault(name, 0)
        for parent in nodes[name][1]:
            depths[parent] = max(depth + 1, depths.get(parent, 0))
    return sorted(depths, key=lambda name: (-depths[name], met[name]))


def _input_shape(node: Config) -> tuple[int, ...]:
    shape = node["config"].get("batch_shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape[1:]):
        raise Unsupported(f"an input of shape {shape}")
    return tuple(shape[1:])


def _bounded(*shapes: Shape) -> Shape:
    """The first of the shapes. Raises Unsupported where a row of all of them together would be large."""
    if sum(map(math.prod, shapes)) > MOST_ELEMENTS:
        raise Unsupported(f"arrays of more than {MOST_ELEMENTS} elements a row")
    return shapes[0]


def _dtype(config: Config) -> str:
    dtype = config.get("dtype") or "float32"
    if isinstance(dtype, Mapping):
        dtype = dtype.get("config", {}).get("name")
    return str(dtype)


# --- layers ---------------------------------------------------------------------------------------------------------------
def _activation(config: Config, default: str = "linear") -> Function:
    name = config.get("activation") or default
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise Unsupported(f"activation {name}")
    return ACTIVATIONS[name]


def _last_axis(config: Config, shape: tuple[int, ...], default: int = -1) -> None:
    axis = config.get("axis", default)
    axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
    if axis not in (-1, len(shape)):
        raise Unsupported(f"axis {axis}")


@layer("Dense")
def _dense(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    _bounded((*shapes[0][:-1], config["units"]))
    kernel = weights.take(shapes[0][-1], config["units"])
    if config.get("lora_rank") or config.get("quantization_config"):
        raise Unsupported("a Dense layer in two parts")
    activation = _activation(config)
    if not config.get("use_bias", True):
        return lambda x: activation(x @ kernel)
    bias = weights.take(config["units"])
    return lambda x: activation(x @ kernel + bias)


@layer("Embedding")
def _embedding(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    if config.get("mask_zero") or config.get("lora_rank") or config.get("quantization_config"):
        raise Unsupported("an Embedding with a mask, or in two parts")
    _bounded((*shapes[0], config["output_dim"]))
    table = weights.take(config["input_dim"], config["output_dim"])
    # (codes are packed, and so within the table; Keras' own result for others depends on the framework)
    return lambda x: table[np.clip(np.nan_to_num(x).astype(np.int64), 0, len(table) - 1)]


@layer("Normalization")
def _normalization(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    _last_axis(config, shapes[0])
    if config.get("invert"):
        raise Unsupported("a Normalization that inverts")
    if config.get("mean") is None:
        mean, variance = weights.take(shapes[0][-1]), weights.take(shapes[0][-1])
        weights.take()  # the count of rows
    else:
        mean, variance = (
            np.broadcast_to(np.asarray(config[key], "<f4").reshape(-1), shapes[0][-1:]) for key in ("mean", "variance")
        )
    deviation = np.maximum(np.sqrt(variance), np.float32(1e-7))
    return lambda x: (x - mean) / deviation


@layer("BatchNormalization")
def _batch_normalization(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    _last_axis(config, shapes[0])
    width = shapes[0][-1]
    scale = weights.take(width) if config.get("scale", True) else np.float32(1)
    shift = weights.take(width) if config.get("center", True) else np.float32(0)
    mean, variance = weights.take(width), weights.take(width)
    factor = scale / np.sqrt(variance + np.float32(config.get("epsilon", 1e-3)))
    return lambda x: (x - mean) * factor + shift


@layer("LayerNormalization")
def _layer_normalization(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    _last_axis(config, shapes[0])
    if config.get("rms_scaling"):
        raise Unsupported("a LayerNormalization by root mean squares")
    width = shapes[0][-1]
    scale = weights.take(width) if config.get("scale", True) else np.float32(1)
    shift = weights.take(width) if config.get("center", True) else np.float32(0)
    epsilon = np.float32(config.get("epsilon", 1e-3))

    def normalize(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + epsilon) * scale + shift

    return normalize


@layer("Rescaling")
def _rescaling(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    scale, offset = config.get("scale", 1.0), config.get("offset", 0.0)
    if not isinstance(scale, (int, float)) or not isinstance(offset, (int, float)):
        raise Unsupported("a Rescaling by lists")
    scale, offset = np.float32(scale), np.float32(offset)
    return lambda x: x * scale + offset


@layer("UnitNormalization")
def _unit_normalization(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    _last_axis(config, shapes[0])
    return lambda x: x / np.sqrt(np.maximum((x * x).sum(axis=-1, keepdims=True), np.float32(1e-12)))


@layer("Concatenate")
def _concatenate(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    axis = config.get("axis", -1)
    if axis == 0 or len(shapes) < 2:
        raise Unsupported(f"a Concatenate of axis {axis}")
    _bounded(*shapes)
    return lambda *x: np.concatenate(x, axis=axis)


MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Multiply": lambda a, b: a * b,
    "Maximum": lambda a, b: np.maximum(a, b),
    "Minimum": lambda a, b: np.minimum(a, b),
    "Subtract": lambda a, b: a - b,
    "Average": lambda a, b: a + b,
}


def _merge(name: str, config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    if len({len(shape) for shape in shapes}) > 1 or len(shapes) < 2:
        raise Unsupported(f"{name} of shapes {shapes}")
    _bounded(np.broadcast_shapes(*shapes))
    merge, divisor = MERGES[name], len(shapes) if name == "Average" else None

    def merged(*x: np.ndarray) -> np.ndarray:
        total = functools.reduce(merge, x)
        return total / np.float32(divisor) if divisor else total

    return merged


for _name in MERGES:
    layer(_name)(functools.partial(_merge, _name))


@layer("Flatten")
def _flatten(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    if config.get("data_format") == "channels_first":
        raise Unsupported("a Flatten of channels first")
    size = math.prod(shapes[0])
    return lambda x: x.reshape(len(x), size)


@layer("Reshape")
def _reshape(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    target = tuple(config["target_shape"])
    if target.count(-1):
        known = math.prod(size for size in target if size != -1)
        target = tuple(math.prod(shapes[0]) // known if size == -1 else size for size in target)
    return lambda x: x.reshape(len(x), *target)


@layer("Cropping1D")
def _cropping(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    cropping = config.get("cropping", (1, 1))
    start, end = (cropping, cropping) if isinstance(cropping, int) else cropping
    return lambda x: x[:, start : x.shape[1] - end]


@layer(
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "Identity",
    "SpatialDropout1D",
)
def _nothing(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    return lambda x: x


@layer("Activation")
def _activate(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    return _activation(config)


@layer("ReLU")
def _relu(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    most, slope, threshold = (config.get(key) for key in ("max_value", "negative_slope", "threshold"))
    slope, threshold = np.float32(slope or 0), np.float32(threshold or 0)

    def relu(x: np.ndarray) -> np.ndarray:
        positive = np.where(x > threshold, x, np.float32(0)) if threshold else np.maximum(x, np.float32(0))
        if most is not None:
            positive = np.minimum(positive, np.float32(most))
        return positive - slope * np.maximum(threshold - x, 0) if slope else positive

    return relu


@layer("LeakyReLU")
def _leaky_relu(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    slope = np.float32(config.get("negative_slope", 0.3))
    return lambda x: leaky_relu(x, slope)


@layer("PReLU")
def _prelu(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    shared = config.get("shared_axes") or ()
    slope = weights.take(*(1 if axis + 1 in shared else size for axis, size in enumerate(shapes[0])))
    return lambda x: np.where(x >= 0, x, slope * x)


@layer("ELU")
def _elu(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    alpha = np.float32(config.get("alpha", 1.0))
    return lambda x: elu(x, alpha)


@layer("Softmax")
def _softmax(config: Config, weights: Weights, shapes: list[Shape]) -> Operation:
    _last_axis(config, shapes[0])
    return softmax

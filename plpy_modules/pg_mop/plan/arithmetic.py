"""The arithmetic of an architecture: parameters, floating-point operations and activations, from its JSON alone.

It serves the estimates of EXPLAIN, so a layer that it does not know counts as one that keeps its input's shape and
computes next to nothing; `unknown` names such layers. Pure Python, without Keras.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mop_udf.architecture.architecture_classes import MODELS
from mop_udf.kernels.layout import numbers_on_a_device

Shape = tuple[int, ...]  # of one row, without the batch
Config = Mapping[str, Any]
Made = tuple[Shape, int, float]  # (shape of the output, parameters, operations for one row)

UNKNOWN_LENGTH = 1  # stands for a dimension that the JSON leaves open
NUMBER_BYTES = 4  # of a float32

# optimizer -> variables of the size of the weights (Keras 3)
SLOTS = {
    "adadelta": 2,
    "adafactor": 1,
    "adagrad": 1,
    "adam": 2,
    "adamax": 2,
    "adamw": 2,
    "ftrl": 2,
    "lamb": 2,
    "lion": 1,
    "muon": 2,
    "nadam": 2,
    "rmsprop": 1,
    "sgd": 0,
}


@dataclass
class Arithmetic:
    """Of one row: `parameters`; `operations`: floating-point operations of a forward pass (a multiplication and an addition
    are two); `activations`: numbers that the layers put out; `layers`: how many there are; `unknown`: classes of layers that
    this module does not know; `kernels`: shapes of the weights that several devices may divide among them."""

    parameters: int = 0
    operations: float = 0.0
    activations: int = 0
    layers: int = 0
    unknown: set[str] = field(default_factory=set)
    kernels: list[Shape] = field(default_factory=list)

    @classmethod
    def of(cls, architecture: Mapping[str, Any]) -> Arithmetic:
        """Of an architecture, as mop_udf.architecture.architecture.check gives it.

        >>> dense = {"class_name": "Dense", "config": {"units": 3, "use_bias": True}}
        >>> entry = {"class_name": "InputLayer", "config": {"batch_shape": [None, 4]}}
        >>> found = Arithmetic.of({"class_name": "Sequential", "config": {"layers": [entry, dense]}})
        >>> found.parameters, found.operations, found.activations
        (15, 24.0, 3)
        """
        found = cls()
        _model(architecture, [], found)
        return found

    @classmethod
    def find(cls, architecture: Mapping[str, Any]) -> Arithmetic | None:
        """The same; None where the JSON does not tell, for it is only checked as far as Keras can read it safely."""
        try:
            return cls.of(architecture)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None

    @property
    def state_bytes(self) -> int:
        """Bytes of the weights."""
        return NUMBER_BYTES * self.parameters

    def share_on_each_of(self, devices: int) -> float:
        """The share of the weights that each of so many devices has, which divide the kernels among them (kernels/layout.py).

        >>> Arithmetic(parameters=110, kernels=[(10, 10)]).share_on_each_of(2)
        0.5454545454545454
        """
        divided = sum(map(math.prod, self.kernels))
        if not self.parameters or devices < 2:
            return 1.0
        return min(1.0, (self.parameters - divided + numbers_on_a_device(self.kernels, devices)) / self.parameters)


def slots(optimizer: str, parameters: Mapping[str, Any] | None = None) -> int:
    """How many variables of the size of the weights an optimizer keeps. An unknown optimizer counts as Adam.

    >>> slots("Adam"), slots("SGD"), slots("SGD", {"momentum": 0.9})
    (2, 0, 1)
    """
    given, name = parameters or {}, optimizer.lower()
    found = SLOTS.get(name, 2)
    if name in ("sgd", "rmsprop") and given.get("momentum"):
        found += 1
    return found + (1 if given.get("amsgrad") or given.get("centered") else 0)


def _model(architecture: Mapping[str, Any], inputs: Sequence[Shape], found: Arithmetic) -> Shape:
    """Add up a model, and return the shape of its (first) output. `inputs`: of a nested model, else empty."""
    config = architecture["config"]
    if architecture["class_name"] == "Sequential":
        shapes = list(inputs)
        for layer in config["layers"]:
            shapes = [_layer(layer, shapes, found)]
        return shapes[0] if shapes else ()
    made: dict[str, Shape] = {}
    given = iter(inputs)
    shape: Shape = ()
    for layer in config["layers"]:
        name = str(layer.get("name") or layer["config"].get("name"))
        nodes = layer.get("inbound_nodes") or []  # a shared layer has several calls: the first one counts
        before = [made[source] for source in _sources(nodes[:1]) if source in made]
        if layer["class_name"] == "InputLayer" and inputs:
            before = [next(given, _declared(layer["config"]) or ())]
        made[name] = shape = _layer(layer, before, found)
    ends = [end for end in _ends(config.get("output_layers")) if end in made]
    return made[ends[0]] if ends else shape


def _ends(value: Any) -> Iterator[str]:
    """The names of the layers in an architecture's list or dictionary of outputs."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _ends(one)
    elif isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], str):
            yield value[0]
        else:
            for one in value:
                yield from _ends(one)


def _sources(node: Any) -> Iterator[str]:
    """The names of the layers whose outputs a layer takes: of its first node."""
    if isinstance(node, Mapping):
        history = node.get("keras_history")
        if isinstance(history, (list, tuple)) and history:
            yield str(history[0])
            return
        for value in node.values():
            yield from _sources(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _sources(value)


def _declared(config: Config) -> Shape | None:
    shape = config.get("batch_shape") or config.get("batch_input_shape")
    return None if not isinstance(shape, list) else tuple(_size(n) for n in shape[1:])


def _size(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else UNKNOWN_LENGTH


def _layer(layer: Mapping[str, Any], shapes: Sequence[Shape], found: Arithmetic) -> Shape:
    """Add up a layer, and return the shape of its output."""
    name, config = str(layer["class_name"]), layer["config"]
    if name in MODELS:
        return _model(layer, shapes, found)
    declared = _declared(config)
    if name == "InputLayer":
        return shapes[0] if shapes else declared or ()
    shape = shapes[0] if shapes else declared or ()
    found.layers += 1
    if name in ("Bidirectional", "TimeDistributed") and isinstance(config.get("layer"), Mapping):
        return _wrapped(name, config, shape, found)
    count = LAYERS.get(name)
    if count is None:
        found.unknown.add(name)
        out, parameters, operations = shape, 0, float(math.prod(shape))
    else:
        out, parameters, operations = count(config, [tuple(s) for s in shapes] or [shape])
    found.parameters += parameters
    found.kernels += KERNELS[name](config, [tuple(s) for s in shapes] or [shape]) if name in KERNELS else ()
    found.operations += operations
    found.activations += math.prod(out)
    return out


def _wrapped(name: str, config: Config, shape: Shape, found: Arithmetic) -> Shape:
    inner = config["layer"]
    own = Arithmetic()
    if name == "TimeDistributed":
        out = _layer(inner, [shape[1:]], own)
        times, copies = shape[0] if shape else 1, 1
        result: Shape = (times, *out)
    else:
        out = _layer(inner, [shape], own)
        times, copies = 1, 2
        joined = (config.get("merge_mode") or "concat") == "concat"
        result = (*out[:-1], out[-1] * (2 if joined else 1)) if out else out
    found.parameters += own.parameters * copies
    found.kernels += own.kernels * copies
    found.operations += own.operations * copies * times
    found.activations += own.activations * copies * times
    found.unknown |= own.unknown
    return result


# --- layers: (config, shapes of the inputs) -> (shape of the output, parameters, operations) ----------------------------
def _same(config: Config, shapes: Sequence[Shape]) -> Made:
    return shapes[0], 0, float(math.prod(shapes[0]))


def _dense(config: Config, shapes: Sequence[Shape]) -> Made:
    *front, width = shapes[0] or (1,)
    units = _size(config.get("units"))
    return (*front, units), width * units + units * _bias(config), 2.0 * width * units * math.prod(front)


def _bias(config: Config) -> int:
    return int(config.get("use_bias", True) is not False)


def _sizes(value: Any, rank: int) -> list[int]:
    """A number or a list of numbers, as `rank` numbers."""
    return [_size(v) for v in value] if isinstance(value, (list, tuple)) else [_size(value)] * rank


def _swept(config: Config, space: Sequence[int], key: str, rank: int, by_default: Any = 1) -> list[int]:
    """The spatial shape after a window has swept over `space`."""
    window, given = _sizes(config.get(key, by_default), rank), config.get("strides")
    strides = _sizes(given if given is not None else window if key == "pool_size" else 1, rank)
    wide = _sizes(config.get("dilation_rate", 1), rank)
    found = []
    for size, k, stride, apart in zip(space, window, strides, wide):
        reach = (k - 1) * apart + 1
        length = size if config.get("padding", "valid") in ("same", "causal") else max(1, size - reach + 1)
        found.append(-(-length // stride))
    return found


def _space(config: Config, shape: Shape) -> tuple[list[int], int]:
    """(spatial dimensions, channels) of a shape."""
    if config.get("data_format") == "channels_first":
        return list(shape[1:]), shape[0]
    return list(shape[:-1]), shape[-1]


def _joined(config: Config, space: Sequence[int], channels: int) -> Shape:
    return (channels, *space) if config.get("data_format") == "channels_first" else (*space, channels)


def _convolution(rank: int, kind: str = "full") -> Callable[[Config, Sequence[Shape]], Made]:
    def count(config: Config, shapes: Sequence[Shape]) -> Made:
        space, channels = _space(config, shapes[0])
        kernel = math.prod(_sizes(config.get("kernel_size", 1), rank))
        if kind == "transposed":
            strides = _sizes(config.get("strides", 1), rank)
            swept = [size * stride for size, stride in zip(space, strides)]
        else:
            swept = _swept(config, space, "kernel_size", rank)
        places = math.prod(swept)
        deep = _size(config.get("depth_multiplier", 1))
        filters = channels * deep if kind == "depthwise" else _size(config.get("filters"))
        if kind == "depthwise":
            weights, work = kernel * channels * deep, 2.0 * kernel * channels * deep * places
        elif kind == "separable":
            weights = kernel * channels * deep + channels * deep * filters
            work = 2.0 * places * weights
        elif kind == "transposed":
            weights = kernel * channels * filters
            work = 2.0 * weights * math.prod(space)
        else:
            weights = kernel * (channels // _size(config.get("groups", 1))) * filters
            work = 2.0 * weights * places
        return _joined(config, swept, filters), weights + filters * _bias(config), work

    return count


def _pooling(rank: int) -> Callable[[Config, Sequence[Shape]], Made]:
    def count(config: Config, shapes: Sequence[Shape]) -> Made:
        space, channels = _space(config, shapes[0])
        return (_joined(config, _swept(config, space, "pool_size", rank, 2), channels), 0, float(math.prod(shapes[0])))

    return count


def _global_pooling(config: Config, shapes: Sequence[Shape]) -> Made:
    space, channels = _space(config, shapes[0])
    out = _joined(config, [1] * len(space), channels) if config.get("keepdims") else (channels,)
    return out, 0, float(math.prod(shapes[0]))


def _flatten(config: Config, shapes: Sequence[Shape]) -> Made:
    return (math.prod(shapes[0]),), 0, 0.0


def _reshape(config: Config, shapes: Sequence[Shape]) -> Made:
    target, total = list(config.get("target_shape") or ()), math.prod(shapes[0])
    known = math.prod(n for n in target if isinstance(n, int) and n > 0)
    return tuple(n if isinstance(n, int) and n > 0 else max(1, total // max(1, known)) for n in target), 0, 0.0


def _permute(config: Config, shapes: Sequence[Shape]) -> Made:
    return tuple(shapes[0][n - 1] for n in config["dims"]), 0, 0.0


def _repeat(config: Config, shapes: Sequence[Shape]) -> Made:
    return (_size(config.get("n")), *shapes[0]), 0, 0.0


def _embedding(config: Config, shapes: Sequence[Shape]) -> Made:
    codes, width = _size(config.get("input_dim")), _size(config.get("output_dim"))
    out = (*shapes[0], width)
    return out, codes * width, float(math.prod(out))


def _recurrent(gates: int) -> Callable[[Config, Sequence[Shape]], Made]:
    def count(config: Config, shapes: Sequence[Shape]) -> Made:
        steps, width = (shapes[0][0], shapes[0][-1]) if len(shapes[0]) > 1 else (1, shapes[0][-1])
        units = _size(config.get("units"))
        weights = gates * units * (width + units)
        biases = gates * units * _bias(config) * (2 if gates == 3 and config.get("reset_after", True) else 1)
        out: Shape = (steps, units) if config.get("return_sequences") else (units,)
        return out, weights + biases, 2.0 * weights * steps

    return count


def _normalization(weights: int) -> Callable[[Config, Sequence[Shape]], Made]:
    def count(config: Config, shapes: Sequence[Shape]) -> Made:
        return shapes[0], weights * (shapes[0][-1] if shapes[0] else 1), 8.0 * math.prod(shapes[0])

    return count


def _concatenated(config: Config, shapes: Sequence[Shape]) -> Made:
    axis = config.get("axis", -1)
    shape = list(shapes[0])
    position = (axis - 1 if axis > 0 else axis) if isinstance(axis, int) else -1
    if shape and -len(shape) <= position < len(shape):
        shape[position] = sum(s[position] for s in shapes if len(s) == len(shape))
    return tuple(shape), 0, 0.0


def _merged(config: Config, shapes: Sequence[Shape]) -> Made:
    rank = max(map(len, shapes))
    ones = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    out = tuple(map(max, zip(*ones)))  # the shapes are broadcast
    return out, 0, float(math.prod(out) * len(shapes))


def _padded(rank: int, sign: int) -> Callable[[Config, Sequence[Shape]], Made]:
    def count(config: Config, shapes: Sequence[Shape]) -> Made:
        space, channels = _space(config, shapes[0])
        given = config.get("padding" if sign > 0 else "cropping", 1)
        pairs = given if isinstance(given, (list, tuple)) else [given] * rank
        if rank == 1 and len(pairs) == 2:
            pairs = [pairs]
        more = [sum(p) if isinstance(p, (list, tuple)) else 2 * p for p in pairs]
        return _joined(config, [max(1, n + sign * m) for n, m in zip(space, more)], channels), 0, 0.0

    return count


def _enlarged(rank: int) -> Callable[[Config, Sequence[Shape]], Made]:
    def count(config: Config, shapes: Sequence[Shape]) -> Made:
        space, channels = _space(config, shapes[0])
        by = _sizes(config.get("size", 2), rank)
        out = _joined(config, [n * m for n, m in zip(space, by)], channels)
        return out, 0, float(math.prod(out))

    return count


def _attention(config: Config, shapes: Sequence[Shape]) -> Made:
    steps, width = (shapes[0][0], shapes[0][-1]) if len(shapes[0]) > 1 else (1, shapes[0][-1])
    inner = _size(config.get("num_heads")) * _size(config.get("key_dim"))
    values = _size(config.get("num_heads")) * _size(config.get("value_dim") or config.get("key_dim"))
    weights = width * (2 * inner + values) + values * width
    return (
        shapes[0],
        weights + (2 * inner + values + width) * _bias(config),
        2.0 * steps * (weights + steps * (inner + values)),
    )


LAYERS: dict[str, Callable[[Config, Sequence[Shape]], Made]] = {
    **dict.fromkeys(
        """Activation ActivityRegularization AlphaDropout Dropout ELU GaussianDropout GaussianNoise Identity LeakyReLU Masking
        ReLU Rescaling Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D UnitNormalization""".split(),
        _same,
    ),
    **dict.fromkeys("Add Average Maximum Minimum Multiply Subtract".split(), _merged),
    **{f"Conv{rank}D": _convolution(rank) for rank in (1, 2, 3)},
    **{f"Conv{rank}DTranspose": _convolution(rank, "transposed") for rank in (1, 2, 3)},
    **{f"DepthwiseConv{rank}D": _convolution(rank, "depthwise") for rank in (1, 2)},
    **{f"SeparableConv{rank}D": _convolution(rank, "separable") for rank in (1, 2)},
    **{f"{kind}Pooling{rank}D": _pooling(rank) for kind in ("Average", "Max") for rank in (1, 2, 3)},
    **{f"Global{kind}Pooling{rank}D": _global_pooling for kind in ("Average", "Max") for rank in (1, 2, 3)},
    **{f"ZeroPadding{rank}D": _padded(rank, 1) for rank in (1, 2, 3)},
    **{f"Cropping{rank}D": _padded(rank, -1) for rank in (1, 2, 3)},
    **{f"UpSampling{rank}D": _enlarged(rank) for rank in (1, 2, 3)},
    "BatchNormalization": _normalization(4),
    "Concatenate": _concatenated,
    "Dense": _dense,
    "Embedding": _embedding,
    "Flatten": _flatten,
    "GRU": _recurrent(3),
    "GroupNormalization": _normalization(2),
    "LSTM": _recurrent(4),
    "LayerNormalization": _normalization(2),
    "MultiHeadAttention": _attention,
    "Normalization": _normalization(0),
    "PReLU": _normalization(1),
    "Permute": _permute,
    "RMSNormalization": _normalization(1),
    "RepeatVector": _repeat,
    "Reshape": _reshape,
    "SimpleRNN": _recurrent(1),
}


# --- kernels: (config, shapes of the inputs) -> shapes of the large weights, as Keras makes them --------------------------
def _convolved(rank: int, transposed: bool = False) -> Callable[[Config, Sequence[Shape]], list[Shape]]:
    def kernels(config: Config, shapes: Sequence[Shape]) -> list[Shape]:
        window, filters = _sizes(config.get("kernel_size", 1), rank), _size(config.get("filters"))
        channels = _space(config, shapes[0])[1] // (1 if transposed else _size(config.get("groups", 1)))
        return [(*window, filters, channels) if transposed else (*window, channels, filters)]

    return kernels


def _gated(gates: int) -> Callable[[Config, Sequence[Shape]], list[Shape]]:
    def kernels(config: Config, shapes: Sequence[Shape]) -> list[Shape]:
        units = _size(config.get("units"))
        return [(shapes[0][-1], gates * units), (units, gates * units)]

    return kernels


def _attended(config: Config, shapes: Sequence[Shape]) -> list[Shape]:
    heads, key, width = _size(config.get("num_heads")), _size(config.get("key_dim")), shapes[0][-1]
    value = _size(config.get("value_dim") or config.get("key_dim"))
    return [(width, heads, key), (width, heads, key), (width, heads, value), (heads, value, width)]


# (the weights of other layers count as if every device had them whole)
KERNELS: dict[str, Callable[[Config, Sequence[Shape]], list[Shape]]] = {
    **{f"Conv{rank}D": _convolved(rank) for rank in (1, 2, 3)},
    **{f"Conv{rank}DTranspose": _convolved(rank, True) for rank in (1, 2, 3)},
    "Dense": lambda config, shapes: [((shapes[0] or (1,))[-1], _size(config.get("units")))],
    "Embedding": lambda config, shapes: [(_size(config.get("input_dim")), _size(config.get("output_dim")))],
    "GRU": _gated(3),
    "LSTM": _gated(4),
    "MultiHeadAttention": _attended,
    "SimpleRNN": _gated(1),
}

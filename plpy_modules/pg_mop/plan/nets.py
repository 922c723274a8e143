"""Nets for packed tables: the JSON of Keras models whose inputs are a table's packed columns. Pure.

A net joins one part for each packed column: numbers as they are (and piece by piece), arrays of two dimensions by Conv1D,
arrays of three by Conv2D, others by the layers that the column type names (`Column.net_input`). A body of dense layers and an
output for each target follow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_EMBEDDED = 50  # dimensions of an embedding


@dataclass(frozen=True)
class Body:
    """Dense layers: `units` of each.

    `residual`: blocks of two layers around which the input is added, with LayerNormalization (Gorishniy et al. 2021,
    "Revisiting Deep Learning Models for Tabular Data", section 3.2). `gated`: each layer is multiplied by a second one of
    sigmoid units (Dauphin et al. 2017, "Language Modeling with Gated Convolutional Networks", section 2). `pieces`: numbers
    are also given piece by piece (see `Pieces`). `activation`: of the dense layers.
    """

    units: tuple[int, ...]
    dropout: float = 0.0
    residual: bool = False
    gated: bool = False
    pieces: bool = False
    activation: str = "relu"


# The names that mop_architecture takes. Most have no Dropout: decay of the weights does as well, and XLA, which is several
# times as fast, draws other random numbers than TensorFlow.
BODIES: dict[str, Body] = {
    "linear": Body(()),
    "small": Body((32,)),
    "medium": Body((128, 64)),
    "large": Body((256, 128, 64), 0.2),
    "residual": Body((128, 128), residual=True),
    "gated": Body((128, 64), gated=True),
    "pieces": Body((128, 64), pieces=True),
}
DEFAULT = ("linear", "small", "medium", "residual", "pieces")  # "pieces" where there are numbers in enough rows
ROWS_FOR_PIECES = 1000  # with fewer training rows, a net in pieces learns them by heart


@dataclass(frozen=True)
class Pieces:
    """The piecewise linear encoding of the elements `first`, `first` + 1, ... of a vector: how far a value has come in each
    piece, from 0 to 1 (Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", section 3.2).

    `edges`: of each element, the ends of its pieces, from the lowest to the highest number.
    """

    first: int
    edges: tuple[tuple[float, ...], ...]

    def bounds(self) -> list[tuple[list[float], list[float]]]:
        """(lower ends, upper ends) of the elements' first pieces, then of the second ones, and so on.

        An element with fewer pieces repeats its last one.
        """
        most = max(len(own) for own in self.edges) - 1
        places = [[min(piece, len(own) - 2) for own in self.edges] for piece in range(most)]
        return [
            ([own[k] for own, k in zip(self.edges, at)], [own[k + 1] for own, k in zip(self.edges, at)])
            for at in places
        ]


Layer = tuple[str, Mapping[str, Any]]  # its class in Keras, and its config


@dataclass(frozen=True)
class Input:
    """A packed column: its name, and the shape of a row.

    `layers`: those that make a vector of a row; None: those for numbers of that shape. `pieces`: of the numbers among the
    elements.
    """

    name: str
    shape: tuple[int, ...]
    layers: Sequence[Layer] | None = None
    pieces: Pieces | None = None


@dataclass(frozen=True)
class Output:
    """A target: its name, and the number of its classes; 0: it is a number, or `numbers` of them."""

    name: str
    classes: int = 0
    numbers: int = 1


def architecture(inputs: Sequence[Input], outputs: Sequence[Output], body: Body, name: str = "net") -> str:
    """The JSON of the model.

    >>> text = architecture([Input("features", (4,))], [Output("kind", 3)], BODIES["small"])
    >>> [layer["class_name"] for layer in json.loads(text)["config"]["layers"]]
    ['InputLayer', 'Dense', 'Dense']
    """
    net = _Net()
    entries = [net.free(given.name) for given in inputs]
    parts = [net.part(given, entry, body.pieces) for given, entry in zip(inputs, entries)]
    joined = parts[0] if len(parts) == 1 else net.add("Concatenate", parts, name=net.free("joined"), axis=-1)
    last = net.body(joined, body)
    names = []
    for output in outputs:
        kind = {"units": output.classes, "activation": "softmax"} if output.classes else {"units": output.numbers}
        names.append(net.add("Dense", [last], name=net.free(f"predicts_{output.name}"), **kind))
    return functional(name, net.layers, entries, names)


def functional(name: str, layers: Sequence[Mapping[str, Any]], inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """The JSON of a functional model of Keras. `layers`: of `layer`; `inputs`, `outputs`: names of layers."""
    config = {
        "name": name,
        "layers": layers,
        "input_layers": [[own, 0, 0] for own in inputs],
        "output_layers": [[own, 0, 0] for own in outputs],
    }
    return json.dumps({"class_name": "Functional", "config": config, "keras_version": "3.0.0", "module": "keras"})


def layer(class_name: str, name: str, inputs: Sequence[str], **config: Any) -> dict[str, Any]:
    """A layer of a functional model. `inputs`: the layers whose outputs it takes."""
    return {
        "module": "keras.layers",
        "class_name": class_name,
        "config": {"name": name, **config},
        "registered_name": None,
        "name": name,
        "inbound_nodes": calls(inputs),
    }


def calls(inputs: Sequence[str]) -> list[Any]:
    """The one call of a layer with the outputs of other layers; none of an InputLayer."""
    return [[[given, 0, 0, {}] for given in inputs]] if inputs else []


class _Net:
    """The layers of a functional model, in order."""

    def __init__(self) -> None:
        self.layers: list[Mapping[str, Any]] = []
        self.taken: set[str] = set()

    def add(self, class_name: str, inputs: Sequence[str], name: str | None = None, **config: Any) -> str:
        """Add a layer; returns its name."""
        name = name or self.free(class_name.lower())
        self.layers.append(layer(class_name, name, inputs, **config))
        return name

    def free(self, name: str) -> str:
        """A name that no layer has, of the characters that Keras accepts; it is taken from now on."""
        name = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        number, made = 1, name
        while made in self.taken:
            number, made = number + 1, f"{name}_{number}"
        self.taken.add(made)
        return made

    def part(self, given: Input, entry: str, pieces: bool = False) -> str:
        """The layers of one input, whose first layer is named `entry`; returns the name of a vector."""
        last = self.add("InputLayer", [], name=entry, batch_shape=[None, *given.shape], dtype="float32")
        if pieces and given.pieces is not None:
            return self.add("Concatenate", [last, self._in_pieces(last, given.shape[0], given.pieces)], axis=-1)
        for class_name, config in layers_of(given.shape) if given.layers is None else given.layers:
            last = self.add(class_name, [last], **config)
        return last

    def _in_pieces(self, last: str, width: int, pieces: Pieces) -> str:
        """The elements in pieces: copies of them, each scaled to its piece, and cut at 0 and 1."""
        count = len(pieces.edges)
        if count < width:
            last = self.add("Reshape", [last], target_shape=[width, 1])
            last = self.add("Cropping1D", [last], cropping=[pieces.first, width - pieces.first - count])
            last = self.add("Flatten", [last])
        bounds = pieces.bounds()
        if len(bounds) > 1:
            last = self.add("Concatenate", [last] * len(bounds), axis=-1)
        low = [value for lows, _ in bounds for value in lows]
        high = [value for _, highs in bounds for value in highs]
        variances = [(b - a) ** 2 for a, b in zip(low, high)]
        last = self.add("Normalization", [last], axis=-1, mean=low, variance=variances)
        return self.add("ReLU", [last], max_value=1.0)

    def body(self, last: str, body: Body) -> str:
        """The dense layers; returns the name of the last."""
        if not body.residual:
            for units in body.units:
                layer = self._gated(last, units) if body.gated else self._dense(last, units, body)
                last = self._dropped(layer, body)
            return last
        last = self.add("Dense", [last], units=body.units[0])
        for units in body.units:
            inner = self.add("LayerNormalization", [last])
            inner = self._dropped(self._dense(inner, units, body), body)
            last = self.add("Add", [last, self.add("Dense", [inner], units=body.units[0])])
        return self.add("Activation", [self.add("LayerNormalization", [last])], activation="relu")

    def _dense(self, last: str, units: int, body: Body) -> str:
        return self.add("Dense", [last], units=units, activation=body.activation)

    def _gated(self, last: str, units: int) -> str:
        gate = self.add("Dense", [last], units=units, activation="sigmoid")
        return self.add("Multiply", [self.add("Dense", [last], units=units), gate])

    def _dropped(self, last: str, body: Body) -> str:
        return self.add("Dropout", [last], rate=body.dropout) if body.dropout else last


def layers_of(shape: Sequence[int]) -> list[Layer]:
    """The layers that make a vector of numbers of this shape."""
    layers: list[Layer] = []
    if len(shape) == 2:
        size = min(5, shape[0])
        layers.append(("Conv1D", {"filters": 32, "kernel_size": size, "padding": "same", "activation": "relu"}))
        layers.append(("GlobalMaxPooling1D", {}))
    elif len(shape) == 3:
        for filters in (16, 32):
            layers.append(("Conv2D", {"filters": filters, "kernel_size": 3, "padding": "same", "activation": "relu"}))
            if min(shape[0], shape[1]) >= 8:
                layers.append(("MaxPooling2D", {"pool_size": 2}))
        layers.append(("GlobalAveragePooling2D", {}))
    elif len(shape) != 1:
        layers.append(("Flatten", {}))
    return layers


def embedded(codes: int) -> int:
    """The dimensions of an embedding of so many codes: 1.6 n^0.56 (fast.ai's rule), at most MOST_EMBEDDED.

    >>> [embedded(n) for n in (3, 40, 1000)]
    [3, 13, 50]
    """
    return max(1, min(MOST_EMBEDDED, round(1.6 * math.pow(max(1, codes), 0.56))))

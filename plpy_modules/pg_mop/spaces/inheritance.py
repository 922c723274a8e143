"""What a model inherits from the trained model that it was made from: layer by layer, from their JSON alone. Pure Python.

Layers correspond by their names, which mutations keep (as ModelKeeper matches layers, Lai et al., NSDI 2023, but by record in
place of a search). A layer that has more units is widened, and an inserted one begins as the identity, so that the child
computes what its parent does (Net2WiderNet, Net2DeeperNet; Chen, Goodfellow, Shlens: "Net2Net", ICLR 2016). The trainer does
the arithmetic (mop_udf/training/inherited_weights.py).

The *channel map* of a tensor of the child tells which channel of its parent's tensor each of its channels repeats. None is the
identity. Others are JSON lists: ["wide", layer, n, m]: n channels, and m - n random repetitions; ["flat", map, positions]: of a
flattened tensor; ["join", [map or number of channels, ...]]: of a concatenation; ["then", map, map]: one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pg_mop.plan.shapes import MERGES, Misfit, Shape, output_shape
from pg_mop.spaces.graph import Graph, Layer

Map = list[Any] | None
Value = tuple[str, Map]  # (layer of the parent, channel map): a tensor of the child equals this output, so mapped

CONVOLUTIONS = frozenset(("Conv1D", "Conv2D", "Conv3D"))
WIDE = frozenset(("Dense", *CONVOLUTIONS))  # layers that can be widened, and inserted as the identity
# layers that pass values on unchanged, except in training
IDENTITIES = frozenset(
    "ActivityRegularization AlphaDropout Dropout GaussianDropout GaussianNoise Identity SpatialDropout1D SpatialDropout2D "
    "SpatialDropout3D".split()
)
# layers without weights that treat each channel alike, and by itself
CHANNELWISE = frozenset(
    (
        *IDENTITIES,
        *"Activation ELU LeakyReLU ReLU".split(),
        *(
            f"{kind}{rank}D"
            for rank in (1, 2, 3)
            for kind in (
                "AveragePooling MaxPooling GlobalAveragePooling GlobalMaxPooling Cropping UpSampling ZeroPadding".split()
            )
        ),
    )
)
WEIGHTLESS = frozenset(
    (
        *CHANNELWISE,
        *MERGES,
        *"Concatenate Dot Flatten InputLayer Masking Permute Rescaling Reshape RepeatVector Softmax".split(),
    )
)
# activations of single numbers; of these, such as have no negative results
ELEMENTWISE = frozenset(
    """
elu exponential gelu hard_sigmoid hard_silu hard_swish leaky_relu linear mish relu relu6 selu sigmoid silu softplus softsign
swish tanh
""".split()
)
NOT_NEGATIVE = frozenset("exponential hard_sigmoid relu relu6 sigmoid softmax softplus".split())
KEEPS_SIGN = frozenset(kind for kind in CHANNELWISE if "Pooling" in kind or "Padding" in kind or "Cropping" in kind)
# arguments that do not change what a trained layer computes
MEANINGLESS = frozenset("name trainable seed rate stddev noise_shape momentum build_config l1 l2".split())


@dataclass
class Inheritance:
    """What a child inherits.

    `layers`: for the trainer, one dict for each layer of the child with weights that are not fresh: `layer`; `how`: copied,
    widened or identity; `from`: a layer of the parent; `in`, `out`: channel maps, where they are not the identity. `fresh`:
    layers that begin with weights drawn from the seed; `same`: the child computes what its parent does.
    """

    layers: list[dict[str, Any]] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    same: bool = False

    def named(self, how: str) -> list[str]:
        """The layers that are copied, widened or the identity."""
        return [entry["layer"] for entry in self.layers if entry["how"] == how]


def inheritance(parent: Mapping[str, Any], child: Mapping[str, Any]) -> Inheritance:
    """What a model inherits from another one. `parent`, `child`: as mop_udf.architecture.architecture.check gives them.

    A layer is widened only where all that take its output can take what they need from it. Nothing is inherited where the JSON
    of a model cannot be followed.
    """
    refused: set[str] = set()
    while True:
        try:
            return _Attempt(Graph(dict(parent)), Graph(dict(child)), refused).run()
        except _Refused as error:
            refused |= error.layers
        except Misfit:
            return Inheritance()


class _Refused(Exception):
    """These layers cannot be widened, because of a layer that takes their output."""

    def __init__(self, layers: set[str]) -> None:
        super().__init__(", ".join(sorted(layers)))
        self.layers = layers


class _Attempt:
    """One try, in which the layers `refused` are not widened."""

    def __init__(self, parent: Graph, child: Graph, refused: set[str]) -> None:
        self.parent, self.child, self.refused = parent, child, refused
        self.before, self.after = _shapes(parent), _shapes(child)
        self.values: dict[str, Value | None] = {}
        self.found = Inheritance()
        self.aliases: dict[str, str] = {}  # a layer of the parent -> an earlier one with equal outputs
        for name in parent.order():
            if parent.layers[name]["class_name"] in IDENTITIES and len(parent.sources(name)) == 1:
                self.aliases[name] = self._alias(parent.sources(name)[0])

    def run(self) -> Inheritance:
        given, own = self.parent.starts(), self.child.starts()
        for name in self.child.order():
            layer = self.child.layers[name]
            if layer["class_name"] == "InputLayer":
                at = own.index(name)
                fits = at < len(given) and self.before[given[at]] == self.after[name]
                self.values[name] = (given[at], None) if fits else None
            else:
                self.values[name] = self._value(name, layer)
        ends = [self.values[end] for end in self.child.ends()]
        wanted = [self._alias(end) for end in self.parent.ends()]
        for value in ends:
            if value is not None:
                _refuse(value[1])
        first = self.child.ends_first() and self.parent.ends_first()
        self.found.same = first and ends == [(name, None) for name in wanted]
        return self.found

    # --- one layer -----------------------------------------------------------------------------------
    def _value(self, name: str, layer: Layer) -> Value | None:
        """What a layer's output is, in terms of the parent's; notes what the layer inherits."""
        kind, made = layer["class_name"], len(self.found.layers)
        values = [
            value if first else None
            for value, first in zip(map(self.values.get, self.child.sources(name)), self.child.takes_first(name))
        ]
        before = self.parent.layers.get(name)
        if before is not None and (before["class_name"], before.get("module")) == (kind, layer.get("module")):
            value = self._kept(name, layer, before, values)
        else:
            value = self._inserted(name, layer, values)
        if len(self.found.layers) == made and kind not in WEIGHTLESS and self.child.is_layer(name):
            self.found.fresh.append(name)
        return value

    def _kept(self, name: str, layer: Layer, before: Layer, values: Sequence[Value | None]) -> Value | None:
        """Of a layer that the parent has, too."""
        kind, config = layer["class_name"], layer["config"]
        sources = [self._alias(source) for source in self.parent.sources(name)]
        known = [value for value in values if value is not None]
        # its inputs are those of the parent's layer, but for repeated channels
        aligned = (
            len(known) == len(values)
            and [value[0] for value in known] == sources
            and all(self.parent.takes_first(name))
        )
        maps: list[Map] = [value[1] for value in known] if aligned else [None] * len(values)
        same = aligned and _alike(layer, before)
        if not self.child.is_layer(name) or not len(layer["inbound_nodes"]) == len(before["inbound_nodes"]) == 1:
            for one in maps:
                _refuse(one)
            if same and layer["inbound_nodes"] == before["inbound_nodes"]:
                self._note(name, "copied", name)
                return self._alias(name), None
            return None
        if kind in WIDE and is_plain(config) and is_plain(before["config"]):
            return self._wide(name, layer, before, maps[0], aligned)
        on_last = self._on_last_axis(config, self.after.get(name)) and self._on_last_axis(
            before["config"], self.before.get(name)
        )
        if kind == "BatchNormalization" and on_last:
            if _alike(layer, before, ("axis", "epsilon")) and (aligned or self._same_inputs(name)):
                self._note(name, "copied", name, **_given(out=maps[0]))
            return (self._alias(name), maps[0]) if same else None
        if all(one is None for one in maps):
            if _alike(layer, before) and (aligned or self._same_inputs(name)):
                self._note(name, "copied", name)
            return (self._alias(name), None) if same else None
        return (self._alias(name), self._joined(name, layer, maps)) if same else None

    def _joined(self, name: str, layer: Layer, maps: Sequence[Map]) -> Map:
        """The channel map of a layer without weights that takes repeated channels. Raises _Refused where it has none."""
        kind, config = layer["class_name"], layer["config"]
        sources = self.child.sources(name)
        if kind in CHANNELWISE and _elementwise(layer):
            return maps[0]
        if kind == "Flatten" and not _channels_first(config):
            shape = self.after.get(sources[0])
            if shape and None not in shape:
                return ["flat", maps[0], math.prod(size or 1 for size in shape[:-1])]
        if kind in MERGES and all(one == maps[0] for one in maps):
            return maps[0]
        if kind == "Concatenate" and self._on_last_axis(config, self.after.get(name)):
            counts = [self._channels(self.before, source) for source in self.parent.sources(name)]
            if None not in counts:
                return ["join", [count if one is None else one for one, count in zip(maps, counts)]]
        for one in maps:
            _refuse(one)
        return None

    def _wide(self, name: str, layer: Layer, before: Layer, taken: Map, aligned: bool) -> Value | None:
        """Of a Dense layer or a convolution. `taken`: the channel map of its input; `aligned`: as in `_kept`."""
        key = units_key(layer)
        units, had = layer["config"].get(key), before["config"].get(key)
        if not _alike(layer, before, (key, "activation", "strides", "padding", "dilation_rate")):
            return None
        if not aligned:
            mine = self._channels(self.after, self.child.sources(name)[0])
            if mine is None or mine != self._channels(self.before, self.parent.sources(name)[0]):
                return None
        same = aligned and _alike(layer, before, (key,))
        if units == had:
            self._note(name, "copied", name, **_given(**{"in": taken}))
            return (self._alias(name), None) if same else None
        wider = isinstance(units, int) and isinstance(had, int) and units > had
        if not (wider and same and _elementwise(layer)) or name in self.refused:
            return None
        wide = ["wide", name, had, units]
        self._note(name, "widened", name, **_given(**{"in": taken}), out=wide)
        return self._alias(name), wide

    def _inserted(self, name: str, layer: Layer, values: Sequence[Value | None]) -> Value | None:
        """Of a layer that the parent lacks."""
        kind, config, value = layer["class_name"], layer["config"], values[0] if len(values) == 1 else None
        if value is None or len(layer["inbound_nodes"]) != 1 or not self.child.is_layer(name):
            return None
        (source,) = self.child.sources(name)
        if kind in IDENTITIES:
            return value
        if kind in ("Activation", "ReLU"):
            passes = activation_of(layer) == "linear" or activation_of(layer) == "relu" and self._not_negative(source)
            return value if passes else None
        shape = self.after.get(source)
        if kind == "BatchNormalization" and self._on_last_axis(config, shape):
            self._note(name, "identity", None)
            return value
        channels = self._channels(self.after, source)
        if kind not in WIDE or not is_plain(config) or channels is None:
            return None
        units, activation = config.get(units_key(layer)), activation_of(layer)
        if kind in CONVOLUTIONS and not (_ones(config.get("dilation_rate", 1)) or _odd(config.get("kernel_size"))):
            return None  # (no tap of the kernel is at the place of its output)
        if kind in CONVOLUTIONS and not (_ones(config.get("strides", 1)) and config.get("padding") == "same"):
            return None
        if activation != "linear" and not (activation == "relu" and self._not_negative(source)):
            return None
        if units == channels:
            self._note(name, "identity", None)
            return value
        if not isinstance(units, int) or units < channels or name in self.refused:
            return None
        wide = ["wide", name, channels, units]
        self._note(name, "identity", None, out=wide)
        return value[0], wide if value[1] is None else ["then", value[1], wide]

    # --- facts ---------------------------------------------------------------------------------------
    def _note(self, name: str, how: str, source: str | None, **maps: Any) -> None:
        if self.child.layers[name]["class_name"] not in WEIGHTLESS:
            entry = {"layer": name, "how": how, **({"from": source} if source else {}), **maps}
            self.found.layers.append(entry)

    def _alias(self, name: str) -> str:
        return self.aliases.get(name, name)

    def _same_inputs(self, name: str) -> bool:
        """True where a layer's inputs have the same known shapes in both models."""
        mine = [self.after.get(source) for source in self.child.sources(name)]
        theirs = [self.before.get(source) for source in self.parent.sources(name)]
        return mine == theirs and None not in mine

    @staticmethod
    def _channels(shapes: Mapping[str, Shape], name: str) -> int | None:
        shape = shapes.get(name)
        return shape[-1] if shape else None

    @staticmethod
    def _on_last_axis(config: Mapping[str, Any], shape: Shape) -> bool:
        axis = config.get("axis", -1)
        axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
        return axis == -1 or shape is not None and axis == len(shape)

    def _not_negative(self, name: str) -> bool:
        """True where no number of a layer's output can be below 0."""
        layer = self.child.layers[name]
        kind = layer["class_name"]
        if kind in IDENTITIES or kind in KEEPS_SIGN or kind in ("Flatten", "Add", "Average", "Concatenate", "Maximum"):
            sources = self.child.sources(name)
            return (
                bool(sources)
                and kind not in ("AlphaDropout", "GaussianNoise")
                and all(map(self._not_negative, sources))
            )
        return kind in (*WIDE, "Activation", "ReLU") and activation_of(layer) in NOT_NEGATIVE


def _shapes(graph: Graph) -> dict[str, Shape]:
    """The shapes of all layers' outputs, as far as the JSON tells them."""
    shapes: dict[str, Shape] = {}
    for name in graph.order():
        layer = graph.layers[name]
        known = layer["class_name"] == "InputLayer" or graph.is_layer(name) and len(layer["inbound_nodes"]) == 1
        try:
            given = [shapes[source] for source in graph.sources(name)]
            shapes[name] = output_shape(layer["class_name"], layer["config"], given) if known else None
        except Misfit:
            shapes[name] = None
    return shapes


def _given(**maps: Map) -> dict[str, Map]:
    """The channel maps that are not the identity."""
    return {name: one for name, one in maps.items() if one is not None}


def _refuse(one: Map) -> None:
    """Raises _Refused for a channel map other than the identity."""
    if one is not None:
        raise _Refused(set(_widened(one)))


def _widened(one: Any) -> list[str]:
    """The layers whose widening a channel map stands for."""
    if not isinstance(one, list):
        return []
    if one and one[0] == "wide":
        return [one[1]]
    return [name for part in one for name in _widened(part)]


def _alike(layer: Layer, other: Layer, but: Sequence[str] = ()) -> bool:
    """True where two layers of a class have equal arguments, `but` for these and for those that mean nothing here."""

    def told(config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value
            for key, value in config.items()
            if key not in MEANINGLESS
            and key not in but
            and not key.endswith(("_initializer", "_regularizer", "_constraint"))
        }

    mine, theirs = told(layer["config"]), told(other["config"])
    if layer["class_name"] in WIDE:
        for config in (mine, theirs):
            config.setdefault("activation", "linear")
            config["activation"] = config["activation"] or "linear"
            if "activation" in but:
                config.pop("activation")
    return mine == theirs


def units_key(layer: Layer) -> str:
    return "units" if layer["class_name"] == "Dense" else "filters"


def is_plain(config: Mapping[str, Any]) -> bool:
    """True for a Dense layer or a convolution whose kernel ends with input and output channels."""
    return config.get("groups", 1) == 1 and not _channels_first(config) and not config.get("lora_rank")


def _channels_first(config: Mapping[str, Any]) -> bool:
    return config.get("data_format") == "channels_first"


def activation_of(layer: Layer) -> str:
    """The name of a layer's activation; '' for one that this module does not know."""
    config = layer["config"]
    if layer["class_name"] == "ReLU":
        given = [config.get("max_value"), config.get("negative_slope") or 0.0, config.get("threshold") or 0.0]
        return "relu" if given == [None, 0.0, 0.0] else ""
    found = config.get("activation") or "linear"
    return found if isinstance(found, str) else ""


def _elementwise(layer: Layer) -> bool:
    if layer["class_name"] in ("Activation", *WIDE):
        return activation_of(layer) in ELEMENTWISE
    return not _channels_first(layer["config"])


def _ones(value: Any) -> bool:
    return all(one == 1 for one in value) if isinstance(value, (list, tuple)) else value == 1


def _odd(value: Any) -> bool:
    return (
        all(one % 2 for one in value) if isinstance(value, (list, tuple)) else isinstance(value, int) and value % 2 == 1
    )

"""A super-net: one net that has all members of a base model as its paths, which share weights. Pure Python.

Layers that members have in common, by record, are one layer. A layer that is not in all members is passed by those that lack
it; of a choice between layers, the path decides which output goes on; a layer that may have several widths has the largest one,
and the others use its first channels. The trainer draws a path for each mini-batch (training/super_net.py). So a path computes
exactly what its member would compute with these weights.

This works where the layers form a chain, and where what lies behind a choice has the same shape for each option.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from mop_udf.architecture.architecture import check
from pg_mop.plan.shapes import Misfit, Shape, output_shape
from pg_mop.spaces.choices import Point
from pg_mop.spaces.graph import Graph
from pg_mop.spaces.inheritance import CHANNELWISE, ELEMENTWISE, WIDE, activation_of, is_plain, units_key
from pg_mop.spaces.model_space import ModelSpace
from pg_mop.spaces.reading import SpaceError
from pg_mop.spaces.steps import Slot

CHANGES = ("value", "layer", "insert", "remove", "repeat")  # mutators that a super-net can have
COMPARED = 50  # random members whose layers are compared with those of their paths
# activations that map 0 to 0, so that channels that a member lacks stay 0
KEEPS_ZERO = frozenset(
    "elu gelu hard_silu hard_swish leaky_relu linear mish relu relu6 selu silu softsign swish tanh".split()
)
ADDS_TO_ZERO = frozenset(("AlphaDropout", "GaussianNoise"))

Clause = tuple[int, frozenset[int]]  # (number of a choice point, its options)
Widths = tuple[int, tuple[int, ...]]  # (number of a choice point, width for each option)


@dataclass
class Tensor:
    """The output of a layer. `widths`: choices of width after which its last channels are 0 in some members; None: these differ
    from path to path."""

    name: str
    shape: Shape
    widths: tuple[Widths, ...] | None = ()


@dataclass(frozen=True)
class SuperNet:
    """`model_id`: of the base model; `architecture`: JSON as text; `points`: by the number that its layers use."""

    model_id: int
    architecture: str
    points: Sequence[Point]

    def path(self, chosen: Mapping[str, int]) -> list[int]:
        """The option of each choice point of the member with these choices; -1: the point is not open."""
        return [chosen.get(point.name, -1) for point in self.points]


def super_net(space: ModelSpace, model_id: int) -> SuperNet:
    """The super-net of a base model of a space. Raises SpaceError where its members cannot share weights in one net."""
    if space.custom:
        raise SpaceError(
            f"a space with the custom layer {next(iter(space.custom.names))} cannot be trained by one-shot",
            "A super-net has Keras' own layers; other procedures take all.",
        )
    for mutator in space.mutators:
        if mutator.change not in CHANGES and (not mutator.bases or model_id in mutator.bases):
            raise SpaceError(
                f"mutator {mutator.number} ({mutator.change}) cannot be trained by one-shot",
                f"A super-net takes the changes {', '.join(CHANGES)}; other procedures take all.",
            )
    return _Builder(space, model_id).run()


class _Builder:
    def __init__(self, space: ModelSpace, model_id: int) -> None:
        varied = next(varied for varied in space.bases if varied.base.model_id == model_id)
        self.space, self.model_id, self.variations, self.checked = space, model_id, varied.variations, varied.checked
        self.points = list(varied.variations.choices.points)
        self.numbers = {point: number for number, point in enumerate(self.points)}
        self.graph = Graph(varied.checked)
        order = self._chain(varied.variations.graph)
        self.source = order[0]
        self.graph.layers = {self.source: self.graph.layers[self.source]}
        self.slots = sorted(varied.variations.slots, key=lambda slot: order.index(slot.anchor))
        shape = output_shape("InputLayer", self.graph.layers[self.source]["config"], [])
        self.now = Tensor(self.source, shape)  # where no branch holds
        self.branches: list[tuple[tuple[Clause, ...], Tensor]] = []  # of those that hold, the last one counts
        self.clauses: tuple[Clause, ...] = ()  # of the layer that is being put there

    def run(self) -> SuperNet:
        self._compare()
        try:
            for slot in self.slots:
                self.space.check()
                self._place(slot)
            self._join("the output")
        except Misfit as error:
            raise SpaceError(f"the members of model_id {self.model_id} cannot share weights: {error}") from None
        if self.now.widths != ():
            raise SpaceError(
                f"the members of model_id {self.model_id} put out different numbers of channels",
                "Leave out that choice.",
            )
        self.graph.outputs = [self.now.name, 0, 0]
        text = json.dumps(check(self.graph.architecture(), super_net=True))
        return SuperNet(self.model_id, text, self.points)

    def _chain(self, graph: Graph) -> list[str]:
        """The layers of a chain in their order, the input first. Raises SpaceError for another graph."""
        order = graph.order()
        for before, name in zip([None, *order], order):
            if graph.sources(name) != ([] if before is None else [before]) or (before is None) != (
                graph.layers[name]["class_name"] == "InputLayer"
            ):
                raise SpaceError(
                    f"base model {self.model_id} cannot be trained by one-shot: its layer {name!r} does not take the output of "
                    "the one before it alone",
                    "A super-net needs base models whose layers form a chain; other procedures take all.",
                )
        return order

    def _compare(self) -> None:
        """Raises SpaceError where a path has other layers than its member."""
        random = Random(0)
        for _ in range(COMPARED):
            chosen = self.variations.choices.walk(lambda point: random.randrange(len(point.options)))
            path = [
                (slot.name, slot.class_name) for slot in self.slots if all(c.holds(chosen) for c in slot.conditions)
            ]
            try:
                graph = self.variations.build(Graph(self.checked), chosen)
            except Misfit:
                continue
            member = [(name, graph.layers[name]["class_name"]) for name in graph.order() if name != self.source]
            if path != member:
                raise SpaceError(
                    f"the members of model_id {self.model_id} cannot be trained by one-shot: one has the layers "
                    f"{', '.join(name for name, _ in member)}, its path {', '.join(name for name, _ in path)}",
                    "Name each layer by one mutator alone.",
                )

    # --- the chain -----------------------------------------------------------------------------------
    def _place(self, slot: Slot) -> None:
        """Put a layer behind what is there, for the members that have it."""
        clauses = self._clauses(slot)
        self.clauses = clauses
        if not clauses:
            self._join(slot.name)
            self.now = self._layer(slot, self.now)
            return
        last = next((at for at in reversed(range(len(self.branches))) if _meet(self.branches[at][0], clauses)), None)
        if last is None:
            self.branches.append((clauses, self._layer(slot, self._gate(self.now, clauses))))
            return
        held, tensor = self.branches[last]
        if held == clauses:
            self.branches[last] = clauses, self._layer(slot, tensor)
        elif all(any(p == q and own <= options for q, own in clauses) for p, options in held):
            self.branches.append((clauses, self._layer(slot, self._gate(tensor, clauses))))
        else:
            self._join(slot.name)
            self.branches.append((clauses, self._layer(slot, self._gate(self.now, clauses))))

    def _clauses(self, slot: Slot) -> tuple[Clause, ...]:
        """The conditions of a layer's being there; of a choice that is open always, only where they leave out an option."""
        found: dict[int, frozenset[int]] = {}
        for condition in slot.conditions:
            if condition.point is not None:
                number = self.numbers[condition.point]
                found[number] = found.get(number, condition.options) & condition.options
        return tuple(
            (number, options)
            for number, options in sorted(found.items())
            if self.points[number].parent is not None or len(options) < len(self.points[number].options)
        )

    def _join(self, where: str) -> None:
        """Let the path choose among the branches."""
        if self.branches:
            (first, *_), *_ = [clauses for clauses, _ in self.branches]
            covered: set[int] = set()
            for clauses, _ in self.branches:
                covered |= clauses[0][1] if len(clauses) == 1 and clauses[0][0] == first[0] else set()
            point = self.points[first[0]]
            # one of the branches always holds
            whole = point.parent is None and len(covered) == len(point.options)
            self.now = self._choice(self.branches if whole else [((), self.now), *self.branches], where)
            self.branches = []

    def _choice(self, ways: Sequence[tuple[tuple[Clause, ...], Tensor]], where: str) -> Tensor:
        """One of several tensors: the last one whose conditions hold, else the first. Raises SpaceError for other shapes."""
        tensors = [tensor for _, tensor in ways]
        if len({tensor.shape for tensor in tensors}) > 1 or tensors[0].shape is None:
            shapes = " or ".join(dict.fromkeys(_shown(tensor.shape) for tensor in tensors))
            names = ", ".join(
                repr(self.points[n].name) for n in dict.fromkeys(n for clauses, _ in ways for n, _ in clauses)
            )
            raise SpaceError(
                f"choice {names} cannot be trained by one-shot: {where} would take an input of shape {shapes}, so that its "
                "weights cannot be shared",
                "Let all options put out the same shape; other procedures take all.",
            )
        conditions = [_conditions(clauses) for clauses, _ in ways[1:]]
        name = self._add("PathChoice", f"{tensors[-1].name}_path", {"conditions": conditions}, tensors)
        same = all(tensor.widths == tensors[0].widths for tensor in tensors)
        return Tensor(name, tensors[0].shape, tensors[0].widths if same else None)

    # --- one layer -----------------------------------------------------------------------------------
    def _layer(self, slot: Slot, taken: Tensor) -> Tensor:
        """A layer on a tensor, with the choices of its arguments."""
        kind, config = slot.class_name, {**slot.layer["config"]}
        widths: Widths | None = None
        open_: list[tuple[Point, str, Sequence[Any]]] = []
        for point, argument, values in slot.values:
            if len(values) == 1:
                config[argument] = values[0]
            elif kind in WIDE and argument == units_key(slot.layer):
                if not all(isinstance(value, int) for value in values):
                    raise Misfit(f"{argument} of {slot.name!r} must be whole numbers")
                config[argument], widths = max(values), (self.numbers[point], tuple(values))
            else:
                open_.append((point, argument, values))
        split = [choice for choice in open_ if kind in WIDE and choice[1] == "activation"]
        others = [choice for choice in open_ if choice not in split]
        if len(others) > 1:
            raise SpaceError(
                f"layer {slot.name!r} has choices of {others[0][1]!r} and of {others[1][1]!r}: one-shot takes one of them",
                "Choose among whole layers in place of their arguments (change layer).",
            )
        layer = {**slot.layer, "config": config}
        if (widths or taken.widths != ()) and kind in WIDE and not is_plain(config):
            raise Misfit(f"layer {slot.name!r} has groups, or its channels come first")
        if widths and not split and activation_of(layer) not in ELEMENTWISE:
            raise Misfit(
                f"the activation of {slot.name!r} is not one of single numbers, so that it cannot have several widths"
            )
        variants = [{**layer, "config": {**config, a: value}} for _, a, values in others for value in values] or [layer]
        kept = [self._kept(slot.name, one, taken) for one in variants]
        if split:
            config["activation"] = "linear"
        if others:
            ((point, argument, values),) = others
            made = self._variants(slot.name, layer, point, argument, values, taken)
        else:
            made = self._plain(slot.name, layer, taken, self.clauses)
        for point, argument, values in split:
            if widths and not all(activation_of({**layer, "config": {argument: v}}) in ELEMENTWISE for v in values):
                raise Misfit(f"an activation of {slot.name!r} is not one of single numbers")
            acts: dict[str, Any] = {
                "module": "keras.layers",
                "class_name": "Activation",
                "config": {},
                "registered_name": None,
            }
            values = [value or "linear" for value in values]
            made = self._variants(f"{slot.name}_activation", acts, point, argument, values, made)
        if widths:
            return self._narrow(made, (widths,))
        if False in kept and taken.widths:
            return self._narrow(made, taken.widths)
        made.widths = None if kept[0] is None else kept[0] or ()
        return made

    def _kept(self, name: str, layer: dict[str, Any], taken: Tensor) -> tuple[Widths, ...] | Literal[False] | None:
        """The `widths` of a layer's output; False where channels that a member lacks are no longer 0, but are still apart from
        the others. Raises SpaceError where the layer mixes them."""
        kind, config = layer["class_name"], layer["config"]
        if taken.widths == () or kind in WIDE:
            return ()
        if config.get("data_format") != "channels_first":
            if kind == "Flatten":
                return None
            if kind in ("Activation", "ReLU"):
                if activation_of(layer) in KEEPS_ZERO:
                    return taken.widths
                if activation_of(layer) in ELEMENTWISE and taken.widths:
                    return False
            elif kind in CHANNELWISE - ADDS_TO_ZERO:
                return taken.widths
            elif (
                kind == "BatchNormalization" and taken.widths and config.get("axis", -1) in (-1, len(taken.shape or ()))
            ):
                return False
        raise SpaceError(
            f"layer {name!r} ({kind}) cannot be trained by one-shot behind a choice of width",
            "Put it before the layer with that choice, or behind the next Dense layer or convolution.",
        )

    def _plain(self, name: str, layer: Mapping[str, Any], taken: Tensor, clauses: tuple[Clause, ...]) -> Tensor:
        """A layer on a tensor, which paths have where the clauses hold."""
        shape = output_shape(layer["class_name"], layer["config"], [taken.shape])
        if layer["class_name"] == "BatchNormalization" and (taken.widths or clauses):
            inner = {**layer, "config": {**layer["config"], "name": name}}
            config: dict[str, Any] = {"normalization": inner, "conditions": _conditions(clauses)}
            if taken.widths:
                ((number, values),) = taken.widths
                config.update(point=number, widths=list(values))
            return Tensor(self._add("PathNormalization", name, config, [taken]), shape)
        name = self._free(name)
        self.graph.add(name, layer, [taken.name], recorded=False)
        return Tensor(name, shape)

    def _variants(
        self, name: str, layer: Mapping[str, Any], point: Point, argument: str, values: Sequence[Any], taken: Tensor
    ) -> Tensor:
        """A layer for each value of an argument, each with its own weights, and the choice among them."""
        ways: list[tuple[tuple[Clause, ...], Tensor]] = []
        for at, value in enumerate(values):
            one = {**layer, "config": {**layer["config"], argument: value}}
            clauses = ((self.numbers[point], frozenset([at])),)
            gated = self._gate(taken, clauses)
            ways.append((clauses, self._plain(f"{name}_{at + 1}", one, gated, (*self.clauses, *clauses))))
        return self._choice(ways, "the next layer")

    def _gate(self, tensor: Tensor, clauses: tuple[Clause, ...]) -> Tensor:
        """The input of a branch: zeros for the paths that lack it."""
        name = self._add("PathGate", f"{tensor.name}_gate", {"conditions": _conditions(clauses)}, [tensor])
        return Tensor(name, tensor.shape, tensor.widths)

    def _narrow(self, tensor: Tensor, widths: tuple[Widths, ...]) -> Tensor:
        """Only the channels that a path has."""
        name = tensor.name
        for number, values in widths:
            config = {"point": number, "widths": list(values)}
            name = self._add("PathWidth", f"{tensor.name}_width", config, [Tensor(name, tensor.shape)])
        return Tensor(name, tensor.shape, widths)

    def _add(self, kind: str, name: str, config: dict[str, Any], tensors: Sequence[Tensor]) -> str:
        """A layer of the super-net, which takes the path, too."""
        if "Paths" not in {layer["class_name"] for layer in self.graph.layers.values()}:
            parents = [
                None if point.parent is None else [self.numbers[point.parent], sorted(point.when)]
                for point in self.points
            ]
            counts = [len(point.options) for point in self.points]
            self.paths = self._free("paths")
            self.graph.add(self.paths, _own("Paths", counts=counts, parents=parents), [self.source], recorded=False)
        name = self._free(name)
        self.graph.add(name, _own(kind, **config), [*(one.name for one in tensors), self.paths], recorded=False)
        return name

    def _free(self, name: str) -> str:
        """A name that no layer has. (Layers of equal names, of which a member has one, have each their own weights.)"""
        return self.graph.free(name)


def _own(kind: str, **config: Any) -> dict[str, Any]:
    return {"module": "mop_udf.training.super_net", "class_name": kind, "config": config, "registered_name": None}


def _conditions(clauses: Sequence[Clause]) -> list[Any]:
    """Clauses as the layers of super-nets have them."""
    return [[number, sorted(options)] for number, options in clauses]


def _meet(one: Sequence[Clause], other: Sequence[Clause]) -> bool:
    """True unless some option shows that two conditions never hold at once."""
    return not any(p == q and not options & own for p, options in one for q, own in other)


def _shown(shape: Shape) -> str:
    return (
        "that is not known" if shape is None else "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
    )

"""Layers that members of a space may have, and the steps that put layers beside them or in their place. Pure Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pg_mop.spaces.choices import Chosen, Condition, Point, either
from pg_mop.spaces.graph import Graph

Layer = dict[str, Any]


@dataclass(eq=False)
class Slot:
    """A layer that members may have: `class_name` and `layer` as far as known, and the condition of its being there.

    `anchor`: the layer of the template graph that has its place; `entangled`: whether it is there depends on two choices at
    once, so that no later mutator can change it; `conditions`: all of these; `values`: chosen arguments: (point, argument, its
    value for each option).
    """

    name: str
    layer: Layer
    condition: Condition
    anchor: str
    entangled: bool = False
    chosen: set[str] = field(default_factory=set)  # arguments that a mutator has chosen
    in_cell: bool = False  # a cell has its place
    conditions: tuple[Condition, ...] = ()
    values: list[tuple[Point, str, Sequence[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conditions = self.conditions or (self.condition,)
        self.condition = either([self.condition]) or self.condition  # in its shortest form, to be compared

    @property
    def class_name(self) -> str:
        return str(self.layer["class_name"])


@dataclass
class MatchedLayer:
    """A layer that a mutator changes, and the condition of its being there."""

    name: str
    condition: Condition
    slots: list[Slot]


Change = Callable[[Graph, Chosen], None]


def replacing(target: MatchedLayer, point: Point, options: Sequence[Any], names: Sequence[Sequence[str]]) -> Change:
    def step(graph: Graph, chosen: Chosen) -> None:
        if point.name in chosen and target.condition.holds(chosen) and target.name in graph.layers:
            at = chosen[point.name]
            if options[at] is not None:
                _replace(graph, target.name, options[at], names[at])

    return step


def _replace(graph: Graph, name: str, layers: Sequence[Layer], names: Sequence[str]) -> None:
    """Put layers, or none, in the place of a layer."""
    if not layers:
        graph.remove(name)
        return
    graph.replace(name, layers[-1])
    if len(layers) > 1:
        lead(graph, name, layers, names)


def lead(graph: Graph, name: str, layers: Sequence[Layer], names: Sequence[str]) -> None:
    """Put all but the last of several layers before a layer, of which they are a part now."""
    own = list(names[: len(layers) - 1])
    for layer, each in zip(layers[:-1], own):
        graph.insert_before(name, each, layer)
    graph.leads[name] = [*graph.leads.get(name, ()), *own]


def inserting(
    target: MatchedLayer, point: Point, options: Sequence[Any], names: Sequence[Sequence[str]], before: bool
) -> Change:
    def step(graph: Graph, chosen: Chosen) -> None:
        if point.name in chosen and target.condition.holds(chosen):
            at = chosen[point.name]
            put_beside(graph, target.name, options[at], names[at], before)

    return step


def put_beside(graph: Graph, name: str, layers: Sequence[Layer], names: Sequence[str], before: bool) -> None:
    """Insert layers before or after a layer, and what was inserted there already."""
    if not layers:
        return
    own = list(names[: len(layers)])
    if before:
        first = graph.first_of(name)
        for each, layer in zip(own, layers):
            graph.insert_before(first, each, layer)
        graph.leads[name] = [*own, *graph.leads.get(name, ())]
        return
    last = graph.last_of(name)
    for each, layer in zip(own, layers):
        graph.insert_after(last, each, layer)
        last = each
    graph.follows[name] = [*graph.follows.get(name, ()), *own]

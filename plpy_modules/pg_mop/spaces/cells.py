"""A cell: a small sub-graph in the place of a layer, whose nodes choose their inputs and operations (Zoph et al.: "Learning
Transferable Architectures for Scalable Image Recognition", CVPR 2018). Pure Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pg_mop.spaces.choices import Point
from pg_mop.spaces.graph import Graph
from pg_mop.spaces.reading import Mutator


class Cell:
    """The cell of a mutator in the place of the layer `name`.

    Each node takes one or two outputs, of the cell's input or of earlier nodes, applies an operation to each, and adds the two.
    The outputs of the nodes that no other node takes are joined. Repeated cells are equal, one after the other.
    """

    def __init__(self, mutator: Mutator, name: str, free: Callable[[str], str]) -> None:
        """`free`: reserves a name like the given one."""
        self.mutator, self.name = mutator, name
        self.inputs: dict[tuple[int, int], Point] = {}  # (node, input) -> where it takes it from
        self.operations: dict[tuple[int, int], Point] = {}
        self.times: Point | None = None
        self.names: dict[tuple[int, ...], str] = {}  # (cell, node, input, layer) -> name; of a sum: (cell, node)
        longest = max(len(layers) for layers in mutator.options)
        for copy in range(1, max(mutator.times) + 1):
            for node in range(1, mutator.nodes + 1):
                if mutator.inputs > 1:
                    self.names[copy, node] = free(f"{name}_{copy}_node_{node}")
                for which in range(1, mutator.inputs + 1):
                    for layer in range(1, longest + 1):
                        self.names[copy, node, which, layer] = free(f"{name}_{copy}_{node}_{which}_{layer}")
            self.names[(copy,)] = free(f"{name}_{copy}_joined")

    def open(self, open_point: Callable[[str, Sequence[Any]], Point]) -> None:
        """Open the choice points. `open_point(name, options)`: makes one."""
        if len(self.mutator.times) > 1:
            self.times = open_point("times", self.mutator.times)
        for node in range(1, self.mutator.nodes + 1):
            for which in range(1, self.mutator.inputs + 1):
                what = f"node {node}" if self.mutator.inputs == 1 else f"node {node}.{which}"
                sources = ["input", *(f"node {earlier}" for earlier in range(1, node))]
                if len(sources) > 1:
                    self.inputs[node, which] = open_point(f"{what} input", sources)
                self.operations[node, which] = open_point(f"{what} operation", self.mutator.written)

    def build(self, graph: Graph, chosen: Mapping[str, int]) -> None:
        """Put the cell with these choices into a graph. Raises Misfit where the layer has not exactly one input."""
        times = self.mutator.times[chosen[self.times.name] if self.times is not None else 0]
        source = graph.input_of(self.name)
        for copy in range(1, times + 1):
            ends = self._nodes(graph, chosen, copy, source)
            if copy < times:
                source = ends[0]
                if len(ends) > 1:
                    source = self.names[(copy,)]
                    graph.add(source, self._join(), ends)
        graph.replace(self.name, self._join() if len(ends) > 1 else _layer("Identity"))
        graph.connect(self.name, ends)

    def _nodes(self, graph: Graph, chosen: Mapping[str, int], copy: int, source: str) -> list[str]:
        """Add the nodes of one cell; returns the layers whose outputs no other node takes."""
        made, taken = [source], set()
        for node in range(1, self.mutator.nodes + 1):
            parts = []
            for which in range(1, self.mutator.inputs + 1):
                point = self.inputs.get((node, which))
                place = chosen[point.name] if point is not None else 0
                taken.add(place)
                last = made[place]
                operation = self.mutator.options[chosen[self.operations[node, which].name]]
                for number, layer in enumerate(operation, 1):
                    name = self.names[copy, node, which, number]
                    graph.add(name, layer, [last])
                    last = name
                parts.append(last)
            if len(parts) > 1:
                graph.add(self.names[copy, node], _layer("Add"), parts)
            made.append(self.names[copy, node] if len(parts) > 1 else parts[0])
        return list(dict.fromkeys(end for place, end in enumerate(made) if place and place not in taken))

    def _join(self) -> dict[str, Any]:
        return _layer(self.mutator.join, **({"axis": -1} if self.mutator.join == "Concatenate" else {}))


def _layer(class_name: str, **config: Any) -> dict[str, Any]:
    return {"module": "keras.layers", "class_name": class_name, "config": config, "registered_name": None}

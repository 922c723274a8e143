"""Choice points of a space, their combinations, and the numbers of these. Pure Python.

A point has options. It is open always, or only for some options of one other point, its parent. So the points are a forest,
whose combinations are counted without listing them: with whole numbers, however large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Point:
    """A choice point: its name, unique in a base model, and its options, as JSON values.

    `parent`, `when`: it is open for these options (indexes) of that point; no parent: always.
    """

    name: str
    options: Sequence[Any]
    parent: Point | None = None
    when: frozenset[int] = frozenset()
    children: list[Point] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.children.append(self)


Chosen = dict[str, int]  # name of each open point -> index of its option


class Points:
    """The points of one base model, each after its parent.

    >>> block = Point("layer", ["Dense", "none"])
    >>> points = Points([block, Point("units", [8, 16, 32], block, frozenset([0])), Point("rate", [0.1, 0.2])])
    >>> points.size, points.chosen(5)
    (8, {'layer': 0, 'units': 2, 'rate': 1})
    >>> points.number({'layer': 0, 'units': 2, 'rate': 1})
    5
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = list(points)
        self.roots = [point for point in points if point.parent is None]
        # of each point: how many combinations each of its options begins
        self._counts: dict[str, list[int]] = {}
        for point in reversed(self.points):
            self._counts[point.name] = [self._product(self._below(point, at)) for at in range(len(point.options))]
        self.size = self._product(self.roots)

    def _below(self, point: Point, option: int) -> list[Point]:
        return [child for child in point.children if option in child.when]

    def _product(self, points: Sequence[Point]) -> int:
        size = 1
        for point in points:
            size *= sum(self._counts[point.name])
        return size

    def chosen(self, number: int) -> Chosen:
        """The combination of a number from 0 to size - 1, in the points' order."""
        found: Chosen = {}
        self._unrank(self.roots, number, found)
        return {point.name: found[point.name] for point in self.points if point.name in found}

    def _unrank(self, points: Sequence[Point], number: int, found: Chosen) -> None:
        for point in reversed(points):  # the first point counts most
            counts = self._counts[point.name]
            number, rest = divmod(number, sum(counts))
            option = 0
            while rest >= counts[option]:
                rest -= counts[option]
                option += 1
            found[point.name] = option
            self._unrank(self._below(point, option), rest, found)

    def number(self, chosen: Mapping[str, int]) -> int:
        """The number of a combination."""
        return self._rank(self.roots, chosen)

    def _rank(self, points: Sequence[Point], chosen: Mapping[str, int]) -> int:
        number = 0
        for point in points:
            counts, option = self._counts[point.name], chosen[point.name]
            own = sum(counts[:option]) + self._rank(self._below(point, option), chosen)
            number = number * sum(counts) + own
        return number

    def walk(self, choose: Callable[[Point], int]) -> Chosen:
        """The combination that `choose` gives, called for each open point, in their order."""
        chosen: Chosen = {}
        for point in self.points:
            if point.parent is None or chosen.get(point.parent.name) in point.when:
                chosen[point.name] = choose(point)
        return chosen

    def all(self) -> Iterator[Chosen]:
        """Every combination, by its number."""
        return (self.chosen(number) for number in range(self.size))


@dataclass(frozen=True)
class Condition:
    """Some options of a point; `Condition()`: always."""

    point: Point | None = None
    options: frozenset[int] = frozenset()

    def holds(self, chosen: Mapping[str, int]) -> bool:
        """True for a combination with one of the options."""
        return self.point is None or chosen.get(self.point.name) in self.options


ALWAYS = Condition()


def either(conditions: Sequence[Condition]) -> Condition | None:
    """The condition that holds where one of several does; None where that is none of a single point."""
    left = list(dict.fromkeys(conditions))
    while True:
        if ALWAYS in left:
            return ALWAYS
        options: dict[Point, frozenset[int]] = {}
        for condition in left:
            assert condition.point is not None
            options[condition.point] = options.get(condition.point, frozenset()) | condition.options
        whole = [point for point, own in options.items() if len(own) == len(point.options)]
        if not whole:
            return Condition(*next(iter(options.items()))) if len(options) == 1 else None
        # a point that holds for all its options is as open as its parent
        left = [Condition(point, own) for point, own in options.items() if point not in whole]
        left += [opened(point) for point in whole]


def opened(point: Point) -> Condition:
    """The condition of a point's being open."""
    return Condition(point.parent, point.when)

"""A dimension of a search: choices, or a distribution."""

import ast
from collections.abc import Sequence
from random import Random
from typing import Any

from mop_udf.params import params
from pg_mop.search import grids

Coordinate = Any  # the index of a choice, or a number of a distribution
Place = dict[str, Coordinate]  # by name of the dimension

# parameters that may change while a configuration trains, with the same compiled model and the same network
CHANGEABLE = (*(name for name in params.SCALARS if name != "decay"), "lr", "batch_size", "dropout")


class Dimension:
    """A dimension of the space: choices, or a distribution from `low` to `high`.

    A *coordinate* is a choice's index, or a number of the distribution. `kind` is the name of the distribution, or None.
    """

    __slots__ = ("name", "key", "choices", "low", "high", "kind")

    def __init__(self, name: str, key: str, choices: Sequence[Any]) -> None:
        """`name`: unique in the space; `key`: the parameter's name. Raises GridError for a wrong distribution."""
        self.name, self.key = name, key
        self.choices: list[Any] = list(choices)
        self.kind: str | None = None
        if key == "optimizer":
            self.choices = [bare_optimizer(c) if isinstance(c, str) else c for c in choices]
        if grids.distribution(self.choices):
            grids.check_distribution(key, self.choices)
            self.low, self.high, self.kind = self.choices

    @property
    def whole(self) -> bool:
        """True for a distribution of integers."""
        return self.kind is not None and self.key in grids.WHOLE

    @property
    def open(self) -> bool:
        """True for a dimension with several values."""
        return self.kind is not None or len(self.choices) > 1

    def sample(self, random: Random) -> Coordinate:
        """A random coordinate."""
        if self.kind is None:
            return random.randrange(len(self.choices))
        return grids.sample(random, self.key, self.choices)

    def value(self, coordinate: Coordinate) -> Any:
        """The value of a coordinate in parameter strings."""
        return self.choices[coordinate] if self.kind is None else coordinate

    def find(self, text: str) -> Coordinate | None:
        """The coordinate of a value's text; None where the value is not in the dimension."""
        try:
            literal = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            literal = None
        if self.kind is not None:
            inside = (
                isinstance(literal, (int, float))
                and not isinstance(literal, bool)
                and self.low <= literal <= self.high
                and not (self.whole and literal != int(literal))
            )
            return literal if inside else None
        for index, choice in enumerate(self.choices):
            if text == str(choice) or text == repr(choice) or literal is not None and _same(literal, choice):
                return index
        return None


def bare_optimizer(text: str) -> str:
    """The shortest text of an optimizer: 'adam()' -> Adam."""
    text = text.strip("'\"").strip()
    return grids.optimizer_name(text[:-2] if text.endswith("()") else text)


def _same(literal: object, choice: object) -> bool:
    """True where a literal equals a choice: numbers by value, `True` is not 1, a single metric equals a list of it."""
    if isinstance(literal, bool) or isinstance(choice, bool):
        return literal is choice
    return literal == choice or isinstance(literal, list) and literal == [choice]

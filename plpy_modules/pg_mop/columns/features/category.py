"""Categories: one-hot elements, or a code for an embedding."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.columns.features.base import Feature, Source, Statistics, raw_sql
from pg_mop.columns.features.conversion import category_sql

if TYPE_CHECKING:
    import numpy

MAX_ONE_HOT = 32  # values of a one-hot column, where the user does not say it
MAX_VALUES = 20_000  # values of a coded column
RARE = 2  # a value of fewer rows is a rare one, in tables of at least MANY rows
MANY = 1000
OTHER = "(other)"
MAX_UNSEEN = 5  # unseen values that are told


@dataclass
class Category(Feature):
    """The values of training rows, most frequent first; rare and unseen ones share a class of their own.

    Parameters: `values` (text), `counts` (rows of each), `other` (rows of rare values), `null` (whether NULL is a class of
    its own, after the values; else it is one of the others).
    """

    wire = "text"

    @classmethod
    def fit(cls, source: Source, statistics: Statistics) -> Category:
        least = source.options.get("min_rows", RARE if statistics.rows >= MANY else 1)
        kept = [(value, rows) for value, rows in statistics.values if rows >= least][
            : int(source.options.get("max_values", MAX_VALUES))
        ]
        known = sum(rows for _, rows in kept)
        return cls.stored(  # type: ignore[return-value]
            source,
            statistics,
            values=[value for value, _ in kept],
            counts=[rows for _, rows in kept],
            other=statistics.rows - statistics.nulls - known,
            distinct=statistics.distinct,
            null=bool(statistics.nulls),
        )

    @classmethod
    def wire_of(cls, source: Source) -> str:
        return category_sql(raw_sql(source.column, source.path), source.sql_type, source.zone)

    @property
    def classes(self) -> list[str]:
        """The classes in the order of their numbers."""
        return [OTHER, *self.parameters["values"], *["NULL"] * self.parameters["null"]]

    def numbers(self, wires: list[str | None]) -> numpy.ndarray:
        """The number of each value's class, int64."""
        import numpy as np

        return np.fromiter(map(self.known.get, wires, itertools.repeat(0)), "i8", len(wires))

    @functools.cached_property
    def known(self) -> dict[str | None, int]:
        """{value: the number of its class}; other values are of class 0."""
        values = self.parameters["values"]
        numbers: dict[str | None, int] = {value: number for number, value in enumerate(values, 1)}
        if self.parameters["null"]:
            numbers[None] = len(values) + 1
        return numbers

    def trained_shares(self) -> list[float]:
        p = self.parameters
        rows = [p["other"], *p["counts"], *[p["nulls"]] * p["null"]]
        return [n / max(1, sum(rows)) for n in rows]

    def counts(self, wires: list[str | None]) -> numpy.ndarray:
        import numpy as np

        return np.bincount(self.numbers(wires), minlength=len(self.classes))

    def to_keras(self) -> dict[str, Any]:
        values = self.parameters["values"]
        null = next(text for text in ("", "NULL", "(NULL)", "(no value)") if text not in values)
        return {
            "kind": "category",
            "values": values,
            "null": null if self.parameters["null"] else None,
            "one_hot": not self.is_code,
            "offset": self.parameters.get("offset", 0),
        }

    def unseen(self, wires: list[str | None]) -> list[str]:
        if self.parameters["other"]:  # rare values of training rows are not kept: nothing tells them from new ones
            return []
        new = set(wires).difference(self.known)
        return sorted(value for value in new if value is not None)[:MAX_UNSEEN] if new else []


@dataclass
class OneHotCategory(Category):
    """One element for each class."""

    type_name = "one_hot_category"

    @property
    def elements(self) -> list[str]:
        return [f"{self.name} = {value}" for value in self.classes]

    def encode(self, wires: list[str | None]) -> numpy.ndarray:
        import numpy as np

        elements = np.zeros((len(wires), len(self.classes)), "<f4")
        elements[np.arange(len(wires)), self.numbers(wires)] = 1
        return elements

    def described(self) -> str:
        return f"one-hot, {len(self.classes)} classes"


@dataclass
class CodedCategory(Category):
    """The number of the class, as an integer for an embedding. Parameter `offset`: of its numbers in the table of all codes
    (the codes of all columns share one embedding table, each column a range of its own)."""

    type_name = "coded_category"
    is_code = True

    @property
    def offset(self) -> int:
        return int(self.parameters.get("offset", 0))

    @property
    def elements(self) -> list[str]:
        return [self.name]

    def encode(self, wires: list[str | None]) -> numpy.ndarray:
        return (self.numbers(wires) + self.offset).astype("<f4").reshape(-1, 1)

    def described(self) -> str:
        return f"code for an embedding, {len(self.classes)} classes"

"""Numeric arrays divided by a constant: independent columns, with MADlib's normalizing_const."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.backend.database import Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.columns.base import Column, Request, SourceColumn, first_dimensions
from pg_mop.columns.numbers import Numbers

if TYPE_CHECKING:
    import numpy

ROWS, ELEMENTS = 1000, 1_000_000  # that are measured
LEAST, MOST = 1e-30, 1e30  # of an element that is measured; smaller ones count as 0
SMALL, LARGE = 0.3, 3.0  # sizes of elements that stay as they are


@dataclass
class Scale(Numbers):
    """Parameters: `constant` (None: not known, so 1), `shape`. All rows have arrays of the same dimensions."""

    type_name = "scale"
    kind_name = takes = "array"
    options = {"constant": float}
    in_madlib = True
    takes_null = False

    @classmethod
    def of_table(cls, source: SourceColumn, options: Mapping[str, Any]) -> Scale:
        constant = options["constant"] if "constant" in options else magnitude(source)
        return cls.fit(source, Request(normalizing_const=constant))

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> Scale:
        if not source.kind.numeric_array:
            raise MopError(
                f'invalid independent_varname: column "{source.name}" has type {source.kind.shown}, '
                "not an array of numbers",
                hint="Give a column of type real[], integer[] or the like.",
            )
        return cls(source.name, {"constant": stored(request.normalizing_const), "shape": first_dimensions(source)})

    @classmethod
    def fit_like(cls, source: SourceColumn, request: Request, trained: Column, summary: Table) -> Scale:
        from pg_mop.columns import binary

        column = cls.fit(source, request)
        if column.shape != trained.shape:
            raise MopError(
                f'column "{column.name}" has arrays of dimensions {binary.braces(column.shape)}, '
                f'but those of training column "{trained.name}" have {binary.braces(trained.shape)}'
            )
        column.parameters["constant"] = stored(trained.parameters.get("constant"))
        return column

    @property
    def constant(self) -> float | None:
        """MADlib's normalizing_const."""
        return self.parameters.get("constant")

    @property
    def factor(self) -> float | None:
        from pg_mop.columns import binary

        factor = binary.reciprocal(self.constant)
        return None if factor is None else float(factor)

    def hash_sql(self, value: str, seed: int) -> str:
        return f"hash_array_extended({value}, {seed})"

    def encode_for_prediction(self, values: list[Any]) -> numpy.ndarray:
        """As MADlib's predict: it divides by the constant, where packing multiplies by the reciprocal."""
        from pg_mop.columns import binary

        rows = binary.read(values, self.shape, self.wire, self.name).reshape(-1, *self.shape)
        constant = binary.np.float32(self.constant or 1)
        return rows if constant == 1 else rows / constant

    def to_keras(self) -> dict[str, Any] | None:
        constant = self.constant or 1.0
        if constant == 1.0:
            return None
        return {"class_name": "Rescaling", "config": {"scale": 1.0 / constant, "offset": 0.0}}

    def difference(self, other: Column) -> str | None:
        theirs = other.parameters.get("constant")
        if self.constant is None or theirs is None or abs(self.constant - theirs) <= 1e-6 * abs(theirs):
            return None
        return f"normalizing_const {self.constant:g}, not {theirs:g}"


def magnitude(source: SourceColumn) -> float:
    """The root mean square of the elements, of the first rows, to two digits; 1 where it is near 1: nets learn badly from
    elements that are far larger or smaller."""
    name = quote_identifier(source.name)
    # (small ones would underflow)
    sql = (
        f"SELECT sqrt(avg(CASE WHEN abs(v) < {LEAST} THEN 0 ELSE v * v END)) FROM (SELECT unnest({name}::double precision[]) "
        f"AS v FROM (SELECT {name} FROM {source.table} LIMIT {ROWS}) r LIMIT {ELEMENTS}) e WHERE abs(v) <= {MOST}"
    )
    try:
        size = source.db.value(sql)
    except source.db.plpy.SPIError as error:
        if error.sqlstate != "22003":
            raise
        return 1.0  # a number beyond the type, of which packing will tell
    return float(f"{size:.2g}") if size and not SMALL <= size <= LARGE else 1.0


def stored(constant: float | None) -> float | None:
    """The constant as the summary of a packed table has it: 1 where nothing is scaled. Raises MopError."""
    from pg_mop.columns import binary

    return 1.0 if binary.reciprocal(constant) is None else constant

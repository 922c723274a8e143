"""The common part of column types whose raw values are arrays of numbers, or single numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.quoting import quote_literal
from pg_mop.columns import out_of_range
from pg_mop.columns.base import Column

if TYPE_CHECKING:
    import numpy


@dataclass
class Numbers(Column):
    """Numbers are read in binary form, checked, scaled where the type has a factor, and packed."""

    @property
    def is_scalar(self) -> bool:
        """Whether a raw value is a single number, not an array."""
        return bool(self.parameters.get("scalar"))

    @property
    def element(self) -> str:
        """The SQL type of a packed element."""
        return "smallint" if self.dtype == "<i2" else "real"

    @property
    def factor(self) -> float | None:
        """The factor that packing multiplies by; None: the numbers stay as they are."""
        return None

    def wire_sql(self, value: str) -> str:
        return f"pg_catalog.array_send({f'ARRAY[{value}]' if self.is_scalar else value}::{self.wire}[])"

    def segment_sql(self, value: str, schema: str) -> str:
        factor = "NULL" if self.factor is None else repr(float(self.factor))
        return (
            f"{schema}.mop_pack_rows(array_agg({value} ORDER BY n), ARRAY{self.shape}, {quote_literal(self.wire)}, "
            f"{quote_literal(self.element)}, {factor}, {quote_literal(self.name)})"
        )

    def encode(self, values: list[Any]) -> numpy.ndarray | None:
        from pg_mop.columns import binary

        numbers = binary.read(values, self.shape, self.wire, self.name)
        return binary.packable(numbers, self.element, self.factor, self.name)

    def explain_misfit(self, db: Database, source: Table, summary: str, training: str | None) -> None:
        out_of_range.check(db, source, self.name, self.element, self.is_scalar, training)

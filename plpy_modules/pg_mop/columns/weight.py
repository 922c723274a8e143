"""Sample weights: one number a row, by which training and evaluation multiply the row's loss."""

from __future__ import annotations

from dataclasses import dataclass

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.sql_types import NUMBERS
from pg_mop.columns.base import Request, SourceColumn
from pg_mop.columns.numbers import Numbers


@dataclass
class Weight(Numbers):
    """Parameters: `shape`, `scalar`, `sql_type`. Raw values are numbers of at least 0.

    It is no input and no output of a model: it is the last of a packed table's columns (`Transform.weight`).
    """

    type_name = "weight"

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> Weight:
        if source.kind.shown not in NUMBERS:
            raise MopError(
                f'column "{source.name}" of sample weights has type {source.kind.shown}, which is no number',
                hint="Give a column of type real, double precision, integer or the like.",
            )
        quoted = quote_identifier(source.name)
        negative = source.db.value(f"SELECT count(*) FROM {source.table} WHERE {quoted} < 0")
        if negative:
            raise MopError(
                f'column "{source.name}" has sample weights below 0 in {negative} row{"s" if negative > 1 else ""}',
                hint=f"SELECT * FROM {source.table} WHERE {quoted} < 0; finds them.",
            )
        return cls(source.name, {"shape": [1], "scalar": True, "sql_type": source.kind.shown}, source.kind)

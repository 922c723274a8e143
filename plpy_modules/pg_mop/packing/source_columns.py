"""The columns of the source table that are packed: found by name, and fitted as column types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import MAX_NAME, split_names
from pg_mop.backend.sql_types import column_kind
from pg_mop.columns import DEPENDENT, INDEPENDENT, Column, Request, SourceColumn, Transform, type_of
from pg_mop.columns.one_hot import class_column


@dataclass
class SourceNames:
    """The names of the independent columns (`inputs`) and of the dependent columns (`outputs`) of a source table."""

    inputs: list[str]
    outputs: list[str]

    @classmethod
    def of(cls, db: Database, source: Table, independent: str | None, dependent: str | None) -> SourceNames:
        """The existing columns that two comma lists name. Raises MopError."""
        return cls(
            _names(db, source, independent, "independent_varname"), _names(db, source, dependent, "dependent_varname")
        )

    def fit(self, db: Database, source: Table, requests: list[Request]) -> Transform:
        """The columns, fitted from the rows of `source`; `requests`: of each dependent column. Raises MopError."""
        inputs = [SourceColumn(db, source, name, column_kind(db, source, name)) for name in self.inputs]
        outputs = [SourceColumn(db, source, name, column_kind(db, source, name)) for name in self.outputs]
        return Transform(
            [type_of(column, requests[0], INDEPENDENT).fit(column, requests[0]) for column in inputs],
            [type_of(column, r, DEPENDENT).fit(column, r) for column, r in zip(outputs, requests, strict=True)],
        )

    def fit_like(self, db: Database, source: Table, request: Request, trained: Transform, summary: Table) -> Transform:
        """The columns, with the parameters of the training table's columns, whose summary is `summary`.

        Raises MopError where the columns do not match.
        """

        def fitted(role: str, names: list[str], columns: Sequence[Column], types: list[type[Column]]) -> list[Column]:
            if len(names) != len(columns):
                raise MopError(
                    f"{len(names)} {role} columns are named, but training has {len(columns)}",
                    detail=f"Those of training are {', '.join(column.name for column in columns)}.",
                )
            sources = [SourceColumn(db, source, name, column_kind(db, source, name)) for name in names]
            return [
                _type_like(like, column, request, types).fit_like(column, request, like, summary)
                for column, like in zip(sources, columns)
            ]

        return Transform(
            fitted("independent", self.inputs, trained.inputs, INDEPENDENT),
            fitted("dependent", self.outputs, trained.outputs, DEPENDENT),
        )

    def packed_names(self) -> list[str]:
        """The columns of the packed table. Raises MopError where two names are equal or a name is too long."""
        names = [*self.inputs, *self.outputs]
        columns = ["__dist_key__", *names, *(name + "_shape" for name in names), "buffer_id"]
        for name in columns:
            if columns.count(name) > 1:
                raise MopError(
                    f'the packed table would have two columns "{name}"',
                    detail="Its columns are " + ", ".join(columns) + ".",
                )
        for name in [*(name + "_shape" for name in self.inputs), *map(class_column, self.outputs)]:
            if len(name.encode()) > MAX_NAME:
                raise MopError(
                    f'column name "{name}" is longer than {MAX_NAME} bytes', hint="Rename the source column in a view."
                )
        return columns


def _type_like(trained: Column, column: SourceColumn, request: Request, types: list[type[Column]]) -> type[Column]:
    """The type of a column of validation rows: the training column's.

    MADlib's types are chosen anew, since its summary does not name them: their fit_like compares the two columns.
    """
    return type_of(column, request, types) if trained.in_madlib else type(trained)


def _names(db: Database, table: Table, text: str | None, argument: str) -> list[str]:
    """The existing columns of `table` that the comma list `text` names."""
    types = db.columns(table)
    names = split_names(text)
    if not names:
        raise MopError(
            f"invalid {argument}: no column is named", hint="Name one column, or several with commas between."
        )
    columns = []
    for name in names:
        column = db.find_column(types, name)
        if column is None:
            raise MopError(
                f'invalid {argument}: column "{name}" does not exist in {table}',
                hint="Its columns are " + ", ".join(types) + ".",
            )
        columns.append(column)
    db.check_readable(table, columns)
    return columns

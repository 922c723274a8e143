"""Numbers that are trained on as they are: float32 targets, soft labels, and labels that are one-hot vectors already."""

from __future__ import annotations

from dataclasses import dataclass

from pg_mop.backend.database import Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.sql_types import NUMBERS, Kind
from pg_mop.columns.base import Column, Request, SourceColumn, first_dimensions
from pg_mop.columns.numbers import Numbers
from pg_mop.columns.one_hot import kind_of_classes, no_such_classes, no_such_vectors

AS_NUMBER = "Give it as a number: CREATE VIEW numbered AS SELECT *, {0}::integer AS label FROM {1};"
DTYPES = {"int16": "<i2", "float32": "<f4"}  # dependent_dtype -> dtype


@dataclass
class Identity(Numbers):
    """Parameters: `dtype` (int16 or float32), `shape`, `scalar`.

    Raw values are vectors of one width or, for float32, single numbers (`scalar`). Arrays of more dimensions have a vector for
    each step (or pixel): their last dimension is its width.
    """

    type_name = "identity"
    in_madlib = True

    @classmethod
    def accepts(cls, kind: Kind, request: Request) -> bool:
        return kind.numeric_array or request.dependent_dtype == "float32"

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> Identity:
        kind, scalar = source.kind, not source.kind.numeric_array
        if scalar and kind.shown not in NUMBERS:
            raise MopError(
                f'invalid dependent_varname: column "{source.name}" has type {kind.shown}, '
                "neither a number nor an array of numbers",
                hint=AS_NUMBER.format(quote_identifier(source.name), source.table)
                if kind.shown == "boolean"
                else "Leave out dependent_dtype => 'float32' to have its values as classes.",
            )
        shape = [1] if scalar else first_dimensions(source)
        parameters = {"dtype": request.dependent_dtype, "shape": shape, "scalar": scalar, "sql_type": kind.shown}
        return cls(source.name, parameters, kind)

    @classmethod
    def fit_like(cls, source: SourceColumn, request: Request, trained: Column, summary: Table) -> Identity:
        column = cls.fit(source, request)
        if trained.classes is not None:
            raise no_such_classes(source, trained, kind_of_classes(source.db, summary, trained))
        if column.shape != trained.shape:
            raise no_such_vectors(source, _vectors(column), trained)
        return column

    @property
    def dtype(self) -> str:
        return DTYPES[self.parameters["dtype"]]

    @property
    def wire(self) -> str:
        # a type that shows values which int16 cannot hold
        return "double precision" if self.dtype == "<i2" else "real"


def _vectors(column: Identity) -> str:
    *steps, width = column.shape
    return f"vectors of {width}" + (f" for each of {' x '.join(map(str, steps))} steps" if steps else "")

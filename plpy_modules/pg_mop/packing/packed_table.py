"""Packed tables as the consumers see them: the columns, the transform in the summary, and the checks on both."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.trusted import check_summary
from pg_mop.columns import Transform, madlib
from pg_mop.packing.summary import Copy, copies_in, reachable

REPACK = "SELECT {schema}.training_preprocessor_dl(...) (or validation_preprocessor_dl) makes such a table."


class HasTransform(Protocol):
    """A packed table, or a model that was trained on one."""

    @property
    def transform(self) -> Transform: ...


class PackedTable:
    """A packed table and its summary.

    `inputs` and `outputs` are column names, `weighted` whether there is a column of sample weights, `columns` all packed
    columns, `transform` the fitted columns, `summary` the summary's row as a dict. `keyed`: the column `__dist_key__` names
    the segment of each row; tables that MADlib packed on PostgreSQL have no such column, and are one segment. `foreign`:
    rows are in foreign tables or, `distributed`, in shards of Citus.
    """

    def __init__(self, db: Database, text: str | None, role: str) -> None:
        """Read and check the table that the caller calls `text`; `role`: its name in errors, such as 'source table'.

        Raises MopError as docs/contract/fit_multiple.md, section 7.
        """
        hint = REPACK.format(schema=db.extension)
        self._db = db
        self.table = db.input_table(text, role, hint=hint, rows=False)  # raises MopError for NULL
        self.text = text = str(text)
        # a transaction that has read a foreign table depends on that table's server until its end
        self.foreign = db.has_foreign_rows(self.table)
        if not self.foreign and db.one(f"SELECT 1 AS x FROM {self.table} LIMIT 1") is None:
            raise MopError(f'{role} "{text}" is empty', hint=hint)
        if self.table.kind == "v":
            raise MopError(f'{role} "{text}" is a view: it must be a table that the preprocessor has made', hint=hint)
        distribution = db.distribution(self.table)
        self.distributed = distribution is not None
        if distribution not in (None, "h by __dist_key__"):
            table = quote_literal(self.table)
            raise MopError(
                f'{role} "{text}" is distributed by Citus, but not by hash of "__dist_key__"',
                hint=f"SELECT undistribute_table({table}); SELECT create_distributed_table({table}, "
                f"'__dist_key__', colocate_with => 'none');",
                sqlstate="42809",
            )
        db.check_readable(self.table, db.columns(self.table))
        what = f"summary of the {role}"
        self.summary_table = db.input_table(db.suffixed(text, "_summary"), what, hint=hint, rows=False)
        check_summary(db, self.table, self.summary_table)
        row = db.one(f"SELECT * FROM {self.summary_table}")
        if row is None:
            raise MopError(f'{what} "{db.suffixed(text, "_summary")}" is empty', hint=hint)
        self.summary = row
        self._check_names(role)
        self.transform = madlib.read(db, self.summary_table, self.summary)
        self.inputs = [column.name for column in self.transform.inputs]
        self.outputs = [column.name for column in self.transform.outputs]
        existing_columns = db.columns(self.table)
        self.keyed = "__dist_key__" in existing_columns
        for column in ("buffer_id", *self.columns, *(c + "_shape" for c in self.columns)):
            if column not in existing_columns:
                raise MopError(f'{role} "{text}" has no column "{column}": it must be preprocessed', hint=hint)
        for column in self.columns:
            if existing_columns[column] != "bytea":
                raise MopError(
                    f'column "{column}" of {role} "{text}" is {existing_columns[column]}, not bytea: '
                    f"it should be minibatched by the preprocessor",
                    hint=hint,
                )

    def _check_names(self, role: str) -> None:
        for column in ("independent_varname", "dependent_varname"):
            if column not in self.summary:
                raise MopError(f'the summary of {role} "{self.text}" lacks the expected column "{column}"')
            if not isinstance(self.summary[column], list):
                raise MopError(
                    f'{role} "{self.text}" was made by an old preprocessor',
                    detail=f'"{column}" of its summary is no array.',
                    hint="Run the preprocessor again, of this version.",
                )

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.transform.columns]

    @functools.cached_property
    def shaped(self) -> Transform:
        """The transform with the shapes of all inputs: summaries lack those of arrays."""
        inputs = self.transform.inputs
        if all(column.features or "shape" in column.parameters for column in inputs):
            return self.transform
        row = self._db.one(f"SELECT {self.shape_columns()} FROM {self.table} LIMIT 1")
        assert row is not None  # the table is not empty
        shapes = self.shapes_of(list(row.values()))
        shaped = [column.with_parameters(column.name, shape=shapes[column.name]) for column in inputs]
        return Transform(shaped, self.transform.outputs, self.transform.weight)

    @property
    def weighted(self) -> bool:
        return self.transform.weight is not None

    @functools.cached_property
    def copies(self) -> list[Copy]:
        """The copies of its segments (see packing.summary.copies_in) on servers that exist, one for each segment and server:
        of two that runs have made side by side, the first."""
        entries = reachable(self._db, copies_in(self.summary, self.summary_table), self.summary_table)
        return list({(key, server): (key, server, table) for key, server, table in reversed(entries)}.values())[::-1]

    def keys_sql(self) -> str:
        """SQL: the keys of its segments, in order, as `key`."""
        if not self.keyed:
            return "SELECT 0 AS key"
        return f"SELECT DISTINCT __dist_key__ AS key FROM {self.table} ORDER BY 1"

    def of_segment(self, key: int) -> str:
        """SQL: the condition that is true for the rows of the segment `key`."""
        return f"__dist_key__ = {int(key)}" if self.keyed else "true"

    def shape_columns(self) -> str:
        """SQL: the columns with the shapes."""
        return ", ".join(quote_identifier(c + "_shape") for c in self.columns)

    def shapes_of(self, row: Sequence[list[int]]) -> dict[str, list[int]]:
        """{column: shape of one example}, from the values of `shape_columns` of any buffer."""
        return {column: list(shape[1:]) for column, shape in zip(self.columns, row)}

    def meaning(self) -> str:
        """A text that changes when the summary says that the columns are to be read otherwise."""
        return madlib.digest(self.transform, self.summary)

    def differs(self, other: HasTransform) -> str | None:
        """How these rows were prepared otherwise than those of a packed table or of a stored model, or None."""
        return self.transform.difference(other.transform)

    def wanted_outputs(self, shapes: dict[str, list[int]]) -> dict[str, Any]:
        """The outputs that a model must have for these rows (see Transform); `shapes`: of one example."""
        return self.transform.wanted_outputs(self.text, [shapes[name] for name in self.outputs])

    def hint_to_fit(self) -> str:
        """The HINT where no architecture fits these rows."""
        hint = "Load an architecture of that shape with load_keras_model."
        if self.regression:
            return hint
        types = {column.sql_type for column in self.transform.outputs}
        if types & {"real", "double precision", "numeric"}:
            return hint + " To predict numbers, not classes, pack them with dependent_dtype => 'float32'."
        if any(len(column.classes or ()) == 2 for column in self.transform.outputs):
            return hint + (
                " For two classes that is Dense(2, 'softmax') with categorical_crossentropy, or Dense(1, 'sigmoid') with "
                "binary_crossentropy."
            )
        return hint

    def dtypes(self) -> list[str]:
        """numpy dtypes of the columns' bytes."""
        return self.transform.dtypes

    @property
    def regression(self) -> bool:
        """Whether the outputs are numbers or soft labels (float32), not one-hot classes."""
        return self.transform.is_regression


def looks_packed(db: Database, table: Table) -> bool:
    """True where a table has the columns that preprocessors make, MADlib's included."""
    columns = db.columns(table)
    return (
        table.kind != "v"
        and "buffer_id" in columns
        and any(kind == "bytea" and f"{name}_shape" in columns for name, kind in columns.items())
    )

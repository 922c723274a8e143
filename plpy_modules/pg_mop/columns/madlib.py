"""MADlib's summary tables as the stored form of a transform: the one reader and the one writer.

A packed table's summary has `independent_varname`, `dependent_varname`, `dependent_vartype`, `<y>_class_values`,
`normalizing_const`, `num_classes` and, for float32 alone, `dependent_dtype`; a model's summary repeats them. A transform
with a column type that MADlib does not have is stored as JSON, in one more column.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import understood
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.columns import transform_from_json
from pg_mop.columns.base import Column
from pg_mop.columns.identity import DTYPES, Identity
from pg_mop.columns.one_hot import OneHot, class_column
from pg_mop.columns.scale import Scale
from pg_mop.columns.transform import Transform

REQUIRED = ("normalizing_const", "dependent_varname", "independent_varname", "dependent_vartype")
TRANSFORM = "__transform__"  # the column with the JSON, where MADlib's columns do not suffice
Summary = dict[str, Any]  # the row of a summary table


class Entry(NamedTuple):
    """A column of a summary: its name, its SQL type and its value."""

    name: str
    type: str
    value: Any


# --- reading ---


def read(db: Database, table: Table, summary: Summary) -> Transform:
    """The transform in the summary `table` of a packed table or of a model, whose row is `summary`. Raises MopError."""
    with understood(f"the summary {table} cannot be read"):
        return _read(db, table, summary)


def _read(db: Database, table: Table, summary: Summary) -> Transform:
    if summary.get(TRANSFORM):
        return transform_from_json(json.loads(summary[TRANSFORM]))
    names, types = _names(summary, "dependent_varname"), summary.get("dependent_vartype") or []
    dtype = summary.get("dependent_dtype") or "int16"
    classes = _classes(db, table, [n for n in names if summary.get(class_column(n)) is not None])
    outputs: list[Column] = []
    for i, name in enumerate(names):
        sql_type = {"sql_type": types[i]} if i < len(types) else {}
        if name in classes:
            outputs.append(OneHot(name, {"classes": classes[name], **sql_type}))
        else:
            outputs.append(Identity(name, {"dtype": dtype if dtype in DTYPES else "int16", **sql_type}))
    constant = summary.get("normalizing_const")
    return Transform([Scale(name, {"constant": constant}) for name in _names(summary, "independent_varname")], outputs)


def _names(summary: Summary, column: str) -> list[str]:
    names = summary.get(column) or []
    return [names] if isinstance(names, str) else list(names)


def _classes(db: Database, table: Table, names: list[str]) -> dict[str, list[str | None]]:
    """The class values of these dependent columns, as PostgreSQL writes them."""
    if not names:
        return {}
    columns = ", ".join(f"{quote_identifier(class_column(n))}::text[] AS c{i}" for i, n in enumerate(names))
    row = db.one(f"SELECT {columns} FROM {table} LIMIT 1")
    assert row is not None  # a summary has one row
    return {name: row[f"c{i}"] for i, name in enumerate(names)}


def given(
    inputs: int, constant: float | None, outputs: Sequence[str], classes: Sequence[list[str | None] | None]
) -> Transform:
    """The transform that a caller describes for a model of their own; `classes`: of each output, None: not known."""
    return Transform(
        [Scale(f"input {i}", {"constant": constant}) for i in range(inputs)],
        [
            Identity(name, {"dtype": "int16"}) if values is None else OneHot(name, {"classes": values})
            for name, values in zip(outputs, classes)
        ],
    )


def digest(transform: Transform, summary: Summary) -> str:
    """A text that changes when the summary says that the columns are to be read otherwise. Runs are resumed by it."""
    # (as earlier versions have computed it, so that their runs and stages are found again)
    said: list[Any] = [
        [column.name for column in transform.inputs],
        [column.name for column in transform.outputs],
        [str(summary.get(class_column(column.name))) for column in transform.outputs],
        transform.dependent_dtype,
        summary.get("normalizing_const"),
    ]
    if summary.get(TRANSFORM):
        said.append(summary[TRANSFORM])
    return hashlib.md5(json.dumps(said).encode()).hexdigest()


# --- writing ---


def names(transform: Transform) -> list[Entry]:
    """The names of the columns."""
    return [
        Entry("dependent_varname", "text[]", [column.name for column in transform.outputs]),
        Entry("independent_varname", "text[]", [column.name for column in transform.inputs]),
    ]


def constant(transform: Transform) -> list[Entry]:
    """The normalizing constant, which is the same for all inputs."""
    constants = [column.constant for column in transform.inputs if isinstance(column, Scale)]
    return [Entry("normalizing_const", "real", constants[0] if constants else None)]


def sql_types(transform: Transform) -> list[Entry]:
    """The SQL types of the dependent columns in the source."""
    types = [column.sql_type for column in transform.outputs]
    return [Entry("dependent_vartype", "text[]", None if None in types else types)]


def of_packed_table(transform: Transform) -> list[tuple[str, str, str]]:
    """(name, type, SQL) of the class values in the summary of a packed table."""
    return [
        (class_column(column.name), f"{column.class_type()}[]", column.summary_sql() or "NULL")
        for column in transform.outputs
    ]


def of_model(transform: Transform) -> list[Entry]:
    """The columns in the summary of a model that say how its rows were packed, besides class values and `extra`."""
    return [*sql_types(transform), *constant(transform)]


def num_classes(widths: Sequence[int]) -> Entry:
    """The widths of the dependent columns."""
    return Entry("num_classes", "integer[]", list(widths))


def copied_classes(transform: Transform, summary: Summary) -> str:
    """Select list: the class values for the summary of a model, from the packed table's summary `s`, which has `summary`."""
    columns = [class_column(column.name) for column in transform.outputs]
    return ", ".join(
        f"s.{quote_identifier(column)}" if column in summary else f"NULL::text[] AS {quote_identifier(column)}"
        for column in columns
    )


def extra(transform: Transform) -> list[Entry]:
    """The columns that MADlib's summaries do not have, last in the table."""
    entries = [Entry("dependent_dtype", "text", "float32")] if transform.is_regression else []
    if not all(column.in_madlib for column in transform.columns):
        entries.append(Entry(TRANSFORM, "text", json.dumps(transform.to_json())))
    return entries


def literal(sql_type: str, value: Any) -> str:
    """A value, or a list of values, as an SQL literal of a type."""
    if isinstance(value, (list, tuple)):
        return f"ARRAY[{', '.join(map(quote_literal, value))}]::{sql_type}"
    return f"{quote_literal(value)}::{sql_type}"


def select_list(entries: Sequence[tuple[str, str, Any]]) -> str:
    """(name, type, value) triples as a select list of literals."""
    return ", ".join(f"{literal(sql_type, value)} AS {quote_identifier(name)}" for name, sql_type, value in entries)

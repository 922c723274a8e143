"""The rows to pack or to predict for, as the caller names them: a table, a view, or a query."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier

QUERY = re.compile(r"\s*(\(|(select|with|values|table)\b)", re.IGNORECASE)


def is_query(text: str | None) -> bool:
    """Whether the caller's text is a query, not a name."""
    return bool(QUERY.match(text or ""))


@contextmanager
def rows_of(db: Database, text: str | None, what: str = "source table", known: str | None = None) -> Iterator[Table]:
    """The relation with the rows, and with a value in the column `known`; a temporary view where that is needed.

    Raises MopError, and PostgreSQL's own errors for a query that cannot be run.
    """
    if is_query(text):
        assert text is not None
        body = text.strip().rstrip(";")
        with _view(db, body) as view:
            db.input_table(f"pg_temp.{quote_identifier(view.name)}", what)  # raises an error if it has no rows
            with rows_with(db, view, known) as rows:
                yield rows
        return
    table = db.input_table(text, what)
    with rows_with(db, table, known) as rows:
        yield rows


@contextmanager
def rows_with(db: Database, table: Table, known: str | None) -> Iterator[Table]:
    """The rows of a table with a value in the column `known` (None: all)."""
    name = known and db.find_column(db.columns(table), known)
    if name and db.value(f"SELECT EXISTS (SELECT 1 FROM {table} t WHERE t.{quote_identifier(name)} IS NULL)"):
        with _view(db, f"SELECT * FROM {table} t WHERE t.{quote_identifier(name)} IS NOT NULL") as view:
            yield view
    else:
        yield table


@contextmanager
def _view(db: Database, body: str) -> Iterator[Table]:
    """A temporary view of a query, in which names mean what they mean to the caller. An error rolls it back."""
    name = f"mop_rows_{secrets.token_hex(6)}"
    quoted = f"pg_temp.{quote_identifier(name)}"
    with db.caller_path():
        db.execute(f"CREATE TEMPORARY VIEW {quote_identifier(name)} AS {body}")
    view = db.find_table(quoted)
    if view is None:
        raise MopError("the query made no view", detail=body)
    yield view
    db.execute(f"DROP VIEW {quoted}")


def columns_named(db: Database, table: Table, argument: str, names: list[str]) -> list[str]:
    """The existing columns in `names`, which the caller wrote in `argument`. Raises MopError."""
    existing = db.columns(table)
    found = []
    for name in names:
        column = db.find_column(existing, name)
        if column is None:
            raise MopError(
                f'invalid {argument}: column "{name}" does not exist',
                hint="The columns are " + ", ".join(existing) + ".",
                sqlstate="42703",
            )
        found.append(column)
    return found

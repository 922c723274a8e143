"""The rows to pack or to predict for, as the caller names them: a table, a view, or a query."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier

COMMENT = r"--[^\n]*(?:\n|$)|/\*.*?\*/"
QUERY = re.compile(rf"(?:\s|{COMMENT})*(\(|(select|with|values|table)\b)", re.IGNORECASE | re.DOTALL)


def is_query(text: str | None) -> bool:
    """Whether the caller's text is a query, not a name."""
    return bool(QUERY.match(text or ""))


def in_brackets(query: str) -> str:
    """A query as a relation of FROM. A comment at its end must not hide the bracket."""
    return f"({query.strip().rstrip(';')}\n)"


def view_of_query(db: Database, query: str) -> AbstractContextManager[Table]:
    """A temporary view of a query, which has not run yet. Raises PostgreSQL's own errors for a query that cannot be run."""
    with db.caller_path():  # in brackets, further statements are a syntax error: the next command would run them
        db.plpy.prepare(f"SELECT * FROM {in_brackets(query)} t")
    return _view(db, query.strip().rstrip(";"), db.caller_path())


@contextmanager
def rows_of(db: Database, text: str | None, what: str = "source table", known: str | None = None) -> Iterator[Table]:
    """The relation with the rows, and with a value in the column `known`; a temporary view where that is needed.

    Raises MopError, and PostgreSQL's own errors for a query that cannot be run.
    """
    if is_query(text):
        assert text is not None
        with view_of_query(db, text) as view:
            if db.one(f"SELECT 1 AS x FROM {view} LIMIT 1") is None:
                raise MopError(f"the query of the {what} returns no rows")
            with rows_with(db, view, known) as rows:
                yield rows
        return
    table = db.input_table(text, what)
    with rows_with(db, table, known) as rows:
        yield rows


@contextmanager
def rows_with(db: Database, table: Table, known: str | None) -> Iterator[Table]:
    """The rows of a table with a value in the column `known` (None: all); a NOTICE tells of the others."""
    name = known and db.find_column(db.columns(table), known)
    if name and db.value(f"SELECT EXISTS (SELECT 1 FROM {table} t WHERE t.{quote_identifier(name)} IS NULL)"):
        db.notice(
            f"rows without a value of target {quote_identifier(name)} are left out", hint="They can be predicted later."
        )
        with _view(db, f"SELECT * FROM {table} t WHERE t.{quote_identifier(name)} IS NOT NULL") as view:
            yield view
    else:
        yield table


@contextmanager
def rows_where(db: Database, table: Table, condition: str) -> Iterator[Table]:
    """The rows `t` of a table for which a condition in SQL holds."""
    with _view(db, f"SELECT * FROM {table} t WHERE {condition}") as view:
        yield view


@contextmanager
def rows_with_values(db: Database, table: Table, values: Mapping[str, str], columns: Iterable[str]) -> Iterator[Table]:
    """The rows of a table in which some columns have other values: {column: SQL}. `columns`: all that are needed."""
    if not values:
        yield table
        return
    entries = [
        f"{values[name]} AS {quote_identifier(name)}" if name in values else quote_identifier(name)
        for name in dict.fromkeys(columns)
    ]
    with _view(db, f"SELECT {', '.join(entries)} FROM {table}") as view:
        yield view


@contextmanager
def _view(db: Database, body: str, path: AbstractContextManager[None] | None = None) -> Iterator[Table]:
    """A temporary view of a query; `path`: the search_path of its names, else the pinned one. An error rolls it back."""
    name = f"mop_rows_{secrets.token_hex(6)}"
    quoted = f"pg_temp.{quote_identifier(name)}"
    with path or nullcontext():
        db.execute(f"CREATE TEMPORARY VIEW {quote_identifier(name)} AS {body}")
    view = db.find_table(quoted)
    if view is None:
        raise MopError("the query made no view", detail=body)
    try:
        yield view
    except MopError as error:
        raise _without(view, body, error) from None
    db.execute(f"DROP VIEW {quoted}")


def _without(view: Table, body: str, error: MopError) -> MopError:
    """The error with the query in place of its view, which is gone when the caller reads the error."""
    query = f"({body}\n)" if "--" in body else f"({body})"

    def with_query(text: str | None) -> str | None:
        return text and text.replace(f"FROM {view}", f"FROM {query} AS q").replace(str(view), "the query")

    error.message = with_query(error.message) or ""
    error.args = (error.message,)
    error.detail, error.hint = with_query(error.detail), with_query(error.hint)
    return error


def columns_named(db: Database, table: Table, argument: str, names: list[str]) -> list[str]:
    """The existing columns in `names`, which the caller wrote in `argument`. Raises MopError."""
    types = db.columns(table)
    columns = []
    for name in names:
        column = db.find_column(types, name)
        if column is None:
            raise MopError(
                f'invalid {argument}: column "{name}" does not exist',
                hint="The columns are " + ", ".join(types) + ".",
                sqlstate="42703",
            )
        columns.append(column)
    return columns

"""The queries of a unit, and two ways to run them.

A unit is a coroutine (run/unit.py): it yields each :class:`Query`, and receives its rows. On PostgreSQL, SPI runs the
queries. On Greenplum, each SPI call from PL/Python starts and ends a subtransaction on all segments; so a PL/pgSQL
function runs the queries, which it gets as text (sql/greenplum/16_segment_trainers.sql).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from mop_udf.aggregate import Session
from pg_mop.backend.quoting import quote_literal

# a quoted identifier or literal, or a parameter
PARAMETER = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|\$([0-9]+)')


class Query(NamedTuple):
    """A statement with parameters $1, ... of `types`."""

    sql: str
    types: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    several: bool = False  # may return several rows, from functions in FROM alone
    by_cursor: bool = False  # fetch rows one by one (PostgreSQL only)


T = TypeVar("T")
Coroutine = Generator[Query, Any, T]  # receives the rows of each query; its result is a T


def by_spi(holder: Session, steps: Coroutine[T]) -> T:
    """Run a coroutine's queries in this session, and return the coroutine's result.

    `holder`: the mop_udf.aggregate.Session.
    """
    try:
        query = next(steps)
        while True:
            query = steps.send(holder.query(query.sql, query.types, query.values, query.by_cursor))
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


def as_text(query: Query) -> str:
    """A Query as one statement with literals, which returns at most one row; several rows become a JSON array."""
    text = (
        PARAMETER.sub(
            lambda match: (
                match[0]
                if match[1] is None
                else _literal(query.types[int(match[1]) - 1], query.values[int(match[1]) - 1])
            ),
            query.sql,
        )
        if query.types
        else query.sql
    )
    return f"SELECT coalesce(json_agg(s), '[]') AS several FROM ({text}) AS s" if query.several else text


def rows_of(answer: str | None) -> list[dict[str, Any]]:
    """The rows (dicts) of a Query that ran as text; `answer`: its row as JSON text, or None."""
    row = json.loads(answer) if answer is not None else None
    return [] if row is None else row["several"] if list(row) == ["several"] else [row]


def _literal(kind: str, value: Any) -> str:
    if value is not None and kind.endswith("[]"):
        return f"ARRAY[{', '.join(_element(element) for element in value)}]::{kind}"
    return f"{_element(value)}::{kind}"


def _element(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes cannot be passed as text")
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value).replace("inf", "Infinity")
    return quote_literal(str(value) if isinstance(value, (bool, float)) else value)

"""The queries of a unit, and two ways to run them.

A unit is a coroutine (run/unit.py): it yields each :class:`Query`, and receives its rows. On PostgreSQL, SPI runs the
queries. On Greenplum, each SPI call from PL/Python starts and ends a subtransaction on all segments; so a PL/pgSQL
function runs the queries, which it gets as text (sql/greenplum/16_segment_trainers.sql).
"""

import json
import math
import re
from typing import NamedTuple

from pg_mop.backend.quoting import quote_literal

# a quoted identifier or literal, or a parameter
PARAMETER = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|\$([0-9]+)')


class Query(NamedTuple):
    """A statement with parameters $1, ... of `types`."""

    sql: str
    types: tuple = ()
    values: tuple = ()
    several: bool = False  # may return several rows, from functions in FROM alone
    by_cursor: bool = False  # fetch rows one by one (PostgreSQL only)


def by_spi(holder, steps):
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


def as_text(query):
    """A Query as one statement with literals, which returns at most one row; several rows become a JSON array."""
    text = (
        PARAMETER.sub(
            lambda found: (
                found[0]
                if found[1] is None
                else _literal(query.types[int(found[1]) - 1], query.values[int(found[1]) - 1])
            ),
            query.sql,
        )
        if query.types
        else query.sql
    )
    return f"SELECT coalesce(json_agg(s), '[]') AS several FROM ({text}) AS s" if query.several else text


def rows_of(answer):
    """The rows (dicts) of a Query that ran as text; `answer`: its row as JSON text, or None."""
    row = json.loads(answer) if answer is not None else None
    return [] if row is None else row["several"] if list(row) == ["several"] else [row]


def _literal(kind, value):
    if value is not None and kind.endswith("[]"):
        return f"ARRAY[{', '.join(_element(element) for element in value)}]::{kind}"
    return f"{_element(value)}::{kind}"


def _element(value):
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes cannot be passed as text")
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value).replace("inf", "Infinity")
    return quote_literal(str(value) if isinstance(value, (bool, float)) else value)

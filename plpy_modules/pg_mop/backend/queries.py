"""The SQL of a unit, and how it is run.

A unit is a coroutine (run/unit.py) that yields each :class:`Query` and is sent its rows. On PostgreSQL it is run by
SPI. On Greenplum each call of SPI from PL/Python begins a subtransaction on all segments and ends it there, so that a
function in PL/pgSQL runs them, which is told what to do as text (sql/greenplum/16_places.sql).
"""

import json
import math
import re
from typing import NamedTuple

from pg_mop.backend.quoting import quote_literal

# what stands in quotes, or a parameter
PARAMETER = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|\$([0-9]+)')


class Query(NamedTuple):
    sql: str
    types: tuple = ()
    values: tuple = ()
    several: bool = False  # whether it may give several rows, being of functions in FROM alone
    by_cursor: bool = False  # whether its rows are to come one by one: of PostgreSQL alone


def by_spi(holder, steps):
    """Run the queries of a coroutine in this session: what it returns. `holder`: the mop_udf.aggregate.Session."""
    try:
        query = next(steps)
        while True:
            query = steps.send(holder.query(query.sql, query.types, query.values, query.by_cursor))
    except StopIteration as end:
        return end.value
    finally:
        steps.close()


def as_text(query):
    """A Query as one statement that gives one row at most, with its values as literals. Several rows are one array."""
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
    """The rows (dicts) of a Query that was run as text: `answer` is its row as JSON, NULL where there was none."""
    row = json.loads(answer) if answer is not None else None
    return [] if row is None else row["several"] if list(row) == ["several"] else [row]


def _literal(kind, value):
    if value is not None and kind.endswith("[]"):
        return f"ARRAY[{', '.join(_element(one) for one in value)}]::{kind}"
    return f"{_element(value)}::{kind}"


def _element(value):
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes do not go as text")
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value).replace("inf", "Infinity")
    return quote_literal(str(value) if isinstance(value, (bool, float)) else value)

"""Groups of rows that stay in one segment, so that folds (which hold out whole segments) do not part them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.sql_types import plain_types, stable_text

MOST_DEALT = 20_000  # groups that are dealt by their sizes; more groups are dealt by hashes


@dataclass(frozen=True)
class Groups:
    """The groups of a source.

    `key_sql`: SQL for the key of a row's group; NULLs are one group. `places`: {key: segment's position}; empty where hashes
    deal the groups to `segments` segments.
    """

    key_sql: str
    places: dict[str, int]
    segments: int

    @classmethod
    def of(cls, db: Database, rows: Table, column: str, segments: int) -> Groups:
        """The groups of equal values of a column. Raises MopError where they are fewer than the segments."""
        key = key_sql(plain_types(db, rows)[column], quote_identifier(column))
        sizes = db.execute(
            f'SELECT k, count(*) AS n FROM (SELECT {key} COLLATE pg_catalog."C" AS k FROM {rows}) s GROUP BY k '
            f"ORDER BY n DESC, k LIMIT {MOST_DEALT + 1}"
        )
        if len(sizes) < segments:
            raise MopError(
                f'column "{column}" has {len(sizes)} group{"s" * (len(sizes) != 1)}, fewer than the {segments} segments',
                detail="All rows of a group are in one segment, and each segment needs rows.",
                hint=f"SET pg_mop.segments = {max(1, len(sizes))};",
            )
        if len(sizes) > MOST_DEALT:
            return cls(key, {}, segments)
        return cls(key, deal(((row["k"], row["n"]) for row in sizes), segments), segments)

    def lookup(self, value: str, alias: str) -> tuple[str, str]:
        """SQL: (a join under the name `alias`, the position of the segment) for a row whose key is `value`."""
        if not self.places:
            return "", f"((hashtextextended({value}, 0) & 1073741823) % {self.segments})::integer"
        keys = ", ".join(map(quote_literal, self.places))
        places = ", ".join(map(str, self.places.values()))
        join = (
            f"LEFT JOIN unnest(ARRAY[{keys}]::text[], ARRAY[{places}]::integer[]) AS {alias}(k, place) "
            f'ON {alias}.k = {value} COLLATE pg_catalog."C"'
        )
        return join, f"{alias}.place"


def key_sql(sql_type: str, value: str) -> str:
    """SQL: the key of a row's group, a text that is equal for equal values; NULL is a group, too."""
    return f"coalesce('=' || {stable_text(sql_type, value)}, '')"


def deal(groups: Iterable[tuple[str, int]], segments: int) -> dict[str, int]:
    """{key: position of its segment}: each group, from the largest on, goes to the segment with the fewest rows (the LPT rule
    of Graham 1969, "Bounds on Multiprocessing Timing Anomalies").

    >>> deal([("a", 5), ("b", 3), ("c", 3), ("d", 1)], 2)
    {'a': 0, 'b': 1, 'c': 1, 'd': 0}
    """
    loads = [(0, segment) for segment in range(segments)]
    places = {}
    for key, rows in groups:
        load, segment = loads[0]
        heapq.heapreplace(loads, (load + rows, segment))
        places[key] = segment
    return places

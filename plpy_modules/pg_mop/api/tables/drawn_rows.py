"""Which rows of a large table a call of mop_train uses: as many as can be packed, trained on and measured within its time.

The sizes are estimates that are rather too small, of one processor of the year 2024 that other sessions share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pg_mop.backend.quoting import quote_identifier, quote_literal

LOOKED_AT = 1000  # rows whose width is measured
ROW, CELL, BYTE = (
    1e-5,
    2.5e-6,
    5e-8,
)  # seconds to pack, or to measure, a row, each of its columns, and each byte of its text
FITTED = 0.6  # share of these seconds that fitting takes, which validation rows do without
ROW_PASSES = 50_000  # that a session trains on a second
PASSES = 16  # over all training rows, for which there must be time: four trials of four passes
LEAST_TRAIN, LEAST_VALID, LEAST_TEST = 10_000, 5_000, 10_000  # rows, whatever the time is
MOST_VALID, MOST_TEST = 50_000, 200_000  # that choose, where training rows are drawn; that are measured
POSITIONS = 1 << 30  # of hashes of rows
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Speed:
    """`row`: seconds to pack, or to measure, a row."""

    row: float

    @classmethod
    def of(cls, columns: int, text_bytes: float) -> Speed:
        """Of rows with so many columns, whose values are so many bytes as text."""
        return cls(ROW + CELL * columns + BYTE * text_bytes)


def most_rows(
    rows: dict[str, int], speed: Speed, packing: float, nets: float, measuring: float, sessions: int
) -> dict[str, int]:
    """How many rows of each part a call uses, of {part: rows}; for the parts of which that is fewer than all.

    `packing`, `nets`, `measuring`: seconds for each, `nets` of 0 where none are trained; `sessions` that train.

    >>> most_rows({"train": 600_000, "valid": 200_000, "test": 200_000}, Speed(7e-5), 12, 24, 3, 2)
    {'train': 150000, 'valid': 50000, 'test': 42857}
    >>> most_rows({"train": 6000, "valid": 2000, "test": 2000}, Speed(7e-5), 0.2, 4, 0.1, 2)
    {}
    """
    found = {}
    share = 1 + (1 - FITTED) * rows.get("valid", 0) / rows["train"]
    most = packing / speed.row / share
    if nets:
        most = min(most, nets * ROW_PASSES * sessions / PASSES)
    if rows["train"] > (train := max(LEAST_TRAIN, int(most))):
        found["train"] = train
        valid = rows.get("valid", 0)
        if valid > (own := max(LEAST_VALID, min(MOST_VALID, valid * train // rows["train"]))):
            found["valid"] = own
    if rows.get("test", 0) > (test := max(LEAST_TEST, min(MOST_TEST, int(measuring / speed.row)))):
        found["test"] = test
    return found


def text_of(columns: Sequence[str]) -> str:
    """SQL: the text of a row t."""
    return f"ROW({', '.join(f't.{quote_identifier(name)}' for name in columns)})::text"


def width_sql(view: str, columns: Sequence[str]) -> str:
    """SQL: the mean bytes of the rows of a view, as text."""
    return f"SELECT avg(octet_length({text_of(columns)})) FROM (SELECT * FROM {view} LIMIT {LOOKED_AT}) t"


def condition(share: float, columns: Sequence[str]) -> str:
    """SQL: whether a row t is among a random share of the rows, always the same ones; `columns` tell the rows apart."""
    return f"(hashtextextended({text_of(columns)}, 1) & {POSITIONS - 1}) < {math.ceil(share * POSITIONS)}"


def latest(
    read: Callable[[str], list[tuple[Any, ...]]], view: str, column: str, rows: int, of: int, keys: Sequence[str]
) -> str:
    """SQL: whether a row t is among the latest `rows` of the `of` rows of a view by a column; of equal times, a random share.

    `read(sql)`: the rows of a query; `keys`: columns that tell rows apart.
    """
    name = quote_identifier(column)
    ((cut, later, equal),) = read(
        f"SELECT c.cut::text, count(*) FILTER (WHERE t.{name} > c.cut), count(*) FILTER (WHERE t.{name} = c.cut) "
        f"FROM (SELECT percentile_disc({1 - rows / of!r}) WITHIN GROUP (ORDER BY {name}) AS cut FROM {view}) c, {view} t "
        "GROUP BY c.cut"
    )
    least = quote_literal(cut)
    return f"(t.{name} > {least} OR t.{name} = {least} AND {condition((rows - later) / equal, keys)})"

"""The rows of a packed table as arrays in this process."""

from __future__ import annotations

import math

from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.quoting import quote_identifier
from pg_mop.packing.packed_table import PackedTable


def read(db: Database, packed: PackedTable, most_rows: int, most_bytes: int) -> list[np.ndarray]:
    """The columns of a packed table, [rows, ...] each; of more rows or bytes, each of so many."""
    columns = packed.shaped.columns
    row_bytes = sum(column.packed_bytes for column in columns)
    step = max(1, math.ceil(count(db, packed) / max(1, min(most_rows, most_bytes // row_bytes))))
    names = ", ".join(
        f"{quote_identifier(c.name)} AS c{i}, {quote_identifier(c.name + '_shape')} AS s{i}"
        for i, c in enumerate(columns)
    )
    parts: list[list[np.ndarray]] = [[] for _ in columns]
    cursor = db.plpy.cursor(f"SELECT {names} FROM {packed.table} ORDER BY buffer_id")
    try:
        while buffers := cursor.fetch(1):
            db.check_cancel()
            for i, column in enumerate(columns):
                array = np.frombuffer(buffers[0][f"c{i}"], column.dtype).reshape(buffers[0][f"s{i}"])
                parts[i].append(array[::step].copy() if step > 1 else array)
    finally:
        cursor.close()
    return [np.concatenate(arrays) for arrays in parts]


def count(db: Database, packed: PackedTable) -> int:
    """The number of rows."""
    first = quote_identifier(packed.transform.columns[0].name + "_shape")
    return int(db.value(f"SELECT sum({first}[1])::bigint FROM {packed.table}") or 0)

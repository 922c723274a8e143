"""The packed table: created with a place for each segment, and filled from the source in one scan."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from pg_mop.backend import trainers
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.columns import Transform
from pg_mop.columns.out_of_range import OUT_OF_RANGE
from pg_mop.packing import buffers, rows
from pg_mop.packing.groups import Groups
from pg_mop.packing.placement import ServerPlacement
from pg_mop.packing.segments import SegmentPlacement
from pg_mop.packing.shards import Placement, ShardPlacement
from pg_mop.packing.summary import complete

CHUNK_BYTES = 16 << 20  # of source rows in memory at a time
CHUNK_ROWS = 100_000


def pack(
    db: Database,
    source: Table,
    target: str,
    summary: str,
    transform: Transform,
    names: list[str],
    requested: int | None,
    placement: Placement,
    num_classes: list[int],
    seed: int | None,
    training: str | None = None,
    groups: Groups | None = None,
) -> None:
    """Create and fill the packed table `target` (quoted), and complete the summary.

    `names`: of the packed table's columns; `requested`: rows per buffer, or None; `placement`: from
    :func:`pg_mop.packing.shards.placement_of`; `seed` shuffles the rows; None: as they are scanned. `training`: the packed
    table (quoted) whose transform validation rows are packed by; `groups`: of rows that stay in one segment. Raises MopError
    for labels and numbers that do not fit.
    """
    trainers.expect(db)
    columns = transform.columns
    row_bytes = sum(column.packed_bytes for column in columns)
    if row_bytes > buffers.MAX_PACKED_BYTES:
        raise MopError(f"one row of {source} would take {row_bytes} bytes, which no PostgreSQL row can hold")
    count, segments = db.value(f"SELECT count(*) FROM {source}"), len(placement.keys)
    elements = [math.prod(column.shape) for column in transform.inputs]
    size = buffers.buffer_rows(count, segments, requested, elements, row_bytes)
    types = ["integer"] + ["bytea"] * len(columns) + ["integer[]"] * len(columns) + ["integer"]
    filled, copies = placement.create(target, list(zip(names, types)), [column.name for column in transform.inputs])
    if isinstance(placement, SegmentPlacement):
        written = placement.load(source, target, summary, transform, size, seed, training)
    else:
        written = _load(db, source, summary, transform, size, placement, filled, types, seed, training, count, groups)
    if written != count:
        rows.changed(source)
    complete(db, summary, size, num_classes, copies)
    placement.loaded(filled)
    if seed is not None:
        db.execute(f"COMMENT ON TABLE {target} IS 'packed by pg_mop, rows shuffled with seed {seed}'")


def _load(
    db: Database,
    source: Table,
    summary: str,
    transform: Transform,
    size: int,
    placement: ServerPlacement | ShardPlacement,
    filled: list[list[str]],
    types: list[str],
    seed: int | None,
    training: str | None,
    count: int,
    groups: Groups | None = None,
) -> int:
    """Fill the tables of the segments, `filled`, by one scan; returns the number of rows.

    Buffers are written straight into the partitions: routing would copy each buffer once more.
    """
    columns, segments = transform.columns, len(placement.keys)
    plans: dict[str, Any] = {}
    written, buffer_id = 0, 0

    def write(place: int, rows_in: int, values: list[bytes]) -> None:
        nonlocal written, buffer_id
        segment = place if groups else buffer_id % segments
        for table in filled[segment]:
            if table not in plans:
                plans[table] = db.plpy.prepare(
                    placement.INSERT.format(table, ", ".join(f"${i + 1}" for i in range(len(types)))), types
                )
            db.check_cancel()
            db.plpy.execute(
                plans[table], [placement.keys[segment], *values, *([rows_in, *c.shape] for c in columns), buffer_id]
            )
        written, buffer_id = written + rows_in, buffer_id + 1

    buffers_of_places = [buffers.Buffers(size, len(columns)) for _ in range(segments if groups else 1)]
    cursor = db.plpy.cursor(rows.scan(db, source, summary, transform, seed, placement.distributed, groups))
    counts = [len(column.raw_parts()) for column in columns]
    progress = Progress(db, count)
    chunk = max(1, min(CHUNK_ROWS, CHUNK_BYTES // sum(column.wire_bytes for column in columns)))
    while True:
        db.check_cancel()
        try:
            chunk_rows = list(cursor.fetch(chunk))
        except db.plpy.SPIError as error:
            if getattr(error, "sqlstate", None) == OUT_OF_RANGE:
                rows.explain_out_of_range(db, source, summary, transform, training)
            raise
        if not chunk_rows:
            break
        arrays = []
        for i, column in enumerate(columns):
            parts = [[row[f"v{i}_{j}"] for row in chunk_rows] for j in range(counts[i])]
            array = column.encode(column.values_of(parts))
            if array is None:
                rows.refuse(db, source, summary, column, training)
            arrays.append(array)
        progress.add(len(chunk_rows))
        places = None if groups is None else [row["place"] for row in chunk_rows]
        del chunk_rows
        for place, rows_there in _by_place(arrays, places):
            for buffer in buffers_of_places[place].add(rows_there):
                write(place, *buffer)
    cursor.close()
    for place, last in enumerate(buffers_of_places):
        if last.rows:
            write(place, *last.take())
    return written


def _by_place(arrays: list[np.ndarray], places: list[int | None] | None) -> Iterator[tuple[int, list[np.ndarray]]]:
    """(place, its rows) of each place that has some; a row without a place, of a group that is new, goes to the first."""
    if places is None:
        yield 0, arrays
        return
    numbers = np.array([place or 0 for place in places])
    for place in np.unique(numbers).tolist():
        positions = np.flatnonzero(numbers == place)
        yield place, [array[positions] for array in arrays]


class Progress:
    """Tells the caller every few seconds how many rows are packed, and how long the others will take."""

    SECONDS = 10.0

    def __init__(self, db: Database, count: int) -> None:
        self.db, self.count, self.done = db, count, 0
        self.began = self.told = time.monotonic()

    def add(self, rows: int) -> None:
        """So many more rows are read and encoded."""
        self.done += rows
        now = time.monotonic()
        if now - self.told >= self.SECONDS and self.done < self.count:
            self.told = now
            seconds = (now - self.began) / self.done * (self.count - self.done)
            self.db.info(f"packed {self.done} of {self.count} rows, about {seconds:.0f} s left")

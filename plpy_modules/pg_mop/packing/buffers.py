"""Packed rows to buffers: how many rows a buffer has, and the buffers themselves. Pure: numpy only, no database."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from pg_mop.backend.arrays import np
from pg_mop.backend.errors import MopError
from pg_mop.columns.binary import WIRE

MAX_ELEMENTS = 75_000_000  # independent elements that a computed buffer holds at most (300 MB of float32)
MAX_PACKED_BYTES = 1_000_000_000  # all values of one packed row together; PostgreSQL's limit is 1 GiB per row


def buffer_rows(rows: int, segments: int, requested: int | None, elements: Sequence[int], row_bytes: int = 0) -> int:
    """Rows per buffer: every segment gets the same number of whole buffers, as far as `rows` allow.

    `requested` None means as large as segments and MAX_ELEMENTS allow; `elements` are those of one row, per input.
    A packed row never exceeds MAX_PACKED_BYTES, even if more is requested.
    """
    limits = [rows]
    for count in elements:
        if requested is not None:
            limits.append(requested)
        else:
            limits.append(min(_ceil(MAX_ELEMENTS, count), _ceil(rows, segments)))
    if row_bytes:
        limits.append(MAX_PACKED_BYTES // row_bytes)
    size = min(limits)
    buffers = segments * _ceil(rows, size * segments)
    return _ceil(rows, buffers)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


class Buffers:
    """Collects rows of several columns and hands out whole buffers of `size` rows.

    The bytes of a buffer are collected in place: a full buffer is handed over without a copy.
    """

    def __init__(self, size: int, columns: int) -> None:
        self.size, self.rows = size, 0
        self.streams = [io.BytesIO() for _ in range(columns)]

    def add(self, arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, list[bytes]]]:
        """Add the same rows of every column; yields (rows, [bytes per column]) for each buffer that fills up."""
        start, count = 0, len(arrays[0])
        while start < count:
            end = min(count, start + self.size - self.rows)
            for stream, array in zip(self.streams, arrays):
                stream.write(np.ascontiguousarray(array[start:end]).data.cast("B"))
            self.rows += end - start
            start = end
            if self.rows == self.size:
                yield self.take()

    def take(self) -> tuple[int, list[bytes]]:
        """(rows, [bytes per column]) of the buffer that is being filled; a new buffer begins."""
        rows, full = self.rows, self.streams
        self.rows, self.streams = 0, [io.BytesIO() for _ in full]
        return rows, [stream.getvalue() for stream in full]


def to_bytes(values: Sequence[object], element: str) -> bytes:
    """A (nested) list of numbers -> the bytes of a buffer. Raises MopError for a NULL element."""
    array = np.asarray(values)
    if array.dtype == object:
        raise MopError("the array has a NULL element", hint="Bytes of a buffer have no place for NULL.")
    return array.astype(WIRE[element][1]).tobytes()


def from_bytes(packed: bytes, element: str) -> list[float]:
    """The bytes of a buffer -> a flat list of numbers. Raises MopError unless these are whole elements."""
    dtype = WIRE[element][1]
    if len(packed) % dtype.itemsize:
        raise MopError(f"{len(packed)} bytes are no whole number of {element} elements of {dtype.itemsize} bytes")
    return np.frombuffer(packed, dtype).tolist()

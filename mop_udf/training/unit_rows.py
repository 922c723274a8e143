"""The rows of a unit in its trainer: received from the backend, or kept from an earlier unit."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TypeVar

from mop_udf import data
from mop_udf.pool.channel import Channel
from mop_udf.unit_spec import UnitHeader

Chunk = tuple[int, data.Arrays]  # an epoch, and rows of it
Result = TypeVar("Result")


class UnitRows:
    """Iterates over the rows of a unit as (epoch, tuple of arrays), once.

    `ended` is true after the unit's "end" frame has been read. `wait_seconds` adds up the time spent waiting for rows;
    callers add the time that they spend loading states, and reset the sum as they need.
    """

    def __init__(self, channel: Channel, cache: data.Cache, unit: UnitHeader) -> None:
        self.ended, self.wait_seconds = False, 0.0
        self._channel, self._cache, self._unit = channel, cache, unit
        self._chunks = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def finish(self) -> None:
        """Read the remaining rows."""
        for _ in self._chunks:
            pass

    def drain(self) -> None:
        """Skip the unit's remaining frames, so that the next frame is the next request."""
        while not self.ended:
            header, _ = self._channel.receive()
            self.ended = header["op"] == "end"

    def _read(self) -> Iterator[Chunk]:
        unit = self._unit
        cached = self._cache.get(unit.dataset)
        if unit.sends_rows:
            rows = yield from self._timed(
                data.receive_rows(self._channel, unit.dtypes, unit.rows if unit.keeps_rows else None)
            )
            self.ended = True
            if unit.keeps_rows:
                if rows is None:
                    raise RuntimeError(f"segment {unit.segment} did not send its {unit.rows} rows")
                self._cache.segments[unit.dataset] = rows
        else:
            self._channel.receive()
            self.ended = True
            if cached is None:
                raise RuntimeError("the trainer does not hold the rows of this segment")
            yield 1, cached.columns

    def _timed(self, generator: Generator[Chunk, None, Result]) -> Generator[Chunk, None, Result]:
        """Yield the items of `generator` and return its value; add the time that it takes to `wait_seconds`."""
        while True:
            before = time.monotonic()
            try:
                item = next(generator)
            except StopIteration as stop:
                return stop.value
            finally:
                self.wait_seconds += time.monotonic() - before
            yield item


class KeptRows:
    """The rows of a unit that its trainer keeps; the methods and attributes of UnitRows."""

    ended = True

    def __init__(self, cache: data.Cache, unit: UnitHeader) -> None:
        """Raises RuntimeError where the trainer does not keep the rows."""
        self.wait_seconds, found = 0.0, cache.get(unit.dataset)
        if found is None:
            raise RuntimeError("the trainer does not hold the rows of this segment")
        self._columns = found.columns

    def __iter__(self) -> Iterator[Chunk]:
        yield 1, self._columns

    def finish(self) -> None:
        """All rows are there."""

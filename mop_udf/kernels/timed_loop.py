"""The base of compiled loops over mini-batches: batches per call, and the time of a batch."""

import time
from collections.abc import Iterator
from typing import Any

import keras

from mop_udf.kernels.batches import cached

CALL_SECONDS = 0.5  # of one call of the loop
PIECE_BYTES, PIECE_BATCHES = 2 << 20, 1024  # rows for XLA: bytes of a piece, and its most batches
PROBES = (2, 8, 64)  # batches of the first calls: a warm-up, then two timed calls
ENOUGH = 0.05  # seconds after which a call is long enough to be timed


class TimedLoop:
    """A compiled loop that trains one model on mini-batches; the class to extend for a new kernel.

    A subclass implements `_key(data, batch_size)`, which tells compilations apart, `_function(data, batch_size)`, which
    makes the loop for a key, and `_run(data, batch_size, start, stop)`, which trains on a range of batches by
    `self.functions[key]`. Its public `compile(data, batch_size, waits)` calls `_compile` and returns the seconds that
    it took. It also sets `jit_compile`, whether XLA compiles the loop, and `takes_short`, whether the loop can train
    the short last batch.

    An example that adds rows up instead of training on them:

        >>> import numpy as np
        >>> class AddRows(TimedLoop):
        ...     jit_compile, takes_short = False, False
        ...
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.total = 0.0
        ...
        ...     def _key(self, data, batch_size):
        ...         return batch_size, data.dtype, data.shape[1:]
        ...
        ...     def _function(self, data, batch_size):
        ...         def loop(data, start, stop):
        ...             return float(data[start * batch_size : stop * batch_size].sum())
        ...
        ...         return loop
        ...
        ...     def _run(self, data, batch_size, start, stop):
        ...         self.total += self.functions[self._key(data, batch_size)](data, start, stop)
        ...
        ...     def compile(self, data, batch_size, waits=True):
        ...         self._compile(data, batch_size)
        ...         self.compilations += 1
        ...         return 0.0
        >>> kernel, rows = AddRows(), np.ones((12, 2))
        >>> kernel.knows(rows, 4), kernel.compile(rows, 4), kernel.knows(rows, 4)
        (False, 0.0, True)
        >>> done, seconds = kernel.probe(rows, 4, 0, 3)
        >>> done, kernel.total
        (3, 24.0)
    """

    cut: Any

    def __init__(self) -> None:
        self.functions: dict[Any, Any] = {}  # key of the compiled code -> the loop
        self.warm: set[int] = set()  # batch sizes that have run: libraries initialize for each
        self.compilations = 0
        # data.Columns that may keep pieces cut from them, or None; the beginning of the pieces' keys
        self.kept, self.kept_as = None, None
        self.hasty = False  # run soon rather than fast: skip optimizations of the code

    def knows(self, data: Any, batch_size: int) -> bool:
        """True where the loop for such data is compiled."""
        return self._key(data, batch_size) in self.functions

    def _key(self, data: Any, batch_size: int) -> Any:
        raise NotImplementedError

    def _function(self, data: Any, batch_size: int) -> Any:
        raise NotImplementedError

    def _run(self, data: Any, batch_size: int, start: int, stop: int) -> Any:
        raise NotImplementedError

    def _pieces(self, data: Any, rows: int, batch_size: int, start: int, stop: int) -> Iterator[Any]:
        """Batches `start` to `stop` of `data` in pieces of `rows` rows, made by the subclass' `cut`.

        Yields each piece with the first and the end of its batches to train.
        """
        for first, begin, end in pieces(start, stop, rows // batch_size):
            at = first * batch_size
            yield (
                cached(
                    self.kept,
                    (self.kept_as, at, rows),
                    lambda at=at: keras.tree.map_structure(lambda t: self.cut(t, at, rows), data),
                ),
                begin,
                end,
            )

    def _compile(self, data: Any, batch_size: int) -> None:
        """Compile the loop for such data, without training. Raises the framework's errors."""
        key = self._key(data, batch_size)
        self.functions[key] = self._function(data, batch_size)
        try:
            self._run(data, batch_size, 0, 0)
        except BaseException:
            del self.functions[key]
            raise

    def probe(self, data: Any, batch_size: int, start: int, stop: int) -> tuple[int, float | None]:
        """Train on some of the batches `start` to `stop`: (batches done, seconds of a batch).

        The seconds are None where too few batches were timed. Arguments as of `train`.
        """
        done, seconds = start, None
        for number, size in enumerate(PROBES):
            end = min(stop, done + size)
            if end == done or seconds is not None and seconds * PROBES[number - 1] > ENOUGH:
                break
            began = time.monotonic()
            self._run(data, batch_size, done, end)
            if number or batch_size in self.warm:
                seconds = (time.monotonic() - began) / (end - done)
            done = end
        self.warm.add(batch_size)
        return done - start, seconds

    def train(self, data: Any, batch_size: int, start: int, stop: int, seconds: float) -> float:
        """Train on batches `start` to `stop` (numbers) of `data`, a nest of tensors with equal first dimension.

        `seconds`: estimated time of a batch. Returns its measured time.
        """
        done = start
        size = max(1, int(CALL_SECONDS / max(seconds, 1e-7)))
        began = time.monotonic()
        while done < stop:
            end = min(stop, done + size)
            self._run(data, batch_size, done, end)
            done = end
        return (time.monotonic() - began) / (stop - start)


def piece_rows(row_bytes: int, batch_size: int) -> int:
    """The rows of a piece: a whole number of batches, independent of the number of rows."""
    return batch_size * max(1, min(PIECE_BATCHES, PIECE_BYTES // max(1, batch_size * row_bytes)))


def pieces(start: int, stop: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Batches `start` to `stop` in pieces of `length` batches; one empty piece where start equals stop.

    Yields the first batch of each piece, and the first and the end of the batches to train, relative to the piece.
    """
    while True:
        first = start // length * length
        end = min(stop, first + length)
        yield first, start - first, end - first
        if (start := end) >= stop:
            return

"""What every compiled loop over mini-batches does alike: how many it trains on in a call, and what a batch takes."""

import time

import keras

from mop_udf.kernels.batches import cached

CALL_SECONDS = 0.5  # of one call of the loop
PIECE_BYTES, PIECE_BATCHES = 2 << 20, 1024  # of rows for XLA: what it has at a time, and at most
PROBES = (2, 8, 64)  # batches of the first calls: one that warms up, then two that are timed
ENOUGH = 0.05  # seconds after which a call has been timed well enough


class TimedLoop:
    """A loop, of which a subclass says how it trains on batches: `_run(data, batch_size, start, stop)`, by `functions`,
    which it makes by `_function(data, batch_size)` for what `_key(data, batch_size)` tells apart."""

    def __init__(self):
        self.functions = {}  # what it is compiled for -> the loop
        self.warm = set()  # batch sizes that have run: libraries prepare themselves for each
        self.compilations = 0
        # the columns at hand, which may keep what is cut of them, and what the keys of that begin with
        self.kept, self.kept_as = None, None
        self.hasty = False  # it is to run soon, rather than fast

    def knows(self, data, batch_size):
        """True where the loop for such data has been compiled."""
        return self._key(data, batch_size) in self.functions

    def _pieces(self, data, rows, batch_size, start, stop):
        """Batches `start` to `stop` of `data` in pieces of so many rows, `cut` by the subclass: each piece, and from
        where to where in it to train."""
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

    def _compile(self, data, batch_size):
        """Make the loop for such data, without training. Raises whatever hinders it."""
        key = self._key(data, batch_size)
        self.functions[key] = self._function(data, batch_size)
        try:
            self._run(data, batch_size, 0, 0)
        except BaseException:
            del self.functions[key]
            raise

    def probe(self, data, batch_size, start, stop):
        """Train on some of the batches `start` to `stop`: (batches done, seconds of one).

        The seconds are None where there were too few to time one. Otherwise as `train`.
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

    def train(self, data, batch_size, start, stop, seconds):
        """Train on batches `start` to `stop` (numbers) of `data`, a nest of tensors with equal first dimension.

        `seconds`: what one batch takes, about. Returns what it took now.
        """
        done = start
        size = max(1, int(CALL_SECONDS / max(seconds, 1e-7)))
        began = time.monotonic()
        while done < stop:
            end = min(stop, done + size)
            self._run(data, batch_size, done, end)
            done = end
        return (time.monotonic() - began) / (stop - start)


def piece_rows(row_bytes, batch_size):
    """The rows of a piece: a whole number of batches, whatever rows there are."""
    return batch_size * max(1, min(PIECE_BATCHES, PIECE_BYTES // max(1, batch_size * row_bytes)))


def pieces(start, stop, length):
    """Batches `start` to `stop` in pieces of `length`: the first batch of each piece, and from where to where in it to
    train; one piece where there are none."""
    while True:
        first = start // length * length
        end = min(stop, first + length)
        yield first, start - first, end - first
        if (start := end) >= stop:
            return

"""The loop kernel on JAX: the mini-batches of many rows in memory as one loop compiled by XLA.

It gets the rows in pieces of a fixed number of batches, and trains on a given range of them. So one compilation serves
every number of rows. The plain kernel trains the short last batch.
"""

import time
from typing import Any

import jax
import keras
import numpy as np

from mop_udf.kernels.on_jax.step import Step
from mop_udf.kernels.timed_loop import TimedLoop, piece_rows
from mop_udf.pool import compile_cache


class Loop(TimedLoop):
    """Trains one compiled Keras model on arrays in memory, `batch_size` rows at a time."""

    jit_compile, takes_short = True, False

    @staticmethod
    def cut(array: Any, first: int, count: int) -> Any:
        """`count` rows of an array from `first` on, padded with zeros."""
        part = array[first : first + count]
        missing = count - len(part)
        return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)]) if missing else part

    def __init__(self, model: Any, name: str = "") -> None:
        """`name`: equal for models with equal compiled code, in all trainers."""
        super().__init__()
        self.model, self.name = model, name

    def compile(self, data: Any, batch_size: int, waits: bool = True) -> Any:
        """See on_tensorflow/loop.py."""
        began, cache = time.monotonic(), compile_cache.current()
        if cache is None:
            self._compile(data, batch_size)
        else:
            with cache.exclusive(f"{self.name} {self._key(data, batch_size)}", waits) as turn:
                if not turn:
                    return None
                self._compile(data, batch_size)
                cache.tidy()
        self.compilations += 1
        return time.monotonic() - began

    def _key(self, data: Any, batch_size: int) -> Any:
        return batch_size, tuple((a.dtype, a.shape[1:]) for a in keras.tree.flatten(data))

    def _run(self, data: Any, batch_size: int, start: int, stop: int) -> None:
        """Train on batches `start` to `stop`; with an empty range, only compile."""
        function = self.functions[self._key(data, batch_size)]
        rows = piece_rows(sum(a[:1].nbytes for a in keras.tree.flatten(data)), batch_size)
        for piece, begin, end in self._pieces(data, rows, batch_size, start, stop):
            function(piece, np.int32(begin), np.int32(end))

    def _function(self, data: Any, batch_size: int) -> Any:
        return Step(self.model).compiled(over_batches(batch_size))


def over_batches(batch_size: int) -> Any:
    """The function (see Step.pure) that trains on the batches `start` to `stop` of `data`."""

    def loop(step: Any, state: Any, data: Any, start: int, stop: int) -> Any:
        def body(i: Any, state: Any) -> Any:
            return step(
                state,
                keras.tree.map_structure(lambda a: jax.lax.dynamic_slice_in_dim(a, i * batch_size, batch_size), data),
            )

        return jax.lax.fori_loop(start, stop, body, state)

    return loop

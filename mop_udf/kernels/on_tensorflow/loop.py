"""The loop kernel: the mini-batches of many rows in memory as one compiled TensorFlow loop, with XLA or without.

It removes the overhead of a Python call for each batch, most of the time of a small model. The loop's body is Keras'
own train_step, so metrics, Dropout, BatchNormalization and class weights are Keras'. Without XLA, one compilation
serves every batch size, every number of rows and the short last batch. XLA compiles for one batch size and one number
of rows, and leaves the short batch out. It gets the rows in pieces of a fixed number of batches and trains on a given
range of them, so one compilation serves every number of rows.
"""

import functools
import math
import time
from typing import Any

import tensorflow as tf

from mop_udf.kernels.on_tensorflow import traces
from mop_udf.kernels.on_tensorflow.per_batch import numbers
from mop_udf.kernels.timed_loop import TimedLoop, piece_rows
from mop_udf.pool import compile_cache

# errors from a damaged or unwritable file of XLA's cache (otherwise they would be the model's)
CACHE_ERRORS = (
    tf.errors.OutOfRangeError,
    tf.errors.DataLossError,
    tf.errors.PermissionDeniedError,
    tf.errors.NotFoundError,
    tf.errors.ResourceExhaustedError,
    tf.errors.FailedPreconditionError,
)


class Loop(TimedLoop):
    """Trains one compiled Keras model on arrays in memory, `batch_size` rows at a time.

    Keras must have made all its variables before: a loop must not make any.
    """

    takes_short = True  # without XLA, also the short last batch

    @staticmethod
    def cut(tensor: Any, first: int, count: int) -> Any:
        """`count` rows of a tensor from `first` on, padded with zeros."""
        part = tensor[first : first + count]
        missing = count - part.shape[0]
        return tf.pad(part, [[0, missing], *[[0, 0]] * (part.shape.rank - 1)]) if missing else part

    def __init__(self, model: Any, jit_compile: bool, name: str = "", lasting: bool = False) -> None:
        """`name`: equal for models with equal compiled code, in all trainers; `lasting`: keep traces under this name."""
        super().__init__()
        self.model, self.jit_compile, self.name, self.lasting = model, jit_compile, name, lasting
        self.named = True  # traces get names that depend on `name`, so that XLA's cache finds them

    def compile(self, data: Any, batch_size: int, waits: bool = True) -> Any:
        """Compile the loop for such data, without training: seconds that it took. Raises the framework's errors.

        While another trainer compiles the same code, a caller that `waits` reads it afterwards; others get None.
        """
        began, cache = time.monotonic(), compile_cache.current() if self.jit_compile else None
        if cache is None:
            self._compile(data, batch_size)
        else:
            with cache.exclusive(f"{self.name} {self._key(data, batch_size)}", waits) as turn:
                if not turn:
                    return None
                self._compile_to_keep(data, batch_size, cache)
        self.compilations += 1
        return time.monotonic() - began

    def _compile_to_keep(self, data: Any, batch_size: int, cache: Any) -> None:
        try:
            self._compile(data, batch_size)
        except CACHE_ERRORS:
            self.named = False
            self._compile(data, batch_size)  # traced with other names; an error of the model comes again
            cache.clear()
        cache.tidy()

    def _run(self, data: Any, batch_size: int, start: int, stop: int) -> None:
        """Train on batches `start` to `stop`; with an empty range, only compile."""
        function = self.functions[self._key(data, batch_size)]
        if self.hasty:
            with traces.unoptimized():
                function(data, number(start), number(stop), number(batch_size))
            return
        for piece, begin, end in (
            self._pieces(data, self._piece_rows(data, batch_size), batch_size, start, stop)
            if (self.jit_compile)
            else [(data, start, stop)]
        ):
            function(piece, number(begin), number(end), number(batch_size))

    @staticmethod
    def _piece_rows(data: Any, batch_size: int) -> Any:
        return piece_rows(sum(t.dtype.size * math.prod(t.shape[1:]) for t in tf.nest.flatten(data)), batch_size)

    def _key(self, data: Any, batch_size: int) -> Any:
        """The key of the compiled code: (batch size, ((dtype, shape), ...))."""
        rows = self._piece_rows(data, batch_size) if self.jit_compile else None
        return (
            batch_size if self.jit_compile else None,
            tuple((t.dtype, (rows, *t.shape[1:])) for t in tf.nest.flatten(data)),
        )

    def _function(self, data: Any, batch_size: int) -> Any:
        """The loop for data of this shape, to be compiled."""
        rows = self._key(data, batch_size)[1][0][1][0]
        signature = tf.nest.map_structure(lambda t: tf.TensorSpec((rows, *t.shape[1:]), t.dtype), data)
        integer = tf.TensorSpec((), tf.int32)
        fixed = batch_size if self.jit_compile else None

        def loop(data: Any, start: int, stop: int, batch_size: int) -> Any:
            size = batch_size if fixed is None else fixed
            count = tf.shape(tf.nest.flatten(data)[0])[0]

            def body(i: Any) -> Any:
                rows = tf.minimum(size, count - i * size) if fixed is None else fixed
                self.model.train_step(
                    tf.nest.map_structure(
                        lambda t: tf.ensure_shape(
                            tf.slice(t, [i * size, *[0] * (t.shape.rank - 1)], [rows, *t.shape[1:]]),
                            (fixed, *t.shape[1:]),
                        ),
                        data,
                    )
                )
                return i + 1

            return tf.while_loop(lambda i: i < stop, body, [start], parallel_iterations=1)

        # (a concrete function: tf.function's look at its arguments would take longer than a small model trains)
        made = tf.function(loop, autograph=False, jit_compile=self.jit_compile)
        text = f"{'xla' if self.jit_compile else 'loop'} {self.name} {self._key(data, batch_size)}"
        return traces.function(
            lambda: made.get_concrete_function(signature, integer, integer, integer),
            text if self.named else None,
            trained(self.model),
            self.lasting,
            self.model.optimizer.name if self.jit_compile and not tf.config.list_physical_devices("GPU") else None,
        )


def trained(model: Any) -> Any:
    """The variables that a compiled Keras model's training step may use, always in the same order."""
    optimizer = model.optimizer
    return [
        *model.variables,
        *model.metrics_variables,
        *optimizer.variables,
        *numbers(optimizer),
        *numbers(optimizer._learning_rate),
    ]


@functools.lru_cache(10_000)
def number(value: Any) -> Any:
    """An integer as a tensor."""
    return tf.constant(value, tf.int32)

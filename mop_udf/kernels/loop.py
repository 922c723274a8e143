"""The loop kernel: the mini-batches of many rows in memory as one compiled TensorFlow loop, with XLA or without.

It removes the overhead of a Python call for each batch, which is most of the time of a small model. The loop's body is
Keras' own train_step, so metrics, Dropout, BatchNormalization and class weights are Keras'. Without XLA one compilation
serves every batch size, every number of rows and the short last batch; XLA compiles for one batch size and one number
of rows, and leaves the short batch out.
"""

import time

import tensorflow as tf

CALL_SECONDS = 0.5  # of one call of the loop
PROBES = (2, 8, 64)  # batches of the first calls: one that warms up, then two that are timed
ENOUGH = 0.05       # seconds after which a call has been timed well enough


class Loop:
    """Trains one compiled Keras model on arrays in memory, `batch_size` rows at a time.

    Keras must have made all its variables before: a loop must not make any.
    """

    def __init__(self, model, jit_compile):
        self.model, self.jit_compile = model, jit_compile
        self.functions = {}     # signature -> the compiled loop
        self.warm = set()       # batch sizes that have run: libraries prepare themselves for each
        self.compilations = 0

    def compile(self, data, batch_size):
        """Make the loop for such data, without training; seconds that it took. Raises whatever hinders it."""
        began = time.monotonic()
        key = self._key(data, batch_size)
        self.functions[key] = self._function(data, batch_size)
        try:
            self.functions[key](data, tf.constant(0), tf.constant(0), tf.constant(batch_size))  # no batch
        except BaseException:
            del self.functions[key]
            raise
        self.compilations += 1
        return time.monotonic() - began

    def probe(self, data, batch_size, start, stop):
        """Train on some of the batches `start` to `stop`: (batches done, seconds of one).

        The seconds are None where there were too few to time one. Otherwise as `train`.
        """
        function, done, seconds = self.functions[self._key(data, batch_size)], start, None
        for number, size in enumerate(PROBES):
            end = min(stop, done + size)
            if end == done or seconds is not None and seconds * PROBES[number - 1] > ENOUGH:
                break
            began = time.monotonic()
            function(data, tf.constant(done), tf.constant(end), tf.constant(batch_size))
            if number or batch_size in self.warm:
                seconds = (time.monotonic() - began) / (end - done)
            done = end
        self.warm.add(batch_size)
        return done - start, seconds

    def train(self, data, batch_size, start, stop, seconds):
        """Train on batches `start` to `stop` (numbers) of `data`, a nest of tensors with equal first dimension.

        `seconds`: what one batch takes, about. Returns what it took now.
        """
        function, done = self.functions[self._key(data, batch_size)], start
        size = max(1, int(CALL_SECONDS / max(seconds, 1e-7)))
        began = time.monotonic()
        while done < stop:
            end = min(stop, done + size)
            function(data, tf.constant(done), tf.constant(end), tf.constant(batch_size))
            done = end
        return (time.monotonic() - began) / (stop - start)

    def knows(self, data, batch_size):
        """True where the loop for such data has been compiled."""
        return self._key(data, batch_size) in self.functions

    def _key(self, data, batch_size):
        flat = tf.nest.flatten(data)
        rows = flat[0].shape[0] if self.jit_compile else None
        return (batch_size if self.jit_compile else None, tuple((t.dtype, (rows, *t.shape[1:])) for t in flat))

    def _function(self, data, batch_size):
        """The loop for data of this shape, to be compiled."""
        rows = self._key(data, batch_size)[1][0][1][0]
        signature = tf.nest.map_structure(lambda t: tf.TensorSpec((rows, *t.shape[1:]), t.dtype), data)
        number = tf.TensorSpec((), tf.int32)
        fixed = batch_size if self.jit_compile else None

        def loop(data, start, stop, batch_size):
            size = batch_size if fixed is None else fixed
            count = tf.shape(tf.nest.flatten(data)[0])[0]

            def body(i):
                here = tf.minimum(size, count - i * size) if fixed is None else fixed
                self.model.train_step(tf.nest.map_structure(
                    lambda t: tf.ensure_shape(tf.slice(t, [i * size, *[0] * (t.shape.rank - 1)],
                                                       [here, *t.shape[1:]]), (fixed, *t.shape[1:])), data))
                return i + 1

            return tf.while_loop(lambda i: i < stop, body, [start], parallel_iterations=1)

        return tf.function(loop, input_signature=[signature, number, number, number], autograph=False,
                           jit_compile=self.jit_compile)

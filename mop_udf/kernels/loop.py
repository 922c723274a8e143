"""The loop kernel: the full mini-batches of a segment as one compiled TensorFlow loop, with XLA or without.

It removes the overhead of a Python call for each batch, which is most of the time of a small model. The loop's body is
Keras' own train_step, so metrics, Dropout, BatchNormalization and class weights are Keras'. Only full batches run in
it: the plain kernel takes the short last one, and the very first, in which Keras makes what variables it still lacks.
"""

import time

import tensorflow as tf

CALL_SECONDS = 0.5  # of one call of the loop, so that a cancel does not wait for longer
FIRST_CALL = 2      # batches: most of it compiles
SECOND_CALL = 8     # batches: the time of one is not known yet


class Loop:
    """Trains one compiled Keras model on arrays in memory, `batch_size` rows at a time."""

    def __init__(self, model, jit_compile):
        self.model, self.jit_compile = model, jit_compile
        self.name = "xla" if jit_compile else "loop"
        self.functions = {}     # signature -> the compiled loop
        self.compilations = 0
        self.compile_seconds = 0.0

    def train(self, data, batch_size, start, stop, seconds):
        """Train on batches `start` to `stop` (numbers) of `data`, a nest of tensors with equal first dimension.

        `seconds`: an estimate for one batch, or None. Returns the seconds that one batch took, without compiling.
        """
        function, first = self._function(data, batch_size)
        done, spent, count = start, 0.0, 0
        while done < stop:
            size = FIRST_CALL if first else SECOND_CALL if seconds is None else max(
                1, int(CALL_SECONDS / max(seconds, 1e-7)))
            end = min(stop, done + size)
            began = time.monotonic()
            function(data, tf.constant(done), tf.constant(end))
            took = time.monotonic() - began
            if first:  # it compiled
                first = False
                self.compilations += 1
                self.compile_seconds = took
            else:
                spent, count = spent + took, count + end - done
                seconds = spent / count
            done = end
        return seconds

    def _function(self, data, batch_size):
        """(the loop for data of this shape, whether it is new). Without XLA the number of rows may differ."""
        flat = tf.nest.flatten(data)
        rows = flat[0].shape[0] if self.jit_compile else None
        key = (batch_size, tuple((t.dtype, (rows, *t.shape[1:])) for t in flat))
        if key in self.functions:
            return self.functions[key], False
        signature = tf.nest.map_structure(lambda t: tf.TensorSpec((rows, *t.shape[1:]), t.dtype), data)
        number = tf.TensorSpec((), tf.int32)

        def loop(data, start, stop):
            def body(i):
                self.model.train_step(tf.nest.map_structure(
                    lambda t: tf.slice(t, [i * batch_size, *[0] * (t.shape.rank - 1)], [batch_size, *t.shape[1:]]),
                    data))
                return i + 1

            return tf.while_loop(lambda i: i < stop, body, [start], parallel_iterations=1)

        self.functions[key] = tf.function(loop, input_signature=[signature, number, number], autograph=False,
                                          jit_compile=self.jit_compile)
        return self.functions[key], True

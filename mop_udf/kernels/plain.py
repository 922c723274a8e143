"""The plain kernel: one Keras step per mini-batch. It does whatever Keras does, and is the measure of the others."""

import numpy as np
import tensorflow as tf


class Plain:
    """Trains and evaluates one compiled Keras model, batch by batch.

    Equal, bit for bit, to `model.train_on_batch` of a fresh model over the same batches. TensorFlow compiles a step for
    the shapes of its first batch, and once more for any number of rows when another shape comes; the two round
    differently. So that a result does not depend on what the trainer did before, the same two steps are made here on
    purpose: one for full batches, one for short ones.
    """

    name = "plain"

    def __init__(self, model):
        self.model, self.steps = model, {}

    def train(self, batches, batch_size, inputs, class_weight=None):
        """Train on `batches`, tuples of arrays of which the first `inputs` are inputs.

        Returns {"loss": mean loss over the rows, "rows": rows, ...metrics}.
        """
        self.model.reset_metrics()
        logs, rows = {}, 0
        for batch in batches:
            x, y = split(batch, inputs)
            self.model.train_function = self._step(len(batch[0]) == batch_size)
            logs = self.model.train_on_batch(x, y, class_weight=class_weight, return_dict=True)
            rows += len(batch[0])
        return report(logs, rows)

    def evaluate(self, batches, inputs):
        """Loss and metrics over `batches`, without training. Returns as `train` does."""
        self.model.reset_metrics()
        logs, rows = {}, 0
        for batch in batches:
            x, y = split(batch, inputs)
            logs = self.model.test_on_batch(x, y, return_dict=True)
            rows += len(batch[0])
        return report(logs, rows)

    def _step(self, full):
        """What train_on_batch calls with an iterator over its one batch."""
        def function(iterator):
            parts = next(iter(iterator))  # x, y, sample weights or None
            data = tf.nest.map_structure(tf.convert_to_tensor, tuple(p for p in parts if p is not None))
            shape = tuple((t.dtype, (t.shape if full else [None, *t.shape[1:]])) for t in tf.nest.flatten(data))
            key = (full, str(shape))
            if key not in self.steps:
                signature = tf.nest.map_structure(
                    lambda t: tf.TensorSpec(t.shape if full else [None, *t.shape[1:]], t.dtype), data)
                self.steps[key] = tf.function(self.model.train_step, input_signature=[signature], autograph=False)
            return self.steps[key](data)
        return function


def split(batch, inputs):
    """A batch -> (x, y) as Keras wants them: an array where there is one, else a list."""
    x, y = batch[:inputs], batch[inputs:]
    return (x[0] if len(x) == 1 else list(x)), (y[0] if len(y) == 1 else list(y))


def report(logs, rows):
    """Keras' logs as plain numbers, and the rows that they are of."""
    return {**{name: float(np.asarray(value)) for name, value in logs.items()}, "rows": rows}

"""A compiled model's kernels, and the choice among them: what the trainer trains with."""

import time

import tensorflow as tf

from mop_udf.kernels.choice import Choice
from mop_udf.kernels.loop import Loop
from mop_udf.kernels.plain import Plain, report, sample_weights, split

TIMED = 8     # plain batches that are timed, after the one in which the step is traced
PROBED = 10   # batches of a kernel that is tried: those of its first two calls


class Chosen:
    """Trains on arrays in memory by the kernel that is fastest for the batch size."""

    def __init__(self, model, random):
        """`random`: the model draws random numbers while it trains (Dropout and the like)."""
        self.model, self.plain, self.random = model, Plain(model), random
        self.loops = {"loop": Loop(model, False), "xla": Loop(model, True)}
        self.choices = {}  # (batch size, what is forced) -> Choice
        self.convolutional = any("Conv" in type(layer).__name__ for layer in model._flatten_layers())

    @property
    def compilations(self):
        """How often this model's steps and loops have been compiled."""
        return len(self.plain.steps) + sum(loop.compilations for loop in self.loops.values())

    def choice(self, batch_size, forced):
        """The :class:`Choice` for a batch size; `forced`: a kernel's name, or None to choose by time."""
        key = (batch_size, forced)
        if key not in self.choices:
            self.choices[key] = Choice(forced, self.convolutional, bool(tf.config.list_physical_devices("GPU")))
            if self.random:
                self.choices[key].refused["xla"] = "XLA draws other random numbers from a seed than TensorFlow does"
        return self.choices[key]

    def train(self, columns, batch_size, inputs, class_weight, most, batches_left, forced):
        """One pass over `columns` (inputs, then outputs), at most `most` batches.

        `batches_left`: batches of this key that are still to come in the run, these included. Returns as Plain.train
        does, and under "kernel" the name of the one that trained most batches.
        """
        choice = self.choice(batch_size, forced)
        rows = len(columns[0])
        full = rows // batch_size if most is None else min(most, rows // batch_size)
        short = rows > full * batch_size and (most is None or full < most)
        self.model.reset_metrics()
        trained, position, data = {}, 0, None
        while position < full:
            # Keras makes the last of its variables in the first step, which no loop may do
            name = choice.next(batches_left - position) if self.plain.trains else "plain"
            if name == "plain":
                known = self.plain.trains and ("plain" in choice.batch_seconds or forced == "plain")
                count = full - position if known else min(full - position, TIMED if self.plain.trains else 1)
                self._plain(columns, batch_size, inputs, class_weight, position, count, choice)
            else:
                data = self._tensors(columns, inputs, class_weight) if data is None else data
                count = full - position if name in choice.batch_seconds else min(full - position, PROBED)
                if not self._loop(name, data, batch_size, position, count, choice):
                    continue
            trained[name] = trained.get(name, 0) + count
            position += count
        if short:
            end = min(rows, (full + 1) * batch_size)
            self.plain.step(tuple(c[full * batch_size:end] for c in columns), inputs, class_weight, False)
            trained.setdefault("plain", 0)
        done = rows if most is None else min(rows, most * batch_size)
        return {**report(self.model, done), "kernel": max(trained, key=trained.get)}

    def _plain(self, columns, batch_size, inputs, class_weight, position, count, choice):
        """Batches by the plain kernel; its first step and then a few are timed."""
        traced = self.plain.trains
        began = time.monotonic()
        for i in range(position, position + count):
            self.plain.step(tuple(c[i * batch_size:(i + 1) * batch_size] for c in columns), inputs, class_weight, True)
        seconds = (time.monotonic() - began) / count
        if not traced:
            choice.trace_seconds = seconds
        elif "plain" not in choice.batch_seconds and count > 1:
            choice.batch_seconds["plain"] = seconds

    def _loop(self, name, data, batch_size, position, count, choice):
        """Batches by a loop kernel. False where it cannot train this model: it has trained nothing then."""
        loop, known = self.loops[name], name in choice.batch_seconds
        before = loop.compilations
        try:
            seconds = loop.train(data, batch_size, position, position + count, choice.batch_seconds.get(name))
        except Exception as error:
            if known or loop.compilations > before:
                raise
            choice.refused[name] = f"{type(error).__name__}: {str(error)[:200]}"
            return False
        if seconds is not None:
            choice.batch_seconds[name] = seconds
        if loop.compilations > before:
            choice.compile_seconds[name] = loop.compile_seconds
            choice.spent += loop.compile_seconds
        return True

    def _tensors(self, columns, inputs, class_weight):
        """(x, y) or (x, y, sample weights) as tensors."""
        x, y = split(columns, inputs)
        data = (x, y) if class_weight is None else (x, y, sample_weights(y, class_weight))
        return tf.nest.map_structure(tf.convert_to_tensor, data)

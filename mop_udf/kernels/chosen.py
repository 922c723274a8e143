"""A compiled model's kernels, and the choice among them: what the trainer trains with."""

import time

import tensorflow as tf

from mop_udf.kernels.choice import Choice
from mop_udf.kernels.loop import Loop
from mop_udf.kernels.plain import Plain, report, weighted

TIMED = 8  # plain batches that are timed, after the one in which the step is traced


class Chosen:
    """Trains on arrays in memory by the kernel that is fastest for the batch size."""

    def __init__(self, model, random, learned):
        """`random`: the model draws random numbers while it trains (Dropout and the like); `learned`: what other
        models of its architecture have shown."""
        self.model, self.plain, self.random, self.learned = model, Plain(model), random, learned
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
            gpu = bool(tf.config.list_physical_devices("GPU"))
            self.choices[key] = choice = Choice(self.learned, forced, self.convolutional, gpu)
            if self.random:
                choice.refused["xla"] = "XLA draws other random numbers from a seed than TensorFlow does"
        return self.choices[key]

    def train(self, columns, batch_size, inputs, class_weight, most, left, run_left, run_seconds, forced):
        """One pass over `columns` (inputs, then outputs), at most `most` batches.

        `left`, `run_left`: how many such passes are still to come in the run, of this key and of all, this included;
        `run_seconds`: since the run began.
        Returns as Plain.train does, and under "kernel" the name of the one that trained most batches.
        """
        choice = self.choice(batch_size, forced)
        rows = len(columns[0])
        full = rows // batch_size if most is None else min(most, rows // batch_size)
        short = rows > full * batch_size and (most is None or full < most)
        self.model.reset_metrics()
        trained, position, data = {}, 0, None
        while position < full:
            name = choice.next(left * full - position, run_left * full - position, run_seconds)
            if name != "plain" and not self.plain.trains:
                self.plain.begin(tuple(c[position * batch_size:(position + 1) * batch_size] for c in columns), inputs,
                                 class_weight)
                count = 1
            elif name == "plain":
                count = full - position
                if "plain" not in choice.batch_seconds:
                    count = min(count, 1 if choice.trace_seconds is None else TIMED)
                self._plain(columns, batch_size, inputs, class_weight, position, count, choice)
            else:
                data = self._tensors(columns, inputs, class_weight) if data is None else data
                count = self._loop(name, data, batch_size, position, full, choice)
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
        began = time.monotonic()
        for i in range(position, position + count):
            self.plain.step(tuple(c[i * batch_size:(i + 1) * batch_size] for c in columns), inputs, class_weight, True)
        seconds = (time.monotonic() - began) / count
        if choice.trace_seconds is None:
            choice.trace_seconds = seconds
        elif count > 1:
            choice.timed("plain", seconds)

    def _loop(self, name, data, batch_size, start, stop, choice):
        """Batches by a loop kernel; how many. None where it cannot train this model: `choice` then knows why."""
        loop = self.loops[name]
        if name in choice.batch_seconds and loop.knows(data, batch_size):
            choice.timed(name, loop.train(data, batch_size, start, stop, choice.batch_seconds[name]))
            return stop - start
        before = loop.compilations
        try:
            count, seconds = loop.probe(data, batch_size, start, stop)
        except Exception as error:
            if loop.compilations > before:
                raise
            choice.refused[name] = f"{type(error).__name__}: {str(error)[:200]}"
            return 0
        if seconds is not None:
            choice.tried(name, seconds, loop.compile_seconds)
        return count

    def _tensors(self, columns, inputs, class_weight):
        """(x, y) or (x, y, sample weights) as tensors."""
        return tf.nest.map_structure(tf.convert_to_tensor, weighted(columns, inputs, class_weight))

"""Rows through a model without training it: its predictions, or the sums of its loss and metrics.

The sums of a batch are one function, compiled once for any number of rows; it begins with sums of zero, so that nothing
is left of what has failed. A loop over batches within it, as kernels/on_tensorflow/loop.py has one for training, was
tried: it took 0.1 s longer to compile, and saved no more than a call for each thousand rows.
"""

import math

import keras
import numpy as np

from mop_udf.kernels.batch_size import BatchSize
from mop_udf.kernels.batches import split
from mop_udf.kernels.framework import framework


class Forward:
    """One model, with the batch size that suits it.

    `scores`: a :class:`~mop_udf.kernels.scores.Scores` to evaluate with, or None.
    """

    def __init__(self, model, scores=None, layers=None, name=None):
        """`layers`: those that the rows go through, all of the model's if None; `name`: equal for models and scores
        that are compiled alike, whenever they are; None where there is none."""
        self.row_bytes = row_bytes(model._flatten_layers() if layers is None else layers)
        self.model, self.scores, self.size = model, scores, BatchSize(self.row_bytes)
        self._ready, self._steps, self._name = False, {}, name

    def predict(self, columns):
        """The outputs for inputs (arrays of equal length): a list of float32 arrays."""

        def work(columns):
            x, _ = split(columns, len(columns))
            return [np.asarray(o, "f4") for o in keras.tree.flatten(self._run("predict", (x,)))]

        self._probe(columns, work)
        return [np.concatenate(own) for own in zip(*self._over(columns, work))]

    def fill(self, columns, result, rows):
        """Write the output of a model that has one, for inputs (arrays of equal length), into the array `result`: of
        `rows` rows at a time, fewer where memory ends."""
        start = 0
        while start < len(result):
            x, _ = split(tuple(c[start : start + rows] for c in columns), len(columns))
            try:
                result[start : start + rows] = self._run("predict", (x,))
            except framework.OUT_OF_MEMORY:
                if rows == 1:
                    raise
                rows //= 2
                continue
            start += rows

    def evaluate(self, columns, inputs):
        """The sums (see Scores) of rows: a tuple of arrays, of which the first `inputs` are inputs."""

        def work(columns):
            return np.asarray(self._run("evaluate", split(columns, inputs)))

        if not self._ready:  # metrics make their variables when they first see rows
            self.scores.update(*framework.tensors(split(tuple(c[:1] for c in columns), inputs)))
            self._ready = True
        self._probe(columns, work)
        return sum(self._over(columns, work))

    def _probe(self, columns, work):
        """Find the batch size, on rows that are done once more afterwards: so that what is computed does not depend on
        how it was found, but on the rows and on memory where that is short."""
        while not self.size.settled and self.size.rows <= len(columns[0]):
            batch = tuple(c[: self.size.rows] for c in columns)
            try:
                self.size.measure(lambda batch=batch: work(batch))
            except framework.OUT_OF_MEMORY:
                if not self.size.shrink():
                    raise

    def _over(self, columns, work):
        """What `work` gives for each batch of the rows; one for which memory does not suffice is done again in smaller
        ones."""
        start = 0
        while start < len(columns[0]):
            piece = tuple(c[start : start + self.size.rows] for c in columns)
            try:
                result = work(piece)
            except framework.OUT_OF_MEMORY:
                if not self.size.shrink():
                    raise
                continue
            yield result
            start += len(piece[0])

    def _run(self, kind, data):
        """A step on rows, compiled for any number of them."""
        data = framework.tensors(data)
        key = (kind, str([(t.dtype, t.shape[1:]) for t in keras.tree.flatten(data)]))
        if key not in self._steps:
            variables = self.model.variables
            if kind == "evaluate":
                step, join = self.scores.sums, _added
                # (of several outputs Keras keeps each one's loss in metrics)
                variables = [*variables, *self.model.metrics_variables, *self.scores.variables]
                variables = list({id(variable): variable for variable in variables}.values())
            else:
                step, join = lambda x: self.model(x, training=False), _one_after_the_other
            self._steps[key] = framework.for_any_rows(
                step, data, variables, join, self._name and " ".join((*key, self._name))
            )
        return self._steps[key](*data)


def _added(*sums):
    return sum(sums)


def _one_after_the_other(*outputs):
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def row_bytes(layers):
    """Bytes of the outputs of Keras layers for one row, as far as their shapes are known."""
    total = 0
    for layer in layers:
        try:
            shapes = [tuple(output.shape[1:]) for output in keras.tree.flatten(layer.output)]
        except AttributeError:  # it is part of another layer
            continue
        total += sum(4 * math.prod(shape) for shape in shapes if None not in shape)
    return total

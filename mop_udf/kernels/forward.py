"""Inference: a model's predictions, or the sums of its loss and metrics, over rows.

The sums of a batch are one function, compiled once for any number of rows. It sets the sums to zero first, so a failed
batch leaves nothing behind. A compiled loop over batches, as in kernels/on_tensorflow/loop.py, was tried: it took 0.1 s
longer to compile, and saved only one call for each thousand rows.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from mop_udf.kernels.batch_size import BatchSize
from mop_udf.kernels.batches import joined, split
from mop_udf.kernels.framework import framework


class Forward:
    """Predicts and evaluates with one model, at a batch size that fits memory.

    `scores`: a :class:`~mop_udf.kernels.scores.Scores` to evaluate with, or None.
    """

    def __init__(self, model: Any, scores: Any = None, layers: Any = None, name: str | None = None) -> None:
        """`layers`: the layers that the rows pass, None for all of the model's.

        `name`: equal for models and scores with equal compiled code, in all trainers; None to keep no compiled code.
        """
        self.row_bytes = row_bytes(model._flatten_layers() if layers is None else layers)
        self.model, self.scores, self.size = model, scores, BatchSize(self.row_bytes)
        self._ready, self._name = False, name
        self._steps: dict[Any, Any] = {}

    def predict(self, columns: Any) -> Any:
        """The outputs for inputs (arrays of equal length): a list of float32 arrays."""

        def work(columns: Any) -> Any:
            return [np.asarray(o, "f4") for o in keras.tree.flatten(self._run("predict", (joined(columns),)))]

        self._probe(columns, work)
        return [np.concatenate(own) for own in zip(*self._over(columns, work))]

    def fill(self, columns: Any, result: Any, rows: int) -> None:
        """Write the output of a model with one output, for inputs (arrays of equal length), into the array `result`.

        It takes `rows` rows at a time, fewer after memory has run out.
        """
        start = 0
        while start < len(result):
            x = joined(tuple(c[start : start + rows] for c in columns))
            try:
                result[start : start + rows] = self._run("predict", (x,))
            except framework.OUT_OF_MEMORY:
                if rows == 1:
                    raise
                rows //= 2
                continue
            start += rows

    def evaluate(self, columns: Any, inputs: Any) -> Any:
        """The sums (see Scores) over rows: a tuple of arrays, the first `inputs` of them inputs."""
        outputs = len(self.model.outputs)

        def work(columns: Any) -> Any:
            return np.asarray(self._run("evaluate", split(columns, inputs, outputs)))

        if not self._ready:  # metrics make their variables at their first batch
            self.scores.update(*framework.tensors(split(tuple(c[:1] for c in columns), inputs, outputs)))
            self._ready = True
        self._probe(columns, work)
        return sum(self._over(columns, work))

    def _probe(self, columns: Any, work: Any) -> None:
        """Find the batch size on rows that are computed again afterwards.

        So results do not depend on the search, only on the rows, and on the memory where it is short.
        """
        while not self.size.settled and self.size.rows <= len(columns[0]):
            batch = tuple(c[: self.size.rows] for c in columns)
            try:
                self.size.measure(functools.partial(work, batch))
            except framework.OUT_OF_MEMORY:
                if not self.size.shrink():
                    raise

    def _over(self, columns: Any, work: Any) -> Iterator[Any]:
        """Yield the result of `work` for each batch of the rows; after memory has run out, batches are smaller."""
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

    def _run(self, kind: Any, data: Any) -> Any:
        """Run a step on rows. It is compiled for any number of rows."""
        data = framework.tensors(data)
        key = (kind, str([(t.dtype, t.shape[1:]) for t in keras.tree.flatten(data)]))
        if key not in self._steps:
            variables = self.model.variables
            if kind == "evaluate":
                step, join = self.scores.sums, _added
                # (for several outputs, Keras keeps each output's loss in metrics)
                variables = [*variables, *self.model.metrics_variables, *self.scores.variables]
                variables = list({id(variable): variable for variable in variables}.values())
            else:
                step, join = lambda x: self.model(x, training=False), _one_after_the_other
            self._steps[key] = framework.for_any_rows(
                step, data, variables, join, self._name and " ".join((*key, self._name))
            )
        return self._steps[key](*data)


def _added(*sums: Any) -> Any:
    return sum(sums)


def _one_after_the_other(*outputs: Any) -> Any:
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def row_bytes(layers: Iterable[Any]) -> int:
    """Bytes of the outputs of Keras layers for one row, where their shapes are known."""
    total = 0
    for layer in layers:
        try:
            shapes = [tuple(output.shape[1:]) for output in keras.tree.flatten(layer.output)]
        except AttributeError:  # the layer is part of another layer
            continue
        total += sum(4 * math.prod(shape) for shape in shapes if None not in shape)
    return total

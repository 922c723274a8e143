"""Evaluation of a model on the rows of a segment. Runs in the trainer."""

import time

import numpy as np


class Evaluation:
    """Sums of one model over rows that come in pieces; several models may take turns at each piece."""

    def __init__(self, compiled, weights, inputs, features=None):
        """`weights`: arrays in the order of the model's weights; the first `inputs` columns of a piece are inputs.

        `features`: prefixes.Features of the only piece, or None.
        """
        self.compiled, self.weights, self.inputs, self.features = compiled, weights, inputs, features
        self.sums = 0.0  # the number of rows, then the sums of its Scores
        self.seconds = self.cpu_seconds = 0.0

    def add(self, piece):
        """Evaluate on a piece: a tuple of arrays."""
        began, busy = time.monotonic(), time.process_time()
        self.compiled.weights.put(self.weights)
        forward, inputs = self.compiled.forward, self.inputs
        if self.features and (segment := self.features.segment(forward.size.rows)):
            forward, piece, inputs = self.compiled.cut.forward, segment.columns, 1
        self.sums = self.sums + np.append(len(piece[0]), forward.evaluate(piece, inputs))
        self.seconds += time.monotonic() - began
        self.cpu_seconds += time.process_time() - busy

    def report(self):
        """The result of :meth:`CompiledModel.score` for all pieces, with "sums", "kernel", "seconds" and
        "cpu_seconds" (of this process)."""
        if np.isscalar(self.sums):
            return {"rows": 0, "seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        return {
            **self.compiled.score(self.sums),
            "sums": self.sums.tolist(),
            "kernel": "plain",
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }

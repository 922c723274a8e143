"""Evaluation of a model on the rows of a segment. Runs in the trainer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mop_udf.data import Arrays
from mop_udf.training import work_meter
from mop_udf.training.prefixes import Features

if TYPE_CHECKING:
    from mop_udf.training.compiled_model import CompiledModel


class Evaluation:
    """Sums of one model over rows that come in pieces; several models may take turns at each piece."""

    def __init__(
        self, compiled: CompiledModel, weights: Sequence[np.ndarray], inputs: int, features: Features | None = None
    ) -> None:
        """`weights`: arrays in the order of the model's weights; the first `inputs` columns of a piece are inputs.

        `features`: prefixes.Features of the only piece, or None.
        """
        self.compiled, self.weights, self.inputs, self.features = compiled, weights, inputs, features
        self.sums: Any = 0.0  # the number of rows, then the sums of its Scores
        self.seconds = self.cpu_seconds = 0.0
        self.meter = work_meter.meter()
        self.readings: list[Any] = []

    def add(self, piece: Arrays) -> None:
        """Evaluate on a piece: a tuple of arrays."""
        with self.meter:
            self.meter.take()
            began, busy = time.monotonic(), work_meter.processor_seconds()
            self._add(piece)
            self.seconds += time.monotonic() - began
            self.cpu_seconds += work_meter.processor_seconds() - busy
            self.readings += self.meter.take()

    def _add(self, piece: Arrays) -> None:
        self.compiled.weights.put(self.weights)
        forward, inputs = self.compiled.forward, self.inputs
        if self.features and (segment := self.features.segment(forward.size.rows)):
            forward, piece, inputs = self.compiled.cut.forward, segment.columns, 1
        self.sums = self.sums + np.append(len(piece[0]), forward.evaluate(piece, inputs))

    def report(self) -> dict[str, Any]:
        """The result of :meth:`CompiledModel.score` for all pieces, with "sums", "kernel", "seconds", "cpu_seconds" (of
        this process), and on a GPU its utilization and memory (:meth:`WorkMeter.report`)."""
        took = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, **self.meter.report(self.readings)}
        if np.isscalar(self.sums):
            return {"rows": 0, **took}
        return {**self.compiled.score(self.sums), "sums": self.sums.tolist(), "kernel": "plain", **took}

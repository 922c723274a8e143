"""Frozen prefixes in a trainer: their outputs for a segment, cached beside its rows for all models with that prefix.

Each unit decides whether to use them. If the outputs do not fit the cache, or the prefix cannot be computed by itself,
the whole model trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mop_udf import state
from mop_udf.data import Cache, Segment
from mop_udf.errors import refusal
from mop_udf.kernels import batch_size
from mop_udf.kernels.forward import Forward
from mop_udf.unit_spec import TrainerUnit

if TYPE_CHECKING:
    from mop_udf.kernels.tuned_kernels import TunedKernels

BATCH_BYTES = 64 << 20  # of all layers' outputs, for the rows that pass a prefix at once


class Cut:
    """A compiled model cut after its frozen prefix.

    `kernels` (TunedKernels) and `forward` (Forward) belong to the head, whose input is the prefix's output.
    """

    def __init__(self, split: Any, kernels: TunedKernels, forward: Forward) -> None:
        self.split, self.kernels, self.forward = split, kernels, forward
        self.refused: str | None = None  # why the prefix cannot be used, or None
        self._prefix = Forward(split.prefix)

    def compute(self, columns: Sequence[np.ndarray], least: int) -> np.ndarray:
        """The prefix's outputs (an array) for inputs (arrays), at least `least` rows at a time, more where they are
        small.
        """
        output = self.split.prefix.outputs[0]
        result = np.empty([len(columns[0]), *output.shape[1:]], state.dtype(output.dtype))
        enough = BATCH_BYTES // max(1, self._prefix.row_bytes)
        self._prefix.fill(columns, result, max(least, min(batch_size.MOST, enough)))
        return result

    def report(self, kernels: TunedKernels) -> dict[str, Any]:
        """For the log: the number of the prefix's layers where the head's `kernels` trained, else the reason why not."""
        return {"layers": self.split.layers} if kernels is self.kernels else {"refused": self.refused}


class Compiled(Protocol):
    """A CompiledModel, as far as it is needed here."""

    @property
    def cut(self) -> Cut | None: ...


class Features:
    """The rows of a segment as input of heads: the outputs of the prefix of `compiled` with its weights."""

    def __init__(
        self, cache: Cache, unit: TrainerUnit, compiled: Compiled, weights: Sequence[np.ndarray] | None = None
    ) -> None:
        """`cache`: data.Cache; `weights`: arrays in the order of the model's weights, or None for its present weights."""
        assert compiled.cut is not None
        self.cache, self.unit, self.cut = cache, unit, compiled.cut
        self._digest = self.cut.split.digest(weights)

    @property
    def nbytes(self) -> int:
        return self.unit.rows * self.cut.split.row_bytes

    def are_cached(self) -> bool:
        return self.cache.features_of(self.unit.dataset, self._digest) is not None

    def has_capacity(self) -> bool:
        """True where the cache can hold the features and the segment's rows; the rows may still be on their way."""
        coming = 0 if self.cache.get(self.unit.dataset) else self.unit.nbytes
        # three times: a pass may shuffle them, and kernels make tensors of them
        return batch_size.may_hold(3 * self.nbytes + coming) and self.cache.make_feature_capacity(
            self.nbytes + coming, [*self.unit.keep, self.unit.dataset]
        )

    def segment(self, least: int) -> Segment | None:
        """The Segment of the features and the output columns, or None where the features cannot be computed or kept.

        Features that are not cached are computed, `least` rows at a time; the model must have the weights.
        """
        rows, inputs = self.cache.get(self.unit.dataset), self.unit.inputs
        assert rows is not None
        columns = rows.columns
        found = self.cache.features_of(self.unit.dataset, self._digest)
        if found is None:
            if not self.has_capacity():
                return None
            try:
                found = Segment((self.cut.compute(columns[:inputs], least),))
            except Exception as error:  # any error: training the whole model shows whether the model is to blame
                self.cut.refused = refusal(error)
                return None
            self.cache.add_features(self.unit.dataset, self._digest, found)
        return Segment((*found.columns, *columns[inputs:]))


def features(
    cache: Cache, unit: TrainerUnit, compiled: Compiled, weights: Sequence[np.ndarray] | None = None
) -> Features | None:
    """The Features that a CompiledModel uses for a unit (its header), or None for the whole model.

    A kernel that the setting names trains the whole model: `plain` means plain Keras, bit by bit.
    """
    if not (
        unit.share_prefixes
        and unit.kernel == "auto"
        and unit.keeps_rows
        and compiled.cut
        and compiled.cut.refused is None
    ):
        return None
    found = Features(cache, unit, compiled, weights)
    # a single pass over the rows costs as much as computing the features
    again = unit.kind != "train" or unit.run_passes_left > 1
    return found if found.are_cached() or again and found.has_capacity() else None

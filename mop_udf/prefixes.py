"""Frozen prefixes in a trainer: what they give for a segment is kept beside its rows, for all models that share them.

Whether it is used is decided for each unit; what does not fit, or cannot be computed by itself, is trained as a whole.
"""

import numpy as np

from mop_udf import state
from mop_udf.data import Segment
from mop_udf.errors import refusal
from mop_udf.kernels import batch_size
from mop_udf.kernels.forward import Forward

BATCH_BYTES = 64 << 20  # of all layers' outputs, for the rows that go through a prefix at once


class Cut:
    """A compiled model cut after its frozen prefix: `kernels` (TunedKernels) and `forward` (Forward) are those of the head,
    whose input is what the prefix gives."""

    def __init__(self, split, kernels, forward):
        self.split, self.kernels, self.forward = split, kernels, forward
        self.refused = None  # why it cannot be used
        self._prefix = Forward(split.prefix)

    def compute(self, columns, least):
        """The prefix's outputs (an array) for inputs (arrays), `least` rows at a time, or more where they are small."""
        output = self.split.prefix.outputs[0]
        result = np.empty([len(columns[0]), *output.shape[1:]], state.dtype(output.dtype))
        enough = BATCH_BYTES // max(1, self._prefix.row_bytes)
        self._prefix.fill(columns, result, max(least, min(batch_size.MOST, enough)))
        return result

    def report(self, kernels):
        """What the log tells of it: how many layers the prefix has where a model was trained by `kernels` of its head,
        else why it was not."""
        return {"layers": self.split.layers} if kernels is self.kernels else {"refused": self.refused}


class Features:
    """A segment as the heads of models have it that share a prefix: the one of `compiled`, with its weights."""

    def __init__(self, cache, unit, compiled, weights=None):
        """`cache`: the trainer's; `weights`: arrays in the order of the model's weights, those that it has if None."""
        self.cache, self.unit, self.cut = cache, unit, compiled.cut
        self._digest = self.cut.split.digest(weights)

    @property
    def nbytes(self):
        return self.unit["rows"] * self.cut.split.row_bytes

    def are_cached(self):
        return self.cache.features_of(self.unit["dataset"], self._digest) is not None

    def has_capacity(self):
        """True where they fit the cache together with the segment's rows, which may still be on their way."""
        coming = 0 if self.cache.get(self.unit["dataset"]) else self.unit["nbytes"]
        # three times: they may be shuffled, and kernels make tensors of them
        return batch_size.may_hold(3 * self.nbytes + coming) and self.cache.make_feature_capacity(
            self.nbytes + coming, [*self.unit["keep"], self.unit["dataset"]]
        )

    def segment(self, least):
        """The Segment of them and of the outputs' columns, made where they are not here: then the model has the
        weights, and takes `least` rows at a time. None where they cannot be had."""
        columns, inputs = self.cache.get(self.unit["dataset"]).columns, self.unit["inputs"]
        found = self.cache.features_of(self.unit["dataset"], self._digest)
        if found is None:
            if not self.has_capacity():
                return None
            try:
                found = Segment((self.cut.compute(columns[:inputs], least),))
            except Exception as error:  # whatever hinders it: the whole model shows whether the model is to blame
                self.cut.refused = refusal(error)
                return None
            self.cache.add_features(self.unit["dataset"], self._digest, found)
        return Segment((*found.columns, *columns[inputs:]))


def features(cache, unit, compiled, weights=None):
    """The Features with which a unit (its header) is done by a CompiledModel; None where it is done by the whole model.

    A kernel that is asked for by name does what it does without: `plain` is plain Keras, bit by bit. See Features.
    """
    if not (
        unit.get("share_prefixes")
        and unit["kernel"] == "auto"
        and unit["keeps_rows"]
        and compiled.cut
        and compiled.cut.refused is None
    ):
        return None
    found = Features(cache, unit, compiled, weights)
    again = unit["kind"] != "train" or unit["run_passes_left"] > 1  # they are computed as fast as a pass is done
    return found if found.are_cached() or again and found.has_capacity() else None

"""The models that a process predicts with, kept by the digest of all that decides their answers.

A trainer has those of its lease, a serving process (serving.py) those that it has answered for. The request is a frame:

    predict {digest, shapes}, arrays                            -> outputs, or {"absent"} where no such model is kept
    predict {digest, shapes, architecture, objects}, weights, pickles, arrays -> outputs; the model is kept from now on
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from mop_udf import state
from mop_udf.errors import first_line
from mop_udf.kernels.forward import Forward
from mop_udf.kernels.framework import framework
from mop_udf.training import custom_layers, models
from mop_udf.training.losses import load_functions

Header = dict[str, Any]
Frame = tuple[Header, Sequence[Any]]  # header and payloads
MOST_MODELS, MOST_BYTES = 16, 1 << 30  # that are kept, and of their weights


class Predictor:
    """A model that predicts. `outputs`: its output shapes; `size`: bytes of its weights."""

    def __init__(self, header: Header, weights: Any, pickles: Sequence[Any]) -> None:
        """`header`: with the architecture (JSON text) and the names of the custom `objects`."""
        objects = dict(zip(header.get("objects", []), pickles, strict=True))
        custom = custom_layers.register(objects, load_functions(objects))
        model = models.build(models.normalise(header["architecture"], custom=custom), 0)
        model.set_weights(state.weights_from_bytes(weights, [w.shape for w in model.weights]))
        self.forward, self.architecture = Forward(model), header["architecture"]
        self.outputs, self.size = models.output_shapes(model), len(weights)


class Predictors:
    """The kept models; the least recently used go first."""

    def __init__(self, memory_mb: int) -> None:
        """`memory_mb`: limit of this process, 0 for none."""
        self.memory_mb = memory_mb
        self.most_bytes = min(MOST_BYTES, memory_mb << 18 or MOST_BYTES)
        self.kept: collections.OrderedDict[str, Predictor] = collections.OrderedDict()

    def answers(self, frames: Sequence[Frame]) -> list[Frame]:
        """The answers of requests `predict`. Several requests must be for one model, with inputs of equal shapes but for the
        number of rows: they are one batch. An error is the answer of the request that raises it alone."""
        try:
            return self._answers(frames)
        except Exception as error:
            if len(frames) == 1:
                return [(failure(error, self.memory_mb), ())]
        return [answer for frame in frames for answer in self.answers([frame])]

    def _answers(self, frames: Sequence[Frame]) -> list[Frame]:
        header, payloads = frames[0]
        if "architecture" in header:
            code = 1 + len(header.get("objects", []))
            self._keep(header["digest"], Predictor(header, payloads[0], payloads[1:code]))
            frames = [(header, payloads[code:])]
        predictor = self.kept.get(header["digest"])
        if predictor is None:
            return [({"absent": True}, ())] * len(frames)
        self.kept.move_to_end(header["digest"])
        batches = [arrays_of(*frame) for frame in frames]
        arrays = batches[0] if len(batches) == 1 else [np.concatenate(parts) for parts in zip(*batches)]
        made, start, found = predictor.forward.predict(arrays), 0, []
        for batch in batches:
            end = start + len(batch[0])
            answer, outputs = outputs_frame([output[start:end] for output in made])
            found.append(({**answer, "outputs": predictor.outputs}, outputs))
            start = end
        return found

    def _keep(self, digest: str, predictor: Predictor) -> None:
        self.kept[digest] = predictor
        while len(self.kept) > 1 and (
            len(self.kept) > MOST_MODELS or sum(one.size for one in self.kept.values()) > self.most_bytes
        ):
            self.kept.popitem(last=False)
            gc.collect()  # (models are circles)


def arrays_of(header: Header, payloads: Sequence[Any]) -> list[np.ndarray]:
    """The inputs of a request `predict`."""
    return [np.frombuffer(p, "<f4").reshape(s) for p, s in zip(payloads, header["shapes"], strict=True)]


def outputs_frame(outputs: Sequence[np.ndarray]) -> Frame:
    """The answer to a request `predict`."""
    return (
        {"shapes": [list(o.shape) for o in outputs]},
        [np.ascontiguousarray(o).reshape(-1).view(np.uint8) for o in outputs],
    )


def failure(error: Exception, memory_mb: int) -> Header:
    """The answer in place of a result. `memory_mb`: limit of this process, 0 for none.

    The configuration is to blame for all errors that Keras and its framework raise as they work. A lack of memory is its fault
    only where this process has a limit: without a limit, other processes may use the memory up.
    """
    text = (
        str(error) if isinstance(error, models.ConfigurationError) else f"{type(error).__name__}: {first_line(error)}"
    )
    ran_out = {"ran_out": True} if framework.ran_out(error) else {}
    return {
        "error": text,
        "configuration": not isinstance(error, OSError if memory_mb else (MemoryError, OSError)),
        **ran_out,
    }

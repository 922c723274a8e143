"""A vmap batch: several states of one compiled model, trained on the same rows as one computation.

Only some frameworks have a kernel for it (`framework.Group`). States that cannot train this way stay as they were, to be
trained one after the other.
"""

from typing import Any

import keras

from mop_udf.errors import refusal
from mop_udf.kernels.autotuner import VMAP
from mop_udf.kernels.batch_size import ENOUGH
from mop_udf.kernels.batches import weighted
from mop_udf.kernels.forward import row_bytes
from mop_udf.kernels.framework import framework

MOST_STATES = framework.Group.most if framework.Group else 1
COPIES = 4  # of a state, and of the layers' outputs for a batch: old and new values, and their gradients


def is_possible(kernel: str) -> bool:
    """True where models may train as a vmap batch; `kernel`: the setting's kernel, or "auto"."""
    return framework.Group is not None and (kernel == VMAP or kernel == "auto" and framework.has_gpu())


class VmapBatch:
    """States of one compiled model, with its :class:`~mop_udf.kernels.tuned_kernels.TunedKernels`.

    `trained` tells after `train` whether the states have been trained.
    """

    def __init__(self, kernels: Any) -> None:
        self.kernels, self.group = kernels, kernels.group
        self.states: list[Any] = []
        self.rows, self.trained, self.compilations = 0, False, 0

    def take(self) -> None:
        """Add the state that the model is in, with its optimizer's numbers."""
        self.states.append(self.group.held())

    def put(self, number: int) -> None:
        """Put the model into the state `number`, with the results of training if the batch has been trained."""
        self.group.put(self.states[number])

    def train(
        self,
        passes: Any,
        rows: int,
        batch_size: int,
        inputs: Any,
        class_weight: Any = None,
        most: int | None = None,
        left: int = 1,
        run_left: int = 1,
        run_seconds: float = 0.0,
        forced: Any = None,
    ) -> None:
        """Train all states by some passes over `rows` rows if the autotuner expects a gain; else leave the states.

        `passes`: an iterable of tuples of arrays, one tuple with all rows for each pass. The other arguments are the
        arguments of TunedKernels.train.
        """
        autotuner, batches = self.kernels.autotuner(batch_size, forced), -(-rows // batch_size)
        self.rows = rows if most is None else min(rows, most * batch_size)
        if not autotuner.uses_vmap(left * batches, run_left * batches, run_seconds):
            return
        before = self.kernels.compilations
        try:
            self._check_size(batch_size)
            self._train(passes, batch_size, inputs, class_weight, autotuner)
        except Exception as error:  # (an error of the model comes again when the model trains by itself)
            # refused for this batch size only: a smaller one may fit
            autotuner.refused = {**autotuner.refused, VMAP: refusal(error)}
            self.group.drop()
        else:
            self.trained, self.compilations = True, self.kernels.compilations - before

    def report(self) -> dict[str, Any]:
        """The report of the last pass, as TunedKernels.train gives it, on the state that the model was put into."""
        return {**self.kernels.metrics.report(self.rows), "kernel": VMAP}

    def _check_size(self, batch_size: int) -> None:
        """Raise MemoryError where the batch is too large, which depends on the model and the batch size only."""
        state = sum(array.nbytes for array in keras.tree.flatten(self.states[0]))
        needed = COPIES * self.group.most * (state + batch_size * row_bytes(self.kernels.layers))
        if needed > ENOUGH:
            raise MemoryError(f"{self.group.most} of this model at once may take {needed >> 20} MB")

    def _train(self, passes: Any, batch_size: int, inputs: Any, class_weight: Any, autotuner: Any) -> None:
        self.group.begin(self.states)
        outputs = len(self.kernels.model.outputs)
        for columns in passes:
            if not self.kernels.plain.trains:
                self.kernels.plain.begin(tuple(c[:batch_size] for c in columns), inputs, class_weight)
            self.group.reset()
            rows = tuple(c[: self.rows] for c in columns)
            self._pass(weighted(rows, inputs, outputs, class_weight), batch_size, autotuner)
        self.states = self.group.end()[: len(self.states)]

    def _pass(self, data: Any, batch_size: int, autotuner: Any) -> None:
        """Train on all rows of `data`; the last batch may be short."""
        group, full, done, count = self.group, self.rows // batch_size, 0, len(self.states)
        if full and not group.knows(data, batch_size):
            autotuner.record_trial(VMAP, None, group.compile(data, batch_size))
        while done < full:
            if VMAP in autotuner.batch_seconds:
                seconds = group.train(data, batch_size, done, full, count * autotuner.batch_seconds[VMAP])
                autotuner.record_time(VMAP, seconds / count)
                break
            now, seconds = group.probe(data, batch_size, done, full)
            autotuner.record_trial(VMAP, seconds and seconds / count, autotuner.compile_seconds.get(VMAP, 0.0))
            done += now
        if self.rows > full * batch_size:
            group.step(keras.tree.map_structure(lambda a: a[full * batch_size :], data))

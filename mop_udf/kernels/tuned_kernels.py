"""A compiled model's kernels with their autotuners: the training loop of the trainer."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from mop_udf.data import whole_batches
from mop_udf.errors import refusal
from mop_udf.kernels.autotuner import MOST_TIMINGS, Autotuner, Measurement
from mop_udf.kernels.batches import cached, weighted
from mop_udf.kernels.framework import framework
from mop_udf.kernels.kernel_order import LOGGED, KernelOrder
from mop_udf.kernels.training_metrics import TrainingMetrics
from mop_udf.training import custom_models

TIMED_BATCHES = 8  # batches of the plain kernel that are timed, after its first batch compiled the step


class TunedKernels:
    """Trains one compiled model by the kernel that the autotuner of the batch size selects."""

    def __init__(
        self,
        model: Any,
        random: bool,
        memory: Any,
        name: str = "",
        layers: Any = None,
        part: str = "model",
        lasting: bool = False,
        own_class: Any = None,
    ) -> None:
        """Make the kernels of a compiled Keras model.

        `random`: the model draws random numbers in training (Dropout and similar layers); `memory`: the
        AutotunerMemory of its architecture; `name`: equal for models that compile to the same code; `layers`: the
        layers that the rows pass, None for all of the model's; `part`: "model" or "head", under which the cost history
        keeps its costs; `lasting`: equal names mean equal code in later trainers, too (custom functions may change);
        `own_class`: the name of the model's class, where it is one with code.
        """
        self.part = part
        self.model, self.plain, self.memory, self.name = model, framework.Plain(model, own_class), memory, name
        self.metrics, self.loops = TrainingMetrics(model, own_class is not None), framework.loops(model, name, lasting)
        self.group = framework.Group(model, name) if framework.Group else None  # the kernel of vmap_batch.py
        self.layers = layers or list(model._flatten_layers())
        self.autotuners: dict[tuple[int, str | None], Autotuner] = {}  # (batch size, forced kernel) -> Autotuner
        self.convolutional = any("Conv" in type(layer).__name__ for layer in self.layers)
        self.refused = framework.refused(random, self.convolutional)
        if own_class is not None:
            self.refused = {**self.refused, **custom_models.refusal(type(model), own_class)}

    @property
    def compilations(self) -> int:
        """The number of compilations of this model's steps and loops."""
        return len(self.plain.steps) + sum(loop.compilations for loop in self._all_loops())

    @property
    def by_xla(self) -> int:
        """The number of loops that XLA has compiled."""
        return sum(loop.compilations for loop in self._all_loops() if loop.jit_compile)

    def _all_loops(self) -> Any:
        return [*self.loops.values(), *([self.group] if self.group else [])]

    def autotuner(self, batch_size: int, forced: str | None) -> Autotuner:
        """The Autotuner for a batch size; `forced`: the name of a kernel, or None to select by time."""
        key = (batch_size, forced)
        if key not in self.autotuners:
            self.autotuners[key] = Autotuner(
                self.memory,
                forced,
                self.convolutional,
                framework.has_gpu(),
                f"{self.name} {batch_size}",
                refused=self.refused,
            )
        return self.autotuners[key]

    def load_history(self, batch_size: int, costs: Any, device: Any) -> None:
        """Give the autotuner of a new batch size the measurements of earlier runs on the same kind of device.

        `costs`: as the coordinator sends them (pg_mop/plan/cost_history.py), or None; `device`: as device.described
        gives it.
        """
        if (batch_size, None) in self.autotuners or not costs:
            return

        def matching(rows: Iterable[Sequence[Any]]) -> dict[str, Sequence[Any]]:
            return {
                kernel: measured
                for part, version, name, kernel, *measured in rows
                if (part, version, name) == (self.part, *device) and (kernel == "plain" or kernel in self.loops)
            }

        autotuner, known = self.autotuner(batch_size, None), matching(costs.get("known", ()))
        autotuner.history = {
            kernel: Measurement(seconds, compile_seconds) for kernel, (seconds, compile_seconds, _) in known.items()
        }
        autotuner.runs = known[autotuner.base][2] if autotuner.base in known else 0
        for kernel, (times, compile_seconds, _) in matching(costs.get("alike", ())).items():
            self.memory.speedup.setdefault(kernel, 1 / times)
            self.memory.compile_seconds.setdefault(kernel, compile_seconds)

    def train(
        self,
        chunks: Any,
        rows: int,
        batch_size: int,
        inputs: Any,
        class_weight: Any = None,
        most: int | None = None,
        left: int = 1,
        run_left: int = 1,
        run_seconds: float = 0.0,
        forced: Any = None,
        streams: bool = False,
        order: Any = None,
    ) -> Any:
        """Train one pass over `rows` rows, at most `most` batches.

        `chunks`: tuples of arrays (inputs, outputs, sample weights if there are any). A single chunk holds all rows;
        with `streams`, chunks follow one another as they arrive. `left`, `run_left`: the remaining passes of the run, of
        this model and batch size and of all models; both include this pass. `run_seconds`: time since the run began.
        `order`: the KernelOrder of the unit, which notes the kernels; one that follows a log says them, with `forced` LOGGED.
        Returns a report, with the name of the kernel that trained most batches under "kernel".
        """
        order = order or KernelOrder()
        autotuner = self.autotuner(batch_size, forced)
        total = -(-rows // batch_size) if most is None else min(most, -(-rows // batch_size))
        self.metrics.reset(self.plain.trains)
        autotuner.busy.clear()
        trained: dict[str, int] = {}
        position = done = 0
        for columns in whole_batches(chunks, batch_size) if streams else chunks:
            piece = Piece(self, columns, batch_size, inputs, class_weight, autotuner, rows < batch_size)
            end = min(-(-len(columns[0]) // batch_size), total - position)
            at = 0
            while at < end:
                stop = end
                if order.follows:
                    name, count = order.next()
                    stop = end if count is None else min(end, at + count)
                    if name != "plain" and (name not in self.loops or name in autotuner.refused):
                        name = autotuner.base
                else:
                    name = autotuner.next_kernel(left * total - position, run_left * total - position, run_seconds)
                asked = name
                name, count = piece.train(name, at, stop)
                # (beside batches that XLA trains, a short batch has a loop of its own: its log says XLA)
                order.note(asked if asked == "xla" and at == piece.full else name, count)
                trained[name] = trained.get(name, 0) + count
                at, position = at + count, position + count
            done += min(len(columns[0]), end * batch_size)
            if position == total:
                break
        return {**self.metrics.report(done), "kernel": max(trained, key=lambda name: trained[name])}


class Piece:
    """Rows in memory: whole batches, and possibly a short batch at the end.

    `few`: the pass has no other rows than one short batch.
    """

    def __init__(
        self, kernels: Any, columns: Any, batch_size: int, inputs: Any, class_weight: Any, autotuner: Any, few: bool
    ) -> None:
        self.plain, self.loops = kernels.plain, kernels.loops
        self.columns, self.batch_size, self.inputs, self.class_weight = columns, batch_size, inputs, class_weight
        self.outputs, self.autotuner, self.few = len(kernels.model.outputs), autotuner, few
        self.full = len(columns[0]) // batch_size
        self._data = None
        self._weighting = inputs, str(class_weight)  # the tensors made from the rows depend on these

    def train(self, name: str, start: int, stop: int) -> Any:
        """Train on some of the batches `start` to `stop` by the kernel `name`: (the kernel used, batches done)."""
        hasty = False
        if start == self.full:
            # beside batches that XLA trains, one short batch is not worth the optimizations of a loop
            hasty = name == "xla" and not self.few
            name = self._for_short_batch(name)
        else:
            stop = min(stop, self.full)
        if name != "plain" and not self.plain.trains:
            self.plain.begin(self._batch(start), self.inputs, self.class_weight)
            return name, 0
        if name == "plain":
            return name, self._plain(start, stop)
        loop = self.loops[name]
        loop.kept, loop.kept_as, loop.hasty = self.columns, self._weighting, hasty
        try:
            return name, self._loop(name, start, stop)
        finally:
            loop.kept, loop.hasty = None, False  # a loop must not keep rows alive that the cache drops

    def _for_short_batch(self, name: str) -> Any:
        """The kernel for the short batch: no kernel is compiled or tried for it where another kernel will do."""
        if "loop" in self.autotuner.refused or self.autotuner.forced == "plain" or not self.loops["loop"].takes_short:
            return "plain"
        logged = self.autotuner.forced == LOGGED
        return name if name == "plain" and (logged or "plain" in self.autotuner.batch_seconds) else "loop"

    def _batch(self, number: int) -> Any:
        return tuple(c[number * self.batch_size : (number + 1) * self.batch_size] for c in self.columns)

    def _plain(self, start: int, stop: int) -> Any:
        """Train batches by the plain kernel: their number.

        Its first step compiles, then a few batches are timed; only full batches are timed.
        """
        autotuner, count, short = self.autotuner, stop - start, start == self.full
        if ("plain" not in autotuner.batch_seconds or autotuner.needs_retiming("plain")) and not short:
            count = min(count, 1 if "plain" not in autotuner.compile_seconds else TIMED_BATCHES)
        began = time.monotonic()
        for number in range(start, start + count):
            self.plain.step(self._batch(number), self.inputs, self.class_weight, not short)
        seconds = (time.monotonic() - began) / count
        if short:
            return count
        if "plain" not in autotuner.compile_seconds:
            autotuner.compile_seconds["plain"] = seconds
        elif "plain" not in autotuner.batch_seconds:
            autotuner.record_trial("plain", seconds, autotuner.compile_seconds["plain"])
        elif count > 1 or autotuner.needs_retiming("plain"):
            autotuner.record_time("plain", seconds)
        return count

    def _loop(self, name: str, start: int, stop: int) -> Any:
        """Train batches by a loop kernel: their number; 0 where it cannot train, and the autotuner then knows why."""
        autotuner, loop, short = self.autotuner, self.loops[name], start == self.full
        if self._data is None:
            self._data = cached(
                self.columns,
                self._weighting,
                lambda: framework.tensors(weighted(self.columns, self.inputs, self.outputs, self.class_weight)),
            )
        if not loop.knows(self._data, self.batch_size):
            if autotuner.needs_retiming(name):  # a better timing is not worth another compilation
                autotuner.timings[name] = MOST_TIMINGS
                return 0
            try:
                compile_seconds = loop.compile(self._data, self.batch_size, autotuner.waits_for_compilation())
            except Exception as error:
                autotuner.refused[name] = refusal(error)
                return 0
            if compile_seconds is None:  # another trainer compiles it: the next pass looks again
                autotuner.busy.add(name)
                return 0
            autotuner.record_trial(name, None, compile_seconds)
        if short:
            loop.train(self._data, self.batch_size, start, stop, 1.0)
        elif name in autotuner.batch_seconds and not autotuner.needs_retiming(name):
            seconds = loop.train(self._data, self.batch_size, start, stop, autotuner.batch_seconds[name])
            autotuner.record_time(name, seconds)
        else:
            count, seconds = loop.probe(self._data, self.batch_size, start, stop)
            if name not in autotuner.batch_seconds:
                autotuner.record_trial(name, seconds, autotuner.compile_seconds.get(name, 0.0))
            elif seconds is not None:
                autotuner.record_time(name, seconds)
            return count
        return stop - start

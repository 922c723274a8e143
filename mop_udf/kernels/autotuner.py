"""The kernel autotuner: times the kernels on a configuration's own batches and counts their compile time. Pure Python.

An :class:`Autotuner` belongs to a compiled model and a batch size on one device. The loop kernel comes first: it
compiles in the time of the plain kernel's step, computes the same operations, and saves a Python call for each batch.
The autotuner tries another kernel where the expected gain exceeds the cost:

- Without any measurement, a trial is allowed if all trials together slow the run by at most TRIAL_SHARE.
- After trials on the same architecture with another optimizer, loss or batch size, their results predict the gain.

Several models that can train as one computation (kernels/vmap_batch.py) are a candidate as well, on GPUs. On CPUs the
autotuner leaves that kernel out, since only tiny nets gain; the setting can still ask for it by name.

Code compiled by XLA persists (compile_cache.py). Its first compilation may therefore cost more, and later compilations
cost little. While another trainer compiles the same code, training goes on with the kernels that are compiled.

Measurements of earlier runs with the same net, batch size and kind of device (pg_mop/plan/cost_history.py) decide at
once: the best kernel of those runs comes first, as long as it is as fast as it was then. Untried kernels are estimated
from other nets of that architecture. The more runs a net has had, the less a persistent kernel has to gain in the
present run (ski rental; Karlin, Manasse, Rudolph and Sleator, Algorithmica 3, 1988).
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mop_udf.kernels.autotuner_memory import AutotunerMemory

TRIAL_SHARE, PERSISTENT_TRIAL_SHARE = 0.1, 0.25  # of the run's time, for trials; the second if later runs gain as well
CACHED_SHARE = 0.3  # of the compile time: to read compiled code from the cache, before that has been measured
SLOWER_THAN_HISTORY = 2.0  # times as slow as in earlier runs: such a kernel is compared anew
MOST_TIMINGS = 2  # timings of a slow kernel before it is given up: other work may have disturbed the first
RETIME_SECONDS = 0.002  # a kernel whose batch is slower than the best kernel's by less than this is timed once more
MARGIN = 1.5  # least ratio of an estimated gain to the cost, unless later runs gain as well

VMAP = "vmap"  # the kernel that trains several models at once; its seconds are divided by their number


class Measurement(NamedTuple):
    """The cost of a kernel in earlier runs."""

    batch_seconds: float
    compile_seconds: float


class Expectation(NamedTuple):
    """The cost and gain of a kernel before any trial."""

    compilations: float  # its compile time in compilations of the loop kernel ...
    seconds: float  # ... and these seconds more
    speedup: float  # over the loop kernel


# from measurements of small dense nets and convolutions on CPUs; VMAP's speed-up is a guess, for GPUs
EXPECTED = {"plain": Expectation(1.0, 0.0, 1.1), "xla": Expectation(3.5, 0.1, 2.5), VMAP: Expectation(1.5, 0.1, 2.0)}
XLA_CONVOLUTION_SPEEDUP = 0.5  # on a CPU


@dataclass
class Autotuner:
    """Selects the kernel for one compiled model and batch size."""

    memory: AutotunerMemory = field(default_factory=AutotunerMemory)
    forced: str | None = None  # the kernel that the setting names
    convolutional: bool = False
    gpu: bool = False
    name: str = ""  # equal for models whose XLA code is equal
    batch_seconds: dict[str, float] = field(default_factory=dict)  # kernel -> least seconds of a batch
    compile_seconds: dict[str, float] = field(default_factory=dict)  # kernel -> most seconds of a compilation
    refused: dict[str, str] = field(default_factory=dict)  # kernel -> why it cannot train this model
    unconfirmed: dict[str, float] = field(default_factory=dict)  # kernel -> its speed-up after a single timing
    history: dict[str, Measurement] = field(default_factory=dict)  # kernel -> its cost in earlier runs
    runs: int = 0  # earlier runs that used the first kernel
    busy: set[str] = field(default_factory=set)  # kernels that another trainer is compiling
    timings: dict[str, int] = field(default_factory=dict)  # kernel -> the number of its timings

    @property
    def best(self) -> str:
        """The fastest kernel so far among the kernels that train one model."""
        return min(
            (name for name in self.batch_seconds if name not in {VMAP, *self.refused}),
            key=self.batch_seconds.__getitem__,
            default=self.base,
        )

    @property
    def base(self) -> str:
        """The first kernel, which also trains the batches that other kernels cannot."""
        return "loop" if "loop" not in self.refused else "plain"

    def next_kernel(self, batches: int, run_batches: int, run_seconds: float = 0.0) -> str:
        """The kernel to use now.

        `batches`: remaining batches of this model and batch size in the run on this device; `run_batches`: the same for
        all models; both include the batches that come now. `run_seconds`: time since the run began.
        """
        base = self.base
        if self.forced is not None:
            return base if self.forced in (VMAP, *self.refused) else self.forced
        if base not in self.batch_seconds:
            return self._from_history(base, batches)
        for kernel in ("xla", "plain"):  # (the larger expected gain first)
            if kernel in self.busy:
                break
            if kernel not in {*self.batch_seconds, *self.refused} and self._trial_pays(
                kernel, base, self.batch_seconds[self.best], batches, run_batches, run_seconds
            ):
                return kernel
        return next((kernel for kernel in self.batch_seconds if self.needs_retiming(kernel)), self.best)

    def needs_retiming(self, kernel: str) -> bool:
        """True where a kernel was slow in its only timing: a few more batches confirm or correct that."""
        if (
            self.forced is not None
            or kernel not in self.batch_seconds
            or self.timings[kernel] >= MOST_TIMINGS
            or kernel in {VMAP, *self.refused, *self.busy}
        ):
            return False
        slower = self.batch_seconds[kernel] - self.batch_seconds[self.best]
        return 0 < slower < RETIME_SECONDS or self._is_slower_than_history(kernel)

    def _is_slower_than_history(self, kernel: str) -> bool:
        return (
            kernel in self.history
            and self.batch_seconds[kernel] > SLOWER_THAN_HISTORY * self.history[kernel].batch_seconds
        )

    def uses_vmap(self, batches: int, run_batches: int, run_seconds: float = 0.0) -> bool:
        """True where several models are to train as one vmap batch. Arguments as of `next_kernel`."""
        if VMAP in self.refused:
            return False
        if self.forced is not None:
            return self.forced == VMAP
        if not self.gpu or self.base not in self.batch_seconds:
            return False
        best = self.batch_seconds[self.best]
        if VMAP in self.batch_seconds:
            return self.batch_seconds[VMAP] < best
        return self._trial_pays(VMAP, self.base, best, batches, run_batches, run_seconds)

    def waits_for_compilation(self) -> bool:
        """True where training has to wait for a kernel that another trainer compiles: no other kernel can train."""
        return self.forced is not None or not self.batch_seconds

    def _from_history(self, base: str, batches: int) -> str:
        """The kernel to use before `base` has been timed, from the measurements of earlier runs."""
        if base not in self.history:
            return base
        costs = {
            kernel: self._compile_cost(kernel) + batches * measured.batch_seconds
            for kernel, measured in self.history.items()
        }
        for kernel, speedup in self.memory.speedup.items():
            if kernel not in {*self.history, VMAP}:
                seconds = self.batch_seconds.get(kernel, self.history[base].batch_seconds / speedup)
                costs[kernel] = self._margin * self._compile_cost(kernel) + batches * seconds
        best = min(
            (kernel for kernel in costs if kernel not in {*self.refused, *self.busy}),
            key=lambda kernel: (costs[kernel], kernel != base),
            default=base,
        )
        return base if self.timings.get(best, 0) >= MOST_TIMINGS and self._is_slower_than_history(best) else best

    @property
    def _margin(self) -> float:
        """The least ratio of a gain, estimated from other nets of the architecture, to the cost."""
        return 1.0 if self.memory.persistent else MARGIN

    def _compile_cost(self, kernel: str) -> float:
        """Seconds to compile a kernel, as the compile cache, earlier runs or other nets of the architecture show."""
        if kernel in self.compile_seconds:
            return 0.0
        cached = self.memory.cached_seconds(self.name) if kernel == "xla" else None
        if cached is not None:
            return cached
        if kernel in self.history:
            return self.history[kernel].compile_seconds
        cost = self.memory.compile_seconds[kernel]
        # ski rental: each earlier run that did without persistent code pays a share of its price
        return cost / (1 + self.runs) if kernel == "xla" and self.memory.persistent else cost

    def _expected_speedup(self, kernel: str) -> float:
        if kernel == "xla" and self.convolutional and not self.gpu:
            return XLA_CONVOLUTION_SPEEDUP
        return EXPECTED[kernel].speedup

    def _expected_cost(self, kernel: str, base: str) -> float:
        """Seconds to compile a kernel that has not been compiled for this architecture."""
        if kernel in self.compile_seconds:
            return 0.0
        if kernel == "xla" and (cached := self.memory.cached_seconds(self.name)) is not None:
            return cached
        compilations, seconds, _ = EXPECTED[kernel]
        return seconds + compilations * max(
            self.compile_seconds.get(base, 0.0), self.memory.compile_seconds.get(base, 0.0)
        )

    def record_time(self, kernel: str, seconds: float) -> None:
        """Record the seconds of a batch. The least timing counts: longer timings include other work on the machine."""
        self.batch_seconds[kernel] = min(seconds, self.batch_seconds.get(kernel, seconds))
        self.timings[kernel] = self.timings.get(kernel, 0) + 1
        if (before := self.unconfirmed.pop(kernel, None)) is not None:
            self.memory.correct(kernel, before, self._speedup(self.batch_seconds[kernel]))

    def record_trial(self, kernel: str, seconds: float | None, compile_seconds: float) -> None:
        """Record a kernel's first use: seconds of a batch (None: too few batches to time) and seconds to compile."""
        self.compile_seconds[kernel] = max(compile_seconds, self.compile_seconds.get(kernel, 0.0))
        speedup = self._speedup(seconds) if seconds and self.batch_seconds else None
        if seconds is not None:
            self.record_time(kernel, seconds)
        self.memory.record(kernel, speedup, compile_seconds, self.name if kernel == "xla" and seconds is None else None)
        if speedup is not None:
            self.unconfirmed[kernel] = speedup

    def _speedup(self, seconds: float) -> float:
        """The speed-up, over the first kernel, of a kernel that takes `seconds` for a batch."""
        return next(iter(self.batch_seconds.values())) / max(seconds, 1e-9)

    def _trial_pays(
        self, kernel: str, base: str, best: float, batches: int, run_batches: int, run_seconds: float
    ) -> bool:
        """True where trying `kernel` pays; `best`: seconds of a batch by the best kernel so far."""
        first = self.batch_seconds[base]
        if kernel in self.history and base in self.history:
            expected = first * self.history[kernel].batch_seconds / self.history[base].batch_seconds
            return batches * (best - expected) > self._compile_cost(kernel)
        if kernel in self.memory.speedup:
            expected = first / self.memory.speedup[kernel]
            return batches * (best - expected) > self._margin * self._compile_cost(kernel)
        speedup, cost = self._expected_speedup(kernel), self._expected_cost(kernel, base)
        share = PERSISTENT_TRIAL_SHARE if self.memory.persistent and kernel == "xla" else TRIAL_SHARE
        return self.memory.spent + cost <= share * (run_seconds + run_batches * best) and cost < run_batches * (
            best - first / speedup
        )

    def report(self) -> dict[str, Any]:
        """The measurements, for the log."""
        return {
            "batch_seconds": dict(self.batch_seconds),
            "compile_seconds": dict(self.compile_seconds),
            "refused": dict(self.refused),
            "forced": self.forced,
        }

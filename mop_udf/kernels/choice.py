"""Which kernel trains a configuration: timed on its own batches, with the time to compile counted. Pure Python.

One :class:`Choice` belongs to a compiled model and a batch size on one device. The loop comes first: it is compiled in
the time that the plain kernel's step takes, does the same operations, and saves a Python call for each batch. Another
kernel is tried where it promises more than it costs, and

- where nothing is known of it: if all that trying costs leaves the run at most SLACK slower than without;
- where it has been tried on the same architecture with another optimizer, loss or batch size: by what it did there.

Where several models come that can be trained as one computation (kernels/together.py), that is chosen in the same way
on a GPU; on processors where it is asked for alone, since nets that are not tiny gain nothing there.

What is compiled by XLA lasts (compile_cache.py): it may cost more the first time, and costs little from then on. While
another trainer compiles the same, what has been compiled goes on.

What earlier runs have measured of the very net and batch size on such a device (plan/cost_history.py) decides at once:
the kernel that was the best comes first, as long as it does what it did then. One that it has not been trained by
counts for what it did for others of the architecture. The more runs a net has had, the less may what lasts gain in
this one (ski rental; Karlin, Manasse, Rudolph and Sleator, Algorithmica 3, 1988).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

SLACK, LASTING = 0.1, 0.25  # of the run's time: what trying may cost; where later runs gain by it, too
AGAIN = 0.3  # of the time to compile: to read it from the cache, before that has been measured
TRUST = 2.0  # times what it took in earlier runs: a kernel that takes longer is compared anew
TWICE = 2  # times that a kernel must have disappointed: other work on the machine may have been to blame for one
DOUBT = 0.002  # seconds that a batch may take longer than by the best kernel where it is timed once more
MARGIN = 1.5  # by which a gain that is expected from experience must exceed the cost, where no later run gains by it

TOGETHER = "vmap"  # the kernel that trains several models at once; of its seconds each has its share

# before a kernel has been tried: its compilation in compilations of the loop and seconds, and its speed-up over the
# loop; from measurements of small dense nets and convolutions on CPUs (but for TOGETHER's speed-up, which is for GPUs:
# a guess)
EXPECTED = {"plain": (1.0, 0.0, 1.1), "xla": (3.5, 0.1, 2.5), TOGETHER: (1.5, 0.1, 2.0)}
XLA_CONVOLUTION_SPEEDUP = 0.5  # on a CPU


@dataclass
class Learned:
    """What the kernels did for one architecture so far: the least speed-up over the first, the dearest compilation."""

    speedup: dict = field(default_factory=dict)
    compile_seconds: dict = field(default_factory=dict)
    spent: float = 0.0  # seconds that trying has cost
    note: Callable = lambda compiled, seconds: None  # told of what has been compiled to last
    again: Callable = lambda compiled: None  # seconds to compile once more what has been compiled to last; else None
    lasts: bool = False  # what is compiled serves later runs

    def learn(self, kernel, speedup, compile_seconds, compiled=None):
        """`compiled`: names what just was, where that lasts."""
        if compiled is not None:
            self.note(compiled, compile_seconds)
        self.compile_seconds[kernel] = max(compile_seconds, self.compile_seconds.get(kernel, 0.0))
        if speedup is not None:
            self.speedup[kernel] = min(speedup, self.speedup.get(kernel, speedup))
            self.spent += compile_seconds

    def correct(self, kernel, before, speedup):
        """What was learned of a kernel, the speed-up `before`, is better known now."""
        least = self.speedup[kernel]
        self.speedup[kernel] = min(least, speedup) if least < before else speedup


@dataclass
class Choice:
    """The times of one key, and the kernel to use by them."""

    learned: Learned = field(default_factory=Learned)
    forced: str | None = None
    convolutional: bool = False
    gpu: bool = False
    name: str = ""  # equal for what XLA compiles alike
    batch_seconds: dict = field(default_factory=dict)  # kernel -> seconds of a batch
    compile_seconds: dict = field(default_factory=dict)  # kernel -> seconds
    refused: dict = field(default_factory=dict)  # kernel -> why it cannot do it
    probed: dict = field(default_factory=dict)  # kernel -> its speed-up, which has not been looked at again
    known: dict = field(default_factory=dict)  # kernel -> (seconds of a batch, to compile) in earlier runs
    runs: int = 0  # earlier runs that have used `base`
    busy: set = field(default_factory=set)  # kernels that another trainer is about to compile
    timings: dict = field(default_factory=dict)  # kernel -> how often it has been timed

    @property
    def best(self):
        """The fastest kernel so far of those that train one model."""
        return min(
            (name for name in self.batch_seconds if name not in {TOGETHER, *self.refused}),
            key=self.batch_seconds.get,
            default=self.base,
        )

    @property
    def base(self):
        """The kernel that comes first, and does what others cannot."""
        return "loop" if "loop" not in self.refused else "plain"

    def next(self, batches, run_batches, run_seconds=0.0):
        """The kernel to use now.

        `batches`: still to come of this key in the run on this device, `run_batches`: of all keys; both with the
        coming ones. `run_seconds`: since the run began.
        """
        base = self.base
        if self.forced is not None:
            return base if self.forced in (TOGETHER, *self.refused) else self.forced
        if base not in self.batch_seconds:
            return self._of_earlier_runs(base, batches)
        for kernel in ("xla", "plain"):  # (what promises most comes first)
            if kernel in self.busy:
                break
            if kernel not in {*self.batch_seconds, *self.refused} and self._is_worth(
                kernel, base, self.batch_seconds[self.best], batches, run_batches, run_seconds
            ):
                return kernel
        return next((kernel for kernel in self.batch_seconds if self.is_doubtful(kernel)), self.best)

    def is_doubtful(self, kernel):
        """True where a kernel has disappointed, but once only, and is to be timed again by a few batches."""
        if (
            self.forced is not None
            or kernel not in self.batch_seconds
            or self.timings[kernel] >= TWICE
            or kernel in {TOGETHER, *self.refused, *self.busy}
        ):
            return False
        slower = self.batch_seconds[kernel] - self.batch_seconds[self.best]
        return 0 < slower < DOUBT or self._is_slow(kernel)

    def _is_slow(self, kernel):
        """True where a kernel takes longer than it did in earlier runs."""
        return kernel in self.known and self.batch_seconds[kernel] > TRUST * self.known[kernel][0]

    def together(self, batches, run_batches, run_seconds=0.0):
        """True where models that could be trained together are to be. Arguments as of `next`."""
        if TOGETHER in self.refused:
            return False
        if self.forced is not None:
            return self.forced == TOGETHER
        if not self.gpu or self.base not in self.batch_seconds:
            return False
        best = self.batch_seconds[self.best]
        if TOGETHER in self.batch_seconds:
            return self.batch_seconds[TOGETHER] < best
        return self._is_worth(TOGETHER, self.base, best, batches, run_batches, run_seconds)

    def waits(self, kernel):
        """True where nothing else trains while another trainer compiles a kernel."""
        return self.forced is not None or not self.batch_seconds

    def _of_earlier_runs(self, base, batches):
        """The kernel to use where `base` has not been timed: by what earlier runs have measured, while that holds."""
        if base not in self.known:
            return base
        costs = {kernel: self._cost(kernel) + batches * seconds for kernel, (seconds, _) in self.known.items()}
        for kernel, speedup in self.learned.speedup.items():
            if kernel not in {*self.known, TOGETHER}:
                seconds = self.batch_seconds.get(kernel, self.known[base][0] / speedup)
                costs[kernel] = self._margin * self._cost(kernel) + batches * seconds
        best = min(
            (kernel for kernel in costs if kernel not in {*self.refused, *self.busy}),
            key=lambda kernel: (costs[kernel], kernel != base),
            default=base,
        )
        return base if self.timings.get(best, 0) >= TWICE and self._is_slow(best) else best

    @property
    def _margin(self):
        """By which a gain that is expected from others of the architecture must exceed the cost."""
        return 1.0 if self.learned.lasts else MARGIN

    def _cost(self, kernel):
        """Seconds until a kernel is compiled of which earlier runs, or others of the architecture, have shown that."""
        if kernel in self.compile_seconds:
            return 0.0
        again = self.learned.again(self.name) if kernel == "xla" else None
        if again is not None:
            return again
        if kernel in self.known:
            return self.known[kernel][1]
        cost = self.learned.compile_seconds[kernel]
        # as a skier who has rented so often buys: what lasts is paid for when doing without would have cost as much
        return cost / (1 + self.runs) if kernel == "xla" and self.learned.lasts else cost

    def timed(self, kernel, seconds):
        """Note what a batch took. The least counts: what is more is other work on the machine."""
        self.batch_seconds[kernel] = min(seconds, self.batch_seconds.get(kernel, seconds))
        self.timings[kernel] = self.timings.get(kernel, 0) + 1
        if (before := self.probed.pop(kernel, None)) is not None:  # (by calls of few batches)
            self.learned.correct(kernel, before, self._speedup(self.batch_seconds[kernel]))

    def tried(self, kernel, seconds, compile_seconds):
        """Note what a kernel did at first: seconds of a batch (None: too few to tell), and to compile."""
        self.compile_seconds[kernel] = max(compile_seconds, self.compile_seconds.get(kernel, 0.0))
        speedup = self._speedup(seconds) if seconds and self.batch_seconds else None
        if seconds is not None:
            self.timed(kernel, seconds)
        self.learned.learn(kernel, speedup, compile_seconds, self.name if kernel == "xla" and seconds is None else None)
        if speedup is not None:
            self.probed[kernel] = speedup

    def _speedup(self, seconds):
        """Of a kernel over the one that came first, by the seconds of a batch."""
        return next(iter(self.batch_seconds.values())) / max(seconds, 1e-9)

    def _is_worth(self, kernel, base, best, batches, run_batches, run_seconds):
        """True where trying `kernel` pays; `best`: seconds of a batch by the best kernel so far."""
        first = self.batch_seconds[base]
        if kernel in self.known and base in self.known:
            return batches * (best - first * self.known[kernel][0] / self.known[base][0]) > self._cost(kernel)
        if kernel in self.learned.speedup:
            expected = first / self.learned.speedup[kernel]
            return batches * (best - expected) > self._margin * self._cost(kernel)
        compilations, seconds, speedup = EXPECTED[kernel]
        if kernel == "xla" and self.convolutional and not self.gpu:
            speedup = XLA_CONVOLUTION_SPEEDUP
        cost = seconds + compilations * max(
            self.compile_seconds.get(base, 0.0), self.learned.compile_seconds.get(base, 0.0)
        )
        if kernel == "xla" and (again := self.learned.again(self.name)) is not None:
            cost = again
        slack = LASTING if self.learned.lasts and kernel == "xla" else SLACK
        return self.learned.spent + cost <= slack * (run_seconds + run_batches * best) and cost < run_batches * (
            best - first / speedup
        )

    def numbers(self):
        """What has been measured, for the log."""
        return {
            "batch_seconds": dict(self.batch_seconds),
            "compile_seconds": dict(self.compile_seconds),
            "refused": dict(self.refused),
            "forced": self.forced,
        }

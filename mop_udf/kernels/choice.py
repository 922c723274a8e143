"""Which kernel trains a configuration: timed on its own batches, with the time to compile counted. Pure Python.

One :class:`Choice` belongs to a compiled model and a batch size on one device. The plain kernel is timed first. Another
one is tried where it promises more than it costs, and

- where nothing is known of it: if all that trying costs leaves the run at most SLACK slower than the plain kernel;
- where it has been tried on the same architecture with another optimizer, loss or batch size: by what it did there.
"""

from dataclasses import dataclass, field

SLACK = 0.05  # of the plain kernel's time for what is left of the run: what trying may cost
MARGIN = 1.5  # by which a gain that is expected from experience must exceed the cost


@dataclass
class Learned:
    """What the kernels did for one architecture so far: the least speed-up, the dearest compilation."""

    speedup: dict = field(default_factory=dict)  # kernel -> plain seconds / its seconds
    traces: dict = field(default_factory=dict)   # kernel -> seconds to compile / seconds of the plain step's trace
    spent: float = 0.0                           # seconds that trying has cost

    def learn(self, kernel, speedup, compile_seconds, trace_seconds):
        self.speedup[kernel] = min(speedup, self.speedup.get(kernel, speedup))
        traces = compile_seconds / max(trace_seconds, 1e-3)
        self.traces[kernel] = max(traces, self.traces.get(kernel, traces))
        self.spent += compile_seconds


@dataclass
class Choice:
    """The times of one key, and the kernel to use by them."""

    learned: Learned = field(default_factory=Learned)
    forced: str | None = None
    convolutional: bool = False
    gpu: bool = False
    trace_seconds: float | None = None       # what the plain kernel's first step took
    batch_seconds: dict = field(default_factory=dict)     # kernel -> seconds of a batch
    compile_seconds: dict = field(default_factory=dict)   # kernel -> seconds
    refused: dict = field(default_factory=dict)           # kernel -> why it cannot do it

    @property
    def best(self):
        """The fastest kernel so far."""
        return min(self.batch_seconds, key=self.batch_seconds.get)

    def next(self, batches, run_batches):
        """The kernel to use now.

        `batches`: still to come of this key in the run on this device, `run_batches`: of all keys; both with the
        coming ones.
        """
        if self.forced is not None:
            return self.forced if self.forced not in self.refused else "plain"
        if "plain" not in self.batch_seconds:
            return "plain"
        for kernel in ("loop", "xla"):
            if kernel not in self.batch_seconds and kernel not in self.refused and self._is_worth(
                    kernel, batches, run_batches):
                return kernel
        return self.best

    def timed(self, kernel, seconds):
        """Note what a batch took. The least counts: what is more is other work on the machine."""
        self.batch_seconds[kernel] = min(seconds, self.batch_seconds.get(kernel, seconds))

    def tried(self, kernel, seconds, compile_seconds):
        """Note what a kernel that was tried did: seconds of a batch, and to compile."""
        self.batch_seconds[kernel], self.compile_seconds[kernel] = seconds, compile_seconds
        self.learned.learn(kernel, self.batch_seconds["plain"] / max(seconds, 1e-9) if "plain" in self.batch_seconds
                           else 1.0, compile_seconds, self.trace_seconds or 0.0)

    def _is_worth(self, kernel, batches, run_batches):
        plain, best = self.batch_seconds["plain"], self.batch_seconds[self.best]
        trace = self.trace_seconds or 0.0
        if kernel in self.learned.speedup:
            expected = plain / self.learned.speedup[kernel]
            return batches * (best - expected) > MARGIN * self.learned.traces[kernel] * trace
        # before it has been tried: compile time in traces and seconds, and speed-up over the best so far; from
        # measurements of small dense nets and convolutions on CPUs, where XLA is slow at convolutions
        traces, seconds, speedup = (1.2, 0.05, 2.5) if kernel == "loop" else (
            4.0, 0.5, 0.5 if self.convolutional and not self.gpu else 3.0)
        cost = seconds + traces * trace
        return (self.learned.spent + cost <= SLACK * run_batches * plain
                and cost < run_batches * best * (1 - 1 / speedup))

    def numbers(self):
        """What has been measured, for the log."""
        return {"batch_seconds": dict(self.batch_seconds), "compile_seconds": dict(self.compile_seconds),
                "trace_seconds": self.trace_seconds, "refused": dict(self.refused), "forced": self.forced}

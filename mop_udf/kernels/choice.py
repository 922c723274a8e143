"""Which kernel trains a configuration: timed on its own batches, with the time to compile counted. Pure Python.

One :class:`Choice` belongs to a compiled model and a batch size on one device. The plain kernel is timed first, unless
experience with the architecture says at once what is better. Another one is tried where it promises more than it costs,
and

- where nothing is known of it: if all that trying costs leaves the run at most SLACK slower than the plain kernel;
- where it has been tried on the same architecture with another optimizer, loss or batch size: by what it did there.
"""

from dataclasses import dataclass, field

SLACK = 0.05  # of the run's time with the plain kernel: what trying may cost
MARGIN = 1.5  # by which a gain that is expected from experience must exceed the cost


@dataclass
class Learned:
    """What the kernels did for one architecture so far: the least gain, the dearest compilation."""

    gain: dict = field(default_factory=dict)             # kernel -> seconds that it saves of a plain batch
    speedup: dict = field(default_factory=dict)          # kernel -> plain seconds / its seconds
    compile_seconds: dict = field(default_factory=dict)  # kernel -> seconds to compile
    spent: float = 0.0                                   # seconds that trying has cost

    def learn(self, kernel, plain, seconds, compile_seconds):
        """Kernel `kernel` took `seconds` a batch and `compile_seconds` to compile; the plain one `plain`, or None."""
        self.compile_seconds[kernel] = max(compile_seconds, self.compile_seconds.get(kernel, 0.0))
        self.spent += compile_seconds
        if plain is not None:
            for known, value in ((self.gain, plain - seconds), (self.speedup, plain / max(seconds, 1e-9))):
                known[kernel] = min(value, known.get(kernel, value))

    def best(self, batches):
        """The kernel that is worth its compilation for so many batches by experience alone, or None."""
        saved = {kernel: batches * gain - MARGIN * self.compile_seconds[kernel] for kernel, gain in self.gain.items()}
        return max((k for k, s in saved.items() if s > 0), key=saved.get, default=None)


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

    def next(self, batches, run_batches, run_seconds=0.0):
        """The kernel to use now.

        `batches`: still to come of this key in the run on this device, `run_batches`: of all keys; both with the
        coming ones. `run_seconds`: since the run began.
        """
        if self.forced is not None:
            return self.forced if self.forced not in self.refused else "plain"
        if "plain" not in self.batch_seconds:
            if self.batch_seconds:
                return self.best
            if self.trace_seconds is None and (known := self.learned.best(batches)) and known not in self.refused:
                return known
            return "plain"
        for kernel in ("loop", "xla"):
            if kernel not in self.batch_seconds and kernel not in self.refused and self._is_worth(
                    kernel, batches, run_batches, run_seconds):
                return kernel
        return self.best

    def timed(self, kernel, seconds):
        """Note what a batch took. The least counts: what is more is other work on the machine."""
        self.batch_seconds[kernel] = min(seconds, self.batch_seconds.get(kernel, seconds))

    def tried(self, kernel, seconds, compile_seconds):
        """Note what a kernel that was tried did: seconds of a batch, and to compile."""
        self.batch_seconds[kernel], self.compile_seconds[kernel] = seconds, compile_seconds
        self.learned.learn(kernel, self.batch_seconds.get("plain"), seconds, compile_seconds)

    def _is_worth(self, kernel, batches, run_batches, run_seconds):
        plain, best = self.batch_seconds["plain"], self.batch_seconds[self.best]
        trace = self.trace_seconds or 0.0
        if kernel in self.learned.speedup:
            expected = plain / self.learned.speedup[kernel]
            return batches * (best - expected) > MARGIN * self.learned.compile_seconds[kernel]
        # before it has been tried: compile time in traces and seconds, and speed-up over the best so far; from
        # measurements of small dense nets and convolutions on CPUs, where XLA is slow at convolutions
        traces, seconds, speedup = (0.8, 0.02, 2.0) if kernel == "loop" else (
            4.0, 0.5, 0.5 if self.convolutional and not self.gpu else 3.0)
        cost = seconds + traces * trace
        return (self.learned.spent + cost <= SLACK * (run_seconds + run_batches * plain)
                and cost < run_batches * best * (1 - 1 / speedup))

    def numbers(self):
        """What has been measured, for the log."""
        return {"batch_seconds": dict(self.batch_seconds), "compile_seconds": dict(self.compile_seconds),
                "trace_seconds": self.trace_seconds, "refused": dict(self.refused), "forced": self.forced}

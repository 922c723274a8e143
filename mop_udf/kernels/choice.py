"""Which kernel trains a configuration: timed on its own batches, with the time to compile counted. Pure Python.

One :class:`Choice` belongs to a compiled model and a batch size on one device. The plain kernel is timed first. Another
one is tried only where it promises more than it costs, and where even its failure would leave the rest of the run at
most SLACK slower than the plain kernel alone.
"""

from dataclasses import dataclass, field

SLACK = 1.05


@dataclass
class Prior:
    """What is expected of a kernel before it has been tried: compile time, in traces of the plain step, and speed-up.

    From measurements of small dense nets and convolutions on CPUs; a trainer corrects them by what it sees.
    """

    traces: float
    seconds: float
    speedup: float


@dataclass
class Choice:
    """The times of one key, and the kernel to use by them."""

    forced: str | None = None
    convolutional: bool = False
    gpu: bool = False
    trace_seconds: float = 0.0               # what the plain kernel's first step took beyond a later one
    spent: float = 0.0                       # on compiling others
    batch_seconds: dict = field(default_factory=dict)     # kernel -> seconds of a batch
    compile_seconds: dict = field(default_factory=dict)   # kernel -> seconds
    refused: dict = field(default_factory=dict)           # kernel -> why it cannot do it

    def prior(self, kernel):
        if kernel == "loop":
            return Prior(1.5, 0.1, 2.5)
        # XLA on CPUs is slow at convolutions
        return Prior(4.0, 1.0, 0.5 if self.convolutional and not self.gpu else 3.0)

    @property
    def best(self):
        """The fastest kernel so far."""
        return min(self.batch_seconds, key=self.batch_seconds.get)

    def next(self, batches):
        """The kernel to use now, with `batches` of this key still to come in this run (the coming ones included)."""
        if self.forced is not None:
            return self.forced if self.forced not in self.refused else "plain"
        if "plain" not in self.batch_seconds:
            return "plain"
        left = batches * self.batch_seconds[self.best]
        bound = SLACK * batches * self.batch_seconds["plain"]
        for kernel in ("loop", "xla"):
            if kernel in self.batch_seconds or kernel in self.refused:
                continue
            prior = self.prior(kernel)
            cost = prior.seconds + prior.traces * self.trace_seconds
            if self.spent + cost + left <= bound and cost < left * (1 - 1 / prior.speedup):
                return kernel
        return self.best

    def numbers(self):
        """What has been measured, for the log."""
        return {"batch_seconds": dict(self.batch_seconds), "compile_seconds": dict(self.compile_seconds),
                "trace_seconds": self.trace_seconds, "refused": dict(self.refused), "forced": self.forced}

"""Measurements of kernels that the autotuners of one architecture share. Pure Python."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class AutotunerMemory:
    """The kernels' measured speed-ups and compile times for one architecture.

    `persistent`: compiled code lasts beyond this trainer, so later runs gain from it. `on_compiled(name, seconds)` is
    called for compiled code that lasts; `cached_seconds(name)` gives the seconds to read such code from the compile
    cache, or None where the cache does not hold it.
    """

    speedup: dict[str, float] = field(default_factory=dict)  # kernel -> least speed-up over the first kernel
    compile_seconds: dict[str, float] = field(default_factory=dict)  # kernel -> longest compilation
    spent: float = 0.0  # seconds that trials have cost
    on_compiled: Callable[[str, float], None] = lambda name, seconds: None
    cached_seconds: Callable[[str], float | None] = lambda name: None
    persistent: bool = False

    def record(
        self, kernel: str, speedup: float | None, compile_seconds: float, compiled_name: str | None = None
    ) -> None:
        """Record a trial of a kernel; `compiled_name`: the name of code that was just compiled and lasts."""
        if compiled_name is not None:
            self.on_compiled(compiled_name, compile_seconds)
        self.compile_seconds[kernel] = max(compile_seconds, self.compile_seconds.get(kernel, 0.0))
        if speedup is not None:
            self.speedup[kernel] = min(speedup, self.speedup.get(kernel, speedup))
            self.spent += compile_seconds

    def correct(self, kernel: str, before: float, speedup: float) -> None:
        """Replace the speed-up `before` of a kernel, from a trial, by a better measurement."""
        least = self.speedup[kernel]
        self.speedup[kernel] = min(least, speedup) if least < before else speedup

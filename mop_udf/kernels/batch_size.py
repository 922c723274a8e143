"""The number of rows that pass a model at once outside training: few at first, then as many as memory allows.

Pure Python, except that it reads this process's memory from /proc.
"""

import resource
from collections.abc import Callable
from typing import Any

FIRST, MOST = 16, 1024  # rows
ENOUGH = 256 << 20  # bytes that a batch may take without a limit: larger batches are not faster
SHARE = 0.9  # of the limit: this process may grow up to it

limit_bytes: int | None = (
    None  # memory limit of this process (pg_mop.trainer_memory_mb), set from the trainer's options
)


class BatchSize:
    """The batch size of one model; it grows by the measured memory of its batches.

    A doubling of the rows adds about twice the memory that the last doubling added, so each batch predicts the memory
    of the next size. The prediction is at least the size of the layers' outputs: memory that TensorFlow holds in
    reserve for other models can hide the increase.
    """

    def __init__(self, row_bytes: int = 0, memory: Any = None) -> None:
        """`row_bytes`: size of all layers' outputs for a row; `memory`: measures this process, by default a
        :class:`Memory`.
        """
        self.rows, self.row_bytes, self.memory = FIRST, row_bytes, memory or Memory()
        self._warm = self.settled = False  # settled: the batch size does not grow any more
        self._base = self._before = None  # bytes held before the measurements; peak of the last measured batch

    def measure(self, work: Callable[[], Any]) -> None:
        """Run `work()`, which processes a batch of `rows` rows, and adapt the batch size to the memory that it takes."""
        if not self._warm:  # the first batch also compiles, which takes memory of its own
            self._warm = True
            work()
            return
        held = self.memory.begin()
        work()
        self._learn(held, self.memory.peak())

    def _learn(self, held: Any, peak: Any) -> None:
        """`held`, `peak`: bytes of this process before a full batch, and at most during it."""
        if self._base is None:
            self._base, self._before = held, peak
            self.rows *= 2
            return
        next_peak = peak + max(2 * (peak - self._before), self.rows * self.row_bytes)
        self._before = peak
        if limit_bytes is not None:
            fits = next_peak <= SHARE * limit_bytes
        else:
            fits = max(next_peak - self._base, 2 * self.rows * self.row_bytes) <= ENOUGH
        if fits and self.rows < MOST:
            self.rows *= 2
        else:
            self.settled = True

    def shrink(self) -> bool:
        """After memory ran out, halve the batch size for good. False where a single row is too much."""
        if self.rows == 1:
            return False
        self.rows, self.settled = max(1, self.rows // 2), True
        return True


def may_hold(nbytes: int) -> bool:
    """True where this process may take `nbytes` more."""
    return limit_bytes is None or _status("VmRSS:") + nbytes <= SHARE * limit_bytes


class Memory:
    """The memory of this process, present and peak."""

    def begin(self) -> int:
        """Reset the peak: the bytes held now."""
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:  # the peak then counts from the start of the process
            pass
        return _status("VmRSS:")

    def peak(self) -> int:
        """The most bytes held since `begin`."""
        return _status("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _status(name: str) -> Any:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0

"""How many rows go through a model at once where it does not train: few at first, then as many as memory allows.

Pure Python but for what /proc tells of this process.
"""

import resource

FIRST, MOST = 16, 1024  # rows
ENOUGH = 256 << 20  # bytes that a batch may take where no limit is set: more is not faster
SHARE = 0.9  # of a limit, up to which this process may grow

limit_bytes = None  # that this process may hold (pg_mop.trainer_memory_mb); the trainer's options set it


class BatchSize:
    """The batch size of one model, which grows by what its batches are seen to take.

    Twice as many rows take about twice what the last doubling added, so what one batch shows tells what the next needs:
    never less than the layers' outputs, since what TensorFlow holds in reserve, of other models, hides what is taken.
    """

    def __init__(self, row_bytes=0, memory=None):
        """`row_bytes`: of all layers' outputs for a row; `memory`: what tells of this process's, a :class:`Memory`."""
        self.rows, self.row_bytes, self.memory = FIRST, row_bytes, memory or Memory()
        self._warm = self.settled = False  # settled: nothing is left to be learnt
        self._base = self._before = None  # bytes held before batches were measured; at most in the last of those

    def measure(self, work):
        """Let `work()` do a batch of `rows` rows, and learn from what it takes."""
        if not self._warm:  # the first batch makes the function, which takes memory of its own
            self._warm = True
            work()
            return
        held = self.memory.begin()
        work()
        self._learn(held, self.memory.peak())

    def _learn(self, held, peak):
        """`held`, `peak`: bytes that this process held before a full batch, and at most during it."""
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

    def shrink(self):
        """There was not enough memory: use half of it from now on. False where a single row is too much."""
        if self.rows == 1:
            return False
        self.rows, self.settled = max(1, self.rows // 2), True
        return True


def may_hold(nbytes):
    """True where this process may hold so many bytes more."""
    return limit_bytes is None or _status("VmRSS:") + nbytes <= SHARE * limit_bytes


class Memory:
    """What this process holds, and what it held at most since it was last asked to begin."""

    def begin(self):
        """Bytes held now; the peak counts from now on."""
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:  # then the peak is that of the process's life, which nothing before has exceeded
            pass
        return _status("VmRSS:")

    def peak(self):
        """The most bytes held since `begin`."""
        return _status("VmHWM:") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _status(name):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0

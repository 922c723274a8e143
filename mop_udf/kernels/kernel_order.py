"""The kernels that train the batches of a unit, in their order: noted, and followed in a replay.

While the autotuner compares kernels, or waits for a compilation, a unit is trained by more than one kernel. Kernels differ
by rounding, so the log of such a unit has the order, and its replay repeats it batch by batch.
"""

from collections.abc import Sequence

LOGGED = "logged"  # in place of a kernel's name: each batch has the kernel of the log


class KernelOrder:
    """Notes which kernel trains how many batches; with `logged`, also says which kernel trains the next ones.

    >>> order = KernelOrder([["loop", 10], ["xla", 5]])
    >>> order.next(), order.note("loop", 8), order.next(), order.note("loop", 2), order.next()
    (('loop', 10), None, ('loop', 2), None, ('xla', 5))
    >>> order.mixed()
    >>> order.note("xla", 5), order.next(), order.mixed()
    (None, ('xla', None), [['loop', 10], ['xla', 5]])
    """

    def __init__(self, logged: Sequence[Sequence[str | int]] = ()) -> None:
        """`logged`: [[kernel, batches], ...] as of `mixed`."""
        self.noted: list[list[str | int]] = []
        self._logged = [(str(kernel), int(batches)) for kernel, batches in logged]
        self._at = 0  # batches of the log's first entry that have been trained

    @property
    def follows(self) -> bool:
        """True where the order of a log is followed."""
        return bool(self._logged)

    def next(self) -> tuple[str, int | None]:
        """The kernel of the next batches by the log, and their number; None: all that are left."""
        kernel, batches = self._logged[0]
        return kernel, None if self._at >= batches else batches - self._at

    def note(self, kernel: str, batches: int) -> None:
        """A kernel has trained so many batches."""
        if batches and self.noted and self.noted[-1][0] == kernel:
            self.noted[-1][1] += batches  # type: ignore[operator]
        elif batches:
            self.noted.append([kernel, batches])
        self._at += batches
        while len(self._logged) > 1 and self._at >= self._logged[0][1]:
            self._at -= self._logged.pop(0)[1]

    def mixed(self) -> list[list[str | int]] | None:
        """[[kernel, batches], ...] where more than one kernel has trained; else None."""
        return self.noted if len(self.noted) > 1 else None

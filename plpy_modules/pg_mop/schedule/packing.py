"""Which commands may train side by side on a device, by the memory that they need there. Pure Python.

A device is a GPU, or the processors of a server with its main memory. The trainers of a run share the part of its memory that
pg_mop.gpu_memory_share names (the budget). A command takes one of n equal parts of the budget: n is the largest number of
workers on the device that leaves its net enough. Commands are packed greedily, in the scheduler's order: a command begins if
its part is free. (Retiarii, Zhang et al., OSDI 2020, packs models on GPUs by their memory.) A net that has run out of memory
takes a larger part from then on, and at last the whole budget. The executor and the simulator drive the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from fractions import Fraction

from pg_mop.plan.stages import StageNumber
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import Unit, Worker

Device = Hashable


def levels(workers: int) -> list[int]:
    """Into how many parts a device of so many workers may be divided: halved each time, so that few different trainers are
    needed.

    >>> levels(6), levels(1)
    ([6, 3, 1], [1])
    """
    found = [max(1, workers)]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found


def parts(workers: int, budget: int | None, need: int) -> int:
    """How many equal parts of a budget (bytes; None: unknown) hold a trainer that needs so many bytes (0: unknown); 1 also
    where it needs more than there is, since an estimate may be wrong.

    >>> parts(4, 10 << 30, 2 << 30), parts(4, 10 << 30, 3 << 30), parts(4, 10 << 30, 11 << 30), parts(4, None, 1 << 30)
    (4, 2, 1, 4)
    """
    if not budget or not need:
        return max(1, workers)
    return next((level for level in levels(workers) if level * need <= budget), 1)


class Packing:
    """The parts of devices that the commands of a run take."""

    def __init__(
        self,
        board: Board,
        device_of: Callable[[Worker], Device | None],
        budget_of: Callable[[Device], int | None],
        need_of: Callable[[StageNumber], int],
        key_of: Callable[[StageNumber], Hashable],
    ) -> None:
        """`device_of`: of a worker, None where its trainer is not packed (on Ray, on Greenplum); `budget_of`: bytes of a device
        that trainers may take together, None: unknown, or no limit; `need_of`: bytes of a trainer that trains a stage, 0:
        unknown; `key_of`: equal for stages of one net."""
        self.board, self.device_of, self.budget_of, self.need_of, self.key_of = (
            board,
            device_of,
            budget_of,
            need_of,
            key_of,
        )
        self._most: dict[Hashable, int] = {}  # key of a net that has run out of memory -> parts of its device, at most
        self._parts: dict[
            Worker, int
        ] = {}  # of the command that a worker has, or has had: its trainer still holds the part
        self._left: set[Worker] = set()  # those whose trainers have been given back since
        self._waiting: dict[Device, Worker] = {}  # the worker whose command needs a larger part than is free
        self._refused: set[Worker] = set()  # those whose last command found its device full

    # --- parts ----------------------------------------------------------------------------------------------------
    def parts(self, worker: Worker, stage: StageNumber) -> int:
        """Into how many parts a worker's device is divided for a command that trains or evaluates a stage."""
        device = self.device_of(worker)
        if device is None:
            return 1
        workers = len(self._beside(device))
        found = parts(workers, self.budget_of(device), self.need_of(stage))
        most = self._most.get(self.key_of(stage), found)
        return next((level for level in levels(workers) if level <= min(found, most)), 1)

    def usual(self, worker: Worker) -> int:
        """The parts of a worker's device before it has a command: one for each worker."""
        device = self.device_of(worker)
        return 1 if device is None else max(1, len(self._beside(device)))

    def of(self, worker: Worker) -> int:
        """The parts of a worker's device, of which its command has one."""
        return self._parts.get(worker) or self.usual(worker)

    def kind(self, stage: StageNumber) -> Hashable:
        """Equal for stages that one command may train: their trainers have equal parts."""
        if not self._most and not self.need_of(stage):
            return None
        first = {self.device_of(worker): worker for worker in reversed(self.board.workers)}
        return tuple(self.parts(worker, stage) for worker in first.values())

    # --- commands -------------------------------------------------------------------------------------------------
    def may_begin(self, worker: Worker, unit: Unit | None, working: Collection[Worker]) -> bool:
        """True where the part that a worker's next command needs is free. `unit`: its first one, None: it has none;
        `working`: workers with commands.

        A worker that has to wait has the next free parts of its device, so that small commands do not keep a large one from
        beginning for ever.
        """
        device = self.device_of(worker)
        if device is None:
            return True
        if unit is None:
            if self._waiting.get(device) == worker:
                del self._waiting[device]
            return True
        if not self._most and self.budget_of(device) is None:  # (the usual case: nobody waits for a part)
            return True
        others = [other for other in working if other != worker and self.device_of(other) == device]
        first = self._waiting.get(device)
        if not others or first in others or first not in self.board.workers:
            self._waiting.pop(device, None)
            first = None
        wanted = Fraction(1, self.parts(worker, unit.stage))
        if not others or first in (None, worker) and self._taken(others) + wanted <= 1:
            return True
        self._waiting.setdefault(device, worker)
        return False

    def begin(self, worker: Worker, unit: Unit, working: Collection[Worker]) -> list[Worker]:
        """A worker's command begins. Returns the idle workers that must give their trainers back first: each still holds a
        part that the command needs.

        Where the worker's last command found the device full, all idle ones give theirs back: another run may wait for these
        parts, while it holds those that this run waits for. Two such runs cannot wait for each other for ever: whoever
        tries holds nothing but what works, so of the parts of all runs that wait, none is held once each has tried again, and
        the next that tries has its part.
        """
        device = self.device_of(worker)
        if device is None:
            return []
        self._left.discard(worker)
        refused = worker in self._refused
        self._refused.discard(worker)
        if not self._most and self.budget_of(device) is None:
            return [other for other in self._beside(device) if other != worker and other not in working] * refused
        if self._waiting.get(device) == worker:
            del self._waiting[device]
        self._parts[worker] = self.parts(worker, unit.stage)
        held = [other for other in self._beside(device) if other != worker and other not in self._left]
        idle, leave = [other for other in held if other not in working], []
        while idle and (refused or self._taken(held) + Fraction(1, self._parts[worker]) > 1):
            held.remove(idle[-1])
            leave.append(idle.pop())
        self._left.update(leave)
        return leave

    def full(self, worker: Worker) -> None:
        """The trainer of a worker's command could not have its part. Sessions that have been opened since, or other runs, hold
        parts, too; the worker's next command takes no part while idle workers of this run hold any, see `begin`."""
        self._left.clear()
        self._refused.add(worker)

    def fewer(self, stage: StageNumber, had: int) -> None:
        """A net has run out of memory in one of `had` parts of a device: from now on it gets one of half as many."""
        key = self.key_of(stage)
        self._most[key] = max(1, min(had // 2, self._most.get(key, had)))

    def _taken(self, workers: Iterable[Worker]) -> Fraction:
        return sum((Fraction(1, self.of(worker)) for worker in workers), Fraction(0))

    def _beside(self, device: Device) -> list[Worker]:
        return [worker for worker in self.board.workers if self.device_of(worker) == device]


def unpacked(board: Board) -> Packing:
    """The Packing of a run whose trainers are not packed."""
    return Packing(board, lambda worker: None, lambda device: None, lambda stage: 0, lambda stage: stage)

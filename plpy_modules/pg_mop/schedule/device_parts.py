"""Which commands may train side by side on a device, by the memory that they need there. Pure Python.

A device is a GPU, or the processors of a server with its main memory. The trainers of a run share the part of its memory that
pg_mop.gpu_memory_share names (the budget). A command takes one of n equal parts of the budget: n is the largest number of
workers on the device that leaves its net enough. Commands are packed greedily, in the scheduler's order: a command begins if
its part is free. (Retiarii, Zhang et al., OSDI 2020, packs models on GPUs by their memory.) A net that has run out of memory
takes a larger part from then on, and at last the whole budget. A net that one device does not hold takes several devices as a
whole (schedule/divided_nets.py). The executor and the simulator drive the same object.

`DeviceParts` divides the memory of a device, a GPU or a server's main memory, into equal parts, and
says whether a command may begin now. The executor and the simulator ask it through `UnitBatches.may_begin`, before the
scheduler's unit is marked as running. `call/trainer_memory.py` says what a net needs. Parts are halves of halves, so that few
different trainers are needed. The part is an option of the trainer (`device_part`, in millionths), so that a trainer of the
pool with another part has another key. Where a command needs a larger part, idle sessions give their trainers back first
(`mop_leave_trainer`), and the pool ends idle trainers that hold parts (`Pool.room`). Lack of memory is an event of the
attempt (`DeviceMemoryExceeded`): `decide` says alone, then fewer neighbours, then given up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from fractions import Fraction

from pg_mop.plan.stages import StageNumber
from pg_mop.schedule.board import Board
from pg_mop.schedule.divided_nets import DividedNets
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


class DeviceParts:
    """The parts of devices that the commands of a run take."""

    def __init__(
        self,
        board: Board,
        device_of: Callable[[Worker], Device | None],
        budget_of: Callable[[Device], int | None],
        need_of: Callable[[StageNumber], int],
        key_of: Callable[[StageNumber], Hashable],
        divided: DividedNets | None = None,
        group_of: Callable[[Device, int], tuple[Device, ...]] = lambda device, count: (device,),
    ) -> None:
        """`device_of`: of a worker, None where its trainer is not packed (on Ray, on Greenplum); `budget_of`: bytes of a device
        that trainers may take together, None: unknown, or no limit; `need_of`: bytes of a trainer that trains a stage, 0:
        unknown; `key_of`: equal for stages of one net; `divided`: how many devices a net has, None: one; `group_of(device,
        count)`: the devices that train together for a worker of a device."""
        self.board, self.device_of, self.budget_of, self.need_of, self.key_of = (
            board,
            device_of,
            budget_of,
            need_of,
            key_of,
        )
        self.divided, self.group_of = divided or DividedNets(), group_of
        self._places: dict[
            Worker, tuple[Device, ...]
        ] = {}  # of its command, or of its last one, where these are several
        self.has_divided = (
            False  # some command has had several devices: from then on, the pool must count the parts of all
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

    # --- several devices ------------------------------------------------------------------------------------------
    def places(self, worker: Worker, unit: Unit) -> tuple[Device, ...]:
        """The devices that a worker's command takes that begins with a unit."""
        device = self.device_of(worker)
        if device is None:
            return ()
        count = self.divided.of(self.board.server(worker), unit)
        return self.group_of(device, count) if count > 1 else (device,)

    def several(self, worker: Worker) -> tuple[Device, ...]:
        """The devices of a worker's command, or of its last one, if these are several; else ()."""
        return self._places.get(worker, ())

    def more_devices(self, worker: Worker) -> int | None:
        """How many devices a net may have next that runs out of memory on those of a worker's command; None: no more."""
        if self.device_of(worker) is None:
            return None
        return self.divided.next(self.board.server(worker), max(1, len(self.several(worker))))

    def shared_by(self, unit: Unit) -> Hashable:
        """Equal for units that one command may do: their trainers have equally many devices."""
        servers = dict.fromkeys(map(self.board.server, self.board.workers)) if self.divided.are_possible else ()
        return tuple(self.divided.of(server, unit) for server in servers)

    def _holds(self, worker: Worker) -> tuple[Device, ...]:
        """The devices of a worker's trainer."""
        device = self.device_of(worker)
        return self.several(worker) or (() if device is None else (device,))

    def _is_free(self, places: tuple[Device, ...]) -> bool:
        """True where no command has to wait for a device (the usual case)."""
        if len(places) > 1 or self._places or self._waiting or self._most:
            return False
        return self.budget_of(places[0]) is None

    # --- commands -------------------------------------------------------------------------------------------------
    def may_begin(self, worker: Worker, unit: Unit | None, working: Collection[Worker]) -> bool:
        """True where the part that a worker's next command needs is free, or all devices that it needs. `unit`: its first one,
        None: it has none; `working`: workers with commands.

        A worker that has to wait has the next free parts of its devices, so that small commands do not keep a large one from
        beginning for ever. It has either all of these devices next or none, so that no two workers wait for each other.
        """
        places = () if unit is None else self.places(worker, unit)
        self._waiting = {place: own for place, own in self._waiting.items() if own != worker or place in places}
        if unit is None or not places or self._is_free(places):
            return True
        others = [other for other in working if other != worker]
        held = {place for other in others for place in self._holds(other)}
        for first in {self._waiting[place] for place in places if place in self._waiting} - {worker}:
            wanted = {place for place, own in self._waiting.items() if own == first}
            if first in others or first not in self.board.workers or not wanted & held:
                self._waiting = {place: own for place, own in self._waiting.items() if own != first}
        part = Fraction(1, 1 if len(places) > 1 else self.parts(worker, unit.stage))
        is_next = all(self._waiting.get(place, worker) == worker for place in places)
        if is_next and all(place not in held or self._taken(place, others) + part <= 1 for place in places):
            return True
        if is_next:
            self._waiting.update(dict.fromkeys(places, worker))
        return False

    def begin(self, worker: Worker, unit: Unit, working: Collection[Worker]) -> list[Worker]:
        """A worker's command begins. Returns the idle workers that must give their trainers back first: each still holds a
        part that the command needs.

        Where the worker's last command found the device full, all idle ones give theirs back: another run may wait for these
        parts, while it holds those that this run waits for. Two such runs cannot wait for each other for ever: whoever
        tries holds nothing but what works, so of the parts of all runs that wait, none is held once each has tried again, and
        the next that tries has its part.
        """
        places = self.places(worker, unit)
        if not places:
            return []
        self._left.discard(worker)
        refused = worker in self._refused
        self._refused.discard(worker)
        self._places.pop(worker, None)
        if self._is_free(places):
            self._parts.pop(worker, None)
            return [other for other in self._beside(places[0]) if other != worker and other not in working] * refused
        self._waiting = {place: own for place, own in self._waiting.items() if own != worker}
        if len(places) > 1:
            self._places[worker], self.has_divided = places, True
        self._parts[worker] = 1 if len(places) > 1 else self.parts(worker, unit.stage)
        part = Fraction(1, self._parts[worker])
        held = [
            other
            for other in self.board.workers
            if other != worker and other not in self._left and set(places) & set(self._holds(other))
        ]
        idle, leave = [other for other in held if other not in working], []
        while idle and (refused or any(self._taken(place, held) + part > 1 for place in places)):
            held.remove(idle[-1])
            leave.append(idle.pop())
        self._left.update(leave)
        for other in leave:
            self._places.pop(other, None)
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

    def _taken(self, place: Device, workers: Iterable[Worker]) -> Fraction:
        """The part of a device that these workers have."""
        return sum((Fraction(1, self.of(worker)) for worker in workers if place in self._holds(worker)), Fraction(0))

    def _beside(self, device: Device) -> list[Worker]:
        return [worker for worker in self.board.workers if self.device_of(worker) == device]

"""How many threads the trainer of a command has: fixed, as a log says, or dealt by what is left to do. Pure Python.

Fluid (Yu et al., MLSys 2021) gives each trial resources by its share of the work that is left (StaticFluid), and changes them
only where the gain exceeds the cost (DynamicFluid). Here the resources are the cores of the coordinator's server, and the
trials are the paths that can be trained side by side. While there is a path for each worker, every trainer has the threads of
the run's beginning. The executor and the simulator drive the same object. On several servers, each has a Dealer of its own
(schedule/dealing_by_server.py).

`Executor._threads()` asks `schedule/dealing.py` for the threads of a command's trainer, and so does the simulator: `Threads`
are fixed, `LoggedThreads` those of the run that is repeated, and a `Dealer` deals the cores among the paths that are left; on
several servers `ServerDealers` (`schedule/dealing_by_server.py`) has one for each. A session whose trainer has other threads
than its command asks for gives it back to the pool and leases another (`mop_udf/aggregate.py`, `start_trainer`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker

START = 0.6  # seconds of a worker between two trainers: to give one back, and to start another
LEASE = 0.1  # the same, where the pool most likely has a trainer with the net
MARGIN = 0.1  # of the seconds that are left: a smaller gain may be an error of the estimate
LEAST_SPEEDUP = 1.1  # fewer threads are as good
MEASURED = 3  # units whose seconds tell how fast a net is with more threads


class Costs(Protocol):
    """Where a Dealer gets seconds from (plan/estimates.py)."""

    def certain(self, stage: Stage) -> float:
        """Seconds of a training unit as earlier runs measured them; 0: they have not."""

    def speedup(self, stage: Stage, threads: int) -> float:
        """How many times as fast a training unit is with so many threads."""

    def ready(self, stage: Stage, threads: int) -> float:
        """Seconds to make a stage's net ready in a trainer with so many threads that has never had it."""


def shares(left: Mapping[StageNumber, float], cores: int, least: int) -> dict[StageNumber, int]:
    """StaticFluid: the threads of paths by the seconds that are `left` of each:
    min(max(floor(h / sum(h) * cores), least), cores).

    Where `least` for each is too much in sum, the largest give way; cores that are left over go where most is left for a
    thread.

    >>> shares({1: 60.0, 2: 30.0, 3: 10.0}, 8, 1), shares({1: 98.0, 2: 1.0, 3: 1.0}, 4, 1), shares({1: 5.0}, 64, 8)
    ({1: 5, 2: 2, 3: 1}, {1: 2, 2: 1, 3: 1}, {1: 64})
    """
    total = sum(left.values())
    if not 0.0 < total < math.inf:
        return dict.fromkeys(left, least)
    found = {number: min(max(int(seconds / total * cores), least), cores) for number, seconds in left.items()}
    while (
        sum(found.values()) > cores and (most := max(found, key=lambda number: found[number])) and found[most] > least
    ):
        found[most] -= 1
    while sum(found.values()) < cores:
        found[max(found, key=lambda number: left[number] / found[number])] += 1
    return found


class Threads:
    """A fixed number of threads, `least`; None: as each server has them (call/unit_specs.py)."""

    def __init__(self, least: int | None) -> None:
        self.least = least

    def logged(self, unit: Unit) -> int | None:
        """The threads of a unit where a log gives them. Units of one command must have equal ones."""
        return None

    def begin(
        self, worker: Worker, unit: Unit, working: Collection[Worker], may_grow: Callable[[int], bool]
    ) -> int | None:
        """The threads for a worker's command that begins with a unit. `working`: workers with commands; `may_grow(cores)`:
        whether commands may use so many cores in all."""
        return self.least

    def of(self, worker: Worker) -> int | None:
        """The threads of a worker's command, or of its last one."""
        return self.least

    def finished(self, worker: Worker, unit: Unit, seconds: float) -> None:
        """Take the seconds of a unit."""


class LoggedThreads(Threads):
    """The threads of a replay: those that each unit had in the run that it repeats."""

    def __init__(self, least: int | None, log: Mapping[Unit, int]) -> None:
        super().__init__(least)
        self._log, self._has = log, dict[Worker, int | None]()

    def logged(self, unit: Unit) -> int | None:
        return self._log.get(unit, self.least)

    def begin(
        self, worker: Worker, unit: Unit, working: Collection[Worker], may_grow: Callable[[int], bool]
    ) -> int | None:
        self._has[worker] = self.logged(unit)
        return self._has[worker]

    def of(self, worker: Worker) -> int | None:
        return self._has.get(worker, self.least)


@dataclass(eq=False)
class _Trainer:
    """A trainer, leased by a worker or in the pool."""

    threads: int
    nets: set[Any] = field(default_factory=set)  # the keys of those that it has ready


class Dealer(Threads):
    """Deals the cores of a server among the paths that are left, once there are fewer of them than workers."""

    least: int

    def __init__(
        self,
        board: Board,
        cores: int,
        least: int,
        key_of: Callable[[StageNumber], Any],
        costs: Costs,
        among: Callable[[], Collection[Worker]] | None = None,
        part: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`cores`: that a trainer may have at most; `key_of`: as of UnitBatches; `costs`: see Costs. Where the cores are
        one of several servers', `among` are the workers there, and `part` is the share of a path that is trained there."""
        super().__init__(least)
        self._among, self._part = among or (lambda: board.workers), part
        self.board, self.cores, self.key_of, self.costs = board, cores, key_of, costs
        self.cost = 0.0  # seconds that the last change of a trainer takes, as it was estimated; 0: there was none
        self._trainers: dict[Worker, _Trainer] = {}
        self._pool: list[_Trainer] = []  # that workers have given back
        self._ready: dict[tuple[Any, int], float] = {}  # (key, threads) -> seconds to make the net ready
        self._new: set[Worker] = set()  # workers whose command makes a net ready
        # (key, segment, threads) -> least seconds of a unit
        self._seconds: dict[tuple[Any, SegmentNumber, int], float] = {}
        self._counts: Counter[tuple[Any, int]] = Counter()  # (key, threads) -> how many units told their seconds
        self._slow: set[tuple[Any, int]] = set()  # (key, threads) that were hardly faster: not to be tried again

    def of(self, worker: Worker) -> int:
        return self._trainer(worker).threads

    def faster(self, worker: Worker, stage: Stage) -> float:
        """How many times as fast as with the least threads a worker's trainer does a unit, by the costs."""
        return max(1.0, self.costs.speedup(stage, self.of(worker)))

    def _trainer(self, worker: Worker) -> _Trainer:
        return self._trainers.setdefault(worker, _Trainer(self.least))

    def begin(self, worker: Worker, unit: Unit, working: Collection[Worker], may_grow: Callable[[int], bool]) -> int:
        chosen, key, self.cost = self._choose(worker, unit, working, may_grow), self.key_of(unit.stage), 0.0
        trainer = self._trainer(worker)
        if trainer.threads != chosen:
            self.cost = self._cost(worker, key, chosen)
            self._pool.append(trainer)
            trainer = self._trainers[worker] = self._pooled(key, chosen) or _Trainer(chosen)
            if trainer in self._pool:
                self._pool.remove(trainer)
        self._new.discard(worker)
        if unit.kind == "train" and key not in trainer.nets:
            trainer.nets.add(key)
            self._new.add(worker)
        return chosen

    def _pooled(self, key: Any, threads: int) -> _Trainer | None:
        """A trainer in the pool with so many threads, if possible with a net."""
        found = [trainer for trainer in self._pool if trainer.threads == threads]
        return max(found, key=lambda trainer: key in trainer.nets, default=None)

    def _choose(self, worker: Worker, unit: Unit, working: Collection[Worker], may_grow: Callable[[int], bool]) -> int:
        now, others = self.of(worker), sum(self.of(other) for other in working if other != worker)
        if self._is_wide():
            return self.least
        if unit.kind == "evaluate":  # as its stage was trained, for it is trained further then
            return now if now == self.least or may_grow(others + now) else self.least
        paths = self._paths()
        if len(paths) >= len(self._among()):
            return self.least
        stage = self.board.plan.stages[unit.stage]
        dealt = shares(paths, self.cores, self.least).get(unit.stage, self.least) if all(paths.values()) else now
        wanted = max(self.least, min(dealt, self.cores - others))
        if self._speedup(stage, wanted) < LEAST_SPEEDUP or (self.key_of(unit.stage), wanted) in self._slow:
            wanted = self.least
        if (
            wanted != now
            and now <= max(self.least, self.cores - others)
            and not self._pays(worker, unit, wanted, paths)
        ):
            wanted = now
        return wanted if wanted == self.least or may_grow(others + wanted) else self.least

    def finished(self, worker: Worker, unit: Unit, seconds: float) -> None:
        if unit.kind != "train" or worker in self._new:  # (it made its net ready, too)
            return
        net, threads = self.key_of(unit.stage), self.of(worker)
        key = net, unit.segment, threads
        self._seconds[key] = min(seconds, self._seconds.get(key, seconds))
        self._counts[net, threads] += 1
        if (
            self._is_measured(net, threads)
            and self._speedup(self.board.plan.stages[unit.stage], threads) < LEAST_SPEEDUP
        ):
            self._slow.add((net, threads))

    # --- what is left ---------------------------------------------------------------------------------------------
    def _is_wide(self) -> bool:
        """True where there is a stage to train for each worker (of one server): the usual case, found at once."""
        board, missing = self.board, len(self._among()) - len(self.board.idle)
        if missing <= 0 or len(board.training) < missing:
            return missing <= 0
        # one worker trains a chain, which may have units of a stage and of its children: only the first stage counts
        parents = (board.plan.stages[number].parent for number in board.training)
        return sum(parent is None or parent.number not in board.training for parent in parents) >= missing

    def _paths(self) -> dict[StageNumber, float]:
        """{stage: seconds left} of the paths that can be worked on side by side: from each stage whose parent has ended, to
        the end of the path, or to a fork. Seconds with the least threads; 0: unknown."""
        left, found = self.board.left, {}
        for number, stage in left.items():
            if stage.parent is None or stage.parent.number not in left:
                seconds, one = 0.0, stage
                while True:
                    unit = self._unit_seconds(one)
                    seconds += self.board.visits_left(one.number) * unit
                    below = [child for child in one.children if child.number in left]
                    if len(below) != 1 or not unit:
                        break
                    (one,) = below
                found[number] = seconds
        return found

    # --- what threads are worth -----------------------------------------------------------------------------------
    def _measured(self, key: Any, threads: int) -> dict[SegmentNumber, float]:
        """{segment: seconds of a unit} as this run measured them."""
        return {
            segment: seconds
            for segment in self.board.segments
            if (seconds := self._seconds.get((key, segment, threads))) is not None
        }

    def _unit_seconds(self, stage: Stage) -> float:
        """Seconds of a training unit with the least threads; 0: unknown."""
        measured = self._measured(self.key_of(stage.number), self.least)
        return min(measured.values()) if measured else self.costs.certain(stage)

    def _speedup(self, stage: Stage, threads: int) -> float:
        """How many times as fast as with the least threads a unit is: by this run, else by the costs."""
        if threads <= self.least:
            return 1.0
        key = self.key_of(stage.number)
        few, many = self._measured(key, self.least), self._measured(key, threads)
        common = few.keys() & many.keys()
        if common and self._is_measured(key, threads):
            return sum(few[segment] for segment in common) / max(1e-9, sum(many[segment] for segment in common))
        return max(1.0, self.costs.speedup(stage, threads))

    def _is_measured(self, key: Any, threads: int) -> bool:
        return threads > self.least and self._counts[key, threads] >= MEASURED

    def _cost(self, worker: Worker, key: Any, threads: int) -> float:
        """Seconds until another trainer can train a worker's net, beyond those that its present one needs."""
        found = self._pooled(key, threads)
        begins = START if found is None else LEASE
        makes = key in self._trainer(worker).nets and (found is None or key not in found.nets)
        return begins + (self._ready.get((key, threads), 0.0) if makes else 0.0)

    def _pays(self, worker: Worker, unit: Unit, wanted: int, paths: Mapping[StageNumber, float]) -> bool:
        """DynamicFluid: whether a path is better off with other threads, or fewer threads do it in fewer core-seconds."""
        stage, key, left, now = (
            self.board.plan.stages[unit.stage],
            self.key_of(unit.stage),
            paths[unit.stage] * self._part(),
            self.of(worker),
        )
        self._ready[key, wanted] = self.costs.ready(stage, wanted)
        # (where each worker has segments of its own, the path will come to all of them)
        workers = [worker] if self.board.anywhere else [w for w in self._among() if self.of(w) != wanted]
        cost = sum(self._cost(one, key, wanted) for one in workers)
        with_now, with_wanted = left / self._speedup(stage, now), left / self._speedup(stage, wanted)
        if wanted > now:
            return with_wanted + cost + MARGIN * left < with_now
        return wanted * (with_wanted + cost) < now * with_now

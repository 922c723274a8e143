"""How long a schedule takes: runs a scheduler on given unit times, without opening anything."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pg_mop.schedule.base import Scheduler
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import Dealer
from pg_mop.schedule.dealing_by_server import ServerDealers
from pg_mop.schedule.device_parts import DeviceParts
from pg_mop.schedule.unit import Unit, Worker
from pg_mop.schedule.unit_batches import UnitBatches, units_of


@dataclass(frozen=True)
class Visit:
    """A unit that ran on `worker` from `start` to `end` (seconds of simulated time). Units of a unit batch have the batch's
    times; those of a chain, the times of their step."""

    unit: Unit
    worker: Worker
    start: float
    end: float
    threads: int | None = field(default=None, kw_only=True)  # of its trainer, where a Dealer deals them


def simulate(
    board: Board,
    scheduler: Scheduler,
    seconds: Callable[[Unit], float],
    ahead: bool = False,
    batches: UnitBatches | None = None,
    around: Callable[[Worker, Sequence[Sequence[Unit]], float], float] | None = None,
    slowness: Callable[[Unit, Worker], float] | None = None,
    ready: Callable[[Unit, Worker], float] | None = None,
    dealer: Dealer | ServerDealers | None = None,
    device_parts: DeviceParts | None = None,
) -> list[Visit]:
    """Run all units of `board` under `scheduler` in simulated time. Returns the visits in the order of their ends.

    `seconds`: how long a unit takes. `ahead`: every worker reserves the stage of its next unit, as the executor does
    where it reads states ahead. `batches`: forms unit batches; None: every unit runs alone. `around(worker, steps, now)`:
    seconds of a command besides its units (a unit, a unit batch or a chain); None: there are none. `slowness`: how many
    times as long a unit takes on a worker; None: all are as fast. `ready`: seconds that a worker needs before it begins a
    unit, asked once for each unit in the order of their begin. `dealer`: deals the threads of the workers' trainers.
    `device_parts`: of the trainers on their devices, where `batches` chooses commands.

    The board and its plan are in the run's final state afterwards; a run needs another plan and board.
    Raises RuntimeError where the scheduler leaves every worker idle although units remain.

    >>> from pg_mop.plan.stages import Plan
    >>> from pg_mop.schedule.randomized import Randomized
    >>> plan = Plan()
    >>> stages = plan.ask(1, "root of 1", lambda iteration: ("", ""), until=3, evaluated=[3])
    >>> board = Board(plan, segments=[0, 1])
    >>> visits = simulate(board, Randomized(board, seed=1), lambda unit: 2.0 if unit.kind == "train" else 0.5)
    >>> makespan(visits)
    12.5
    """
    now = 0.0
    idle = set(board.workers)

    def takes(unit: Unit, worker: Worker) -> float:
        alone = seconds(unit) * (1.0 if slowness is None else slowness(unit, worker))
        if dealer is None:
            return alone
        return alone / dealer.faster(worker, board.plan.stages[unit.stage])

    if device_parts is not None and batches is not None:
        packed = device_parts
        batches.may_begin = lambda worker, unit: packed.may_begin(
            worker, unit, [other for other in board.workers if other not in idle]
        )

    # (end, worker, start, [(end of a step, its units)])
    events: list[tuple[float, Worker, float, list[tuple[float, list[Unit]]]]] = []
    visits: list[Visit] = []
    while not board.done:
        for worker in scheduler.arrange(idle):
            if worker not in idle:
                continue
            if batches is not None:
                steps = [units_of([step]) for step in batches.choose(worker)]
            else:
                steps = [[unit]] if (unit := scheduler.choose(worker)) is not None else []
                for (unit,) in steps:
                    board.start(unit)
            if steps:
                coming = scheduler.coming(worker) if ahead else None
                board.reserve(worker, None if coming is None else coming.stage)
                idle.remove(worker)
                if device_parts is not None:
                    device_parts.begin(worker, steps[0][0], [w for w in board.workers if w not in idle])
                begins = now
                if dealer is not None:
                    dealer.begin(worker, steps[0][0], [w for w in board.workers if w not in idle], lambda cores: True)
                    begins += dealer.cost
                taken = [sum(takes(unit, worker) for unit in units) for units in steps]
                if ready is not None:
                    taken = [t + sum(ready(unit, worker) for unit in units) for t, units in zip(taken, steps)]
                if around is not None:
                    begins += around(worker, steps, now)
                ends = list(itertools.accumulate(taken, initial=begins))[1:]
                heapq.heappush(events, (ends[-1], worker, now, list(zip(ends, steps))))
        if not events:
            raise RuntimeError("the scheduler leaves every worker idle although units remain")
        now = events[0][0]
        while events and events[0][0] == now:
            end, worker, start, done = heapq.heappop(events)
            mean = (end - start) / sum(len(units) for _, units in done)
            for ended, units in done:
                for unit in units:
                    board.finish(unit)
                    (batches or scheduler).finished(unit, mean)
                    threads = None if dealer is None else dealer.of(worker)
                    visits.append(Visit(unit, worker, start, ended, threads=threads))
                start = ended
            idle.add(worker)
        at_work = {worker for _, worker, _, _ in events}
        idle.update(
            worker for worker in board.workers if worker not in at_work
        )  # (those of a server that has joined, too)
    return visits


def makespan(visits: list[Visit]) -> float:
    """Seconds from the first unit's start to the last unit's end."""
    return max(v.end for v in visits) - min(v.start for v in visits)

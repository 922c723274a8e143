"""What a workload would take with other schedulers and other numbers of sessions, by the simulator."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pg_mop.plan.stages import Plan, StageNumber
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.schedule.unit import Kind, SegmentNumber, Unit


class Outcome(NamedTuple):
    """`makespan` and `lower_bound` in seconds; `utilization`: the share of the sessions' time with a unit."""

    scheduler: str
    sessions: int
    makespan: float
    lower_bound: float
    utilization: float


class Step(NamedTuple):
    """A stage of a workload, parents before their children."""

    number: StageNumber
    parent: StageNumber | None
    iteration: int
    mst_key: int
    evaluated: bool = False


@dataclass(frozen=True)
class Work:
    """Stages and the seconds of their units.

    `seconds`: {(kind, stage, dataset, segment): seconds}; units that it lacks take the mean of their kind and stage, else
    of their kind. `held_out`: {mst_key: segments that its stages leave out}.
    """

    steps: Sequence[Step]
    segments: Sequence[SegmentNumber]
    validation: Sequence[SegmentNumber]
    seconds: Mapping[tuple[Kind, StageNumber, str, SegmentNumber], float]
    held_out: Mapping[int, Collection[SegmentNumber]]

    def board(self, sessions: int) -> Board:
        """A board with this work, and so many workers."""
        plan = Plan()
        for number, parent, iteration, mst_key, evaluated in self.steps:
            plan.restore(number, parent, iteration, str(number), (str(mst_key), ""), mst_key, {mst_key}, evaluated)
        board = Board(plan, self.segments, self.validation, held_out=lambda stage: self.held_out.get(stage.mst_key, ()))
        board.serve(board.first_workers(sessions))
        return board

    @property
    def units(self) -> int:
        """How many training units there are, about."""
        return len(self.steps) * len(self.segments)

    def estimate(self) -> Callable[[Unit], float]:
        """The seconds of a unit."""
        means: dict[Any, float] = {}
        for keys in (lambda key: key[:2], lambda key: key[0]):
            groups: dict[Any, list[float]] = {}
            for key, value in self.seconds.items():
                groups.setdefault(keys(key), []).append(value)
            means.update({key: sum(values) / len(values) for key, values in groups.items()})

        def of(unit: Unit) -> float:
            found = self.seconds.get((unit.kind, unit.stage, unit.dataset, unit.segment))
            if found is None:
                found = means.get((unit.kind, unit.stage), means.get(unit.kind, 0.0))
            return found

        return of


def compare(
    work: Work,
    sessions: Sequence[int],
    schedulers: Sequence[str],
    seed: int,
    check_interrupts: Callable[[], None] = lambda: None,
    prepare: Callable[[Any], None] = lambda scheduler: None,
) -> Iterator[Outcome]:
    """Simulate the work with each scheduler and number of sessions.

    The schedulers know the seconds of all units in advance, as in a run with a cost history. Every unit runs alone.
    `prepare(scheduler)` is called before a simulation.
    """
    of = work.estimate()
    calls = 0

    def seconds(unit: Unit) -> float:
        nonlocal calls
        calls += 1
        if calls % 500 == 0:
            check_interrupts()
        return of(unit)

    for count in sessions:
        bound, busy = limits(work, count, of)
        for name in schedulers:
            check_interrupts()
            board = work.board(count)
            trained = {
                number: [of(board.unit(number, "train", "training", segment)) for segment in board.all_visits(stage)]
                for number, stage in board.plan.stages.items()
            }
            scheduler: Any = SCHEDULERS[name](
                board,
                seed,
                lambda number, b=board: b.plan.stages[number].mst_key,  # type: ignore[misc]
                lambda stage, t=trained: sum(t[stage.number]) / len(t[stage.number]),  # type: ignore[misc]
            )
            if hasattr(scheduler, "costs"):
                scheduler.costs.expected_on = lambda stage, segment: of(
                    Unit(stage.iteration, stage.number, "train", "training", segment)
                )
            if hasattr(scheduler, "check"):
                scheduler.check = check_interrupts
            prepare(scheduler)
            taken = makespan(simulate(board, scheduler, seconds))
            workers = len(board.workers)
            yield Outcome(name, workers, taken, bound, busy / (workers * taken) if taken else 1.0)


def limits(work: Work, sessions: int, of: Callable[[Unit], float]) -> tuple[float, float]:
    """No schedule for so many sessions is shorter than the first; the second is the sum of all units' seconds.

    The bound is the larger one of the longest path of stages, and of the work of the session that has most. (A segment with
    several sessions counts for each of them in equal parts, and evaluations count as work alone.)
    """
    board = work.board(sessions)
    load: dict[int, float] = dict.fromkeys(board.workers, 0.0)
    serving = {key: [w for w in board.workers if key in board.served(w)] for key in board.datasets}
    path: dict[StageNumber, float] = {}
    total = 0.0
    for number, stage in sorted(board.plan.stages.items()):
        path[number] = path[stage.parent.number] if stage.parent is not None else 0.0
        units = [board.unit(number, "train", "training", segment) for segment in board.all_visits(stage)]
        path[number] += sum(map(of, units))
        if stage.evaluated:
            units += [board.unit(number, "evaluate", *key) for key in sorted(board.evaluations(stage))]
        for unit in units:
            total += of(unit)
            at = serving[unit.dataset, unit.segment]
            for worker in at:
                load[worker] += of(unit) / len(at)
    return max([*path.values(), *load.values(), total / len(board.workers)], default=0.0), total

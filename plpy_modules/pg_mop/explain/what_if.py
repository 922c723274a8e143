"""What a workload would take with other schedulers and other numbers of sessions, by the simulator."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pg_mop.plan.stages import Plan, Stage, StageNumber
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import Dealer
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.schedule.unit import Kind, SegmentNumber, Unit


class Outcome(NamedTuple):
    """`makespan` and `lower_bound` in seconds; `utilization`: the share of the sessions' time with a unit; where cores are
    dealt, of the cores' time."""

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


Key = tuple[Kind, StageNumber, str, SegmentNumber]  # of a unit


@dataclass(frozen=True)
class Work:
    """Stages and the seconds of their units.

    `seconds`: {(kind, stage, dataset, segment): seconds}; units that it lacks take the mean of their kind and stage, else
    of their kind. `held_out`: {mst_key: segments that its stages leave out}. `threads`: of the units' trainers, by the keys of
    `seconds`: where they differ, the run has dealt its cores, and they are dealt anew. `divided`: the share of a unit's
    seconds that more cores divide; then each session has a core at first, and cores are dealt (None: they are not).
    """

    steps: Sequence[Step]
    segments: Sequence[SegmentNumber]
    validation: Sequence[SegmentNumber]
    seconds: Mapping[Key, float]
    held_out: Mapping[int, Collection[SegmentNumber]]
    threads: Mapping[Key, int] = field(default_factory=dict)
    divided: float | None = None

    @property
    def deals(self) -> bool:
        """True where trainers of the run had different numbers of threads."""
        return len(set(self.threads.values())) > 1

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
) -> Iterator[Outcome]:
    """Simulate the work with each scheduler and number of sessions.

    The schedulers know the seconds of all units in advance, as in a run with a cost history. Every unit runs alone. Cores that
    the run has dealt are dealt anew, by the speed-ups that its log tells, and those of given units by `Work.divided`.
    """
    calls = 0

    def seconds(unit: Unit) -> float:
        nonlocal calls
        calls += 1
        if calls % 500 == 0:
            check_interrupts()
        return of(unit)

    for count in sessions:
        speeds: Speeds | Divided | None = Speeds(work, count) if work.deals else None
        if work.divided is not None:
            speeds = Divided(work, count, work.divided)
        of = (work if speeds is None else speeds.work).estimate()
        bound = limits(work, count, of) / (1.0 if speeds is None else speeds.most)
        for name in schedulers:
            check_interrupts()
            board = work.board(count)
            trained = {
                number: [of(board.unit(number, "train", "training", segment)) for segment in board.all_visits(stage)]
                for number, stage in board.plan.stages.items()
            }

            def expected(stage: Stage, trained: Mapping[StageNumber, list[float]] = trained) -> float:
                return sum(trained[stage.number]) / len(trained[stage.number])

            def key_of(number: StageNumber, board: Board = board) -> int:
                return board.plan.stages[number].mst_key

            scheduler: Any = SCHEDULERS[name](board, seed, key_of, expected)
            if hasattr(scheduler, "costs"):
                scheduler.costs.expected_on = lambda stage, segment, seconds_of=of: seconds_of(
                    Unit(stage.iteration, stage.number, "train", "training", segment)
                )
            dealer = None
            if speeds is not None:
                speeds.certain = expected
                dealer = Dealer(board, speeds.cores, speeds.least, key_of, speeds)
            visits = simulate(board, scheduler, seconds, dealer=dealer)
            taken, workers = makespan(visits), len(board.workers)
            # (with dealt cores, a session's time counts as that of the cores that it has)
            busy = sum((visit.end - visit.start) * (visit.threads or 1) for visit in visits)
            places = workers if speeds is None else speeds.cores
            yield Outcome(name, workers, taken, bound, min(1.0, busy / (places * taken)) if taken else 1.0)


class Speeds:
    """How fast the configurations of a run that dealt its cores are with more threads, by its log, for a number of sessions.

    The run has as many cores as a trainer had threads at most, and deals them as schedule/dealing.py does. `work`: with the
    seconds of units in trainers with `least` threads; `most`: the largest speed-up of a configuration.
    """

    certain: Callable[[Stage], float]  # as of dealing.Costs

    def __init__(self, work: Work, sessions: int) -> None:
        self.cores, self._few = max(work.threads.values()), min(work.threads.values())
        self.least = max(self._few, self.cores // sessions)
        keys = {step.number: step.mst_key for step in work.steps}
        found: dict[tuple[int, int], dict[SegmentNumber, list[float]]] = {}
        for key, threads in work.threads.items():
            kind, stage, _, segment = key
            if kind == "train" and stage in keys:
                found.setdefault((keys[stage], threads), {}).setdefault(segment, []).append(work.seconds[key])
        means = {key: {k: sum(v) / len(v) for k, v in own.items()} for key, own in found.items()}
        self._speeds: dict[
            tuple[int, int], float
        ] = {}  # (mst_key, threads) -> times as fast as with the fewest threads
        for (mst_key, threads), own in means.items():
            few = means.get((mst_key, self._few), {})
            common = few.keys() & own.keys()
            if common:
                self._speeds[mst_key, threads] = sum(few[k] for k in common) / max(1e-9, sum(own[k] for k in common))
        logged = {
            key: seconds
            * self._speed(keys.get(key[1], 0), work.threads.get(key, self._few))
            / self._speed(keys.get(key[1], 0), self.least)
            for key, seconds in work.seconds.items()
        }
        self.work = replace(work, seconds=logged)
        self.most = max([1.0, *(self._relative(mst_key, self.cores) for mst_key in set(keys.values()))])

    def _speed(self, mst_key: int, threads: int) -> float:
        """As measured; of a number of threads that the log does not have, as with the next smaller one."""
        known = [n for key, n in self._speeds if key == mst_key and n <= threads]
        return self._speeds[mst_key, max(known)] if known else 1.0

    def _relative(self, mst_key: int, threads: int) -> float:
        return self._speed(mst_key, threads) / self._speed(mst_key, self.least)

    def speedup(self, stage: Stage, threads: int) -> float:
        """How many times as fast as with the least threads."""
        return max(1.0, self._relative(stage.mst_key, threads))

    def ready(self, stage: Stage, threads: int) -> float:
        """(The log does not tell it: a net that trainers have compiled is read from a cache.)"""
        return 0.0


class Divided:
    """How fast given units are with more cores, of which a session has one at first: a share of their seconds is divided
    (Amdahl). The attributes are those of Speeds."""

    certain: Callable[[Stage], float]
    least = 1

    def __init__(self, work: Work, sessions: int, share: float) -> None:
        self.work, self.cores, self._share = work, sessions, share
        self.most = 1 / (1 - share + share / sessions)

    def speedup(self, stage: Stage, threads: int) -> float:
        """How many times as fast as with one core."""
        return 1 / (1 - self._share + self._share / threads)

    def ready(self, stage: Stage, threads: int) -> float:
        """See Speeds."""
        return 0.0


def limits(work: Work, sessions: int, of: Callable[[Unit], float]) -> float:
    """Seconds: no schedule for so many sessions is shorter.

    That is the larger one of the longest path of stages, and of the work of the session that has most. (A segment with
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
    return max([*path.values(), *load.values(), total / len(board.workers)], default=0.0)

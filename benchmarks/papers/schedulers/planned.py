"""Schedulers that plan an iteration as an open shop, and follow the plan."""

from abc import abstractmethod
from collections.abc import Sequence

from papers.schedulers.follower import Follower, Visit
from papers.schedulers.open_shop import Operation, Seconds
from papers.schedulers.rollout import copy_of
from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.base import SHORT
from pg_mop.schedule.cost import STAGES_PER_UNIT
from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.simulator import makespan, simulate
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker

LATE = 1.3  # a unit that takes so many times its estimate ends a plan that is followed strictly
MOST_TRIED = 10_000  # units of a simulation that compares a plan with the longest first (about a second)
MOST_PLANNED = 10_000  # units of an iteration that is planned (some seconds)


class Planned(Follower):
    """Plans an iteration as soon as the seconds of all its units are known, from this run or from earlier ones, and repeats
    the plan in the iterations that follow.

    Before a plan is followed, the rest of the run is simulated (as far as it has 10,000 units): with longest-first, with
    the plan as an order in which workers take what they may do, and with the plan followed strictly, so that workers wait.
    The shortest one is taken: by the estimates, the run is never longer than with longest-first. So it is also where there
    is no plan: while seconds are unknown, where units are so short that unit batches and chains matter more than their
    order, where a segment has several workers, and where `propose` gives up. A plan that is followed strictly is given up
    when a unit is late or is to be done again, and when workers change.
    """

    def prepare(self) -> None:
        super().prepare()
        self.unplanned: dict[StageNumber, None] = {}  # open stages without a plan
        self.opened: set[StageNumber] = set()
        self.planned_from = 1  # earlier iterations are not planned any more
        self.declined: set[StageNumber] = set()  # stages for which there is no better plan than longest-first
        self.due = False  # a plan may be possible now
        self.ended: int | None = None  # units since the last attempt to plan; None: there was none

    @abstractmethod
    def propose(self, shop: Seconds) -> list[Operation] | None:
        """A schedule for jobs (configurations) and places (workers); None: there is none."""

    # --- messages -------------------------------------------------------------------------------------------------
    def may_train(self, stage: Stage, segments: Sequence[SegmentNumber]) -> None:
        super().may_train(stage, segments)
        if stage.number in self.opened:  # a unit is to be done again
            self._give_up()
        self.opened.add(stage.number)
        parent = 0 if stage.parent is None else stage.parent.number
        if stage.number in self.declined or self.is_ordered(stage) or stage.iteration < self.planned_from:
            return
        if parent in self.declined:
            self.declined.add(stage.number)
        else:
            self.unplanned[stage.number] = None
            self._look_again()

    def served(self, workers: Sequence[Worker]) -> None:
        super().served(workers)
        self._give_up()
        self.due = bool(self.unplanned)

    def finished(self, unit: Unit, seconds: float) -> None:
        if self.waits and unit.kind == "train" and seconds > LATE * self.costs.on(unit.stage, unit.segment):
            self._give_up()
        super().finished(unit, seconds)
        if unit.kind == "train" and self.unplanned:
            self.ended = (self.ended or 0) + 1
            self._look_again()

    def _look_again(self) -> None:
        """Try to plan if enough units have ended since the last attempt, so that its cost for each unit is bounded."""
        self.due = self.due or self.ended is None or self.ended * STAGES_PER_UNIT >= len(self.board.left)

    def urgent_visit(self, worker: Worker) -> Unit | None:
        # (the first question about a training unit)
        if self.due:
            self._plan()
        return super().urgent_visit(worker)

    def _give_up(self) -> None:
        """Give up a plan that is followed strictly: it does not hold any more, and waiting for its sake costs time. The
        iterations that follow those that have begun are planned anew."""
        if self.waits:
            self.positions, self.ahead, self.waits = {}, {}, False
            stages = self.board.plan.stages
            self.planned_from = 1 + max((stages[number].iteration for number in self.board.open("train")), default=0)

    # --- planning -------------------------------------------------------------------------------------------------
    def _plan(self) -> None:
        """Plan the first iteration that has open stages without a plan, if all its units are known."""
        self.due, self.ended, board = False, 0, self.board
        stages = [board.plan.stages[number] for number in self.unplanned if board.visits_left(number)]
        if not stages:
            self.unplanned.clear()
            return
        iteration = min(stage.iteration for stage in stages)
        jobs = [n for n, s in sorted(board.left.items()) if s.iteration == iteration and board.visits_left(n)]
        worker_of: dict[SegmentNumber, Worker] = {}
        for worker in board.workers:
            for segment in board.served_segments(worker, "training"):
                if segment in worker_of:
                    self._decline(jobs)
                    return
                worker_of[segment] = worker
        if sum(map(board.visits_left, jobs)) > MOST_PLANNED:
            self._decline(jobs)
            return
        shop: list[dict[Worker, float]] = []
        segments: dict[Worker, list[SegmentNumber]] = {}
        for segment, worker in worker_of.items():
            segments.setdefault(worker, []).append(segment)
        for number in jobs:
            places: dict[Worker, float] = {}
            for segment, worker in worker_of.items():
                if board.visits_left(number, segment):
                    seconds = self.costs.on(number, segment)
                    if not seconds:
                        return
                    places[worker] = places.get(worker, 0.0) + seconds
            shop.append(places)
        if sum(sum(job.values()) for job in shop) < SHORT * sum(map(board.visits_left, jobs)):
            self._decline(jobs)
            return
        self._take_up(jobs, segments, self.propose(shop))

    def _take_up(
        self, jobs: list[StageNumber], segments: dict[Worker, list[SegmentNumber]], schedule: list[Operation] | None
    ) -> None:
        """Follow the plan if it shortens the run."""
        if schedule is None:
            self._decline(jobs)
            return
        positions: dict[Visit, float] = {}
        for operation in sorted(schedule, key=lambda operation: operation.start):
            number = jobs[operation.job]
            for segment in sorted(segments[operation.place], key=lambda s, n=number: self.tie(n, s)):  # type: ignore
                if self.board.visits_left(number, segment):
                    positions[number, segment] = float(len(positions))
        best = self.tried(None, False), -1
        for waits in (False, True):
            best = min(best, (self.tried(positions, waits) * (1 + 1e-9), waits))
        if best[1] < 0:
            self._decline(jobs)
            return
        for number in jobs:
            self.unplanned.pop(number, None)
        self.follow(positions, bool(best[1]))

    def _decline(self, jobs: Sequence[StageNumber]) -> None:
        self.declined.update(jobs)
        for number in jobs:
            self.unplanned.pop(number, None)

    def tried(self, positions: dict[Visit, float] | None, waits: bool) -> float:
        """The simulated makespan of the rest of the run: with this order, or with longest-first (None)."""
        board = copy_of(self.board, MOST_TRIED)
        if board.done:
            return 0.0
        kind = LongestFirst if positions is None else Follower
        scheduler = kind(board, self.seed, self.model_of, lambda stage: self.costs.unit_seconds.get(stage.number, 0.0))
        if positions is not None and isinstance(scheduler, Follower):
            scheduler.follow(positions, waits)
        return makespan(simulate(board, scheduler, lambda unit: self.costs.on(unit.stage, unit.segment)))

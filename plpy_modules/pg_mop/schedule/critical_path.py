"""Schedulers that know how long stages take, and start a critical path early."""

from collections.abc import Sequence
from heapq import heappop, heappush

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.cost import Costs
from pg_mop.schedule.priority import PriorityScheduler
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker


class CriticalPathScheduler(PriorityScheduler):
    """Takes a stage before all others if its longest remaining path would outlast the rest of the run."""

    URGENT = 0.9  # a path is urgent if it is at least this share of the work left for a worker

    def prepare(self) -> None:
        super().prepare()
        self.costs = Costs(
            self.board,
            lambda stage: None if (model := self.model_of(stage.number)) is None else (model, stage.parameters[1]),
            self.expected,
        )
        self.waiting: list[tuple[float, StageNumber]] = []  # heap of (-seconds left, stage): not urgent
        self.urgent: dict[StageNumber, None] = {}
        self.urgent_running: set[StageNumber] = set()  # urgent stages that were running when they were last seen

    def added(self, stages: Sequence[Stage]) -> None:
        for number in sorted(self.costs.added(stages)):
            self.requeue(self.board.plan.stages[number])

    def changed(self) -> None:
        self.costs.news = True

    def may_train(self, stage: Stage, segments: Sequence[SegmentNumber]) -> None:
        self.costs.opened(stage)
        self.wait(stage)
        super().may_train(stage, segments)

    def finished(self, unit: Unit, seconds: float) -> None:
        super().finished(unit, seconds)
        if unit.kind == "train":
            if not self.board.is_running(unit.stage):  # (else more units of its chain follow)
                self.urgent_running.discard(unit.stage)  # its last visit, or `idle` would have removed it
            if self.costs.finished(unit, seconds):
                self.wait(self.board.plan.stages[unit.stage])
            if self.costs.news and self.costs.settle(self.settle_size()):
                self.settled()

    def settle_size(self) -> int:
        """The work of `settled`, counted in stages."""
        return 0

    def settled(self) -> None:
        """All stages have been estimated anew."""
        self.waiting, self.urgent, self.urgent_running = [], {}, set()
        for number in self.board.open("train"):
            self.wait(self.board.plan.stages[number])

    def idle(self, stage: Stage) -> None:
        if stage.number in self.urgent_running:
            self.urgent_running.remove(stage.number)
            self.urgent[stage.number] = None
        super().idle(stage)

    def wait(self, stage: Stage) -> None:
        """Watch for the moment when the stage becomes urgent."""
        left = self.costs.left(stage.number)
        if left is not None:
            heappush(self.waiting, (-left, stage.number))

    def is_urgent(self, number: StageNumber) -> bool:
        return number in self.urgent or number in self.urgent_running

    def urgent_seconds(self) -> float:
        """Seconds of a remaining path that make its stage urgent."""
        return self.URGENT * self.costs.all_left() / len(self.board.workers)

    def urgent_visit(self, worker: Worker) -> Unit | None:
        """A training unit of the urgent stage with the longest path; at random among equal ones."""
        limit, waiting = self.urgent_seconds(), self.waiting
        while waiting and -waiting[0][0] >= limit:
            number = heappop(waiting)[1]
            if self.board.visits_left(number):
                left = self.costs.left(number) or 0.0
                if left >= limit:
                    self.urgent[number] = None
                else:
                    heappush(waiting, (-left, number))
        best: Unit | None = None
        longest = (0.0, 0.0)
        for number in list(self.urgent):
            if not self.board.visits_left(number):
                del self.urgent[number]
                continue
            if self.board.is_running(number):
                del self.urgent[number]
                self.urgent_running.add(number)
                continue
            left = self.costs.left(number) or 0.0
            if left < limit:
                del self.urgent[number]
                heappush(waiting, (-left, number))
            elif self.board.reserved(number) in (None, worker) and self.may_do(number, worker):
                rank = left, self.random.random()
                if (best is None or rank > longest) and (unit := self.visit(number, worker)) is not None:
                    best, longest = unit, rank
        return best

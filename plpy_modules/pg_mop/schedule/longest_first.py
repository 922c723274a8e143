"""Long stages before short ones, by the measured seconds of their units."""

from collections.abc import Sequence
from heapq import heapify

from pg_mop.plan.stages import Stage
from pg_mop.schedule.critical_path import CriticalPathScheduler
from pg_mop.schedule.priority import Queue
from pg_mop.schedule.unit import CompiledModel, Unit, Worker

ABOUT_EQUAL = 0.8  # share of the longest path; a path of at least this length counts as equally long


class LongestFirst(CriticalPathScheduler):
    """The idle stage with the longest remaining path, among those of the earliest iteration.

    This is the rule of the longest remaining processing time for open shops (Pinedo, "Scheduling: Theory, Algorithms,
    and Systems", section 8.2: short work fills the gaps at the end), applied within an iteration, so that all
    configurations advance together. The remaining path of a stage is the critical path from it down (TreeML, thesis
    2021, section 4.3). A stage whose path would outlast the work of all others is taken first in any iteration, because
    the units of a path cannot run in parallel. Stages without an estimate come before the others, in random order.
    Among stages of about equal length, the scheduler prefers one that shares its compiled model with the worker's
    previous stage.
    """

    name = "longest-first"
    QUEUES_BY_MODEL = True

    def prepare(self) -> None:
        super().prepare()
        self.stale: set[Queue] = set()  # queues whose ranks are out of date
        self.last: dict[Worker, CompiledModel] = {}  # the compiled model of a worker's last stage

    def rank(self, stage: Stage) -> tuple[int, int, float]:
        left = self.costs.left(stage.number)
        return (stage.iteration, 0, 0.0) if left is None else (stage.iteration, 1, -left)

    def settle_size(self) -> int:
        return sum(map(len, self.queues.values()))

    def settled(self) -> None:
        super().settled()
        self.stale = set(self.queues)

    def served(self, workers: Sequence[Worker]) -> None:
        super().served(workers)
        if self.stale - self.queues.keys():  # their entries have moved to the queues without affinity
            self.stale |= {queue for queue in self.queues if queue[1:] == ("affinity", None)}
        self.stale &= self.queues.keys()

    def least(self, worker: Worker, queues: Sequence[Queue]) -> Unit | None:
        for queue in queues:
            if queue in self.stale:
                self.stale.remove(queue)
                stages = self.board.plan.stages
                heap = self.queues[queue] = [
                    (self.rank(stages[number]), tie, number) for _, tie, number in self.queues[queue]
                ]
                heapify(heap)
        return super().least(worker, queues)

    def take(self, worker: Worker, unit: Unit | None) -> Unit | None:
        unit = super().take(worker, unit)
        if unit is not None and unit.kind == "train":
            self.last[worker] = self.model_of(unit.stage)
        return unit

    def train(self, worker: Worker) -> Unit | None:
        best = super().train(worker)
        model = self.last.get(worker)
        if best is None or model is None or self.model_of(best.stage) == model:
            return best
        segments = self.board.served_segments(worker, "training")
        same_model = self.least(worker, [(segment, "model", model) for segment in segments])
        return same_model if same_model is not None and self._is_about_equal(same_model, best) else best

    def _is_about_equal(self, unit: Unit, best: Unit) -> bool:
        """True where taking `unit` in place of `best` makes the schedule hardly longer."""
        left, longest = self.costs.left(unit.stage), self.costs.left(best.stage)
        if unit.iteration != best.iteration:
            return False
        if left is None or longest is None:
            return left is longest
        return left >= ABOUT_EQUAL * longest

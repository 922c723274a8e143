"""MADlib's schedule, in lockstep rounds: for comparison."""

from random import Random

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.base import Scheduler
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker


class RoundRobin(Scheduler):
    """Every stage is on one segment; all stages train; then each stage moves to the next segment, the last to the first.

    Roots start in a random order; a stage follows its parent. If an iteration has more stages than segments, the
    surplus rests; with fewer stages, some segments rest. A round begins when all units of the previous round have
    ended, and an iteration likewise. Loops over all stages for each unit.
    """

    name = "round-robin"
    BATCHES = False

    def prepare(self) -> None:
        self.sort_keys: dict[StageNumber, tuple[float, ...]] = {}

    def choose(self, worker: Worker) -> Unit | None:
        board = self.board
        if board.done:
            return None
        # (the first iteration of a trial that inherits comes after the last one of the other trial)
        depth = min((s.depth for s in board.left.values() if s.number not in board.held), default=0)
        units = [u for u in board.eligible(worker) if board.plan.stages[u.stage].depth == depth]
        pairs = self._current_round(depth)
        if pairs is None:  # the iteration's training is over
            return next((u for u in units if u.kind == "evaluate"), None)
        return next((u for u in units if u.kind == "train" and (u.stage, u.segment) in pairs), None)

    def _current_round(self, depth: int) -> set[tuple[StageNumber, SegmentNumber]] | None:
        """The (stage number, segment) pairs that are left of the current round; None after the last round."""
        board = self.board
        slots: list[StageNumber | None] = list(self._slots(depth))
        slots += [None] * (len(board.segments) - len(slots))
        for hop in range(len(slots)):
            pairs = ((slots[(number - hop) % len(slots)], segment) for number, segment in enumerate(board.segments))
            left = {(stage, segment) for stage, segment in pairs if stage and board.visits_left(stage, segment)}
            if left:
                return left
        return None

    def _slots(self, depth: int) -> list[StageNumber]:
        """The numbers of the wanted stages of a depth, in their order."""
        stages = [
            stage
            for stage in self.board.plan.stages.values()
            if stage.depth == depth and stage.trials and not stage.failed and stage.number not in self.board.held
        ]
        return [stage.number for stage in sorted(stages, key=self._sort_key)]

    def _sort_key(self, stage: Stage) -> tuple[float, ...]:
        """Sorts stages by their parents' position, then at random; equal in a resumed run."""
        path, number = [], stage.number
        above: Stage | None = stage
        while number not in self.sort_keys and above is not None:
            path.append(Random(f"{self.seed} {above.number}").random())
            above = above.parent
        return self.sort_keys.setdefault(number, tuple(reversed(path)))

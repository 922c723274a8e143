"""MADlib's schedule, in lockstep rounds: for comparison."""

from random import Random

from pg_mop.schedule.base import Scheduler


class RoundRobin(Scheduler):
    """Every stage sits on one segment, all train, then all move on to the next segment, the last to the first.

    The roots stand in a random order; a stage follows its parent. With more stages in an iteration than segments the
    surplus rests, with fewer some segments do. A round begins when the round before it has ended everywhere, an
    iteration when the one before has. Looks at all stages for each unit.
    """

    name = "round-robin"
    GROUPS = False

    def __init__(self, board, seed, alike=None, expected=None):
        super().__init__(board, seed, alike, expected)
        self.seed, self.order = seed, {}  # stage number -> what it is sorted by

    def choose(self, worker):
        board = self.board
        if board.done:
            return None
        iteration = min(stage.iteration for stage in board.left.values())
        units = [u for u in board.eligible(worker) if u.iteration == iteration]
        here = self._current_round(iteration)
        if here is None:  # the iteration's training is over
            return next((u for u in units if u.kind == "evaluate"), None)
        return next((u for u in units if u.kind == "train" and (u.stage, u.segment) in here), None)

    def _current_round(self, iteration):
        """The unfinished round's set of (stage number, segment); None after the last."""
        board = self.board
        slots = self._slots(iteration)
        slots += [None] * (len(board.segments) - len(slots))
        for hop in range(len(slots)):
            pairs = ((slots[(number - hop) % len(slots)], segment) for number, segment in enumerate(board.segments))
            left = {pair for pair in pairs if pair[0] is not None and board.visits_left(*pair)}
            if left:
                return left
        return None

    def _slots(self, iteration):
        """The numbers of an iteration's stages that are wanted, as they stand."""
        stages = [s for s in self.board.plan.stages.values() if s.iteration == iteration and s.trials and not s.failed]
        return [s.number for s in sorted(stages, key=self._standing)]

    def _standing(self, stage):
        """What a stage is sorted by: first where its parent stands, then by chance, the same in a resumed run."""
        path, number = [], stage.number
        while number not in self.order and stage is not None:
            path.append(Random(f"{self.seed} {stage.number}").random())
            stage = stage.parent
        return self.order.setdefault(number, tuple(reversed(path)))

"""MADlib's schedule, in lockstep rounds: for comparison."""

from pg_mop.schedule.base import Scheduler


class RoundRobin(Scheduler):
    """Every stage sits on one segment, all train, then all move on to the next segment, the last to the first.

    The roots are shuffled once; a stage follows its parent. With more stages in an iteration than segments the surplus
    rests, with fewer some segments do. A round begins when the round before it has ended everywhere, an iteration
    when the one before has. Looks at all stages of an iteration for each unit.
    """

    name = "round-robin"

    def __init__(self, board, seed, alike=None):
        super().__init__(board, seed, alike)
        self.order = {}  # stage number -> where it stands among those of its iteration

    def choose(self, place):
        board = self.board
        if board.done:
            return None
        iteration = min(stage.iteration for stage in board.left.values())
        units = [u for u in board.eligible(place) if u.iteration == iteration]
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
        new = [s for s in stages if s.number not in self.order]
        self.random.shuffle(new)
        for stage in new:
            above = self.order[stage.parent.number] if stage.parent is not None else ()
            self.order[stage.number] = (*above, len(self.order))
        return [s.number for s in sorted(stages, key=lambda s: self.order[s.number])]

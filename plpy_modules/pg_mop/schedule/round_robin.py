"""MADlib's schedule, in lockstep rounds: for comparison."""

from pg_mop.schedule.base import Scheduler


class RoundRobin(Scheduler):
    """Every configuration sits on one segment, all train, then all move on to the next segment, the last to the first.

    The configurations are shuffled once; with more configurations than segments the surplus rests, with fewer some
    segments do. A round begins when the round before it has ended everywhere.
    """

    name = "round-robin"

    def __init__(self, board, seed, alike=None):
        super().__init__(board, seed, alike)
        self.slots = board.live
        self.random.shuffle(self.slots)
        self.slots += [None] * (len(board.segments) - len(self.slots))

    def choose(self, place):
        board = self.board
        if board.done:
            return None
        iteration = min(board.iteration(key) for key in board.live)
        units = [u for u in board.eligible(place) if u.iteration == iteration]
        here = self._current_round(iteration)
        if here is None:  # the iteration's training is over
            return next((u for u in units if u.kind == "evaluate"), None)
        return next((u for u in units if u.kind == "train" and (u.mst_key, u.segment) in here), None)

    def _current_round(self, iteration):
        """The unfinished round's set of (mst_key, segment); None after the last."""
        board, count = self.board, len(self.slots)
        trained = {(u.mst_key, u.segment) for u in board.finished_units
                   if u.kind == "train" and u.iteration == iteration}
        for hop in range(count):
            pairs = {(self.slots[(number - hop) % count], segment) for number, segment in enumerate(board.segments)}
            left = {p for p in pairs if p[0] in board.live} - trained
            if left:
                return left
        return None

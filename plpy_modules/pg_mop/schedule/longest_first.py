"""Dear stages before cheap ones, by what their units have taken so far."""

from heapq import heapify

from pg_mop.schedule.base import Timed

ABOUT = 0.8  # of the longest's work left: so much is about as long


class LongestFirst(Timed):
    """The idle stage with the longest remaining path, among those in the earliest iteration.

    The rule of the longest remaining processing time for open shops (Pinedo, "Scheduling: Theory, Algorithms, and
    Systems", section 8.2: what is short fills the gaps at the end), within an iteration, so that all configurations
    advance together; what is left of a stage is the critical path from it down (TreeML, thesis 2021, section 4.3).
    One whose path, which cannot be done in parallel, would outlast the others' work is taken first in any iteration. A
    stage of which nothing is known yet comes before those of which something is, at random. Among those that are about
    equally long, one comes first that shares its compiled model with the one before at that place.
    """

    name = "longest-first"
    WARM = True

    def __init__(self, board, seed, alike=None, expected=None):
        self.stale = set()  # lanes whose ranks are to be looked at again
        self.last = {}  # place -> what was compiled for the stage that was chosen there last
        super().__init__(board, seed, alike, expected)

    def rank(self, stage):
        left = self.costs.left(stage.number)
        return (stage.iteration, 0, 0.0) if left is None else (stage.iteration, 1, -left)

    def settling(self):
        return sum(map(len, self.lanes.values()))

    def settled(self):
        super().settled()
        self.stale = set(self.lanes)

    def served(self, workers):
        super().served(workers)
        if self.stale - self.lanes.keys():  # what was in them is at home nowhere now
            self.stale |= {lane for lane in self.lanes if lane[1:] == ("at", None)}
        self.stale &= self.lanes.keys()

    def least(self, worker, lanes):
        for lane, _ in lanes:
            if lane in self.stale:
                self.stale.remove(lane)
                stages = self.board.plan.stages
                heap = self.lanes[lane] = [
                    (self.rank(stages[number]), tie, number) for _, tie, number in self.lanes[lane]
                ]
                heapify(heap)
        return super().least(worker, lanes)

    def _taken(self, worker, unit):
        unit = super()._taken(worker, unit)
        if unit is not None and unit.kind == "train":
            self.last[worker] = self.alike(unit.stage)
        return unit

    def train(self, worker):
        best = super().train(worker)
        key = self.last.get(worker)
        if best is None or key is None or self.alike(best.stage) == key:
            return best
        warm = self.least(
            worker, [((segment, "like", key), segment) for segment in self.board.served(worker, "training")]
        )
        return warm if warm is not None and self._is_about(warm, best) else best

    def _is_about(self, unit, best):
        """True where to take `unit` in place of `best` makes the schedule little longer."""
        mine, its = self.costs.left(unit.stage), self.costs.left(best.stage)
        return (
            unit.iteration == best.iteration
            and (mine is None) == (its is None)
            and (mine is None or mine >= ABOUT * its)
        )

"""A unit may go to any worker whose server has a copy of the segment."""

from collections.abc import Sequence

from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker


class ReplicaAware(LongestFirst):
    """Longest-first that asks the board's copies where a segment is (Cerebro, VLDB 2020, section 5.5: in Algorithm 1, line
    10 asks an availability map).

    A worker that has no unit on its own segments takes one on a segment of which its server has a copy, of the segment with
    the most work left first. So copies fill idle time, and take no rows away from the worker beside them. Without
    copies the scheduler is longest-first. Only the simulator runs it: see `copies` in schedule/assignment.py.
    """

    name = "replica-aware"
    ANYWHERE = False

    def train(self, worker: Worker) -> Unit | None:
        unit = super().train(worker)
        if unit is not None:
            return unit
        for segment in self._copied(worker):
            unit = self.least(worker, [(segment, "affinity", None)])
            if unit is not None:
                return unit
        return None

    def _copied(self, worker: Worker) -> Sequence[SegmentNumber]:
        """The segments that the worker's server has copies of, the one with the most passes left first."""
        return sorted(self.board.copied(worker), key=lambda s: (-self.board.passes_left(None, s), s))

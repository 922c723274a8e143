"""A visit order that is given: the board of a replay."""

from pg_mop.schedule.board import Board


class Logged(Board):
    """Every stage visits the segments in a logged order, whoever has a place for them.

    `order`: {stage number: [segment, ...]}, as the view mop_visit_order lists it.
    """

    def __init__(self, plan, segments, validation_segments=(), servers=None, others=(), *, order):
        self.order = order
        super().__init__(plan, segments, validation_segments, servers, others)

    def may_train(self, stage_number, segment):
        return super().may_train(stage_number, segment) and self._visits_now(self._works[stage_number]) == [segment]

    def _visits_now(self, work):
        return next(([segment] for segment in self.order[work.stage.number] if segment in work.todo), [])

    def _visited(self, work):
        self._offer(work, self._visits_now(work))

"""The board of a replay: the visit order is given."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pg_mop.plan.stages import Plan, Stage, StageNumber
from pg_mop.schedule.board import Board, StageWork
from pg_mop.schedule.unit import DatasetSegment, SegmentNumber, Server


class Logged(Board):
    """Every stage visits the segments in the order that an earlier run logged, on any worker."""

    def __init__(
        self,
        plan: Plan,
        segments: Sequence[SegmentNumber],
        validation_segments: Sequence[SegmentNumber] = (),
        servers: Mapping[DatasetSegment, Server] | None = None,
        others: Iterable[Server] = (),
        held_out: Callable[[Stage], Collection[SegmentNumber]] | None = None,
        *,
        order: Mapping[StageNumber, Sequence[SegmentNumber]],
    ) -> None:
        """`order`: the segments of a stage in the order of their visits (the view mop_visit_order)."""
        self.order = order
        super().__init__(plan, segments, validation_segments, servers, others, held_out)

    def may_train(self, stage_number: StageNumber, segment: SegmentNumber) -> bool:
        return super().may_train(stage_number, segment) and self._visits_now(self._works[stage_number]) == [segment]

    def _visits_now(self, work: StageWork) -> list[SegmentNumber]:
        return next(([segment] for segment in self.order[work.stage.number] if segment in work.todo), [])

    def _visited(self, work: StageWork) -> None:
        self._offer(work, self._visits_now(work))

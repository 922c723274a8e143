"""The board of data-parallel training: madlib_keras_fit averages replicas of one model."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pg_mop.plan.stages import Iteration, MstKey, Plan, Stage, StageNumber
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import DatasetSegment, SegmentNumber, Server


class Replicas(Board):
    """Trains one configuration as replicas, one for each segment (docs/contract/fit_evaluate_predict.md, section 1.1).

    Each replica is a trial of the plan, numbered from 1. Replica k trains on training segment number k - 1 only, from
    the average of all replicas after the iteration before. So an iteration begins when all replicas have ended the
    one before. The average is evaluated once all replicas have trained; the stage of replica 1 records its metrics.
    """

    shares_states = True

    def __init__(
        self,
        plan: Plan,
        segments: Sequence[SegmentNumber],
        validation_segments: Sequence[SegmentNumber] = (),
        servers: Mapping[DatasetSegment, Server] | None = None,
        others: Iterable[Server] = (),
        held_out: Callable[[Stage], Collection[SegmentNumber]] | None = None,
    ) -> None:
        """Raises ValueError where a trial of the plan has no segment. `held_out` has no effect: replicas have no folds."""
        trials: set[MstKey] = set().union(*(stage.trials for stage in plan.stages.values()))
        if trials - set(range(1, len(segments) + 1)):
            raise ValueError("replicas are of one configuration, one for each segment")
        self._replica = {stage.number: k for k in trials for stage in plan.path(k)}
        for number, k in self._replica.items():
            if k > 1:
                plan.stages[number].evaluated_for = None
        self._waiting: dict[Iteration, list[Stage]] = {}  # trained stages that wait for the other replicas
        super().__init__(plan, segments, validation_segments, servers, others)

    def fail(self, stage_number: StageNumber) -> set[MstKey]:
        """Fail all replicas, because the configuration has failed with one of them."""
        return set().union(*(super(Replicas, self).fail(stage.number) for stage in list(self.plan.stages.values())))

    def _visits(self, stage: Stage) -> Sequence[SegmentNumber]:
        return [self.segments[self._replica[stage.number] - 1]]

    def _trained(self, stage: Stage, ended: list[Stage]) -> None:
        waiting = self._waiting.setdefault(stage.iteration, [])
        waiting.append(stage)
        if len(waiting) == len(self.segments):
            for each in waiting:
                super()._trained(each, ended)

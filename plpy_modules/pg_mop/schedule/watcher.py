"""The messages that a board sends to its watchers (the schedulers that keep queues)."""

from collections.abc import Sequence
from typing import Protocol

from pg_mop.plan.stages import Stage
from pg_mop.schedule.unit import DatasetSegment, SegmentNumber, Worker


class BoardWatcher(Protocol):
    """An object that follows the work of a board: see Board.watch."""

    def added(self, stages: Sequence[Stage]) -> None:
        """These stages are wanted now, parents first."""

    def changed(self) -> None:
        """The work that is left has changed for another reason than the end of a unit."""

    def may_train(self, stage: Stage, segments: Sequence[SegmentNumber]) -> None:
        """The stage may be trained on these segments from now on, whenever it is idle."""

    def may_evaluate(self, stage: Stage, keys: Sequence[DatasetSegment]) -> None:
        """The stage may be evaluated on these segments from now on."""

    def idle(self, stage: Stage) -> None:
        """No unit trains the stage any more; it may be trained further."""

    def served(self, workers: Sequence[Worker]) -> None:
        """The board's workers from now on."""

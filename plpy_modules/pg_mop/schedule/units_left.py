"""Counts the units that a board has left, for those who watch a run: nobody needs to count the catalog's rows."""

from __future__ import annotations

from collections.abc import Sequence

from pg_mop.plan.stages import Stage
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import DatasetSegment, SegmentNumber, Unit, Worker


class UnitsLeft:
    """How many units of the wanted stages have not ended, running ones included.

    New stages and finished units change the number at once, at a cost that does not grow with the run. Whatever else changes
    the board's work (a trial stops or fails) makes it `uncertain` until `recount`, which loops over the stages that are left.
    The board does not tell of metrics that are wanted, or not wanted any more, of a stage that is left for another trial:
    count again once in a while.
    """

    def __init__(self, board: Board) -> None:
        self.board, self.count, self.uncertain = board, 0, False
        board.watch(self)  # (tells what is left now)

    def recount(self) -> None:
        """Count all stages that are left."""
        self.count = sum(self.board.units_left(stage) for stage in self.board.left.values())
        self.uncertain = False

    def finishes(self, unit: Unit) -> None:
        """A unit counts now; to be called before the board is told."""
        stage = self.board.left.get(unit.stage)
        if stage is not None and (unit.kind == "train" or stage.evaluated):
            self.count -= 1

    # --- messages of the board (BoardWatcher) -----------------------------------------------------------------------
    def added(self, stages: Sequence[Stage]) -> None:
        """These stages are wanted now."""
        self.count += sum(self.board.units_left(stage) for stage in stages)

    def changed(self) -> None:
        """The work that is left has changed for another reason than the end of a unit."""
        self.uncertain = True

    def may_train(self, stage: Stage, segments: Sequence[SegmentNumber]) -> None:
        """(of no consequence)"""

    def may_evaluate(self, stage: Stage, keys: Sequence[DatasetSegment]) -> None:
        """(of no consequence)"""

    def idle(self, stage: Stage) -> None:
        """(of no consequence)"""

    def served(self, workers: Sequence[Worker]) -> None:
        """(of no consequence)"""

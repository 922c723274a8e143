"""Follows a given order of training units."""

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush

from pg_mop.plan.stages import Iteration, Stage, StageNumber
from pg_mop.schedule.longest_first import LongestFirst
from pg_mop.schedule.unit import SegmentNumber, Unit, Worker

Visit = tuple[StageNumber, SegmentNumber]


class Follower(LongestFirst):
    """Takes the first unit of an order that the worker may do now. Without an order it is longest-first.

    A stage has the positions of its parent, so an order of one iteration is repeated in the next. Units without a
    position come after those that have one, the longest first. The order counts, and not the times that it was made from:
    so units that take longer than expected, failures and lost workers delay the order, but stop nothing.
    """

    ANYWHERE = False  # an order says which worker does what

    def prepare(self) -> None:
        super().prepare()
        self.positions: dict[Visit, float] = {}
        self.waits = False  # workers and stages wait until they may do their first unit of the order
        self.ahead: dict[SegmentNumber, list[tuple[Iteration, float, StageNumber]]] = {}  # heaps of the ordered units

    def follow(self, positions: Mapping[Visit, float], waits: bool = False) -> None:
        """Follow this order from now on: {(stage number, segment): position}. Earlier positions of these stages go."""
        stages = {number for number, _ in positions}
        self.positions = {visit: at for visit, at in self.positions.items() if visit[0] not in stages}
        self.positions.update(positions)
        self.waits, self.ahead = waits, {}
        for number, stage in sorted(self.board.left.items()):
            if waits or self.board.trains(number):
                self._order(stage, self.board.segments)

    def may_train(self, stage: Stage, segments: Sequence[SegmentNumber]) -> None:
        super().may_train(stage, segments)
        self._order(stage, segments)

    def added(self, stages: Sequence[Stage]) -> None:
        super().added(stages)
        if self.waits:
            for stage in stages:
                self._order(stage, self.board.segments)

    def is_ordered(self, stage: Stage) -> bool:
        """True where the order has the stage, or its parent."""
        return any(self._position(stage, segment) is not None for segment in self.board.segments)

    def _position(self, stage: Stage, segment: SegmentNumber) -> float | None:
        found = self.positions.get((stage.number, segment))
        if found is None and stage.parent is not None:
            found = self.positions.get((stage.parent.number, segment))
            if found is not None:
                self.positions[stage.number, segment] = found
        return found

    def _order(self, stage: Stage, segments: Collection[SegmentNumber]) -> None:
        for segment in segments:
            position = self._position(stage, segment)
            if position is not None and self._is_to_come(stage.number, segment):
                heappush(self.ahead.setdefault(segment, []), (stage.iteration, position, stage.number))

    def _is_to_come(self, number: StageNumber, segment: SegmentNumber) -> bool:
        """True for a unit that has not begun, and that the order needs to know now."""
        board = self.board
        if board.trains(number):
            return board.may_train(number, segment)
        return self.waits and board.visits_left(number, segment) > 0

    def _is_turn(self, number: StageNumber, position: float) -> bool:
        """True unless the order has another segment first for the stage, and waits for it."""
        return not self.waits or all(
            self.positions.get((number, segment), position) >= position for segment in self.board.next_visits(number)
        )

    # --- choosing -------------------------------------------------------------------------------------------------
    def urgent_visit(self, worker: Worker) -> Unit | None:
        # (an order has every unit in its place)
        if any(self.ahead.get(segment) for segment in self.board.served_segments(worker, "training")):
            return None
        return super().urgent_visit(worker)

    def train(self, worker: Worker) -> Unit | None:
        unit, blocked = self._first(worker)
        if unit is not None and not self.waits:
            return unit
        other = super().train(worker)
        iteration = blocked if unit is None else unit.iteration
        if iteration is None or other is not None and other.iteration < iteration:
            return other  # (an earlier iteration that has no order)
        return unit

    def train_on_copy(self, worker: Worker, ahead_of: int | None = None) -> Unit | None:
        return (
            None if self.waits else super().train_on_copy(worker, ahead_of)
        )  # (an order names the worker of each unit)

    def _first(self, worker: Worker) -> tuple[Unit | None, Iteration | None]:
        """The first unit of the order that the worker may do now, or None; and the iteration of the unit that it waits for,
        or None."""
        board = self.board
        best: tuple[Iteration, float, StageNumber, SegmentNumber] | None = None
        blocked: tuple[Iteration, float] | None = None  # the first unit that the worker waits for
        for segment in board.served_segments(worker, "training"):
            heap, later = self.ahead.get(segment, []), []
            while heap:
                entry = heap[0]
                number = entry[2]
                if not self._is_to_come(number, segment):
                    heappop(heap)
                elif (
                    board.may_train(number, segment)
                    and not board.is_running(number)
                    and self._is_turn(number, entry[1])
                ):
                    if board.reserved(number) in (None, worker):
                        if best is None or entry < best[:3]:
                            best = *entry, segment
                        break
                    later.append(heappop(heap))
                else:
                    if self.waits and (blocked is None or entry[:2] < blocked):
                        blocked = entry[:2]
                    later.append(heappop(heap))
            for entry in later:
                heappush(heap, entry)
        # (a worker waits for something that runs: so an order that has lost a worker, or a unit, stops nothing)
        waits = blocked is not None and bool(board.training) and (best is None or blocked < best[:2])
        if best is None or waits:
            return None, blocked[0] if waits and blocked is not None else None
        return board.unit(best[2], "train", "training", best[3]), None

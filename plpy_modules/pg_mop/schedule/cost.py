"""How many seconds of training stages have left, estimated from the units that have ended."""

from collections.abc import Callable, Hashable, Sequence
from statistics import median

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.board import Board
from pg_mop.schedule.unit import SegmentNumber, Unit

STAGES_PER_UNIT = 20  # stages that may be estimated anew for each unit that has ended since the last estimate
NEWS_BELOW = 0.9  # a unit that takes less than this share of the known seconds makes a new estimate worthwhile


class Costs:
    """Seconds of training that stages have left; a board's watcher calls its methods (critical_path.py).

    A unit of a stage is estimated by the first of these that is known: the least seconds of units with the same key;
    the seconds expected from earlier runs; the seconds of a unit of the parent. The critical path (TreeML, thesis 2021,
    section 4.3) of a stage is the longest path of such estimates that begins with it. Estimates of the paths below a
    stage follow the measurements with a delay, so that their cost for each unit does not grow with the number of stages.
    """

    def __init__(
        self, board: Board, key_of: Callable[[Stage], Hashable], expected: Callable[[Stage], float] | None = None
    ) -> None:
        """`key_of`: equal for stages whose units take equally long; None: only units of the same stage do.
        `expected`: seconds of a stage's unit by earlier runs, or 0."""
        self.board, self.key_of = board, key_of
        self.expected: Callable[[Stage], float] = expected or (lambda stage: 0.0)
        # seconds of a stage's unit on a segment by earlier runs, or 0; None: every place is as fast as the others
        self.expected_on: Callable[[Stage, SegmentNumber], float] | None = None
        self.seconds: dict[Hashable, float] = {}  # key -> least seconds of a training unit
        self.seconds_on: dict[SegmentNumber, dict[Hashable, float]] = {}  # least seconds by segment and key
        self.unit_seconds: dict[StageNumber, float] = {}  # estimate for one unit; 0: unknown
        self.below: dict[StageNumber, float] = {}  # estimated seconds of the longest path below the stage
        self.visits = self.known = 0  # units left; units left with an estimate
        self.total = 0.0  # estimated seconds of the latter
        self.news = False  # a measurement or a withdrawal has changed the estimates
        self.units = 0  # units that have ended since the last full estimate

    def left(self, number: StageNumber) -> float | None:
        """Seconds of the longest path that begins with the units left of a stage; None if unknown."""
        seconds = self.unit_seconds[number]
        return seconds * self.board.visits_left(number) + self.below.get(number, 0.0) if seconds else None

    def all_left(self) -> float:
        """Seconds of all training that is left, unknown units counted as the mean of the others; 0 if none is known."""
        return self.total * self.visits / self.known if self.known else 0.0

    def on(self, number: StageNumber, segment: SegmentNumber) -> float:
        """Seconds of a unit on a segment, whose place may be slower than others; 0: unknown.

        Units of the same key on the segment count, then the seconds expected there (`expected_on`), then the units on
        other segments, times the usual ratio of the segment."""
        stage = self.board.plan.stages[number]
        known = self.seconds_on.get(segment, {}).get(self._key(stage))
        if known is None and self.expected_on is not None:
            known = self.expected_on(stage, segment) or None
        return known if known is not None else self.unit_seconds.get(number, 0.0) * self.slowness(segment)

    def slowness(self, segment: SegmentNumber) -> float:
        """How many times as long as on the fastest segment units take on this one, by the median of the keys."""
        known = self.seconds_on.get(segment)
        return median(seconds / self.seconds[key] for key, seconds in known.items()) if known else 1.0

    def added(self, stages: Sequence[Stage]) -> set[StageNumber]:
        """Count new stages, parents first. Returns the numbers of the stages above whose longest paths have grown."""
        for stage in stages:
            self._count(stage)
        lengthened = set()
        for stage in reversed(stages):
            lengthened |= self._lengthen_above(stage)
        return lengthened

    def opened(self, stage: Stage) -> None:
        """Estimate a stage anew when it may be trained: its parent has been measured by then."""
        before, visits = self.unit_seconds[stage.number], self.board.visits_left(stage.number)
        self._replace(stage, before, self._estimate(stage), visits)

    def finished(self, unit: Unit, seconds: float) -> bool:
        """Take the seconds of a training unit, after the board has. True if the stage had no estimate before."""
        number, stage = unit.stage, self.board.plan.stages[unit.stage]
        key = self._key(stage)
        known = self.seconds.get(key)
        if known is None or seconds < known:
            self.seconds[key] = seconds
            self.news = self.news or known is None or seconds < NEWS_BELOW * known
        here = self.seconds_on.setdefault(unit.segment, {})
        here[key] = min(seconds, here.get(key, seconds))
        self.units += 1
        if number not in self.unit_seconds:
            return False
        before = self.unit_seconds[number]
        self.visits -= 1
        if before:
            self.known -= 1
            self.total -= before
        self._replace(stage, before, self.seconds[key], self.board.visits_left(number))
        return not before

    def settle(self, more: int = 0) -> bool:
        """Estimate all stages anew if measurements have changed and enough units have ended. True if it did.

        `more`: the caller's own work after a new estimate, counted in stages.
        """
        if not self.news or self.units * STAGES_PER_UNIT < len(self.board.left) + more:
            return False
        self.news, self.units = False, 0
        stages = sorted(self.board.left.values(), key=lambda stage: stage.number)
        below: dict[StageNumber, float] = {}
        self.below = below
        self.visits = self.known = 0
        self.total = 0.0
        counted = [(stage, self._count(stage)) for stage in stages]
        for stage, seconds in reversed(counted):
            if stage.parent is not None:
                path, parent = seconds + below.get(stage.number, 0.0), stage.parent.number
                if path > below.get(parent, 0.0):
                    below[parent] = path
        return True

    def _key(self, stage: Stage) -> Hashable:
        key = self.key_of(stage)
        return ("stage", stage.number) if key is None else ("key", key)

    def _estimate(self, stage: Stage) -> float:
        seconds = self.seconds.get(self._key(stage))
        if seconds is None:
            seconds = self.expected(stage)
        if not seconds:
            seconds = self.unit_seconds.get(stage.parent.number, 0.0) if stage.parent is not None else 0.0
        return seconds

    def _count(self, stage: Stage) -> float:
        """Add the units left of a stage to the totals. Returns their seconds."""
        seconds = self.unit_seconds[stage.number] = self._estimate(stage)
        visits = self.board.visits_left(stage.number)
        self.visits += visits
        if seconds:
            self.known += visits
            self.total += seconds * visits
        return seconds * visits

    def _replace(self, stage: Stage, before: float, seconds: float, visits: int) -> None:
        """Replace the estimate of a stage's units in the totals."""
        self.unit_seconds[stage.number] = seconds
        self.total += (seconds - before) * visits
        self.known += visits * (bool(seconds) - bool(before))

    def _lengthen_above(self, stage: Stage) -> set[StageNumber]:
        """Lengthen the longest paths of the stages above. Returns the numbers of the stages that have changed."""
        lengthened, left = set(), self.board.left
        path = self.unit_seconds[stage.number] * self.board.visits_left(stage.number)
        path += self.below.get(stage.number, 0.0)
        above = stage.parent
        while above is not None and above.number in left and self.below.get(above.number, 0.0) < path:
            self.below[above.number] = path
            lengthened.add(above.number)
            path += self.unit_seconds[above.number] * self.board.visits_left(above.number)
            above = above.parent
        return lengthened

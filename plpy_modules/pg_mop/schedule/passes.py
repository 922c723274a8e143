"""Counts the passes over each segment that are left, by compiled model."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.unit import SegmentNumber


class PassCounter:
    """How many passes over a training segment the wanted stages have left. Each call costs the same however many stages
    there are (`remove` and `add`: O(segments))."""

    def __init__(self, segments: Sequence[SegmentNumber]) -> None:
        self.segments = segments
        self.key_of: Callable[[Stage], Hashable] = lambda stage: None
        self.passes_of: Callable[[Stage], int] = lambda stage: 1
        self.counted: dict[StageNumber, tuple[Hashable, int]] = {}  # -> (key, passes of a visit)
        self._asked: Counter[Hashable] = Counter()  # passes by key
        self._done: Counter[tuple[Hashable, SegmentNumber]] = Counter()  # passes by (key, segment)

    def left(self, key: Hashable, segment: SegmentNumber) -> int:
        """Passes that are left over a segment: of the stages with this key, or of all stages (None)."""
        return self._asked[key] - self._done[key, segment]

    def clear(self) -> None:
        """Forget all stages."""
        self.counted.clear()
        self._asked.clear()
        self._done.clear()

    def add(self, stage: Stage, left: Collection[SegmentNumber]) -> None:
        """Count a wanted stage; `left`: the segments that it has not finished."""
        if stage.number not in self.counted:
            self.counted[stage.number] = self.key_of(stage), self.passes_of(stage)
            self._change(stage.number, left, 1)

    def remove(self, stage: Stage, left: Collection[SegmentNumber]) -> None:
        """Stop counting a stage; `left`: the segments that it has not finished."""
        if stage.number in self.counted:
            self._change(stage.number, left, -1)
            del self.counted[stage.number]

    def finished(self, stage: Stage, segment: SegmentNumber) -> None:
        """Count a visit that has ended."""
        if stage.number in self.counted:
            key, passes = self.counted[stage.number]
            for counted in {None, key}:
                self._done[counted, segment] += passes

    def _change(self, number: StageNumber, left: Collection[SegmentNumber], sign: int) -> None:
        key, passes = self.counted[number]
        for counted in {None, key}:
            self._asked[counted] += sign * passes
            if len(left) < len(self.segments):
                for segment in self.segments:
                    if segment not in left:
                        self._done[counted, segment] += sign * passes

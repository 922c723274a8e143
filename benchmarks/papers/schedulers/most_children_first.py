"""The most shared stage first: for comparison."""

from collections.abc import Sequence

from pg_mop.plan.stages import Stage, StageNumber
from pg_mop.schedule.priority import PriorityScheduler


class MostChildrenFirst(PriorityScheduler):
    """The idle stage that most trials share: it has the most branches below it. Equal stages go in the order of asking
    within the earliest iteration (TreeML, thesis 2021, section 6.3, "THR": most child stages first)."""

    name = "most-children-first"

    def rank(self, stage: Stage) -> tuple[int, int, StageNumber]:
        return -len(stage.trials), stage.iteration, stage.number

    def added(self, stages: Sequence[Stage]) -> None:
        seen = set()
        for stage in stages:
            above: Stage | None = stage
            while above is not None and above.number not in seen:
                seen.add(above.number)
                self.requeue(above)  # if it may be trained
                above = above.parent

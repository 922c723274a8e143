"""Breadth-first search over the forest of stages: for comparison."""

from pg_mop.plan.stages import Iteration, Stage, StageNumber
from pg_mop.schedule.priority import PriorityScheduler


class BreadthFirst(PriorityScheduler):
    """The idle stage of the earliest iteration, in the order of the trials' requests (TreeML, thesis 2021,
    section 6.3, "BFS")."""

    name = "breadth-first"

    def rank(self, stage: Stage) -> tuple[Iteration, StageNumber]:
        return stage.iteration, stage.number

"""The tree of stages level by level: for comparison."""

from pg_mop.schedule.base import Ranked


class BreadthFirst(Ranked):
    """The idle stage of the earliest iteration, in the order in which stages were asked for (TreeML, thesis 2021,
    section 6.3, "BFS")."""

    name = "breadth-first"

    def rank(self, stage):
        return stage.iteration, stage.number

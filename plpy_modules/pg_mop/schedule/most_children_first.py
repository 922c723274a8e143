"""What most trials wait for comes first: for comparison."""

from pg_mop.schedule.base import Ranked


class MostChildrenFirst(Ranked):
    """The idle stage that most trials share, which are most branches below it; of those that are equal, in the order
    of asking within the earliest iteration (TreeML, thesis 2021, section 6.3, "THR": most child stages first)."""

    name = "most-children-first"

    def rank(self, stage):
        return -len(stage.trials), stage.iteration, stage.number

    def added(self, stages):
        met = set()
        for stage in stages:
            while stage is not None and stage.number not in met:
                met.add(stage.number)
                self.again(stage)  # where it may train
                stage = stage.parent

"""Cerebro's randomized scheduler, driven by events: the default."""

from pg_mop.schedule.base import Timed


class Randomized(Timed):
    """A random stage among those that are idle and have not yet visited the segment, in the earliest iteration.

    Algorithm 1 of Nakandala, Zhang, Kumar: "Cerebro: A Data System for Optimized Deep Learning Model Selection",
    PVLDB 13(11), 2020; without its polling, and without a barrier between iterations: those in the earliest iteration
    come first. Nothing depends on which segment it is, so every order of visits is equally likely. Only a stage
    whose longest remaining path would outlast the rest of the run goes before others, in any iteration.
    """

    name = "randomized"

    def rank(self, stage):
        return stage.iteration

    def arrange(self, places):
        places = sorted(places)
        self.random.shuffle(places)
        return places

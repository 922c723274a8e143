"""Cerebro's randomized scheduler, driven by events."""

from pg_mop.schedule.base import Scheduler


class Randomized(Scheduler):
    """A random configuration among those that are idle and have not yet visited the segment in this iteration.

    Algorithm 1 of Nakandala, Zhang, Kumar: "Cerebro: A Data System for Optimized Deep Learning Model Selection",
    PVLDB 13(11), 2020; without its polling, and without a barrier between iterations: those in the earliest iteration
    come first. Evaluations come before training, as the configuration waits for all of its own.
    """

    name = "randomized"

    def choose(self, place):
        units = self.board.eligible(place)
        if not units:
            return None
        first = min((u.kind != "evaluate", u.iteration) for u in units)
        return self.random.choice([u for u in units if (u.kind != "evaluate", u.iteration) == first])

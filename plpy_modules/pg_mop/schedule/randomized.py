"""Cerebro's randomized scheduler, driven by events: the default."""

from pg_mop.schedule.base import Timed


class Randomized(Timed):
    """A random stage among those that are idle and have not yet visited the segment, in the earliest iteration.

    Algorithm 1 of Nakandala, Zhang, Kumar: "Cerebro: A Data System for Optimized Deep Learning Model Selection",
    PVLDB 13(11), 2020; without its polling, and without a barrier between iterations: those in the earliest iteration
    come first. Nothing depends on which segment it is, so every order of visits is equally likely. Only a stage
    whose longest remaining path would outlast the rest of the run goes before others, in any iteration. And where short
    units go together and a place has several segments, those of one segment do: then some orders are more likely (with
    64 configurations, 4 segments and 2 places the commonest of the 24 came 1.6 times as often as its share).

    It does not prefer what shares its compiled model with the stage before: that left every order equally likely, but
    made those of one configuration's successive iterations, and of like configurations, depend on each other (with 2
    models, 16 configurations and 2 segments an iteration repeated the order of the one before in 26 % of the cases, in
    place of 50 %).
    """

    name = "randomized"
    URGENT = 0.6  # at random, more is left in the end than with the longest first: begin with it earlier

    def rank(self, stage):
        return stage.iteration

    def in_turn(self, workers):
        workers = sorted(workers)
        self.random.shuffle(workers)
        return workers

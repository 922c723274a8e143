"""Cerebro's randomized scheduler, driven by events: the default."""

from collections.abc import Collection

from pg_mop.plan.stages import Iteration, Stage
from pg_mop.schedule.critical_path import CriticalPathScheduler
from pg_mop.schedule.unit import Worker


class Randomized(CriticalPathScheduler):
    """A random stage among those of the earliest iteration that are idle and have not visited the segment.

    Algorithm 1 of Nakandala, Zhang, Kumar: "Cerebro: A Data System for Optimized Deep Learning Model Selection",
    PVLDB 13(11), 2020, without its polling and without a barrier between iterations: stages of the earliest iteration
    come first. The choice does not depend on the segment, so every visit order is equally likely, with two exceptions.
    A stage whose longest remaining path would outlast the rest of the run goes first, in any iteration. And where short
    units form unit batches and a worker has several segments, a batch stays on one segment: then some orders are more
    likely (with 64 configurations, 4 segments and 2 workers, the most frequent of the 24 orders came 1.6 times as often
    as its share).

    The scheduler does not prefer stages that share a compiled model with the previous stage. With that preference every
    order was still equally likely, but the orders of successive iterations of one configuration, and of configurations
    with the same model, depended on each other (with 2 models, 16 configurations and 2 segments, an iteration repeated
    the order of the previous one in 26 % of the cases, instead of 50 %).
    """

    name = "randomized"
    URGENT = 0.6  # lower than with the longest stages first: a random order leaves more work to the end

    def rank(self, stage: Stage) -> Iteration:
        return stage.iteration

    def order(self, workers: Collection[Worker]) -> list[Worker]:
        shuffled = sorted(workers)
        self.random.shuffle(shuffled)
        return shuffled

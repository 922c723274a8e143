"""Median stopping (Golovin et al.: "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2)."""

import math
from heapq import heappush, heappushpop

from pg_mop.search.base import MOST_ITERATIONS, MOST_TRIALS, whole
from pg_mop.search.sources import SAMPLER
from pg_mop.search.whole import ITERATIONS, TOGETHER, TRIALS, Whole


class MedianStopping(Whole):
    """Whole trials, of which one is stopped when its best value so far is worse than the median of the others' running
    averages up to the same iteration.

    The others are those that have got as far, running or not (the paper's: those that have ended), so that the rule
    works from the beginning where all train at once.
    """

    name = "median-stopping"
    STOPS_WITHIN_BUDGET = True
    PARAMETERS = {
        "iterations": ITERATIONS,
        "trials": TRIALS,
        "parallel": TOGETHER,
        "sampler": SAMPLER,
        "grace": whole(1, MOST_ITERATIONS, 2, "iterations that every trial may train"),
        "others": whole(1, MOST_TRIALS, 3, "others that there must be to compare with"),
    }

    def _begin(self):
        self.medians = {}  # iteration -> Median of running averages
        self.worst = -math.inf  # loss of those that have ended
        for configuration, losses in self.known:
            if self.space.locate(configuration) is None:
                continue
            total = 0.0
            for count, (iteration, loss) in enumerate(sorted(losses.items()), 1):
                total += loss
                self._median(iteration).add(total / count)
        super()._begin()

    def _evaluates(self, trial):
        return range(1, self.most + 1)

    def _told(self, trial):
        best, total, count = trial.data or (trial.loss, 0.0, 0)
        best, total, count = trial.data = min(best, trial.loss), total + trial.loss, count + 1
        median = self._median(trial.at)
        others = len(median)
        bound = median.value() if others else None
        median.add(total / count)
        if self.settings.grace <= trial.at < self.most and others >= self.settings.others and best > bound:
            self._stop(trial, f"iteration {trial.at}: worse than the median of {others} others")
            # (to who proposes it is no better than any that has ended, whatever its loss was as early as this)
            self.source.told(trial.number, 0, max(trial.loss, self.worst))
            self._fill()

    def _reached(self, trial):
        self.worst = max(self.worst, trial.loss)
        super()._reached(trial)

    def _median(self, iteration):
        if iteration not in self.medians:
            self.medians[iteration] = Median()
        return self.medians[iteration]


class Median:
    """The median of numbers that come one by one, in O(log n)."""

    __slots__ = ("low", "high")

    def __init__(self):
        self.low, self.high = [], []  # the lower half, negated, and the upper: heaps, the lower maybe one longer

    def __len__(self):
        return len(self.low) + len(self.high)

    def add(self, number):
        """One number more."""
        if len(self.low) > len(self.high):
            heappush(self.high, -heappushpop(self.low, -number))
        else:
            heappush(self.low, -heappushpop(self.high, number))

    def value(self):
        """Of an even count, the mean of the two in the middle."""
        return -self.low[0] if len(self.low) > len(self.high) else (self.high[0] - self.low[0]) / 2

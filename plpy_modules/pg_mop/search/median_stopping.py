"""Median stopping (Golovin et al.: "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2)."""

import math
from collections.abc import Collection
from heapq import heappush, heappushpop

from pg_mop.search.base import Trial
from pg_mop.search.fixed_budget import ITERATIONS, PARALLEL, TRIALS, FixedBudget
from pg_mop.search.parameters import MOST_ITERATIONS, MOST_TRIALS, integer
from pg_mop.search.samplers import SAMPLER


class MedianStopping(FixedBudget):
    """Stops a trial when its best value so far is worse than the median of the other trials' running averages up to the
    same iteration.

    The other trials are those that have reached the iteration, running or not (in the paper: finished ones), so that
    the rule works from the beginning where all trials run at the same time.
    """

    name = "median-stopping"
    STOPS_WITHIN_BUDGET = True
    PARAMETERS = {
        "iterations": ITERATIONS,
        "trials": TRIALS,
        "parallel": PARALLEL,
        "sampler": SAMPLER,
        "grace": integer(1, MOST_ITERATIONS, 2, "iterations that every trial may train"),
        "others": integer(1, MOST_TRIALS, 3, "trials to compare with, at least"),
    }

    def _begin(self) -> None:
        self.medians: dict[int, Median] = {}  # iteration -> median of running averages
        self.worst = -math.inf  # loss of the finished trials
        for configuration, losses in self.known:
            if self.space.locate(configuration) is None:
                continue
            total = 0.0
            for count, (iteration, loss) in enumerate(sorted(losses.items()), 1):
                total += loss
                self._median(iteration).add(total / count)
        super()._begin()

    def _evaluates(self, trial: Trial) -> Collection[int]:
        return range(1, self.most + 1)

    def _on_value(self, trial: Trial) -> None:
        best, total, count = trial.data or (trial.loss, 0.0, 0)
        best, total, count = trial.data = min(best, trial.loss), total + trial.loss, count + 1
        median = self._median(trial.at)
        others = len(median)
        bound = median.value() if others else math.inf
        median.add(total / count)
        if self.settings.grace <= trial.at < self.most and others >= self.settings.others and best > bound:
            self._stop(trial, f"iteration {trial.at}: worse than the median of {others} others")
            # (the sampler must not rate the trial above a finished one, however low its early loss is)
            self.sampler.tell(trial.number, 0, max(trial.loss, self.worst))
            self._fill()

    def _on_budget(self, trial: Trial) -> None:
        self.worst = max(self.worst, trial.loss)
        super()._on_budget(trial)

    def _median(self, iteration: int) -> "Median":
        if iteration not in self.medians:
            self.medians[iteration] = Median()
        return self.medians[iteration]


class Median:
    """The median of a growing set of numbers, in O(log n) a number."""

    __slots__ = ("low", "high")

    def __init__(self) -> None:
        self.low: list[float] = []  # heap: the lower half, negated; it may have one number more
        self.high: list[float] = []  # heap: the upper half

    def __len__(self) -> int:
        return len(self.low) + len(self.high)

    def add(self, number: float) -> None:
        """Add a number."""
        if len(self.low) > len(self.high):
            heappush(self.high, -heappushpop(self.low, -number))
        else:
            heappush(self.low, -heappushpop(self.high, number))

    def value(self) -> float:
        """The median; of an even count, the mean of the two numbers in the middle."""
        return -self.low[0] if len(self.low) > len(self.high) else (self.high[0] - self.low[0]) / 2

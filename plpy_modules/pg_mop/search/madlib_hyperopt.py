"""MADlib's automl with hyperopt (docs/contract/automl.md, section 5), by Optuna or at random."""

from pg_mop.search import rungs
from pg_mop.search.base import MOST_ITERATIONS, MOST_TRIALS, choice, whole
from pg_mop.search.whole import Whole


def batches(trials, segments):
    """Sizes of the batches: of as many as there are segments, but the last, which takes the rest."""
    count = max(1, rungs.rounded(trials, segments))
    return [segments] * (count - 1) + [trials - segments * (count - 1)]


class MadlibHyperopt(Whole):
    """In batches: the next one is drawn once all of the one before have ended."""

    name = "madlib-hyperopt"
    PARAMETERS = {
        "trials": whole(1, MOST_TRIALS, 20, "configurations (num_configs)"),
        "iterations": whole(1, MOST_ITERATIONS, 5, "iterations of each (num_iterations)"),
        "sampler": choice(("tpe", "random"), "tpe", "tpe, or random (algorithm; MADlib's rand)"),
        "parallel": whole(1, MOST_TRIALS, 1, "trials of a batch: the segments"),
    }

    def _begin(self):
        self.batches = batches(self.settings.trials, self.parallel)[::-1]
        super()._begin()

    def _fill(self):
        """Nothing: batches begin in `_finish`."""

    def _finish(self):
        while self.batches and self.left and not self._running:
            size = self.batches.pop()
            self.parallel, left = size, self.left - size
            self.left = size
            super()._fill()
            self.left = left if self._running == size else 0

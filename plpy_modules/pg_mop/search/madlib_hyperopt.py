"""MADlib's automl with hyperopt (docs/contract/automl.md, section 5), by Optuna or at random."""

from pg_mop.search import rungs
from pg_mop.search.fixed_budget import FixedBudget
from pg_mop.search.parameters import MOST_ITERATIONS, MOST_TRIALS, integer, word


def batches(trials: int, segments: int) -> list[int]:
    """The sizes of the batches: one trial for each segment; the last batch takes the rest."""
    count = max(1, rungs.rounded(trials, segments))
    return [segments] * (count - 1) + [trials - segments * (count - 1)]


class MadlibHyperopt(FixedBudget):
    """Trials in batches: a batch is sampled when all trials of the previous batch have ended."""

    name = "madlib-hyperopt"
    PARAMETERS = {
        "trials": integer(1, MOST_TRIALS, 20, "configurations (num_configs)"),
        "iterations": integer(1, MOST_ITERATIONS, 5, "iterations of each (num_iterations)"),
        "sampler": word(("tpe", "random"), "tpe", "tpe, or random (algorithm; MADlib's rand)"),
        "parallel": integer(1, MOST_TRIALS, 1, "trials of a batch: the segments"),
    }

    def _begin(self) -> None:
        self.batches = batches(self.settings.trials, self.parallel)[::-1]
        super()._begin()

    def _fill(self) -> None:
        """Does nothing: batches begin in `_on_idle`."""

    def _on_idle(self) -> None:
        while self.batches and self.left and not self._running:
            size = self.batches.pop()
            self.parallel, left = size, self.left - size
            self.left = size
            super()._fill()
            self.left = left if self._running == size else 0

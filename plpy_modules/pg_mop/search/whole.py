"""What grid search, random search and Optuna's have in common: every configuration is trained as far."""

from pg_mop.search import sources
from pg_mop.search.base import FAILED, MOST_ITERATIONS, MOST_TRIALS, Procedure, whole

ITERATIONS = whole(1, MOST_ITERATIONS, 10, "iterations of each trial")
TRIALS = whole(1, MOST_TRIALS, None, "configurations to try, at most; not given: all of a grid, else 20")
TOGETHER = whole(1, MOST_TRIALS, None, "trials that train at a time; not given: all, but 8 of a sampler that learns")

UNKNOWN_END = 20  # configurations of a space that has no end of them


class Whole(Procedure):
    """Draws configurations, `parallel` of them at a time, and trains each for `iterations`."""

    sampler = "random"

    def __init__(self, space, seed, goal="min", **parameters):
        super().__init__(space, seed, goal, **parameters)
        sampler = getattr(self.settings, "sampler", self.sampler)
        self.source = sources.source(sampler, space, seed)
        self.left = self.settings.trials or (MOST_TRIALS if sampler == "grid" else UNKNOWN_END)  # to be drawn
        self.parallel = getattr(self.settings, "parallel", None) or (
            MOST_TRIALS if sampler in ("random", "grid") else 8
        )

    @property
    def most(self):
        return self.settings.iterations

    def _begin(self):
        for configuration, losses in self.known:
            self.source.knows(configuration, 0, losses[max(losses)])
            if not isinstance(self.source, sources.InOrder) and max(losses) >= self.most:
                self.source.take(configuration)  # nothing new is to be found out there
        self._fill()

    def _fill(self):
        while self.left and self._running < self.parallel:
            point = self.source.draw(len(self.trials) + 1)
            if point is None:
                self.left = 0
                return
            self.left -= 1
            self._propose(self._new(self.space.configuration(point)), self.most)

    def _reached(self, trial):
        self.source.told(trial.number, 0, trial.loss)
        self._fill()

    def _lost(self, trial):
        self.source.lost(trial.number, trial.state == FAILED)
        self._fill()

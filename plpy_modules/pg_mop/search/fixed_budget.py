"""The base of grid search, random search and Optuna's samplers: all trials get the same number of iterations."""

from typing import Any

from pg_mop.search.base import FAILED, Procedure, Trial
from pg_mop.search.parameters import MOST_ITERATIONS, MOST_TRIALS, SearchError, integer
from pg_mop.search.random_sampler import GridSampler
from pg_mop.search.samplers import create_sampler
from pg_mop.search.space import Space
from pg_mop.spaces.model_space import digits

ITERATIONS = integer(1, MOST_ITERATIONS, 10, "iterations of each trial")
TRIALS = integer(1, MOST_TRIALS, None, "configurations to try, at most; not given: all of a grid, else 20")
PARALLEL = integer(1, MOST_TRIALS, None, "trials that train at a time; not given: all, but 8 of a sampler that learns")

DEFAULT_TRIALS = 20  # of a sampler other than grid


class FixedBudget(Procedure):
    """Samples configurations, keeps `parallel` trials running, and trains each for `iterations`."""

    sampler_name = "random"  # where the procedure has no parameter `sampler`

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        name = getattr(self.settings, "sampler", self.sampler_name)
        self.sampler = create_sampler(name, space, seed)
        if name == "grid" and not self.settings.trials and space.size is not None and space.size > MOST_TRIALS:
            raise SearchError(
                f"the space has {digits(space.size)} configurations, and a grid has at most {MOST_TRIALS}",
                "Give trials, or choose another procedure.",
            )
        self.left = self.settings.trials or (MOST_TRIALS if name == "grid" else DEFAULT_TRIALS)  # trials to begin
        self.parallel: int = getattr(self.settings, "parallel", None) or (
            MOST_TRIALS if name in ("random", "grid") else 8
        )

    @property
    def most(self) -> int:
        return self.settings.iterations

    def _begin(self) -> None:
        for configuration, losses in self.known:
            self.sampler.add_result(configuration, 0, losses[max(losses)])
            if not isinstance(self.sampler, GridSampler) and max(losses) >= self.most:
                self.sampler.claim(configuration)  # its final result is known
        self._fill()

    def _fill(self) -> None:
        """Begin trials until `parallel` of them run."""
        while self.left and self._running < self.parallel:
            point = self.sampler.ask(len(self.trials) + 1)
            if point is None:
                self.left = 0
                return
            self.left -= 1
            self._propose(self._new(self.space.configuration(point)), self.most)

    def _on_budget(self, trial: Trial) -> None:
        self.sampler.tell(trial.number, 0, trial.loss)
        self._fill()

    def _on_lost(self, trial: Trial) -> None:
        self.sampler.tell_lost(trial.number, trial.state == FAILED)
        self._fill()

"""ASHA (Li et al.: "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, Algorithm 2)."""

from collections.abc import Callable, Collection
from heapq import heappop, heappush, heappushpop
from typing import Any

from pg_mop.search.base import FAILED, PAUSED, Procedure, Trial, TrialNumber
from pg_mop.search.parameters import MOST_TRIALS, integer
from pg_mop.search.samplers import SAMPLER, create_sampler
from pg_mop.search.space import Space
from pg_mop.search.successive_halving import LEAST, MOST, REDUCTION, SKIP, rung_levels


class Asha(Procedure):
    """Asynchronous successive halving: whenever fewer than `parallel` trials run, a trial among the best 1 / `reduction`
    of its rung goes on to the next rung; trials of higher rungs come first. Without such a trial, a new trial begins.

    A paused trial keeps its state and costs nothing, so promotions are the paper's, at any time. The paper has no end of
    configurations. Here, when `trials` or the space are used up and no trial can be promoted, the best trial of the
    highest rung goes on until one trial has trained to the end. Earlier results are in the rungs from the beginning, and
    their configurations may be promoted.
    """

    name = "asha"
    PARAMETERS = {
        "trials": integer(
            1,
            MOST_TRIALS,
            None,
            "configurations; not given: all of a grid, else three times as many as give one that trains to the end",
        ),
        "iterations": MOST,
        "reduction": REDUCTION,
        "least": LEAST,
        "skip": SKIP,
        "sampler": SAMPLER,
        "parallel": integer(1, MOST_TRIALS, 8, "trials that train at a time"),
    }

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        self.levels = tuple(rung_levels(self))
        self.rungs = [Rung(self.settings.reduction) for _ in self.levels]
        self.sampler = create_sampler(self.settings.sampler, space, seed, budgets=True)
        self.left = self.settings.trials or (
            MOST_TRIALS if self.settings.sampler == "grid" else 3 * self.settings.reduction ** (len(self.levels) - 1)
        )

    @property
    def most(self) -> int:
        return self.settings.iterations

    def _begin(self) -> None:
        for configuration, losses in self.known:
            for iteration in sorted({*self.levels, max(losses)} & set(losses)):
                self.sampler.add_result(configuration, iteration, losses[iteration])
            reached = [rung for rung, level in enumerate(self.levels) if level in losses]
            if reached and self.space.locate(configuration) is not None and self.sampler.claim(configuration):
                trial = self._new(configuration)
                trial.at, trial.data = self.levels[reached[-1]], reached[-1]
                self.sampler.resume(trial.number, configuration)
                for rung in reached:
                    self.rungs[rung].add(losses[self.levels[rung]], trial.number, promoted=rung != reached[-1])
        self._fill()

    def _evaluates(self, trial: Trial) -> Collection[int]:
        return self.levels

    def _on_budget(self, trial: Trial) -> None:
        self.sampler.tell(trial.number, trial.at, trial.loss)
        self.rungs[trial.data].add(trial.loss, trial.number)
        self._fill()

    def _on_lost(self, trial: Trial) -> None:
        self.sampler.tell_lost(trial.number, trial.state == FAILED)
        self._fill()

    def _on_withdrawn(self, trial: Trial) -> None:
        self._fill()

    def _fill(self) -> None:
        """Promote or begin trials until `parallel` of them run."""
        while self._running < self.settings.parallel:
            rung, trial = self._promotable()
            if trial is None and self.left:
                rung, trial = 0, self._sample()
            if trial is None:
                return
            trial.data = rung
            self._propose(trial, self.levels[rung])

    def _promotable(self) -> tuple[int, Trial | None]:
        """(its next rung, the trial) that goes on first; (0, None) without any."""
        for rung in range(len(self.levels) - 2, -1, -1):
            number = self.rungs[rung].promote(self._is_paused)
            if number is not None:
                return rung + 1, self.trials[number]
        return 0, None

    def _is_paused(self, number: TrialNumber) -> bool:
        return self.trials[number].state == PAUSED

    def _sample(self) -> Trial | None:
        point = self.sampler.ask(len(self.trials) + 1)
        if point is None:
            self.left = 0
            return None
        self.left -= 1
        return self._new(self.space.configuration(point))

    def _on_idle(self) -> None:
        if not len(self.rungs[-1]):
            for rung in range(len(self.levels) - 2, -1, -1):
                number = self.rungs[rung].promote(self._is_paused, anyway=True)
                if number is not None:
                    self.trials[number].data = rung + 1
                    self._propose(self.trials[number], self.levels[rung + 1])
                    return
        for rung, waiting in enumerate(self.rungs[:-1]):
            for _, number in waiting.unpromoted:
                if self._is_paused(number):
                    self._stop(
                        self.trials[number],
                        f"rung {rung}: not among the best 1/{self.settings.reduction} of {len(waiting)}",
                    )


class Rung:
    """The losses of a rung: finds the best floor(n / reduction) of n trials, in O(log n) a trial."""

    def __init__(self, reduction: int) -> None:
        self.reduction = reduction
        self.top: list[
            tuple[float, int]
        ] = []  # heap: the best floor(n / reduction), negated, so that the worst is first
        self.rest: list[tuple[float, int]] = []  # heap: the other trials
        self.unpromoted: list[tuple[float, TrialNumber]] = []  # heap: (loss, trial)

    def __len__(self) -> int:
        return len(self.top) + len(self.rest)

    def add(self, loss: float, number: TrialNumber, promoted: bool = False) -> None:
        """Add a trial's loss. Of equal losses, the earlier trial's counts as better."""
        if not promoted:
            heappush(self.unpromoted, (loss, number))
        if self.top:
            worst = heappushpop(self.top, (-loss, -number))
            loss, number = -worst[0], -worst[1]
        heappush(self.rest, (loss, number))
        if len(self.top) < len(self) // self.reduction:
            loss, number = heappop(self.rest)
            heappush(self.top, (-loss, -number))

    def promote(self, waits: Callable[[TrialNumber], bool], anyway: bool = False) -> TrialNumber | None:
        """The best trial that has not gone on, if it is among the best; it is marked as promoted. Else None.

        `waits`: tells whether a trial may still go on; `anyway`: also a trial that is not among the best.
        """
        while self.unpromoted and not waits(self.unpromoted[0][1]):
            heappop(self.unpromoted)
        if not self.unpromoted:
            return None
        loss, number = self.unpromoted[0]
        if anyway or self.top and (-loss, -number) >= self.top[0]:
            return heappop(self.unpromoted)[1]
        return None

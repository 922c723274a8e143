"""Hyperband as MADlib's automl runs it (docs/contract/automl.md, sections 3 and 4)."""

from collections.abc import Sequence
from typing import Any, cast

from pg_mop.search.base import PAUSED, Trial, TrialNumber
from pg_mop.search.hyperband import BracketPlan, Hyperband
from pg_mop.search.space import Space
from pg_mop.search.successive_halving import Bracket


class DiagonalBracket(Bracket):
    """A bracket whose promoted trials wait for the next diagonal."""

    def __init__(self, procedure: "MadlibHyperband", levels: Sequence[int], reduction: int, s: int) -> None:
        super().__init__(procedure, levels, reduction)
        self.s = s

    def _promote(self, trial: Trial, rung: int) -> None:
        cast(MadlibHyperband, self.procedure).next.append((trial, self.levels[rung]))


class MadlibHyperband(Hyperband):
    """Hyperband in diagonals: bracket s_max begins; with each later diagonal the next bracket begins, and the best trials
    of the earlier brackets go on for the same number of iterations. So a round adds its r_i to the iterations that a
    trial has trained already.

    All configurations are sampled at the beginning: trials 1, 2, ... belong to bracket s_max, the next ones to
    s_max - 1. Only trials that have gone on in every round may go on further (MADlib chose among all of the bracket).
    """

    name = "madlib-hyperband"
    madlib = True

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        self.plans = [
            BracketPlan(s, trials, [sum(rounds[: i + 1]) for i in range(len(rounds))])
            for s, trials, rounds in self.plans
        ]
        self.longest = max(plan.levels[-1] for plan in self.plans)
        self.diagonal = -1  # the one that trains, from 0
        self.next: list[tuple[Trial, int]] = []  # (trial, budget) of the next diagonal

    def _begin(self) -> None:
        self._adopt({r for plan in self.plans for r in plan.levels})
        self.brackets: list[tuple[DiagonalBracket, list[Trial]]] = []  # with their trials, the next one last
        for s, trials, levels in reversed(self.plans):
            bracket = DiagonalBracket(self, levels, self.settings.reduction, s)
            self.brackets.insert(0, (bracket, self._sample(bracket, trials)))
        self._on_idle()

    def _on_idle(self) -> None:
        while not self._running and (self.next or self.brackets):
            self.diagonal += 1
            promoted, self.next = self.next, []
            for trial, budget in promoted:
                if trial.state == PAUSED:
                    self._propose(trial, budget)
                else:  # a user has stopped it
                    trial.data.lost(trial)
            if self.brackets:
                bracket, trials = self.brackets.pop()
                bracket.begin(trials)

    def place(self, trial: TrialNumber) -> tuple[int, int]:
        """(s, i): the bracket of a trial, and the last round that the trial has reached."""
        bracket = self.trials[trial].data
        return bracket.s, bracket.rung_of.get(trial, 0)

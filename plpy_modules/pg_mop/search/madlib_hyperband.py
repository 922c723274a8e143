"""Hyperband as MADlib's automl runs it (docs/contract/automl.md, sections 3 and 4)."""

from pg_mop.search.base import PAUSED
from pg_mop.search.hyperband import Hyperband
from pg_mop.search.successive_halving import Bracket


class Diagonal(Bracket):
    """A bracket whose trials wait for the next diagonal."""

    def _promote(self, trial, rung):
        self.procedure.next.append((trial, self.levels[rung]))


class MadlibHyperband(Hyperband):
    """In diagonals: bracket s_max begins; with each later diagonal the next bracket begins, and the best of the
    brackets before go on with it, for as many iterations. So a round adds its r_i to what a trial has trained already.

    All configurations are drawn at the beginning: trials 1, 2, ... are of bracket s_max, the next of s_max - 1. Only
    those that went on so far may go on further (MADlib chose among all of the bracket).
    """

    name = "madlib-hyperband"
    madlib = True
    Bracket = Diagonal

    def __init__(self, space, seed, goal="min", **parameters):
        super().__init__(space, seed, goal, **parameters)
        sums = []
        for s, trials, rounds in self.plans:
            sums.append((s, trials, [sum(rounds[: i + 1]) for i in range(len(rounds))]))
        self.plans, self.longest = sums, max(levels[-1] for *_, levels in sums)
        self.diagonal = -1  # the one that trains, from 0
        self.next = []  # (trial, budget) of the next one

    def _begin(self):
        self._adopt({r for *_, levels in self.plans for r in levels})
        self.brackets = []  # (bracket, its trials), the next one last
        for s, trials, levels in reversed(self.plans):
            bracket = Diagonal(self, levels, self.settings.reduction)
            bracket.s = s
            self.brackets.insert(0, (bracket, self._draw(bracket, trials)))
        self._finish()

    def _finish(self):
        while not self._running and (self.next or self.brackets):
            self.diagonal += 1
            going, self.next = self.next, []
            for trial, budget in going:
                if trial.state == PAUSED:
                    self._propose(trial, budget)
                else:  # a person stopped it
                    trial.data.lost(trial)
            if self.brackets:
                bracket, trials = self.brackets.pop()
                bracket.begin(trials)

    def place(self, trial):
        """(s, i): the bracket of a trial, and the last round that it came to."""
        bracket = self.trials[trial].data
        return bracket.s, bracket.rung_of.get(trial, 0)

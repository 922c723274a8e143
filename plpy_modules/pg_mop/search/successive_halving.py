"""Successive halving (Jamieson, Talwalkar: "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016), as Algorithm 1 of Li et al.: "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020."""

from heapq import heappop, heappush

from pg_mop.search import rungs, sources
from pg_mop.search.base import FAILED, MOST_ITERATIONS, MOST_TRIALS, PAUSED, Procedure, SearchError, choice, whole

REDUCTION = whole(2, 1000, 3, "one in so many goes on from each rung")
MOST = whole(1, MOST_ITERATIONS, 27, "iterations of the trials that are left at the end")
LEAST = whole(1, MOST_ITERATIONS, 1, "iterations after which trials are compared first, at least")
SKIP = whole(0, 30, 0, "rungs to leave out at the bottom (early-stopping rate)")
SOURCE = choice(("random", "grid"), "random", "where configurations come from: random, or grid (all, in order)")


class Halving(Procedure):
    """What procedures of brackets share. A trial's `data` is its Bracket."""

    def _draw(self, bracket, trials):
        """Up to so many new trials for a bracket, which begins; those that are known, the best first, take at most the
        places of its second rung, so that they are tried against new ones."""
        kept = []
        while self.adoptable and len(kept) < trials // self.settings.reduction:
            configuration = self.adoptable.pop()
            if self.source.take(configuration):
                kept.append(self._new(configuration))
                self.source.goes_on(kept[-1].number, configuration)
        while len(kept) < trials:
            point = self.source.draw(len(self.trials) + 1)
            if point is None:
                break
            kept.append(self._new(self.space.configuration(point)))
        for trial in kept:
            trial.data = bracket
        return kept

    def _adopt(self, levels):
        """Tell the source what is known at these iterations and the last; take note of what may be tried again."""
        for configuration, losses in self.known:
            for iteration in sorted({*levels, max(losses)} & set(losses)):
                self.source.knows(configuration, iteration, losses[iteration])
        self.adoptable = [c for c, _ in reversed(self.known) if self.space.locate(c) is not None]

    def _told(self, trial):
        if trial.at in trial.data.levels:
            self.source.told(trial.number, trial.at, trial.loss)

    def _reached(self, trial):
        trial.data.arrived(trial)

    def _lost(self, trial):
        self.source.lost(trial.number, trial.state == FAILED)
        trial.data.lost(trial)

    def _evaluates(self, trial):
        return trial.data.levels


class SuccessiveHalving(Halving):
    """`trials` configurations train until the first rung; of each rung the best 1 / `reduction` go on to the next."""

    name = "successive-halving"
    PARAMETERS = {
        "trials": whole(
            1,
            MOST_TRIALS,
            None,
            "configurations; not given: all of a grid, else as many as give one that trains to the end",
        ),
        "iterations": MOST,
        "reduction": REDUCTION,
        "least": LEAST,
        "skip": SKIP,
        "sampler": SOURCE,
    }

    def __init__(self, space, seed, goal="min", **parameters):
        super().__init__(space, seed, goal, **parameters)
        self.levels = rung_levels(self)
        self.source = sources.source(self.settings.sampler, space, seed)

    @property
    def most(self):
        return self.settings.iterations

    def _begin(self):
        self._adopt(self.levels)
        wanted = self.settings.trials or (
            MOST_TRIALS if self.settings.sampler == "grid" else self.settings.reduction ** (len(self.levels) - 1)
        )
        bracket = Bracket(self, self.levels, self.settings.reduction)
        bracket.begin(self._draw(bracket, wanted))


def rung_levels(procedure):
    """The rungs that a procedure's settings mean. Raises SearchError."""
    given = procedure.settings
    if given.least > given.iterations:
        raise SearchError(
            f"least of {procedure.name} must be at most iterations ({given.iterations}), not {given.least}"
        )
    levels = rungs.levels(given.iterations, given.reduction, given.least)
    if given.skip >= len(levels):
        raise SearchError(
            f"skip of {procedure.name} must be below {len(levels)}, the rungs up to {given.iterations} "
            f"iterations, not {given.skip}"
        )
    return levels[given.skip :]


class Bracket:
    """One successive halving. A trial goes on as soon as it is certain that it belongs to those that do: when it is
    among the best n - m, where n go on and m have not arrived. So which do depends on no order, and few places idle."""

    def __init__(self, procedure, levels, reduction, label=""):
        """`levels`: iterations of each rung; `label`: how reasons call the bracket."""
        self.procedure, self.levels, self.reduction, self.label = procedure, tuple(levels), reduction, label
        self.rung_of = {}  # trial's number -> its rung, from 0

    def begin(self, trials):
        """These are the trials of the first rung."""
        self.sizes = rungs.sizes(len(trials), self.reduction, len(self.levels))
        self.pending = self.sizes[:]  # that have neither arrived nor been lost, those promised included
        self.waiting = [[] for _ in self.levels]  # heaps of (loss, number) that arrived and did not go on yet
        self.gone = [0] * len(self.levels)  # that went on
        self.closed = [False] * len(self.levels)
        self.began = len(trials)
        for trial in trials:
            self.rung_of[trial.number] = 0
            self.procedure._propose(trial, self.levels[0])
        if not trials:
            self.pending[0] = 0
            self._decide(0)

    def arrived(self, trial):
        """A trial has trained to the level of its rung."""
        rung = self.rung_of[trial.number]
        self.pending[rung] -= 1
        if rung < len(self.levels) - 1:
            heappush(self.waiting[rung], (trial.loss, trial.number))
        self._decide(rung)

    def lost(self, trial):
        """A trial will not get to the level of its rung."""
        rung = self.rung_of[trial.number]
        self.pending[rung] -= 1
        self._decide(rung)

    def _decide(self, rung):
        trials, waiting = self.procedure.trials, self.waiting[rung]
        last = rung == len(self.levels) - 1
        while not last and waiting and self.gone[rung] < self.sizes[rung + 1] - self.pending[rung]:
            number = heappop(waiting)[1]
            if trials[number].state == PAUSED:  # nobody stopped it
                self.gone[rung] += 1
                self.rung_of[number] = rung + 1
                self._promote(trials[number], rung + 1)
        if self.pending[rung] or self.closed[rung]:
            return
        self.closed[rung] = True
        if not last:
            for place, (_, number) in enumerate(sorted(waiting), self.gone[rung] + 1):
                if trials[number].state == PAUSED:
                    why = f"{self.label}rung {rung}: {rungs.ordinal(place)} of {self.began}"
                    self.procedure._stop(trials[number], why)
            waiting.clear()
            self.began = self.gone[rung]
            missing = self.sizes[rung + 1] - self.gone[rung]
            if missing:  # too few are left
                self.pending[rung + 1] -= missing
                self._decide(rung + 1)
        self._over(rung)

    def _promote(self, trial, rung):
        self.procedure._propose(trial, self.levels[rung])

    def _over(self, rung):
        """All trials of a rung have ended it."""

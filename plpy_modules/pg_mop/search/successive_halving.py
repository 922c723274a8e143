"""Successive halving (Jamieson, Talwalkar: "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016), as Algorithm 1 of Li et al.: "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020."""

from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from pg_mop.search import rungs
from pg_mop.search.base import FAILED, PAUSED, Procedure, Trial, TrialNumber
from pg_mop.search.parameters import MOST_ITERATIONS, MOST_TRIALS, SearchError, integer
from pg_mop.search.sampler import Sampler
from pg_mop.search.samplers import SAMPLER_OF_BRACKETS, create_sampler
from pg_mop.search.space import ParameterSet, Space

REDUCTION = integer(2, 1000, 3, "of this many trials, one goes on from each rung")
MOST = integer(1, MOST_ITERATIONS, 27, "iterations of the trials that train to the end")
LEAST = integer(1, MOST_ITERATIONS, 1, "iterations before the first comparison, at least")
SKIP = integer(0, 30, 0, "rungs to leave out at the bottom (early-stopping rate)")


class Halving(Procedure):
    """The base of the procedures that have brackets. `data` of a trial is its Bracket."""

    sampler: Sampler
    adoptable: list[ParameterSet]  # configurations with earlier results that may become trials, the best last

    def _sample(self, bracket: "Bracket", trials: int) -> list[Trial]:
        """At most `trials` new trials for a bracket.

        Configurations with earlier results come first, the best of them. They are at most as many as the bracket's
        second rung has trials, so that new configurations compete with them.
        """
        made: list[Trial] = []
        while self.adoptable and len(made) < trials // self.settings.reduction:
            configuration = self.adoptable.pop()
            if self.sampler.claim(configuration):
                made.append(self._new(configuration))
                self.sampler.resume(made[-1].number, configuration)
        while len(made) < trials:
            point = self.sampler.ask(len(self.trials) + 1)
            if point is None:
                break
            made.append(self._new(self.space.configuration(point)))
        for trial in made:
            trial.data = bracket
        return made

    def _adopt(self, levels: Iterable[int]) -> None:
        """Tell the sampler the earlier results at these iterations and the last one; note configurations to continue."""
        for configuration, losses in self.known:
            for iteration in sorted({*levels, max(losses)} & set(losses)):
                self.sampler.add_result(configuration, iteration, losses[iteration])
        self.adoptable = [c for c, _ in reversed(self.known) if self.space.locate(c) is not None]

    def _on_value(self, trial: Trial) -> None:
        if trial.at in trial.data.levels:
            self.sampler.tell(trial.number, trial.at, trial.loss)

    def _on_budget(self, trial: Trial) -> None:
        trial.data.arrived(trial)

    def _on_lost(self, trial: Trial) -> None:
        self.sampler.tell_lost(trial.number, trial.state == FAILED)
        trial.data.lost(trial)

    def _evaluates(self, trial: Trial) -> Collection[int]:
        return trial.data.levels


class SuccessiveHalving(Halving):
    """`trials` configurations train up to the first rung; from each rung, the best 1 / `reduction` go on to the next."""

    name = "successive-halving"
    PARAMETERS = {
        "trials": integer(
            1,
            MOST_TRIALS,
            None,
            "configurations; not given: all of a grid, else as many as give one that trains to the end",
        ),
        "iterations": MOST,
        "reduction": REDUCTION,
        "least": LEAST,
        "skip": SKIP,
        "sampler": SAMPLER_OF_BRACKETS,
    }

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        self.levels = rung_levels(self)
        self.sampler = create_sampler(self.settings.sampler, space, seed)

    @property
    def most(self) -> int:
        return self.settings.iterations

    def _begin(self) -> None:
        self._adopt(self.levels)
        wanted = self.settings.trials or (
            MOST_TRIALS if self.settings.sampler == "grid" else self.settings.reduction ** (len(self.levels) - 1)
        )
        bracket = Bracket(self, self.levels, self.settings.reduction)
        bracket.begin(self._sample(bracket, wanted))


def rung_levels(procedure: Procedure) -> list[int]:
    """The iterations of the rungs by a procedure's settings. Raises SearchError where they contradict one another."""
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
    """One successive halving.

    A trial goes on as soon as it is certain to be among the best: when it is among the best n - m of its rung, where n
    trials go on and m have not arrived. So the order of results does not decide which trials go on, and few workers
    idle.
    """

    def __init__(self, procedure: Procedure, levels: Sequence[int], reduction: int, label: str = "") -> None:
        """`levels`: iterations of each rung; `label`: names the bracket in reasons."""
        self.procedure, self.levels, self.reduction, self.label = procedure, tuple(levels), reduction, label
        self.rung_of: dict[TrialNumber, int] = {}  # from 0

    def begin(self, trials: Sequence[Trial]) -> None:
        """Propose the trials of the first rung."""
        self.sizes = rungs.sizes(len(trials), self.reduction, len(self.levels))
        self.pending = self.sizes[:]  # trials of each rung that have neither arrived nor been lost
        self.waiting: list[list[tuple[float, TrialNumber]]] = [[] for _ in self.levels]  # heaps: arrived, not gone on
        self.promoted = [0] * len(self.levels)  # trials that have gone on
        self.closed = [False] * len(self.levels)
        self.began = len(trials)
        for trial in trials:
            self.rung_of[trial.number] = 0
            self.procedure._propose(trial, self.levels[0])
        if not trials:
            self.pending[0] = 0
            self._decide(0)

    def arrived(self, trial: Trial) -> None:
        """A trial has trained to the level of its rung."""
        rung = self.rung_of[trial.number]
        self.pending[rung] -= 1
        if rung < len(self.levels) - 1:
            heappush(self.waiting[rung], (trial.loss, trial.number))
        self._decide(rung)

    def lost(self, trial: Trial) -> None:
        """A trial will not reach the level of its rung."""
        rung = self.rung_of[trial.number]
        self.pending[rung] -= 1
        self._decide(rung)

    def _decide(self, rung: int) -> None:
        """Promote the trials of a rung that are certain to go on; close the rung when all trials have arrived."""
        trials, waiting = self.procedure.trials, self.waiting[rung]
        last = rung == len(self.levels) - 1
        while not last and waiting and self.promoted[rung] < self.sizes[rung + 1] - self.pending[rung]:
            number = heappop(waiting)[1]
            if trials[number].state == PAUSED:  # (a user may have stopped it)
                self.promoted[rung] += 1
                self.rung_of[number] = rung + 1
                self._promote(trials[number], rung + 1)
        if self.pending[rung] or self.closed[rung]:
            return
        self.closed[rung] = True
        if not last:
            for position, (_, number) in enumerate(sorted(waiting), self.promoted[rung] + 1):
                if trials[number].state == PAUSED:
                    why = f"{self.label}rung {rung}: {rungs.ordinal(position)} of {self.began}"
                    self.procedure._stop(trials[number], why)
            waiting.clear()
            self.began = self.promoted[rung]
            missing = self.sizes[rung + 1] - self.promoted[rung]
            if missing:  # lost trials have left too few
                self.pending[rung + 1] -= missing
                self._decide(rung + 1)
        self._rung_ended(rung)

    def _promote(self, trial: Trial, rung: int) -> None:
        self.procedure._propose(trial, self.levels[rung])

    def _rung_ended(self, rung: int) -> None:
        """All trials of a rung have arrived or are lost."""

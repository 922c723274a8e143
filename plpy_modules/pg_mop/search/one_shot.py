"""One-shot search: all members of a model space are trained as one net with shared weights, ranked by these, and the best ones
trained from scratch (Bender et al.: "Understanding and Simplifying One-Shot Architecture Search", ICML 2018; the paths of
training: Guo et al.: "Single Path One-Shot Neural Architecture Search with Uniform Sampling", ECCV 2020)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

from pg_mop.search.base import ENDED, MOST_ITERATIONS, RUNNING, Procedure, Trial, TrialNumber
from pg_mop.search.fixed_budget import ITERATIONS
from pg_mop.search.parameters import SearchError, integer
from pg_mop.search.space import ParameterSet, Space
from pg_mop.spaces import SpaceError

TRIES = 20  # draws for each candidate


class OneShot(Procedure):
    """A super-net of each base model is trained for `iterations`, as a trial. Then up to `candidates` random members have
    scores: the metric that they reach with its weights. The `retrain` best ones are trials of their own, from scratch.

    A score is told by `take_scores_of_members`, never as a trial's metric: it says which members to train, not how good they
    are.
    """

    name = "one-shot"
    PARAMETERS = {
        "iterations": ITERATIONS,
        "candidates": integer(1, 10_000, 100, "random members that have scores"),
        "retrain": integer(0, 1000, 3, "best members by score, which are trained from scratch"),
        "retrain_iterations": integer(1, MOST_ITERATIONS, None, "of these; not given: as many as of the super-net"),
    }

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        if space.models is None:
            raise SearchError("one-shot trains the members of a model space", "mop_search(..., model_space => 'space')")
        self.models = space.models
        _check_single(space)
        try:
            self.nets = self.models.super_nets()
        except SpaceError as error:
            raise SearchError(str(error), error.hint) from None
        self.retrain_iterations: int = self.settings.retrain_iterations or self.settings.iterations
        self.scores: dict[
            TrialNumber, dict[int, float | None]
        ] = {}  # super-net's trial -> {model_id of a member: value}
        self.ranked: list[tuple[int, float]] = []  # (model_id, value) of all members with a score, the best first
        self.retrained: dict[int, TrialNumber] = {}  # model_id -> its own trial
        self._candidates: dict[int, list[int]] | None = None
        self._asked = False  # the best members have been proposed

    @property
    def most(self) -> int:
        return max(self.settings.iterations, self.retrain_iterations)

    def add(self, configuration: ParameterSet, budget: int | None = None) -> TrialNumber:
        if configuration[0] in self.nets:
            raise SearchError(f"model_id {configuration[0]} is a super-net, and no model of its own")
        return super().add(configuration, budget)

    def lineage(self, trial: TrialNumber) -> dict[str, Any] | None:
        data = self.trials[trial].data
        return {"one_shot": data} if isinstance(data, dict) else None

    def candidates(self, trial: TrialNumber) -> list[int] | None:
        own = self.trials[trial].data
        if not isinstance(own, int):
            return None
        if self._candidates is None:
            self._candidates = self._drawn()
        return self._candidates[own]

    def _drawn(self) -> dict[int, list[int]]:
        """{model_id of a super-net: its members that have scores}: all of a small space, else random ones, each once."""
        found: dict[int, dict[int, None]] = {number: {} for number in self.nets}
        of_base = {net.model_id: number for number, net in self.nets.items()}
        models, wanted, random = self.models, self.settings.candidates, Random(f"one-shot {self.seed}")
        places = models.places() if models.size <= wanted else None
        for _ in range(models.size if places is not None else TRIES * wanted):
            place = next(places) if places is not None else self.space.sample(random)
            model_id = models.model_id(place)
            if model_id is None:
                continue
            # (equal members of two base models are one: the first that was made counts)
            made = models.by_id.get(model_id)
            base = models.base.value(place[models.base.name]) if made is None else made.model_id
            found[of_base[base]][model_id] = None
            if sum(map(len, found.values())) == wanted:
                break
        return {number: list(own) for number, own in found.items()}

    def take_scores_of_members(self, trial: TrialNumber, scores: Mapping[int, float | None]) -> None:
        self._start()
        known = self._trial(trial)
        if known.state != RUNNING or not isinstance(known.data, int):
            return
        self.candidates(trial)  # (a search that is resumed makes its members again)
        self.scores[trial] = dict(scores)
        known.at, known.state = known.budget, ENDED
        self._running -= 1
        self._settle()

    def _begin(self) -> None:
        _, *parameters = self.space.configuration(self.space.sample(Random(0)))
        self.parameters = parameters[0], parameters[1]
        for number in self.nets:
            trial = self._new(ParameterSet(number, *self.parameters))
            trial.data = number
            self._propose(trial, self.settings.iterations)

    def _evaluates(self, trial: Trial) -> Collection[int]:
        return () if isinstance(trial.data, int) else (trial.budget,)

    def _on_budget(self, trial: Trial) -> None:
        pass

    def _on_lost(self, trial: Trial) -> None:
        pass

    def _on_idle(self) -> None:
        if self._asked:
            return
        self._asked = True
        found = {
            model_id: value for own in self.scores.values() for model_id, value in own.items() if value is not None
        }
        finite = [(model_id, value) for model_id, value in found.items() if math.isfinite(value)]
        self.ranked = sorted(finite, key=lambda pair: self._loss(pair[1]))
        for rank, (model_id, value) in enumerate(self.ranked[: self.settings.retrain], 1):
            trial = self._new(ParameterSet(model_id, *self.parameters))
            trial.data = {"rank": rank, "score": value}
            self.retrained[model_id] = trial.number
            self._propose(trial, self.retrain_iterations)


def _check_single(space: Space) -> None:
    """Raises SearchError where a hyper-parameter has several values."""
    several = next((d for branch in space.branches for d in branch.dimensions[1:] if d.open), None)
    if several is not None or len(space.branches) > 1:
        what = "several dictionaries or optimizers" if several is None else f"several values of {several.key!r}"
        raise SearchError(
            f"one-shot takes one value of each hyper-parameter, and the space has {what}",
            "The super-net has one optimizer for all members. Search the hyper-parameters of the best members afterwards.",
        )

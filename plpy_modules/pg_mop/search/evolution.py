"""Regularized evolution (Real, Aggarwal, Huang, Le: "Regularized Evolution for Image Classifier Architecture Search", AAAI
2019, algorithm 1), over models and hyper-parameters."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from pg_mop.search.base import STOPPED, Procedure, Trial, TrialNumber
from pg_mop.search.fixed_budget import ITERATIONS
from pg_mop.search.parameters import MOST_TRIALS, SearchError, integer, is_on, switch
from pg_mop.search.random_sampler import RandomSampler
from pg_mop.search.space import Point, Space

TRIES = 100  # mutations of parents until one is a new configuration that fits together


class Evolution(Procedure):
    """`population` random trials begin. Then each finished trial makes room for a child: of `tournament` random members of the
    population, the best is the parent, and the child differs from it in one random choice. The child joins the population when
    it has finished, and the oldest member leaves it, however good it is (aging).

    A child trains from its own start, or, with `inherit`, from what fits of its parent's trained weights. A choice that a
    mutation opens (of a layer that the parent lacks) is random; a mutated number is drawn anew. Final results of an earlier
    search are its first members.
    """

    name = "regularized-evolution"
    PARAMETERS = {
        "population": integer(2, 10_000, 20, "members; the first ones are random"),
        "tournament": integer(1, 10_000, 5, "random members whose best is the parent of a child"),
        "iterations": ITERATIONS,
        "trials": integer(2, MOST_TRIALS, 100, "trials in all"),
        "parallel": integer(1, MOST_TRIALS, 8, "trials that train at a time"),
        "inherit": switch("off", "children begin with their parents' trained weights"),
    }

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        self.dimensions = space.dimensions
        if self.settings.tournament > self.settings.population:
            raise SearchError(
                f"tournament must be at most population, {self.settings.population}, not {self.settings.tournament}"
            )
        self.sampler = RandomSampler(space, seed)
        self.random = Random(f"evolve {seed}")
        # (loss, trial or None of an earlier search, its point), the oldest first
        self.population: deque[tuple[float, TrialNumber | None, Point]] = deque(maxlen=self.settings.population)
        self.first = self.settings.population  # random trials that are left to begin
        self.left = self.settings.trials

    @property
    def most(self) -> int:
        return self.settings.iterations

    def lineage(self, trial: TrialNumber) -> dict[str, Any] | None:
        found = self.trials[trial].data
        return None if found is None else found[1]

    def _begin(self) -> None:
        final = [(c, losses[max(losses)]) for c, losses in self.known if max(losses) >= self.most]
        for configuration, loss in reversed(final[: self.settings.population]):  # the best one is the youngest
            point = self.space.locate(configuration)
            if point is not None:
                self.population.append((loss, None, point))
                self.first -= 1
        for configuration, _ in final:
            self.sampler.claim(configuration)
        self._fill()

    def _fill(self) -> None:
        """Begin trials until `parallel` of them run."""
        while self.left and self._running < self.settings.parallel:
            lineage: dict[str, Any] | None = None
            if self.first > 0 or not self.population and not self._running:
                point = self.sampler.ask(None)
                self.first -= 1
            elif self.population:
                point, lineage = self._child()
                if point is None:
                    point = self.sampler.ask(None)
            else:
                return  # no result yet
            if point is None:
                self.left = 0
                return
            self.left -= 1
            trial = self._new(self.space.configuration(point))
            trial.data = point, lineage
            self._propose(trial, self.most)

    def _child(self) -> tuple[Point | None, dict[str, Any] | None]:
        """A new point, one mutation from the best of a tournament, and its lineage; None where none is found."""
        for _ in range(TRIES):
            members = self.random.sample(list(self.population), min(self.settings.tournament, len(self.population)))
            _, parent, point = min(members, key=lambda member: member[0])
            names = [name for name in point if self.dimensions[name].open]
            if not names:
                break
            name = self.random.choice(names)
            child = self.space.mutated(point, name, self.random)
            if self.sampler.claim(self.space.configuration(child)):
                label, before = self.space.told(name, point[name])
                after = self.space.told(name, child[name])[1]
                lineage = {"parent": parent, "changed": label, "before": before, "after": after}
                return child, {**lineage, "inherits": True} if is_on(self.settings.inherit) else lineage
        return None, None

    def _on_budget(self, trial: Trial) -> None:
        # (a trial that its own rule stops has a result, too)
        self.population.append((trial.loss, trial.number, trial.data[0]))
        self._fill()

    def _on_lost(self, trial: Trial) -> None:
        if trial.state == STOPPED and trial.at:  # a person has stopped it after a result
            self.population.append((trial.loss, trial.number, trial.data[0]))
        self._fill()

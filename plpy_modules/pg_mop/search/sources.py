"""Where configurations come from: the grid in its order, at random, or a sampler that learns."""

from abc import ABC, abstractmethod
from random import Random

from pg_mop.search.base import SearchError, choice

MOST_TRIES = 1000  # random draws in a row that give nothing new
MOST_LISTED = 1_000_000  # configurations of a space of which those that are left are listed

SAMPLERS = ("random", "grid", "tpe", "cmaes")
SAMPLER = choice(SAMPLERS, "random", "where configurations come from: random, grid (in order), tpe or cmaes")


class Source(ABC):
    """Draws configurations of a space, each once, and may learn from what became of them."""

    def __init__(self, space, seed):
        self.space, self.random = space, Random(seed)
        self.drawn = set()

    @abstractmethod
    def draw(self, trial):
        """The point of a configuration that was not drawn yet, for the trial of that number; None: there is none."""

    def take(self, configuration):
        """A configuration that comes from elsewhere is drawn: False where it was already."""
        new = configuration not in self.drawn
        self.drawn.add(configuration)
        return new

    def told(self, trial, budget, loss):  # noqa: B027 (few learn)
        """A drawn trial's loss after `budget` iterations."""

    def lost(self, trial, failed):  # noqa: B027
        """A drawn trial of which no more will be told: it failed, or it was stopped."""

    def knows(self, configuration, budget, loss):  # noqa: B027
        """What somebody else found out about a configuration."""

    def goes_on(self, trial, configuration):  # noqa: B027
        """The trial of that number, which was not drawn, goes on with a configuration that somebody else has begun."""


class InOrder(Source):
    """The grid, in its order."""

    def __init__(self, space, seed):
        super().__init__(space, seed)
        self.points = space.points()
        self.ahead = next(self.points, None)  # raises GridError where there is no grid

    def draw(self, trial):
        while self.ahead is not None:
            point, self.ahead = self.ahead, next(self.points, None)
            if self.take(self.space.configuration(point)):
                return point
        return None


class AtRandom(Source):
    """Points at random, without replacement."""

    def __init__(self, space, seed):
        super().__init__(space, seed)
        self.left = None  # where most are drawn: the others, shuffled

    def draw(self, trial):
        if self.left is None:
            for _ in range(MOST_TRIES):
                point = self.space.sample(self.random)
                if self.take(self.space.configuration(point)):
                    return point
            self.left = []
            if self.space.size is not None and self.space.size <= MOST_LISTED:
                self.left = [p for p in self.space.points() if self.space.configuration(p) not in self.drawn]
                self.random.shuffle(self.left)
        while self.left:
            point = self.left.pop()
            if self.take(self.space.configuration(point)):
                return point
        return None


def source(sampler, space, seed, budgets=False):
    """The Source of that name; `budgets`: losses of several are told. Raises SearchError, and GridError where the space
    does not serve."""
    if sampler == "grid":
        return InOrder(space, seed)
    if sampler == "random":
        return AtRandom(space, seed)
    if sampler not in SAMPLERS:
        raise SearchError(f"there is no sampler {sampler!r} ({', '.join(SAMPLERS)})")
    if sampler == "tpe" and budgets:
        from pg_mop.search.densities import Densities

        return Densities(space, seed)
    from pg_mop.search.optuna_sampler import OptunaSampler  # imports Optuna

    return OptunaSampler(space, seed, sampler)

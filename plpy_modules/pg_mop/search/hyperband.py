"""Hyperband (Li et al.: "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18, 2018)."""

from typing import Any, NamedTuple

from pg_mop.search import rungs
from pg_mop.search.parameters import SearchError, integer
from pg_mop.search.sampler import Sampler
from pg_mop.search.samplers import SAMPLER_OF_BRACKETS, create_sampler
from pg_mop.search.space import Space
from pg_mop.search.successive_halving import MOST, REDUCTION, Bracket, Halving

SKIP_LAST = integer(0, 30, 0, "rungs to leave out at the top of every bracket")


class BracketPlan(NamedTuple):
    """A bracket that has not begun."""

    s: int
    trials: int
    levels: list[int]  # iterations of the rungs


def schedule(most: int, reduction: int, skip_last: int = 0, madlib: bool = False) -> list[tuple[int, int, int, int]]:
    """[(s, i, n_i, r_i)]: the trials and the iterations of rung i in bracket s; s from s_max down to skip_last.

    s_max = floor(log_reduction(most)), in integers. Algorithm 1 of the paper: n = ceil((s_max + 1) / (s + 1) *
    reduction**s); MADlib: floor((s_max + 1) / (s + 1)) * reduction**s. r_i is rounded half up. Raises ValueError where
    skip_last is larger than s_max.
    """
    highest = 0
    while reduction ** (highest + 1) <= most:
        highest += 1
    if skip_last > highest:
        raise ValueError(f"skip_last must be at most {highest}, not {skip_last}")
    rows = []
    for s in range(highest, skip_last - 1, -1):
        n = (highest + 1) // (s + 1) * reduction**s if madlib else -(-(highest + 1) * reduction**s // (s + 1))
        rows += [
            (s, i, n // reduction**i, rungs.rounded(most * reduction**i, reduction**s))
            for i in range(s - skip_last + 1)
        ]
    return rows


class Hyperband(Halving):
    """One successive halving for each bracket: from many trials that are compared early to few that train to the end.

    The brackets train side by side. Where the space has fewer configurations than all brackets take, each bracket gets
    its share.
    """

    name = "hyperband"
    PARAMETERS = {"iterations": MOST, "reduction": REDUCTION, "skip_last": SKIP_LAST, "sampler": SAMPLER_OF_BRACKETS}
    madlib = False
    bracket_type: type[Bracket] = Bracket

    def __init__(self, space: Space, seed: int, goal: str = "min", **parameters: Any) -> None:
        super().__init__(space, seed, goal, **parameters)
        given = self.settings
        try:
            rows = schedule(given.iterations, given.reduction, given.skip_last, self.madlib)
        except ValueError as error:
            raise SearchError(f"{self.name}: {error}") from None
        self.plans: list[BracketPlan] = []  # the next one last
        for s in sorted({row[0] for row in rows}):
            bracket_rows = [row for row in rows if row[0] == s]
            self.plans.append(BracketPlan(s, bracket_rows[0][2], [r for *_, r in bracket_rows]))
        self.longest = max(plan.levels[-1] for plan in self.plans)
        self.sampler = self._make_sampler()

    def _make_sampler(self) -> Sampler:
        return create_sampler(self.settings.sampler, self.space, self.seed)

    @property
    def most(self) -> int:
        return self.longest

    def _begin(self) -> None:
        self._adopt({r for plan in self.plans for r in plan.levels})
        self._share()
        while self.plans:
            self._begin_bracket()

    def _share(self) -> None:
        """Reduce the brackets to the configurations of the space."""
        total, size = sum(plan.trials for plan in self.plans), self.space.size
        if size is not None and size < total:
            self.plans = [BracketPlan(s, max(1, n * size // total), levels) for s, n, levels in self.plans]

    def _begin_bracket(self) -> None:
        s, trials, levels = self.plans.pop()
        bracket = self.bracket_type(self, levels, self.settings.reduction, f"bracket {s}, ")
        bracket.begin(self._sample(bracket, trials))

"""Hyperband (Li et al.: "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18, 2018)."""

from pg_mop.search import rungs, sources
from pg_mop.search.base import SearchError, whole
from pg_mop.search.successive_halving import MOST, REDUCTION, SOURCE, Bracket, Halving

SKIP_LAST = whole(0, 30, 0, "rungs to leave out at the top of every bracket")


def schedule(most, reduction, skip_last=0, madlib=False):
    """[(s, i, n_i, r_i)]: of bracket s, rung i, the trials and the iterations; s from s_max down to skip_last.

    s_max = floor(log_reduction(most)), in integers. Algorithm 1 of the paper: n = ceil((s_max + 1) / (s + 1) *
    reduction**s); MADlib: floor((s_max + 1) / (s + 1)) * reduction**s. r_i is rounded half up. Raises ValueError.
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
    """A successive halving for each bracket, from many trials that are compared early to few that train to the end.

    The brackets train side by side. Where the space has fewer configurations than the brackets together take, each
    bracket takes its share.
    """

    name = "hyperband"
    PARAMETERS = {"iterations": MOST, "reduction": REDUCTION, "skip_last": SKIP_LAST, "sampler": SOURCE}
    madlib = False
    Bracket = Bracket

    def __init__(self, space, seed, goal="min", **parameters):
        super().__init__(space, seed, goal, **parameters)
        given = self.settings
        try:
            rows = schedule(given.iterations, given.reduction, given.skip_last, self.madlib)
        except ValueError as error:
            raise SearchError(f"{self.name}: {error}") from None
        self.plans = []  # (s, trials, iterations of the rungs), the next one last
        for s in sorted({row[0] for row in rows}):
            own = [row for row in rows if row[0] == s]
            self.plans.append((s, own[0][2], [r for *_, r in own]))
        self.longest = max(levels[-1] for _, _, levels in self.plans)
        self.source = self._source()

    def _source(self):
        return sources.source(self.settings.sampler, self.space, self.seed)

    @property
    def most(self):
        return self.longest

    def _begin(self):
        self._adopt({r for *_, levels in self.plans for r in levels})
        self._share()
        while self.plans:
            self._begin_bracket()

    def _share(self):
        total = sum(n for _, n, _ in self.plans)
        if self.space.size is not None and self.space.size < total:
            self.plans = [(s, max(1, n * self.space.size // total), levels) for s, n, levels in self.plans]

    def _begin_bracket(self):
        s, trials, levels = self.plans.pop()
        bracket = self.Bracket(self, levels, self.settings.reduction, f"bracket {s}, ")
        bracket.begin(self._draw(bracket, trials))

"""BOHB (Falkner, Klein, Hutter: "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018)."""

from pg_mop.search import sources
from pg_mop.search.base import number
from pg_mop.search.hyperband import SKIP_LAST, Hyperband
from pg_mop.search.successive_halving import MOST, REDUCTION, Bracket


class Staged(Bracket):
    """A bracket after which the next one begins."""

    def _over(self, rung):
        if rung == 0 and self.procedure.plans:
            self.procedure._begin_bracket()


class Bohb(Hyperband):
    """Hyperband whose configurations TPE proposes, from the results at the largest budget that has enough of them.

    Enough are the space's dimensions + 3 (N_min + 2 in the paper, N_min = dimensions + 1); a share of the proposals
    stays random. A bracket begins when the first rung of the one before has ended, so that there is something to learn
    from. TPE is Optuna's: of each dimension by itself, where BOHB's looks at all of them together.
    """

    name = "bohb"
    PARAMETERS = {"iterations": MOST, "reduction": REDUCTION, "skip_last": SKIP_LAST,
                  "at_random": number(0, 1, 1 / 3, "share of the configurations that are drawn at random")}
    Bracket = Staged

    def _source(self):
        dimensions = max(sum(d.open for d in branch.dimensions) for branch in self.space.branches)
        dimensions += self.space.branch.open
        return sources.source("tpe", self.space, self.seed, at_random=self.settings.at_random, enough=dimensions + 3)

    def _begin(self):
        self._adopt({r for *_, levels in self.plans for r in levels})
        self._share()
        self._begin_bracket()

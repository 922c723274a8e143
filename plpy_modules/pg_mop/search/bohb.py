"""BOHB (Falkner, Klein, Hutter: "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018)."""

from pg_mop.search import densities
from pg_mop.search.base import number
from pg_mop.search.hyperband import SKIP_LAST, Hyperband
from pg_mop.search.successive_halving import MOST, REDUCTION, Bracket


class Staged(Bracket):
    """A bracket after which the next one begins."""

    def _over(self, rung):
        if rung == 0 and self.procedure.plans:
            self.procedure._begin_bracket()


class Bohb(Hyperband):
    """Hyperband whose configurations a model proposes that is made of all results so far (`densities.py`); a share of
    them stays random.

    A bracket begins when the first rung of the one before has ended, so that there is something to learn from.
    """

    name = "bohb"
    PARAMETERS = {
        "iterations": MOST,
        "reduction": REDUCTION,
        "skip_last": SKIP_LAST,
        "at_random": number(0, 1, densities.AT_RANDOM, "share of the configurations drawn at random"),
    }
    Bracket = Staged

    def _source(self):
        return densities.Densities(self.space, self.seed, self.settings.at_random)

    def _begin(self):
        self._adopt({r for *_, levels in self.plans for r in levels})
        self._share()
        self._begin_bracket()

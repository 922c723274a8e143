"""BOHB (Falkner, Klein, Hutter: "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018)."""

from typing import cast

from pg_mop.search.hyperband import SKIP_LAST, Hyperband
from pg_mop.search.kernel_density import AT_RANDOM, KdeSampler
from pg_mop.search.parameters import number
from pg_mop.search.sampler import Sampler
from pg_mop.search.successive_halving import MOST, REDUCTION, Bracket


class SequentialBracket(Bracket):
    """A bracket whose first rung ends before the next bracket begins."""

    def _rung_ended(self, rung: int) -> None:
        procedure = cast(Bohb, self.procedure)
        if rung == 0 and procedure.plans:
            procedure._begin_bracket()


class Bohb(Hyperband):
    """Hyperband with configurations from a model of all results so far (`kernel_density.py`); a share stays random.

    A bracket begins when the first rung of the previous one has ended, so that the model has results to learn from.
    """

    name = "bohb"
    PARAMETERS = {
        "iterations": MOST,
        "reduction": REDUCTION,
        "skip_last": SKIP_LAST,
        "at_random": number(0, 1, AT_RANDOM, "share of the configurations drawn at random"),
    }
    bracket_type = SequentialBracket

    def _make_sampler(self) -> Sampler:
        return KdeSampler(self.space, self.seed, self.settings.at_random)

    def _begin(self) -> None:
        self._adopt({r for plan in self.plans for r in plan.levels})
        self._share()
        self._begin_bracket()

"""Samplers by Optuna, imported only where somebody wants one (Akiba et al., KDD 2019)."""

import math
import sys
import warnings

import mop_udf
from pg_mop.search.base import SearchError
from pg_mop.search.sources import AtRandom

PACKAGES = {"tpe": "optuna", "cmaes": "cmaes"}
TRIES = 10  # of the sampler for a configuration that is new; then one at random


class OptunaSampler(AtRandom):
    """Points that a sampler of Optuna proposes, each once.

    There is a study in memory for every budget for which losses are told, and the largest one with enough of them
    proposes: the model of BOHB (Falkner, Klein, Hutter: "BOHB: Robust and Efficient Hyperparameter Optimization at
    Scale", ICML 2018, section 3.3), with Optuna's TPE in place of BOHB's multivariate one. A proposal whose loss is not
    told yet counts as a bad one (constant liar), so that those that train together differ.
    Of 1,000 trials TPE takes some 20 ms for a proposal, of 3,000 some 50 ms.
    """

    def __init__(self, space, seed, sampler, at_random=0.0, enough=0):
        """`at_random`: share of the proposals that is drawn at random; `enough`: losses that a budget's model
        needs (0: there is one budget, 0)."""
        super().__init__(space, seed)
        for package in ("optuna", PACKAGES[sampler]):
            _import(package, sampler)
        self.optuna = sys.modules["optuna"]
        self.sampler, self.at_random, self.enough, self.seed = sampler, at_random, enough, seed
        self.studies = {}  # budget -> Optuna's study
        self.counts = {}   # budget -> losses in it
        self.pending = {}  # trial's number -> (budget of the study that proposed it or None, Optuna's trial)
        self.points = {}   # trial's number -> point

    def draw(self, trial):
        budget = max((b for b, n in self.counts.items() if n >= self.enough), default=None)
        modelled = self.random.random() >= self.at_random
        if budget is None and not self.enough:
            budget = 0  # one for all: its sampler begins at random by itself
        if modelled and budget is not None:
            for _ in range(TRIES):
                study = self._study(budget)
                asked = study.ask()
                point = self.space.walk(lambda dimension, asked=asked: _suggest(asked, dimension))
                if self.take(self.space.configuration(point)):
                    self.pending[trial], self.points[trial] = (budget, asked), point
                    return point
                study.tell(asked, state=self.optuna.trial.TrialState.FAIL)
        point = super().draw(trial)
        if point is not None:
            self.points[trial] = point
        return point

    def told(self, trial, budget, loss):
        proposed, asked = self.pending.pop(trial, (None, None))
        if asked is not None and proposed == budget:
            self._study(budget).tell(asked, loss)
            self.counts[budget] = self.counts.get(budget, 0) + 1
            return
        if asked is not None:
            self._study(proposed).tell(asked, state=self.optuna.trial.TrialState.FAIL)
        if trial in self.points:
            self._add(self.points[trial], budget, loss)

    def lost(self, trial, failed):
        proposed, asked = self.pending.pop(trial, (None, None))
        if asked is None:
            return
        if failed and self.sampler == "tpe":
            self._study(proposed).tell(asked, math.inf)  # not there again
        else:
            self._study(proposed).tell(asked, state=self.optuna.trial.TrialState.FAIL)

    def knows(self, configuration, budget, loss):
        point = self.space.locate(configuration)
        if point is not None:
            self._add(point, budget, loss)

    def _add(self, point, budget, loss):
        distributions, values = {}, {}
        self.space.walk(lambda d: _describe(self.optuna, d, point[d.name], distributions, values))
        self._study(budget).add_trial(self.optuna.trial.create_trial(
            params=values, distributions=distributions, value=loss))
        self.counts[budget] = self.counts.get(budget, 0) + 1

    def _study(self, budget):
        if budget not in self.studies:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna's remarks on what is experimental
                self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
                samplers, seed = self.optuna.samplers, self.seed % 2**31 + len(self.studies)
                if self.sampler == "tpe":
                    made = samplers.TPESampler(seed=seed, constant_liar=True, **(
                        {"n_startup_trials": self.enough} if self.enough else {}))
                else:
                    made = samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
                self.studies[budget] = self.optuna.create_study(sampler=made)
        return self.studies[budget]


def _import(package, sampler):
    from pg_mop import arrays  # (numpy is not for every search)
    try:
        arrays.import_whole(package)
    except ImportError:
        raise SearchError(f"the sampler {sampler!r} needs the Python package {package}",
                          f"Install it: {mop_udf.home}/bin/pip install {package}") from None


def _suggest(asked, dimension):
    """The coordinate that Optuna's trial suggests for the dimension."""
    if dimension.kind is None:
        return asked.suggest_categorical(dimension.name, list(range(len(dimension.choices)))) if dimension.open else 0
    low, high, log = _range(dimension)
    if dimension.whole:
        return asked.suggest_int(dimension.name, low, high, log=log)
    value = asked.suggest_float(dimension.name, low, high, log=log)
    return 1 - value if dimension.kind == "log_near_one" else value


def _describe(optuna, dimension, coordinate, distributions, values):
    """Write down what Optuna would have suggested for the coordinate; returns the coordinate."""
    if dimension.kind is None:
        if dimension.open:
            distributions[dimension.name] = optuna.distributions.CategoricalDistribution(
                list(range(len(dimension.choices))))
            values[dimension.name] = coordinate
        return coordinate
    low, high, log = _range(dimension)
    kind = optuna.distributions.IntDistribution if dimension.whole else optuna.distributions.FloatDistribution
    distributions[dimension.name] = kind(low, high, log=log)
    mirrored = dimension.kind == "log_near_one" and not dimension.whole
    values[dimension.name] = min(max(1 - coordinate, low), high) if mirrored else coordinate
    return coordinate


def _range(dimension):
    """(low, high, log) of a distribution for Optuna: `log_near_one` by its distance from one."""
    if dimension.whole:
        low, high = math.ceil(dimension.low), math.floor(dimension.high)
        return low, high, dimension.kind == "log" and low >= 1
    if dimension.kind == "log_near_one":
        return 1 - dimension.high, 1 - dimension.low, True
    return float(dimension.low), float(dimension.high), dimension.kind == "log"

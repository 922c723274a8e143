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
    """Points that a sampler of Optuna proposes, each once, for trials that can be compared by the first loss that is
    told of each: whatever comes later of a trial it does not see.

    (CMA-ES compares the trials of a generation, which it has proposed itself: within ASHA at the first rung, the only
    one that all of them reach.)
    A proposal whose loss is not told yet counts as a bad one (constant liar), so that those that train together differ.
    Of 1,000 trials TPE takes some 20 ms for a proposal, of 3,000 some 50 ms.
    """

    def __init__(self, space, seed, sampler):
        super().__init__(space, seed)
        for package in ("optuna", PACKAGES[sampler]):
            _import(package, sampler)
        self.optuna = sys.modules["optuna"]
        self.sampler = sampler
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna's remarks on what is experimental
            self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
            samplers, seed = self.optuna.samplers, seed % 2**31
            self.study = self.optuna.create_study(
                sampler=samplers.TPESampler(seed=seed, constant_liar=True)
                if sampler == "tpe"
                else samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
            )
        self.count = 0  # losses in it
        self.pending = {}  # number of a trial that the study has proposed -> Optuna's trial
        self.points = {}  # number of one drawn at random -> its point
        self.known = set()

    def draw(self, trial):
        for _ in range(TRIES):
            asked = self.study.ask()
            point = self.space.walk(lambda dimension, asked=asked: _suggest(asked, dimension))
            if self.take(self.space.configuration(point)):
                self.pending[trial] = asked
                return point
            self.study.tell(asked, state=self.optuna.trial.TrialState.FAIL)
        point = super().draw(trial)
        if point is not None:
            self.points[trial] = point
        return point

    def told(self, trial, budget, loss):
        if trial in self.pending:
            self.study.tell(self.pending.pop(trial), loss)
            self.count += 1
        elif trial in self.points:
            self._add(self.points.pop(trial), loss)

    def lost(self, trial, failed):
        self.points.pop(trial, None)
        if (asked := self.pending.pop(trial, None)) is None:
            return
        if failed and self.sampler == "tpe":
            self.study.tell(asked, math.inf)  # not there again
        else:
            self.study.tell(asked, state=self.optuna.trial.TrialState.FAIL)

    def knows(self, configuration, budget, loss):
        point = self.space.locate(configuration)
        if point is not None and configuration not in self.known:
            self.known.add(configuration)
            self._add(point, loss)

    def _add(self, point, loss):
        distributions, values = {}, {}
        self.space.walk(lambda d: _describe(self.optuna, d, point[d.name], distributions, values))
        self.study.add_trial(self.optuna.trial.create_trial(params=values, distributions=distributions, value=loss))
        self.count += 1


def _import(package, sampler):
    from pg_mop.backend import arrays  # (numpy is not for every search)

    try:
        arrays.import_whole(package)
    except ImportError:
        raise SearchError(
            f"the sampler {sampler!r} needs the Python package {package}",
            f"Install it: {mop_udf.home}/bin/pip install {package}",
        ) from None


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
                list(range(len(dimension.choices)))
            )
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

"""Optuna's samplers (Akiba et al., KDD 2019). Optuna is imported when such a sampler is made."""

import math
import sys
import warnings
from typing import Any

import mop_udf
from pg_mop.search.parameters import SearchError
from pg_mop.search.random_sampler import RandomSampler
from pg_mop.search.space import Coordinate, Dimension, ParameterSet, Point, Space

PACKAGES = {"tpe": "optuna", "cmaes": "cmaes"}
TRIES = 10  # proposals of Optuna's sampler until one is new; then a random one


class OptunaSampler(RandomSampler):
    """Proposes the points of a sampler of Optuna, each once. Only the first loss of each trial counts: trials must be
    comparable by it.

    (CMA-ES compares the trials of a generation that it has proposed itself: within ASHA, at the first rung, the only
    rung that all of them reach.)
    A proposal without a loss counts as a bad one (constant liar), so that trials that run at the same time differ. With
    1,000 trials, a proposal of TPE takes about 20 ms; with 3,000, about 50 ms.
    """

    def __init__(self, space: Space, seed: int, name: str) -> None:
        """`name`: 'tpe' or 'cmaes'. Raises SearchError where a package is not installed."""
        super().__init__(space, seed)
        for package in ("optuna", PACKAGES[name]):
            _import(package, name)
        self.optuna: Any = sys.modules["optuna"]
        self.name = name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna's warnings of experimental features
            self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
            samplers, seed = self.optuna.samplers, seed % 2**31
            self.study = self.optuna.create_study(
                sampler=samplers.TPESampler(seed=seed, constant_liar=True)
                if name == "tpe"
                else samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
            )
        self.count = 0  # losses that the study has
        self.pending: dict[int, Any] = {}  # trial that the study has proposed -> Optuna's trial
        self.points: dict[int, Point] = {}  # points of random trials without a loss
        self.known: set[ParameterSet] = set()

    def ask(self, trial: int | None) -> Point | None:
        for _ in range(TRIES):
            asked = self.study.ask()
            point = self.space.walk(lambda dimension, asked=asked: _suggest(asked, dimension))  # type: ignore[misc]
            if self.claim(self.space.configuration(point)):
                if trial is not None:
                    self.pending[trial] = asked
                return point
            self.study.tell(asked, state=self.optuna.trial.TrialState.FAIL)
        random_point = super().ask(trial)
        if random_point is not None and trial is not None:
            self.points[trial] = random_point
        return random_point

    def tell(self, trial: int, budget: int, loss: float) -> None:
        if trial in self.pending:
            self.study.tell(self.pending.pop(trial), loss)
            self.count += 1
        elif trial in self.points:
            self._add(self.points.pop(trial), loss)

    def tell_lost(self, trial: int, failed: bool) -> None:
        self.points.pop(trial, None)
        if (asked := self.pending.pop(trial, None)) is None:
            return
        if failed and self.name == "tpe":
            self.study.tell(asked, math.inf)  # keeps proposals away from that point
        else:
            self.study.tell(asked, state=self.optuna.trial.TrialState.FAIL)

    def add_result(self, configuration: ParameterSet, budget: int, loss: float) -> None:
        point = self.space.locate(configuration)
        if point is not None and configuration not in self.known:
            self.known.add(configuration)
            self._add(point, loss)

    def _add(self, point: Point, loss: float) -> None:
        distributions: dict[str, Any] = {}
        values: dict[str, Coordinate] = {}
        self.space.walk(lambda d: _describe(self.optuna, d, point[d.name], distributions, values))
        self.study.add_trial(self.optuna.trial.create_trial(params=values, distributions=distributions, value=loss))
        self.count += 1


def _import(package: str, sampler: str) -> None:
    from pg_mop.backend import arrays  # (imports numpy, which most searches do without)

    try:
        arrays.import_whole(package)
    except ImportError:
        raise SearchError(
            f"the sampler {sampler!r} needs the Python package {package}",
            f"Install it: {mop_udf.home}/bin/pip install {package}",
        ) from None


def _suggest(asked: Any, dimension: Dimension) -> Coordinate:
    """The coordinate that Optuna's trial suggests for the dimension."""
    if dimension.kind is None:
        return asked.suggest_categorical(dimension.name, list(range(len(dimension.choices)))) if dimension.open else 0
    low, high, log = _range(dimension)
    if dimension.whole:
        return asked.suggest_int(dimension.name, low, high, log=log)
    value = asked.suggest_float(dimension.name, low, high, log=log)
    return 1 - value if dimension.kind == "log_near_one" else value


def _describe(
    optuna: Any,
    dimension: Dimension,
    coordinate: Coordinate,
    distributions: dict[str, Any],
    values: dict[str, Coordinate],
) -> Coordinate:
    """Add the distribution and the value that Optuna would have for the coordinate. Returns the coordinate."""
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


def _range(dimension: Dimension) -> tuple[float, float, bool]:
    """(low, high, log) of a distribution for Optuna; `log_near_one` by the distance from 1."""
    if dimension.whole:
        low, high = math.ceil(dimension.low), math.floor(dimension.high)
        return low, high, dimension.kind == "log" and low >= 1
    if dimension.kind == "log_near_one":
        return 1 - dimension.high, 1 - dimension.low, True
    return float(dimension.low), float(dimension.high), dimension.kind == "log"

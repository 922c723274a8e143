"""Boosted trees by LightGBM, where it is installed: trials with early stopping, searched within a given time. Runs in the
trainer.

A trial's result is LightGBM's text, which the backend reads by a reader of its own (pg_mop/inference/trees.py).
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LEAST_TRIALS = 8  # of a table with few validation rows
VALID_ROWS_PER_TRIAL = 5  # with few validation rows, the best of many trials is the luckiest
LEAST_SECONDS = 0.5  # of the first trial
NEXT = 0.25  # share of the time that a trial after the first may take; what is left, if the first needs more, is too little
VAIN = 20  # trials without a better one, after which the search ends
BETTER = 1e-4  # share by which a better loss is lower
ROUNDS = 2000
SMALL, SMALL_ROUNDS = 1000, 300  # training rows of a small table, and the rounds of its trials
MOST_LEAVES = 60_000  # of a trial: each session that answers reads their text
RANDOM = 6  # trials after the first two that are drawn at random; later ones vary a good trial
PARENTS, STEP = 3, 0.15  # the best trials that are varied; the deviation of a step, in the unit cube
MANY, WIDE = 20_000, 100  # rows of a large table; elements of a wide one
# of the numbers of a column: usual ones, by whether there are MANY rows; and fine ones, also of a single row, for a target that
# one column decides
BINS, FINE_BINS = (127, 255), 1023
CELLS_PER_THREAD = 200_000  # elements: for fewer, threads cost more than they bring
# packages that LightGBM imports where they are installed
NOT_USED = ("sklearn", "pandas", "matplotlib", "pyarrow", "dask", "graphviz")


@dataclass
class Rows:
    """Inputs [rows, elements] (float32, NaN: no value), targets (float64: class numbers, or numbers), weights or None."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None

    def at(self, rows: np.ndarray) -> Rows:
        """Those of the rows that `rows`, a mask, names."""
        return Rows(self.inputs[rows], self.targets[rows], None if self.weights is None else self.weights[rows])


@dataclass
class Trial:
    """A trained model. `loss`: on the validation rows, after the best number of `rounds`; `ended`: why training ended;
    `answers`: for the validation rows, probabilities [rows, classes] or numbers [rows, 1]."""

    params: dict[str, Any]
    rounds: int = 0
    loss: float = math.inf
    seconds: float = 0.0
    ended: str = ""
    place: list[float] = field(default_factory=list)  # in the unit cube
    text: str = ""
    answers: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """What the caller is told."""
        loss = self.loss if math.isfinite(self.loss) else None
        return {
            "params": self.params,
            "rounds": self.rounds,
            "loss": loss,
            "seconds": self.seconds,
            "ended": self.ended,
        }


def rows_of(shape: Sequence[int], is_weighted: bool, payloads: Iterator[Any]) -> Rows:
    """The rows of a request, from its next payloads. `shape`: of the inputs."""
    inputs, targets = np.frombuffer(next(payloads), "<f4").reshape(shape), np.frombuffer(next(payloads), "<f8")
    return Rows(inputs, targets, np.frombuffer(next(payloads), "<f8") if is_weighted else None)


def imported() -> Any:
    """LightGBM, without the optional packages that it would import. Raises ImportError."""
    absent = [name for name in NOT_USED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        import lightgbm

        return lightgbm
    except OSError as error:  # a library of the system is missing
        raise ImportError(f"LightGBM cannot be loaded: {error}") from None
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def search(
    train: Rows,
    valid: Rows,
    codes: list[int],
    classes: int,
    until: float,
    most: int,
    threads: int,
    seed: int,
    kept: int,
    objective: dict[str, Any] | None = None,
    told: Callable[[list[Trial]], None] | None = None,
) -> list[Trial]:
    """The trials, in their order; `text` and `answers` of the best `kept` alone. Raises ImportError without LightGBM.

    `codes`: the elements that are category codes; `classes`: 0 for numbers; `objective`: LightGBM's parameters, in place of
    the usual ones for these; `told`: called with the trials so far after each of them. The first two trials have fixed
    parameters. The search ends at `until` (of time.monotonic, which all processes of a machine share), after `most` trials, or
    when nothing gets better.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # (of parameters that the rows were not read with)
        return _search(
            _Search(imported(), train, valid, codes, classes, max(1, threads), seed, objective or {}),
            valid,
            until,
            most,
            kept,
            told,
        )


def refit(
    rows: Rows,
    codes: list[int],
    classes: int,
    models: Sequence[tuple[dict[str, Any], int]],
    threads: int,
    seed: int,
    objective: dict[str, Any],
) -> list[str]:
    """The texts of models with these parameters after so many rounds, trained on `rows`; `objective`: as of `search`. Raises
    ImportError without LightGBM."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = _Search(imported(), rows, None, codes, classes, max(1, threads), seed, objective)
        return [again.text(params, rounds) for params, rounds in models]


def answering(
    train: Rows, others: Rows, codes: list[int], classes: int, threads: int, seed: int, objective: dict[str, Any]
) -> Callable[[tuple[dict[str, Any], int], float], np.ndarray]:
    """The function that trains a model (parameters, rounds) on `train`, not beyond a moment of time.monotonic, and returns its
    answers for `others`; arguments as of `refit`. Raises ImportError without LightGBM."""
    searching = _Search(imported(), train, others, codes, classes, max(1, threads), seed, objective)

    def answers(model: tuple[dict[str, Any], int], until: float) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return searching.answers(*model, until)

    return answers


def _search(
    searching: _Search, valid: Rows, until: float, most: int, kept: int, told: Callable[[list[Trial]], None] | None
) -> list[Trial]:
    until = max(until, time.monotonic() + LEAST_SECONDS)
    seconds = until - time.monotonic()
    most = min(most, max(LEAST_TRIALS, len(valid.inputs) // VALID_ROWS_PER_TRIAL))
    trials: list[Trial] = []
    best, vain = math.inf, 0
    while len(trials) < most and vain < VAIN:
        left = until - time.monotonic()
        if trials and left < NEXT * trials[0].seconds:
            break
        place = searching.next_place(trials, seconds)
        trial = searching.train(place, time.monotonic() + (min(left, seconds * NEXT) if trials else left))
        trials.append(trial)
        vain = 0 if trial.loss < best * (1 - BETTER) else vain + 1
        best = min(best, trial.loss)
        for other in sorted(trials, key=lambda one: one.loss)[kept:]:
            other.text, other.answers = "", None
        if told is not None:
            told(trials)
    return trials


@dataclass(frozen=True)
class _Parameter:
    """A parameter of LightGBM: from `least` to `most`, on a logarithmic scale, or a choice of two where `choices`."""

    name: str
    least: float
    most: float
    is_log: bool = True
    is_whole: bool = False
    choices: tuple[Any, ...] = ()

    def value(self, place: float) -> Any:
        """The value at a place between 0 and 1."""
        if self.choices:
            return self.choices[int(place >= 0.5)]
        if self.is_log:
            value = math.exp(math.log(self.least) + place * (math.log(self.most) - math.log(self.least)))
        else:
            value = self.least + place * (self.most - self.least)
        return round(value) if self.is_whole else float(f"{value:.4g}")

    def place(self, value: float) -> float:
        """The place of a value."""
        if self.choices:
            return 0.25 + 0.5 * self.choices.index(value)
        least, most, own = (
            map(math.log, (self.least, self.most, value)) if self.is_log else (self.least, self.most, value)
        )
        return min(1.0, max(0.0, (own - least) / (most - least))) if most > least else 0.0


class _Search:
    def __init__(
        self,
        lightgbm: Any,
        train: Rows,
        valid: Rows | None,
        codes: list[int],
        classes: int,
        threads: int,
        seed: int,
        own_objective: dict[str, Any],
    ) -> None:
        self._rows, self._classes = len(train.inputs), classes
        self._random = np.random.default_rng(seed)
        threads = min(threads, 1 + train.inputs.size // CELLS_PER_THREAD)
        objective = {0: "regression", 2: "binary"}.get(classes, "multiclass")
        self._fixed = {
            "objective": objective,
            "metric": {"regression": "l2", "binary": "binary_logloss", "multiclass": "multi_logloss"}[objective],
            "verbosity": -1,
            "num_threads": threads,
            "seed": seed % (1 << 31),
            "deterministic": True,
            "force_col_wise" if train.inputs.shape[1] > WIDE else "force_row_wise": True,
            "bagging_freq": 1,
            "feature_pre_filter": False,  # (trials differ in min_data_in_leaf)
            **({"num_class": classes} if classes > 2 else {}),
            **own_objective,
        }
        self._space = _space(self._rows, bool(codes))
        self._lightgbm, self._codes = lightgbm, codes
        self._given, self._valid = train, valid
        self._binned: dict[int, tuple[Any, Any]] = {}

    def _datasets(self, bins: int) -> tuple[Any, Any]:
        """The rows to train on and the validation rows (None: there are none), in so many bins."""
        if bins not in self._binned:
            train, valid = self._given, self._valid
            binned = self._lightgbm.Dataset(
                train.inputs,
                train.targets,
                weight=train.weights,
                categorical_feature=self._codes,
                params={**self._fixed, "max_bin": bins, **({"min_data_in_bin": 1} if bins == FINE_BINS else {})},
                free_raw_data=True,
            ).construct()
            check = None
            if valid is not None:
                check = binned.create_valid(valid.inputs, valid.targets, weight=valid.weights).construct()
            self._binned[bins] = binned, check
        return self._binned[bins]

    def next_place(self, trials: list[Trial], seconds: float) -> list[float]:
        """The place of the next trial: the defaults, a random one, or one beside a good one."""
        recipes = _defaults(self._rows), {**_defaults(self._rows), **_EXACT}
        if len(trials) < len(recipes):
            params = recipes[len(trials)]
            return [one.place(params[one.name]) for one in self._space]
        if len(trials) < len(recipes) + RANDOM:
            place = self._random.random(len(self._space)).tolist()
        else:
            best = sorted(trials, key=lambda one: one.loss)[:PARENTS]
            parent = best[int(self._random.integers(len(best)))]
            place = np.clip(parent.place + self._random.normal(0, STEP, len(self._space)), 0, 1).tolist()
        # a slower rate than the time of a trial allows would end too early
        first = trials[0]
        slowest = first.params["learning_rate"] * first.seconds / (seconds * NEXT)
        rate = self._space[0]
        return [max(place[0], min(rate.place(max(slowest, rate.least)), 1.0)), *place[1:]]

    def text(self, params: Mapping[str, Any], rounds: int) -> str:
        """LightGBM's text of a model after so many rounds."""
        return str(self._trained(params, rounds).model_to_string())

    def answers(self, params: Mapping[str, Any], rounds: int, until: float) -> np.ndarray:
        """The answers of a model for the validation rows, after so many rounds: probabilities [rows, classes], or numbers
        [rows, 1]. Training ends at `until`, too."""
        return self._answers(self._trained(params, rounds, until), rounds)

    def _trained(self, params: Mapping[str, Any], rounds: int, until: float = math.inf) -> Any:
        train, _ = self._datasets(params["max_bin"])
        booster = self._lightgbm.Booster({**self._fixed, **params}, train)
        for _ in range(rounds):
            if booster.update() or time.monotonic() > until:
                break
        return booster

    def _answers(self, booster: Any, rounds: int) -> np.ndarray:
        assert self._valid is not None
        outputs = booster.predict(self._valid.inputs, num_iteration=rounds)
        if self._classes == 2:
            outputs = np.stack([1 - outputs, outputs], 1)
        return np.asarray(outputs, "f8").reshape(len(self._valid.inputs), -1)

    def train(self, place: list[float], until: float) -> Trial:
        """Train with early stopping, at least one round and not beyond `until`."""
        began = time.monotonic()
        params = {one.name: one.value(own) for one, own in zip(self._space, place)}
        trial = Trial(params, place=place)
        most = SMALL_ROUNDS if self._rows < SMALL else ROUNDS
        most = max(
            1, min(most, MOST_LEAVES // (params["num_leaves"] * max(1, self._classes if self._classes > 2 else 1)))
        )
        patience = min(150, max(20, math.ceil(3 / params["learning_rate"])))
        binned, check = self._datasets(params["max_bin"])
        booster = self._lightgbm.Booster({**self._fixed, **params}, binned)
        booster.add_valid(check, "valid")
        trial.ended = "all rounds"
        for number in range(1, most + 1):
            is_over = booster.update()
            loss = float(booster.eval_valid()[0][2])
            if loss < trial.loss:
                trial.loss, trial.rounds = loss, number
            if is_over or number - trial.rounds >= patience:
                trial.ended = "not better"
                break
            if time.monotonic() > until:
                trial.ended = "time"
                break
        trial.rounds = max(1, trial.rounds)
        trial.text = booster.model_to_string(num_iteration=trial.rounds)
        trial.answers = self._answers(booster, trial.rounds)
        trial.seconds = time.monotonic() - began
        with contextlib.suppress(AttributeError):
            booster.free_dataset()
        return trial


def _defaults(rows: int) -> dict[str, Any]:
    """The parameters of the first trial."""
    leaves, least = (6, 5) if rows < SMALL else (15, 10) if rows < 10_000 else (31, 20)
    return {
        "learning_rate": 0.1,
        "num_leaves": leaves,
        "min_data_in_leaf": least,
        "feature_fraction": 0.7,
        "bagging_fraction": 0.8,
        "lambda_l2": 3.0 if rows < SMALL else 1.0,
        "path_smooth": 1.0,
        "extra_trees": False,
        "max_cat_to_onehot": 64,
        "cat_smooth": 10.0,
        "min_data_per_group": 20,
        "max_bin": BINS[rows >= MANY],
    }


# the second trial has almost no regularization: a target that one column decides, or a rule, is met exactly
_EXACT = {
    "num_leaves": 31,
    "min_data_in_leaf": 5,
    "feature_fraction": 1.0,
    "bagging_fraction": 1.0,
    "lambda_l2": 0.001,
    "path_smooth": 0.01,
    "max_bin": FINE_BINS,
}


def _space(rows: int, has_codes: bool) -> list[_Parameter]:
    """The searched parameters, the learning rate first."""
    space = [
        _Parameter("learning_rate", 0.01, 0.2),
        _Parameter("num_leaves", 3, max(8, min(128, rows // 20)), is_whole=True),
        _Parameter("min_data_in_leaf", 3, max(10, min(200, rows // 20)), is_whole=True),
        _Parameter("feature_fraction", 0.3, 1.0, is_log=False),
        _Parameter("bagging_fraction", 0.5, 1.0, is_log=False),
        _Parameter("lambda_l2", 0.001, 100.0),
        _Parameter("path_smooth", 0.01, 30.0),
        _Parameter("extra_trees", 0, 1, choices=(False, True)),
        _Parameter("max_bin", 0, 1, choices=(BINS[rows >= MANY], FINE_BINS)),
    ]
    if has_codes:
        space += [
            _Parameter("max_cat_to_onehot", 0, 1, choices=(4, 64)),
            _Parameter("cat_smooth", 1.0, 100.0),
            _Parameter("min_data_per_group", 5, 100, is_whole=True),
        ]
    return space

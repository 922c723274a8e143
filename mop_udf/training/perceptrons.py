"""Multilayer perceptrons for the rows of a table, trained whole by NumPy: of some thousand rows a pass takes milliseconds, and
no framework compiles anything first. Runs in the trainer.

A trial is AdamW over mini-batches whose rate falls by a cosine, with dropout and smoothed labels where its recipe has them. The
first recipes are fixed, then some are random, then good ones are varied.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from mop_udf.training.linear import Codes, Pieces, Rows
from mop_udf.training.number_losses import SQUARES, NumberLoss

# of AdamW; the second as RealMLP has it (Holzmueller et al. 2024, "Better by Default", table A.1)
BETAS, EPSILON = (0.9, 0.95), 1e-8
PASSES, STEPS, LEAST_PASSES = 16, 6000, 4  # of a usual trial: so many passes; fewer where these were more steps
LEAST_SECONDS = 0.5  # of the first trial
NEXT = (
    0.35  # share of the time that a trial may take; the search ends where the first trial needed more than what is left
)
RANDOM = 4  # trials after the recipes that are drawn at random
PARENTS = 3  # the best trials that are varied
CHUNK = 8192  # rows that are answered at a time
LEAST_TRIALS, VALID_ROWS_PER_TRIAL = 8, 10  # with few validation rows, the best of many trials is the luckiest
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


@dataclass(frozen=True)
class Recipe:
    """How a trial trains. `units`: of the hidden layers; `activation`: relu or selu; `pieces`: the numbers enter piece by
    piece, too; `rate`: at the beginning; `decay`: of the weights; `dropout`: share of the units; `smoothing`: of labels;
    `batch`: rows of a step; `passes`: over the rows."""

    units: tuple[int, ...] = (128, 64)
    activation: str = "relu"
    pieces: bool = False
    rate: float = 0.003
    decay: float = 0.1
    dropout: float = 0.1
    smoothing: float = 0.0
    batch: int = 64
    passes: int = 32

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Recipe:
        return cls(**{**data, "units": tuple(data["units"])})


@dataclass
class Trial:
    """A trained model, after so many `passes`. `loss`: on the validation rows; `answers`: for these, probabilities [rows,
    classes] or numbers [rows, 1]; `weights`: a table [codes, dimensions] for each array of codes, then [inputs, units] and
    [units] of each layer."""

    recipe: Recipe
    passes: int = 0
    loss: float = math.inf
    seconds: float = 0.0
    weights: list[np.ndarray] = field(default_factory=list)
    answers: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """The trial as details of a version keep it."""
        return {
            "params": asdict(self.recipe),
            "passes": self.passes,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "seconds": self.seconds,
        }


def search(
    train: Rows,
    valid: Rows,
    codes: Sequence[Codes],
    dimensions: Sequence[int],
    pieces: Pieces | None,
    classes: int,
    until: float,
    most: int,
    seed: int,
    kept: int,
    loss: NumberLoss = SQUARES,
    told: Callable[[list[Trial]], None] | None = None,
) -> list[Trial]:
    """The trials, in their order; `weights` and `answers` of the best `kept` alone.

    `dimensions`: of the table of each array of codes; `classes`: 0 for numbers, which are trained by `loss`; `told`: called
    with the trials so far after each of them. The search ends at `until` (of time.monotonic) or after `most` trials.
    """
    until = max(until, time.monotonic() + LEAST_SECONDS)
    seconds, random = until - time.monotonic(), np.random.default_rng(seed)
    data = {
        own: _Data(train, valid, codes, dimensions, pieces if own else None, classes, loss)
        for own in ((False, True) if pieces is not None else (False,))
    }
    rows, is_classes = len(train.targets), bool(classes)
    most = min(most, max(LEAST_TRIALS, len(valid.targets) // VALID_ROWS_PER_TRIAL))
    recipes = [own for own in recipes_for(rows) if own.pieces in data]
    trials: list[Trial] = []
    while len(trials) < most:
        left = until - time.monotonic()
        if trials and left < NEXT * trials[0].seconds:
            break
        if len(trials) < len(recipes):
            recipe = recipes[len(trials)]
        elif len(trials) < len(recipes) + RANDOM:
            recipe = drawn(random, rows, True in data, is_classes)
        else:
            best = sorted(trials, key=lambda one: one.loss)[:PARENTS]
            parent = best[int(random.integers(len(best)))].recipe
            recipe = varied(parent, drawn(random, rows, True in data, is_classes), random)
        share = min(left, seconds * NEXT) if trials else left
        trials.append(trained(data[recipe.pieces], recipe, time.monotonic() + share, int(random.integers(1 << 31))))
        for other in sorted(trials, key=lambda one: one.loss)[kept:]:
            other.weights, other.answers = [], None
        if told is not None:
            told(trials)
    return trials


def recipes_for(rows: int) -> list[Recipe]:
    """The first trials, for so many rows: those of 45 random recipes that were among the best on the most of six tables."""
    batch, passes = _batch(rows), _passes(rows)
    usual = {"batch": batch, "passes": passes}
    small = {"batch": batch // 2, "passes": max(3, passes // 2)}
    return [
        Recipe((32,), "relu", True, rate=0.0085, decay=2.5, dropout=0.0, **usual),
        Recipe((128, 64), "relu", True, rate=0.003, decay=0.1, dropout=0.1, **usual),
        Recipe((128, 64), "selu", True, rate=0.0025, decay=1.4, dropout=0.5, **usual),
        Recipe((64,), "relu", False, rate=0.0025, decay=0.4, dropout=0.5, **usual),
        Recipe((256, 128), "relu", True, rate=0.007, decay=1.7, dropout=0.2, **small),
        Recipe((128, 64), "relu", False, rate=0.0027, decay=0.035, dropout=0.3, **small),
    ]


def _batch(rows: int) -> int:
    return 64 if rows < 8000 else 128 if rows < 40_000 else 256


def _passes(rows: int) -> int:
    return max(LEAST_PASSES, min(PASSES, STEPS * _batch(rows) // max(1, rows)))


def drawn(random: np.random.Generator, rows: int, has_pieces: bool, is_classes: bool) -> Recipe:
    """A random recipe."""
    units = [(32,), (64,), (128,), (128, 64), (128, 128), (256, 128), (128, 128, 128)]

    def between(low: float, high: float) -> float:
        return math.exp(random.uniform(math.log(low), math.log(high)))

    return Recipe(
        units=units[int(random.integers(len(units)))],
        activation="relu" if random.random() < 0.6 else "selu",
        pieces=bool(has_pieces and random.random() < 0.6),
        rate=float(f"{between(1e-3, 1e-2):.3g}"),
        decay=float(f"{between(0.02, 4.0):.3g}"),
        dropout=(0.0, 0.1, 0.2, 0.3, 0.5)[int(random.integers(5))],
        smoothing=0.05 if is_classes and random.random() < 0.2 else 0.0,
        batch=_batch(rows) // 2 * (1, 2, 4)[int(random.integers(3))],
        passes=max(2, round(_passes(rows) * between(0.25, 3.0))),
    )


def varied(parent: Recipe, other: Recipe, random: np.random.Generator) -> Recipe:
    """`parent` with about a third of the values of another recipe."""
    changes = {name: value for name, value in vars(other).items() if random.random() < 0.3}
    return replace(parent, **changes)


def trained(data: _Data, recipe: Recipe, until: float, seed: int) -> Trial:
    """Train all passes, or those that end before `until`, or as much of the first."""
    began, net, trial = time.monotonic(), _Net(data, recipe, seed), Trial(recipe)
    for number in range(1, recipe.passes + 1):
        if not net.train_pass(number, until):
            break
        trial.passes = number
    trial.passes = max(1, trial.passes)
    trial.answers, trial.weights = net.answers(data.valid_x, data.valid_codes), net.copied()
    trial.loss = _mean_loss(trial.answers, data.valid, data)
    trial.seconds = time.monotonic() - began
    return trial


def refit(
    rows: Rows,
    codes: Sequence[Codes],
    dimensions: Sequence[int],
    pieces: Pieces | None,
    classes: int,
    models: Sequence[tuple[Recipe, int]],
    seed: int,
    loss: NumberLoss = SQUARES,
) -> list[list[np.ndarray]]:
    """The weights of models (recipe, passes), trained on `rows`."""
    data_of = _data_of(rows, None, codes, dimensions, pieces, classes, loss)
    return [_after(data_of(recipe.pieces), recipe, passes, seed).copied() for recipe, passes in models]


def answering(
    train: Rows,
    others: Rows,
    codes: Sequence[Codes],
    dimensions: Sequence[int],
    pieces: Pieces | None,
    classes: int,
    seed: int,
    loss: NumberLoss = SQUARES,
) -> Callable[[tuple[Recipe, int], float], np.ndarray]:
    """The function that trains a model (recipe, passes) on `train`, not beyond a moment of time.monotonic, and returns its
    answers for `others`, as of a trial."""
    data_of = _data_of(train, others, codes, dimensions, pieces, classes, loss)

    def answers(model: tuple[Recipe, int], until: float) -> np.ndarray:
        recipe, passes = model
        data = data_of(recipe.pieces)
        return _after(data, recipe, passes, seed, until).answers(data.valid_x, data.valid_codes)

    return answers


def _data_of(
    train: Rows,
    valid: Rows | None,
    codes: Sequence[Codes],
    dimensions: Sequence[int],
    pieces: Pieces | None,
    classes: int,
    loss: NumberLoss,
) -> Callable[[bool], _Data]:
    """The function that returns the rows with or without pieces; it makes each of the two once."""
    return functools.lru_cache(None)(
        lambda has_pieces: _Data(train, valid, codes, dimensions, pieces if has_pieces else None, classes, loss)
    )


def _after(data: _Data, recipe: Recipe, passes: int, seed: int, until: float = math.inf) -> _Net:
    """A net after so many passes, or those before `until`."""
    net = _Net(data, recipe, seed)
    for number in range(1, passes + 1):
        if not net.train_pass(number, until):
            break
    return net


class _Data:
    """The rows as a net takes them."""

    def __init__(
        self,
        train: Rows,
        valid: Rows | None,
        codes: Sequence[Codes],
        dimensions: Sequence[int],
        pieces: Pieces | None,
        classes: int,
        loss: NumberLoss = SQUARES,
    ) -> None:
        self.codes, self.dimensions, self.classes, self.loss = codes, dimensions, classes, loss
        self.rows = len(train.targets)
        self.x, self.train_codes = self._inputs(train, pieces)
        self.truth = self._truth(train)
        self.weights = None if train.weights is None else train.weights.astype("f4")
        if valid is not None:
            self.valid_x, self.valid_codes = self._inputs(valid, pieces)
            self.valid = valid

    def _inputs(self, rows: Rows, pieces: Pieces | None) -> tuple[np.ndarray, list[np.ndarray]]:
        parts = [rows.elements] if pieces is None else [rows.elements, pieces.of(rows.elements)]
        return np.concatenate(parts, 1).astype("f4"), [array.astype("i8") for array in rows.codes]

    def _truth(self, rows: Rows) -> np.ndarray:
        if not self.classes:
            return rows.targets.astype("f4").reshape(-1, 1)
        return np.eye(self.classes, dtype="f4")[rows.targets.astype(int)]


class _Net:
    """A net that trains. All weights are one vector, of which `tables` and `layers` are parts."""

    def __init__(self, data: _Data, recipe: Recipe, seed: int) -> None:
        self._data, self._recipe = data, recipe
        self._random = np.random.default_rng(seed)
        widths = [
            size if own.are_words else size * array.shape[1]
            for own, size, array in zip(data.codes, data.dimensions, data.train_codes)
        ]
        sizes = [data.x.shape[1] + sum(widths), *recipe.units, data.truth.shape[1]]
        shapes: list[tuple[int, ...]] = [(own.count, size) for own, size in zip(data.codes, data.dimensions)]
        for count, units in zip(sizes, sizes[1:]):
            shapes += [(count, units), (units,)]
        self._flat = np.zeros(sum(map(math.prod, shapes)), "f4")
        self._slopes, self._mean, self._square, self._decay = (np.zeros_like(self._flat) for _ in range(4))
        self._parts, self._slope_parts, decays = (
            _split(own, shapes) for own in (self._flat, self._slopes, self._decay)
        )
        tables = len(data.codes)
        for part in self._parts[:tables]:
            part[:] = self._random.normal(0, 0.1, part.shape)
        gain = 2.0 if recipe.activation == "relu" else 1.0
        for part, decay in zip(self._parts[tables:-2:2], decays[tables:-2:2]):
            part[:] = self._random.normal(0, math.sqrt(gain / part.shape[0]), part.shape)
            decay[:] = recipe.decay
        decays[-2][:] = recipe.decay  # (the last layer begins with 0: the first answer is the best constant)
        if data.classes:
            self._parts[-1][:] = np.log(np.maximum(np.average(data.truth, 0, data.weights), 1e-4))
        else:
            self._parts[-1][:] = data.loss.constant(data.truth[:, 0], data.weights)
        self._step = 0

    def copied(self) -> list[np.ndarray]:
        """A copy of all weights."""
        return [part.copy() for part in self._parts]

    def train_pass(self, number: int, until: float) -> bool:
        """Train the pass with this number; False where the time is over before its end."""
        data, recipe = self._data, self._recipe
        order = self._random.permutation(data.rows)
        starts = range(0, data.rows, recipe.batch)
        for at, start in enumerate(starts):
            share = (number - 1 + at / len(starts)) / recipe.passes
            rows = order[start : start + recipe.batch]
            if len(rows) == 1 < data.rows:
                continue
            self._train_step(rows, recipe.rate * 0.5 * (1 + math.cos(math.pi * share)), recipe.dropout)
            if time.monotonic() > until:  # (with thousands of classes, a step takes hundredths of a second)
                return False
        return True

    def _inputs(self, x: np.ndarray, codes: Sequence[np.ndarray]) -> np.ndarray:
        if not codes:
            return x
        parts = [x]
        for own, array, table in zip(self._data.codes, codes, self._parts):
            found = table[array]
            if own.are_words:
                is_there = (array != 0).astype("f4")
                found = (found * is_there[..., None]).sum(1) / np.maximum(is_there.sum(1, keepdims=True), 1)
            parts.append(found.reshape(len(x), -1))
        return np.concatenate(parts, 1)

    def _train_step(self, rows: np.ndarray, rate: float, dropout: float) -> None:
        data, recipe = self._data, self._recipe
        codes = [array[rows] for array in data.train_codes]
        layers = self._parts[len(data.codes) :]
        slopes = self._slope_parts[len(data.codes) :]
        values, factors = [self._inputs(data.x[rows], codes)], []
        for matrix, bias in zip(layers[:-2:2], layers[1:-2:2]):
            value = values[-1] @ matrix
            value += bias
            if recipe.activation == "relu":
                factor = (value > 0).astype("f4")
                value *= factor
            else:
                below = np.expm1(np.minimum(value, 0)) * (SELU_SCALE * SELU_ALPHA)
                is_above = value > 0
                factor = np.where(is_above, np.float32(SELU_SCALE), below + np.float32(SELU_SCALE * SELU_ALPHA))
                value = np.where(is_above, value * np.float32(SELU_SCALE), below)
            if dropout:
                kept = (self._random.random(value.shape, "f4") >= dropout).astype("f4")
                kept *= np.float32(1 / (1 - dropout))
                value *= kept
                factor *= kept
            values.append(value)
            factors.append(factor)
        outputs = values[-1] @ layers[-2]
        outputs += layers[-1]
        truth = data.truth[rows]
        if data.classes:
            slope = _softmax(outputs)
            if recipe.smoothing:
                truth = truth * np.float32(1 - recipe.smoothing) + np.float32(recipe.smoothing / data.classes)
            slope -= truth
        else:
            slope = data.loss.slopes(truth - outputs).astype("f4")
        if data.weights is not None:
            slope *= data.weights[rows][:, None]
        slope *= np.float32(1 / len(rows))
        for at in range(len(factors), -1, -1):
            np.matmul(values[at].T, slope, out=slopes[2 * at])
            slope.sum(0, out=slopes[2 * at + 1])
            if at or codes:
                slope = slope @ layers[2 * at].T
            if at:
                slope *= factors[at - 1]
        if codes:
            self._slopes_of_tables(codes, slope)
        self._move(rate)

    def _slopes_of_tables(self, codes: Sequence[np.ndarray], slope: np.ndarray) -> None:
        from scipy import sparse

        first = self._data.x.shape[1]
        for own, array, size, target in zip(self._data.codes, codes, self._data.dimensions, self._slope_parts):
            places = array.shape[1]
            if own.are_words:
                is_there = (array != 0).astype("f4")
                is_there /= np.maximum(is_there.sum(1, keepdims=True), 1)
                part, width = slope[:, first : first + size], size
                rows = np.repeat(np.arange(len(array)), places)
                matrix = sparse.csr_matrix((is_there.reshape(-1), (array.reshape(-1), rows)), (own.count, len(array)))
            else:
                width = size * places
                part = slope[:, first : first + width].reshape(-1, size)
                ones = np.ones(array.size, "f4")
                matrix = sparse.csr_matrix((ones, (array.reshape(-1), np.arange(array.size))), (own.count, array.size))
            target[:] = matrix @ part
            first += width

    def _move(self, rate: float) -> None:
        """A step of AdamW."""
        self._step += 1
        first, second = BETAS
        self._mean *= np.float32(first)
        self._mean += self._slopes * np.float32(1 - first)
        np.multiply(self._slopes, self._slopes, out=self._slopes)
        self._slopes *= np.float32(1 - second)
        self._square *= np.float32(second)
        self._square += self._slopes
        scale = rate / (1 - first**self._step)
        root = np.sqrt(self._square)
        root *= np.float32(1 / math.sqrt(1 - second**self._step))
        root += np.float32(EPSILON)
        np.divide(self._mean, root, out=root)
        root *= np.float32(scale)
        self._flat -= (self._decay * np.float32(rate)) * self._flat
        self._flat -= root

    def _outputs(self, x: np.ndarray, codes: Sequence[np.ndarray]) -> np.ndarray:
        value = self._inputs(x, codes)
        *hidden, matrix, bias = self._parts[len(self._data.codes) :]
        for own, shift in zip(hidden[::2], hidden[1::2]):
            value = value @ own + shift
            if self._recipe.activation == "relu":
                np.maximum(value, 0, out=value)
            else:
                value = SELU_SCALE * np.where(value > 0, value, SELU_ALPHA * np.expm1(np.minimum(value, 0)))
                value = value.astype("f4")
        return np.asarray(value @ matrix + bias)

    def answers(self, x: np.ndarray, codes: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities [rows, classes] or numbers [rows, 1], float64."""
        found = []
        for start in range(0, len(x), CHUNK):
            part = slice(start, start + CHUNK)
            outputs = self._outputs(x[part], [array[part] for array in codes]).astype("f8")
            found.append(_softmax(outputs) if self._data.classes else outputs)
        return np.concatenate(found)


def _mean_loss(answers: np.ndarray, rows: Rows, data: _Data) -> float:
    """The weighted mean loss: cross-entropy of probabilities [rows, classes], or that of numbers [rows, 1]."""
    if data.classes:
        losses = -np.log(np.maximum(answers[np.arange(len(answers)), rows.targets.astype(int)], 1e-7))
    else:
        losses = data.loss.values(rows.targets - answers[:, 0])
    return float(np.average(losses, weights=rows.weights))


def _split(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Parts of a vector, as arrays of these shapes that share its memory."""
    parts, first = [], 0
    for shape in shapes:
        size = math.prod(shape)
        parts.append(flat[first : first + size].reshape(shape))
        first += size
    return parts


def _softmax(outputs: np.ndarray) -> np.ndarray:
    shares = np.exp(outputs - outputs.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares

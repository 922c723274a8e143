"""Linear models by L-BFGS, where SciPy is installed: for each design of the inputs, one model for each strength of the penalty.
Runs in the trainer.

The weights become those of a net of Keras with one dense layer (pg_mop/api/tables/linear.py). The penalty is that of ridge
regression, alpha / 2 times the sum of the squared weights beside the sum of the rows' losses; the bias has none. A model begins
with the weights of the model with the next stronger penalty.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mop_udf.training.number_losses import LEAST_WIDTH, SQUARES, NumberLoss

ALPHAS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # strong penalties first
VAIN = 2  # models after the best one of a design, which end its search
ITERATIONS = 150  # of a model
LEAST_SECONDS = 0.5  # after SciPy is imported: the first penalties alone are too strong
CHUNK = 1 << 20  # outputs that are computed at a time: those of many classes and of all rows are gigabytes
WIDTHS = (0.5, 0.05)  # of the smoothed corner of a pinball loss, in mean errors of the weights before
PLAIN, PIECES = "plain", "pieces"  # designs: the elements, and with them the pieces of numbers


@dataclass
class Rows:
    """Elements [rows, elements] (float32), arrays of codes (see `Codes`), targets (float64: class numbers, or numbers), weights
    or None."""

    elements: np.ndarray
    codes: list[np.ndarray]
    targets: np.ndarray
    weights: np.ndarray | None

    def at(self, rows: np.ndarray) -> Rows:
        """Those of the rows that `rows`, a mask, names."""
        weights = None if self.weights is None else self.weights[rows]
        return Rows(self.elements[rows], [array[rows] for array in self.codes], self.targets[rows], weights)


@dataclass(frozen=True)
class Codes:
    """What an array of codes [rows, places] says: categories, each a weight of its own, or words of a text, whose weights are
    averaged (code 0: no word). `count`: of different codes."""

    count: int
    are_words: bool


@dataclass(frozen=True)
class Pieces:
    """Ends of pieces of the elements at `places`: such an element becomes its share of the way from `low` to `high`."""

    places: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def of(self, elements: np.ndarray) -> np.ndarray:
        shares = (elements.take(self.places, 1) - self.low) / np.maximum(self.high - self.low, 1e-7)
        return np.clip(shares, 0, 1)


@dataclass
class Trial:
    """A trained model. `loss`: on the validation rows; `answers`: for these, probabilities [rows, classes] or numbers
    [rows, 1]; `weights`: a table [codes, outputs] for each array of codes, [elements, outputs], and [outputs]."""

    design: str
    alpha: float
    loss: float = math.inf
    seconds: float = 0.0
    weights: list[np.ndarray] = field(default_factory=list)
    answers: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """The trial as details of a version keep it."""
        params = {"design": self.design, "alpha": self.alpha}
        return {"params": params, "loss": self.loss if math.isfinite(self.loss) else None, "seconds": self.seconds}


class _Over(Exception):
    """The time is over."""


@dataclass(frozen=True)
class _Chunk:
    """The elements of some `rows`, and of each array of codes [rows, codes]: how often a row has a code (sparse)."""

    x: np.ndarray
    matrices: list[Any]
    rows: slice


def rows_of(shapes: Sequence[Sequence[int]], is_weighted: bool, payloads: Iterator[Any]) -> Rows:
    """The rows of a request, from its next payloads. `shapes`: of the elements, and of each array of codes."""
    arrays = [np.frombuffer(next(payloads), "<f4").reshape(shape) for shape in shapes]
    targets = np.frombuffer(next(payloads), "<f8")
    return Rows(arrays[0], arrays[1:], targets, np.frombuffer(next(payloads), "<f8") if is_weighted else None)


def read_design(header: Mapping[str, Any]) -> tuple[list[Codes], Pieces | None]:
    """The codes and the pieces that the header of a request describes."""
    pieces = header["pieces"]
    codes = [Codes(*own) for own in header["codes"]]
    return codes, None if pieces is None else Pieces(*(np.array(pieces[name]) for name in ("places", "low", "high")))


def flat(weights: Sequence[np.ndarray]) -> np.ndarray:
    """The weights of a model as bytes."""
    return np.concatenate([np.ascontiguousarray(own, "<f4").reshape(-1) for own in weights]).view(np.uint8)


def load_scipy() -> None:
    """Import the parts of SciPy that trials use. Raises ImportError."""
    import scipy.optimize  # noqa: F401
    import scipy.sparse  # noqa: F401


def search(
    train: Rows,
    valid: Rows,
    codes: Sequence[Codes],
    pieces: Pieces | None,
    classes: int,
    until: float,
    kept: int,
    loss: NumberLoss = SQUARES,
    told: Callable[[list[Trial]], None] | None = None,
) -> list[Trial]:
    """The trials, in their order; `weights` and `answers` of the best `kept` alone. Raises ImportError without SciPy.

    `classes`: 0 for numbers, which are trained by `loss`; `told`: called with the trials so far after each of them. The search
    ends at `until` (of time.monotonic), but not before LEAST_SECONDS.
    """
    load_scipy()  # (it takes a second, which no trial has taken)
    until = max(until, time.monotonic() + LEAST_SECONDS)
    trials: list[Trial] = []
    for design in (PLAIN, PIECES) if pieces is not None else (PLAIN,):
        own = pieces if design == PIECES else None
        model, check = _Model(train, codes, own, classes, loss), _Model(valid, codes, own, classes, loss, train)
        start, best, vain = None, math.inf, 0
        for alpha in ALPHAS:
            if trials and time.monotonic() > until:
                return trials
            began = time.monotonic()
            start = model.fitted(alpha, until, start)
            trial = Trial(design, alpha)
            trial.answers, trial.loss = check.answers(start)
            trial.weights, trial.seconds = model.weights(start), time.monotonic() - began
            trials.append(trial)
            for other in sorted(trials, key=lambda one: one.loss)[kept:]:
                other.weights, other.answers = [], None
            if told is not None:
                told(trials)
            vain = 0 if trial.loss < best else vain + 1
            best = min(best, trial.loss)
            if vain >= VAIN:
                break
    return trials


def refit(
    rows: Rows,
    codes: Sequence[Codes],
    pieces: Pieces | None,
    classes: int,
    models: Sequence[tuple[str, float]],
    loss: NumberLoss = SQUARES,
) -> list[list[np.ndarray]]:
    """The weights of models with these designs and penalties, trained on `rows`. Raises ImportError without SciPy."""
    return [
        (model := _Model(rows, codes, pieces if design == PIECES else None, classes, loss)).weights(
            model.fitted(alpha, math.inf, None)
        )
        for design, alpha in models
    ]


def answering(
    train: Rows, others: Rows, codes: Sequence[Codes], pieces: Pieces | None, classes: int, loss: NumberLoss = SQUARES
) -> Callable[[tuple[str, float], float], np.ndarray]:
    """The function that trains a model (design, penalty) on `train`, not beyond a moment of time.monotonic, and returns its
    answers for `others`, as of a trial. Raises ImportError without SciPy."""

    def answers(model: tuple[str, float], until: float) -> np.ndarray:
        design, alpha = model
        given = codes, pieces if design == PIECES else None, classes, loss
        weights = _Model(train, *given).fitted(alpha, until, None)
        return _Model(others, *given, train).answers(weights)[0]

    return answers


class _Model:
    """The losses and gradients of a linear model on some rows."""

    def __init__(
        self,
        rows: Rows,
        codes: Sequence[Codes],
        pieces: Pieces | None,
        classes: int,
        loss: NumberLoss = SQUARES,
        trained: Rows | None = None,
    ) -> None:
        """`trained`: the rows that a model was trained on, where others are `rows`."""
        from scipy import sparse

        parts = [rows.elements] if pieces is None else [rows.elements, pieces.of(rows.elements)]
        x = np.concatenate(parts, 1).astype("f8" if rows.elements.size < 4_000_000 else "f4")
        width = x.shape[1]
        self._scales = _scales(sparse, codes, (trained or rows).codes)
        matrices = [
            _incidence(sparse, own, array) * sparse.diags(scale)
            for own, array, scale in zip(codes, rows.codes, self._scales)
        ]
        self._loss, self._width = loss, 0.0
        self._classes, self._outputs = classes, 1 if classes <= 2 else classes
        self._targets = rows.targets.astype(int) if classes else rows.targets
        weights = np.ones(len(rows.targets)) if rows.weights is None else rows.weights
        self._weights, self._total = weights, float(weights.sum())
        count = max(1, CHUNK // self._outputs)
        parts_of = (slice(first, first + count) for first in range(0, len(x), count))
        self._chunks = [_Chunk(x[own], [matrix[own] for matrix in matrices], own) for own in parts_of]
        self._sizes = [*(own.count for own in codes), width, 1]

    def fitted(self, alpha: float, until: float, start: np.ndarray | None) -> np.ndarray:
        """The weights, flat, with a penalty; training begins with `start`. At `until` it ends with the best weights so far."""
        best = self._first() if start is None else start
        if self._classes or self._loss.share is None:
            return self._minimised(best, alpha, until)
        for width in WIDTHS if start is None else WIDTHS[-1:]:
            self._width = max(LEAST_WIDTH, width * float(np.abs(self._missing(best)).mean()))
            best = self._minimised(best, alpha, until)
        best[-1] += self._loss.constant(self._missing(best), self._weights)
        self._width = 0.0
        return best

    def _minimised(self, best: np.ndarray, alpha: float, until: float) -> np.ndarray:
        from scipy.optimize import minimize

        least = math.inf

        def loss_and_gradient(weights: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best, least
            loss, gradient = self._loss_and_gradient(weights, alpha, until)
            if loss < least:
                best, least = weights.copy(), loss
            return loss, gradient

        options = {"maxiter": ITERATIONS, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-7}
        with contextlib.suppress(_Over):
            minimize(loss_and_gradient, best, method="L-BFGS-B", jac=True, options=options)
        return best

    def _missing(self, flat: np.ndarray) -> np.ndarray:
        """Numbers minus the answers."""
        parts = self._parts(flat)
        return np.concatenate([self._targets[own.rows] - self._outputs_of(parts, own)[:, 0] for own in self._chunks])

    def answers(self, flat: np.ndarray) -> tuple[np.ndarray, float]:
        """(probabilities [rows, classes] or numbers [rows, 1], their mean loss)."""
        parts, found, loss = self._parts(flat), list[np.ndarray](), 0.0
        for chunk in self._chunks:
            outputs = self._outputs_of(parts, chunk)
            loss += self._losses(outputs, chunk.rows)[0]
            if self._classes == 2:
                chance = 1 / (1 + np.exp(-outputs))
                outputs = np.concatenate([1 - chance, chance], 1)
            elif self._classes:
                outputs = np.exp(outputs - outputs.max(1, keepdims=True))
                outputs /= outputs.sum(1, keepdims=True)
            found.append(outputs)
        return np.concatenate(found), loss

    def weights(self, flat: np.ndarray) -> list[np.ndarray]:
        """The weights as those of a layer with an output for each class, or with one output."""
        *tables, elements, bias = self._parts(flat)
        tables = [table * scale[:, None] for table, scale in zip(tables, self._scales)]
        parts = [*tables, elements, bias]
        if self._classes == 2:  # the softmax of -z/2 and z/2 is the sigmoid of z
            parts = [np.concatenate([-part / 2, part / 2], 1) for part in parts]
        return [part.astype("<f4") for part in parts]

    def _parts(self, flat: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum(self._sizes)[:-1]
        return np.split(flat.reshape(-1, self._outputs), ends)

    def _first(self) -> np.ndarray:
        """The weights of the best constant answer."""
        flat = np.zeros(sum(self._sizes) * self._outputs)
        if self._classes:
            shares = np.bincount(self._targets, self._weights, self._classes) / self._total
            logs = np.log(np.maximum(shares, 1 / (1 + self._total)))
            flat[-self._outputs :] = logs[1] - logs[0] if self._classes == 2 else logs
        else:
            flat[-1] = self._loss.constant(self._targets, self._weights)
        return flat

    def _outputs_of(self, parts: list[np.ndarray], chunk: _Chunk) -> np.ndarray:
        *tables, elements, bias = parts
        outputs = chunk.x @ elements.astype(chunk.x.dtype) + bias
        for matrix, table in zip(chunk.matrices, tables):
            outputs = outputs + matrix @ table
        return np.asarray(outputs, "f8")

    def _losses(self, outputs: np.ndarray, rows: slice) -> tuple[float, np.ndarray]:
        """(the part of these rows in the weighted mean loss, its derivatives [rows, outputs])."""
        targets, weights = self._targets[rows], self._weights[rows] / self._total
        if self._classes == 2:
            z = outputs[:, 0]
            losses = np.logaddexp(0, z) - targets * z
            slopes = (1 / (1 + np.exp(-np.clip(z, -500, 500))) - targets)[:, None]
        elif self._classes:
            places = np.arange(len(outputs))
            shifted = outputs - outputs.max(1, keepdims=True)
            slopes = np.exp(shifted)
            sums = slopes.sum(1, keepdims=True)
            losses = np.log(sums[:, 0]) - shifted[places, targets]
            slopes /= sums
            slopes[places, targets] -= 1
        else:
            missing = targets - outputs[:, 0]
            losses, slopes = (made(missing, self._width) for made in (self._loss.values, self._loss.slopes))
            slopes = slopes[:, None]
        slopes *= weights[:, None]
        return float(losses @ weights), slopes

    def _loss_and_gradient(self, flat: np.ndarray, alpha: float, until: float) -> tuple[float, np.ndarray]:
        """Raises _Over at `until`."""
        parts, loss = self._parts(flat), 0.0
        gradients = [np.zeros_like(part) for part in parts]
        for chunk in self._chunks:
            if time.monotonic() > until:
                raise _Over
            own, slopes = self._losses(self._outputs_of(parts, chunk), chunk.rows)
            loss += own
            for gradient, matrix in zip(gradients, chunk.matrices):
                gradient += matrix.T @ slopes
            gradients[-2] += chunk.x.T @ slopes.astype(chunk.x.dtype)
            gradients[-1] += slopes.sum(0, keepdims=True)
        share = alpha / self._total
        for part, gradient in zip(parts[:-1], gradients):
            loss += share / 2 * float((part**2).sum())
            gradient += share * part
        return loss, np.concatenate(gradients).reshape(-1)


def _incidence(sparse: Any, codes: Codes, array: np.ndarray) -> Any:
    """[rows, codes]: how often a row has a code; of words, the share of its words."""
    places = array.astype("i8")
    rows = np.repeat(np.arange(len(places)), places.shape[1])
    is_there = (places != 0 if codes.are_words else places >= 0).astype("f8")
    if codes.are_words:
        is_there /= np.maximum(is_there.sum(1, keepdims=True), 1)
    return sparse.csr_matrix((is_there.reshape(-1), (rows, places.reshape(-1))), (len(places), codes.count))


def _scales(sparse: Any, codes: Sequence[Codes], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of each code, the factor of its element: 1; for words the inverse document frequency, smoothed, times the root of the
    mean number of words."""
    scales = []
    for own, array in zip(codes, arrays):
        if not own.are_words:
            scales.append(np.ones(own.count))
            continue
        matrix = _incidence(sparse, own, array)
        frequencies = np.bincount(matrix.nonzero()[1], minlength=own.count)
        length = math.sqrt(max(1.0, float((array != 0).sum(1).mean())))
        scales.append((1 + np.log((1 + len(array)) / (1 + frequencies))) * length)
    return scales

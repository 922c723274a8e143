"""The measure that a call asks for (`metric`): it selects the members of an ensemble and compares versions. Pure.

A `Judge` measures the answers of many models for the same rows at once; on other rows, `scores` has the same measures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pg_mop.backend.arrays import np
from pg_mop.backend.errors import MopError

OF_CLASSES = ("log_loss", "auc", "average_precision", "accuracy", "f1", "balanced_accuracy", "brier")
OF_NUMBERS = ("rmse", "mae", "rmsle")
QUANTILE = re.compile(r"quantile\s*:\s*(0?\.\d{1,6})")
SMALLER_IS_BETTER = ("log_loss", "brier", "rmse", "mae", "rmsle", "quantile")
OF_DECISIONS = ("accuracy", "f1", "balanced_accuracy")  # they see the predicted class alone
WITH_THRESHOLD = ("f1", "balanced_accuracy")  # of two classes: 0.5 is rarely best
OF_RANKS = ("auc", "average_precision")
OF_THE_SHARES = ("average_precision", "f1")  # they depend on how frequent the classes are
MOST_RANKED = 20_000  # elements of rows x classes that are sorted at each step
NEAR = 1e-6  # probabilities between which no threshold is
LEAST = 1e-7  # of a probability in a logarithm, as in Keras
TIE_BREAK = 1e-3  # weight of the log loss where ranks or decisions select: many models rank and decide alike


@dataclass(frozen=True)
class Metric:
    """A measure by its `name` in reports; `share`: of a quantile."""

    name: str
    share: float | None = None

    @classmethod
    def read(cls, text: str | None) -> Metric | None:
        """The metric that a call names; None: the default. Raises MopError.

        >>> Metric.read(" Quantile: 0.90")
        Metric(name='quantile:0.9', share=0.9)
        """
        if text is None or not text.strip():
            return None
        name = text.strip().lower()
        match = QUANTILE.fullmatch(name)
        if match is not None and 0 < float(match[1]) < 1:
            return cls(f"quantile:{float(match[1]):g}", float(match[1]))
        if name in OF_CLASSES or name in OF_NUMBERS:
            return cls(name)
        if name.startswith("quantile"):
            raise MopError(
                "a quantile needs one share between 0 and 1, with a point",
                detail="A model predicts one quantile. Several models predict several.",
                hint="metric => 'quantile:0.9'",
            )
        raise MopError(
            f"metric {text.strip()!r} is not one by which models are judged",
            detail=f"Of classes: {', '.join(OF_CLASSES)}. Of numbers: {', '.join(OF_NUMBERS)}, quantile:0.9.",
            hint="metric => 'log_loss'",
        )

    @classmethod
    def of_call(cls, text: str | None, is_numbers: bool, target: str) -> Metric:
        """The metric of a call for a target of numbers or classes, by default RMSE or log loss. Raises MopError."""
        metric = cls.read(text)
        if metric is None:
            return cls("rmse" if is_numbers else "log_loss")
        if metric.is_of_numbers != is_numbers:
            own, kind = ("numbers", OF_NUMBERS) if is_numbers else ("classes", OF_CLASSES)
            raise MopError(
                f'metric {metric.name} does not suit target "{target}", which has {own}',
                detail=f"Of {own}: {', '.join(kind)}{', quantile:0.9' if is_numbers else ''}.",
                hint=f"metric => '{kind[0]}'",
            )
        return metric

    @property
    def is_of_numbers(self) -> bool:
        return self.share is not None or self.name in OF_NUMBERS

    @property
    def is_loss(self) -> bool:
        """Whether less is better."""
        return self.share is not None or self.name in SMALLER_IS_BETTER

    @property
    def is_default(self) -> bool:
        return self.name in ("log_loss", "rmse")

    def is_better(self, value: float, other: float) -> bool:
        """Whether the first of two values is the better one; NaN is never."""
        return value < other if self.is_loss else value > other

    def best(self, values: Mapping[str, float]) -> str:
        """The name of the best of some values."""
        return min(values, key=lambda name: values[name] if self.is_loss else -values[name])

    def of_loss(self, loss: float) -> float:
        """The value of the measure that a Judge's loss stands for."""
        return loss if self.is_loss else 1 - loss

    @property
    def training_loss(self) -> str:
        """Keras' loss that nets are trained with where the target has numbers."""
        if self.share is not None:
            return f"Pinball(quantile={self.share:g})"
        return "mae" if self.name == "mae" else "mse"

    @property
    def number_loss(self) -> tuple[float | None, float]:
        """(share, scale) of the loss (mop_udf/training/number_losses.py) that linear models and perceptrons are trained with
        where the target has numbers."""
        return (0.5, 2.0) if self.name == "mae" else (self.share, 1.0)

    @property
    def objective(self) -> dict[str, object]:
        """LightGBM's parameters that trees are trained with where the target has numbers; none: its own for these rows."""
        if self.share is not None:
            return {"objective": "quantile", "metric": "quantile", "alpha": self.share}
        return {"objective": "regression_l1", "metric": "l1"} if self.name == "mae" else {}


def with_scale(transform: str | None, target: str, metric: Metric | None) -> str | None:
    """The argument `transform` of mop_pack, in which a metric of logarithms has the target trained as a logarithm.

    >>> with_scale('{"size": "robust"}', "price", Metric("rmsle"))
    '{"size": "robust", "price": "log"}'
    """
    given = transform if transform and transform.strip() else None
    if metric is None or metric.name != "rmsle":
        return given
    return json.dumps({**json.loads(given or "{}"), target: "log"})


@dataclass
class Judge:
    """Judges models by their answers for the same rows, [..., rows, width] or [..., rows] for numbers.

    `taken`: what of an answer is averaged, [..., rows] or [..., rows, classes]; `loss`: of a mean [...], less is better: 1
    minus a measure of which more is better; `selecting`: the same with log loss where many models have equal measures.
    """

    taken: Callable[[np.ndarray], np.ndarray]
    loss: Callable[[np.ndarray], np.ndarray]
    selecting: Callable[[np.ndarray], np.ndarray]


def judge_of_numbers(
    metric: Metric,
    truth: np.ndarray,
    weights: np.ndarray | None = None,
    decoded: Callable[[np.ndarray], np.ndarray] = lambda answers: answers,
) -> Judge:
    """A judge of numbers; `truth` [rows]: in the user's terms; `weights`: of the rows; `decoded`: answers in the user's
    terms.

    >>> judge = judge_of_numbers(Metric("mae"), np.array([0.0, 4.0]))
    >>> judge.loss(np.array([[1.0, 4.0], [0.0, 8.0]])).tolist()
    [0.5, 2.0]
    """

    def loss(answers: np.ndarray) -> np.ndarray:
        return numbers_loss(metric, truth, decoded(answers), weights)

    return Judge(lambda answers: answers, loss, loss)


def numbers_loss(
    metric: Metric, truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """The measure of predicted numbers [..., rows] by a metric of numbers."""
    if metric.share is not None:
        missing = truth - predicted
        return _mean(np.maximum(metric.share * missing, (metric.share - 1) * missing), weights)
    if metric.name == "mae":
        return _mean(np.abs(predicted - truth), weights)
    if metric.name == "rmsle":
        predicted, truth = np.log1p(np.maximum(predicted, 0)), np.log1p(np.maximum(truth, 0))
    return np.sqrt(_mean((predicted - truth) ** 2, weights))


def judge_of_classes(metric: Metric, codes: np.ndarray, classes: int, weights: np.ndarray | None = None) -> Judge:
    """A judge of probabilities; `codes` [rows]: class numbers; `weights`: of the rows.

    >>> judge = judge_of_classes(Metric("auc"), np.array([0, 0, 1]), 2)
    >>> judge.loss(judge.taken(np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]))).tolist()
    0.5
    """
    places = np.arange(len(codes))
    if metric.name == "log_loss":

        def log_loss(chances: np.ndarray) -> np.ndarray:
            return _mean(-np.log(np.maximum(chances, LEAST)), weights)

        return Judge(lambda answers: answers[..., places, codes], log_loss, log_loss)
    if classes == 2:
        return _judge_of_two(metric, codes == 1, weights)
    return _judge_of_several(metric, codes, classes, weights)


def _judge_of_two(metric: Metric, is_second: np.ndarray, weights: np.ndarray | None) -> Judge:
    def loss(chances: np.ndarray) -> np.ndarray:
        if metric.name == "brier":
            return _mean((chances - is_second) ** 2, weights)
        if metric.name == "accuracy":
            return 1 - _mean((chances > 0.5) == is_second, weights)
        return 1 - Ranking(chances, is_second, weights).value(metric.name)

    def selecting(chances: np.ndarray) -> np.ndarray:
        own = np.where(is_second, chances, 1 - chances)
        return loss(chances) + TIE_BREAK * _mean(-np.log(np.maximum(own, LEAST)), weights)

    return Judge(lambda answers: answers[..., 1], loss, loss if metric.name == "brier" else selecting)


def _judge_of_several(metric: Metric, codes: np.ndarray, classes: int, weights: np.ndarray | None) -> Judge:
    places, present = np.arange(len(codes)), np.unique(codes)

    def loss(chances: np.ndarray) -> np.ndarray:
        if metric.name == "brier":
            return _mean((chances**2).sum(-1) - 2 * chances[..., places, codes] + 1, weights)
        if metric.name in OF_DECISIONS:
            return 1 - _decided(metric.name, chances.argmax(-1), codes, classes, weights)
        areas = [Ranking(chances[..., k], codes == k, weights).value(metric.name) for k in present]
        return 1 - np.mean(areas, 0)

    def selecting(chances: np.ndarray) -> np.ndarray:
        own = chances[..., places, codes]
        return loss(chances) + TIE_BREAK * _mean(-np.log(np.maximum(own, LEAST)), weights)

    return Judge(lambda answers: answers, loss, loss if metric.name == "brier" else selecting)


def _decided(
    name: str, predicted: np.ndarray, codes: np.ndarray, classes: int, weights: np.ndarray | None
) -> np.ndarray:
    """Accuracy, balanced accuracy or macro F1 of predicted class numbers [..., rows]."""
    if name == "accuracy":
        return _mean(predicted == codes, weights)
    models = predicted.reshape(-1, len(codes))
    places = (np.arange(len(models))[:, None] * classes + codes) * classes + models
    counted = None if weights is None else np.tile(weights, len(models))
    table = np.bincount(places.reshape(-1), counted, len(models) * classes**2).reshape(-1, classes, classes)
    right, real, said = table.diagonal(axis1=1, axis2=2), table.sum(2), table.sum(1)
    with np.errstate(all="ignore"):
        if name == "f1":
            measures, counts = 2 * right / (real + said), real + said > 0
        else:
            measures, counts = right / real, real > 0
        found = np.where(counts, measures, 0).sum(1) / counts.sum(1)
    return found.reshape(predicted.shape[:-1])


class Ranking:
    """Rows ordered by a score [..., rows], the highest first: the shares of both classes above each threshold.

    `right`, `wrong`: the weight of rows of the class, and of others, whose score is at least that of the last row with another
    score: rows of equal scores count together.
    """

    def __init__(self, chances: np.ndarray, is_positive: np.ndarray, weights: np.ndarray | None = None) -> None:
        order = np.argsort(-chances, -1)
        self.chances = np.take_along_axis(chances, order, -1)
        own = np.ones(len(is_positive)) if weights is None else weights
        ends = np.ones(chances.shape, bool)
        ends[..., :-1] = self.chances[..., 1:] != self.chances[..., :-1]
        self.ends = ends
        self.right, self.wrong = (
            np.maximum.accumulate(np.where(ends, np.cumsum(part[order], -1), 0), -1)
            for part in (own * is_positive, own * ~is_positive)
        )
        self.all_right, self.all_wrong = float(own[is_positive].sum()), float(own[~is_positive].sum())

    def value(self, name: str) -> np.ndarray:
        """The area under the ROC curve, the average precision, or the best F1 or balanced accuracy of all thresholds."""
        if name in ("f1", "balanced_accuracy"):
            return self.of_thresholds(name).max(-1)
        with np.errstate(all="ignore"):
            risen = np.diff(self.right, axis=-1, prepend=0)
            if name == "average_precision":
                above = self.right + self.wrong
                return (risen * np.where(above > 0, self.right / above, 0)).sum(-1) / self.all_right
            widths = np.diff(self.wrong, axis=-1, prepend=0)
            return (widths * (self.right - risen / 2)).sum(-1) / np.float64(self.all_right * self.all_wrong)

    def of_thresholds(self, name: str) -> np.ndarray:
        """F1, accuracy or balanced accuracy [..., rows] where the rows up to each are taken for the class; 0 between rows whose
        scores are too near for a threshold."""
        with np.errstate(all="ignore"):
            if name == "f1":
                values = 2 * self.right / (self.all_right + self.right + self.wrong)
            elif name == "accuracy":
                values = (self.right + self.all_wrong - self.wrong) / (self.all_right + self.all_wrong)
            else:
                values = (self.right / self.all_right + 1 - self.wrong / self.all_wrong) / 2
        parted = self.ends.copy()
        parted[..., :-1] &= self.chances[..., :-1] - self.chances[..., 1:] > NEAR
        return np.where(parted, values, 0)


def _mean(losses: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    return losses.mean(-1) if weights is None else losses @ weights / weights.sum()

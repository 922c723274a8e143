"""Measures of predictions against the truth. Pure; the numbers are scikit-learn's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pg_mop.backend.arrays import np
from pg_mop.inference.metrics import Metric, Ranking, numbers_loss

LEAST = 1e-15  # of a probability in a logarithm
OF_PREDICTIONS = ("accuracy", "precision", "recall", "f1", "balanced_accuracy")  # measures that need no probabilities


def classification(
    truth: np.ndarray,
    probabilities: np.ndarray,
    unknown: int = 0,
    predicted: np.ndarray | None = None,
    only: str | None = None,
) -> dict[str, float]:
    """Measures of class probabilities [rows, classes] against class numbers; macro averages for several classes: over those
    that occur in the truth or in the predictions (of recall alone, as balanced_accuracy: in the truth).

    auc, average_precision: of the second class for two classes, else one against the rest, averaged over the classes that
    occur. The last `unknown` classes are those that the model does not know: two others are still two classes. `predicted`:
    class numbers; None: of the most probable classes. `only`: of this measure alone, as far as that is less work.
    """
    classes = probabilities.shape[1]
    own = probabilities[np.arange(len(truth)), truth]
    measures: dict[str, float] = {}
    if only is None or only in OF_PREDICTIONS:
        measures = _of_predictions(truth, probabilities.argmax(1) if predicted is None else predicted, classes, unknown)
    if only in (None, "log_loss"):  # (0 and not -0 for no loss)
        measures["log_loss"] = float(-np.log(np.clip(own, LEAST, 1)).mean()) + 0.0
    is_binary = classes - unknown == 2
    if only in (None, "brier"):
        squares = (probabilities[:, 1] - (truth == 1)) ** 2 if is_binary else (probabilities**2).sum(1) - 2 * own + 1
        measures["brier"] = float(squares.mean())
    for name, area in (("auc", auc), ("average_precision", average_precision)):
        if only in (None, name):
            areas = [area(truth == k, probabilities[:, k]) for k in ([1] if is_binary else range(classes))]
            if defined_areas := [value for value in areas if not math.isnan(value)]:
                measures[name] = float(np.mean(defined_areas))
    return measures


def _of_predictions(truth: np.ndarray, predicted: np.ndarray, classes: int, unknown: int) -> dict[str, float]:
    """The measures OF_PREDICTIONS of predicted class numbers."""
    table = confusion(truth, predicted, classes)
    report = class_report(table)
    rows = [row for row, said in zip(report, table.sum(0)) if row["support"] or said]
    averaged = report[1:2] if classes - unknown == 2 else rows
    return {
        "accuracy": float((predicted == truth).mean()),
        **{name: float(np.mean([row[name] for row in averaged])) for name in ("precision", "recall", "f1")},
        "balanced_accuracy": float(np.mean([row["recall"] for row in report if row["support"]])),
    }


def most_frequent(truth: np.ndarray) -> float:
    """The share of the most frequent class number: the accuracy of a model that always predicts it."""
    return float(np.bincount(truth).max() / len(truth))


def regression(truth: np.ndarray, predicted: np.ndarray, share: float | None = None) -> dict[str, float]:
    """Measures of predicted numbers; with `share`, the pinball loss of that quantile, too. No rmsle where a number of the
    truth is negative."""
    errors = predicted - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    return {
        "r2": 1 - float((errors**2).sum()) / spread if spread else float("nan"),
        "rmse": float(np.sqrt((errors**2).mean())),
        "mae": float(np.abs(errors).mean()),
        "median_error": float(np.median(np.abs(errors))),
        "bias": float(errors.mean()),
        "max_error": float(np.abs(errors).max()),
        "mape": float((np.abs(errors) / np.maximum(np.abs(truth), np.finfo("f8").eps)).mean()),
        "explained_variance": 1 - float(errors.var() / truth.var()) if spread else float("nan"),
        **({"rmsle": _of(Metric("rmsle"), truth, predicted)} if truth.min() >= 0 else {}),
        **({} if share is None else {f"quantile:{share:g}": _of(Metric("", share), truth, predicted)}),
    }


def _of(metric: Metric, truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(numbers_loss(metric, truth, predicted))


def regression_report(truth: np.ndarray, predicted: np.ndarray, bands: int = 10) -> list[dict[str, float]]:
    """The errors in bands of the truth that have about as many rows: from the lowest to the highest numbers.

    Each band has `least`, `most`, `rows`, `actual` and `predicted` (means), `mae`, `rmse`, `bias`. Equal numbers are in one
    band.
    """
    edges = np.unique(np.quantile(truth, np.linspace(0, 1, bands + 1)[1:-1]))
    places = np.searchsorted(edges, truth, side="left")
    report = []
    for band in np.unique(places):
        real, said = truth[places == band], predicted[places == band]
        errors = said - real
        report.append(
            {
                "least": float(real.min()),
                "most": float(real.max()),
                "rows": len(real),
                "actual": float(real.mean()),
                "predicted": float(said.mean()),
                "mae": float(np.abs(errors).mean()),
                "rmse": float(np.sqrt((errors**2).mean())),
                "bias": float(errors.mean()),
            }
        )
    return report


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """The number of rows [true class, predicted class]."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_report(table: np.ndarray) -> list[dict[str, float]]:
    """Precision, recall, f1 and support of each class, from the confusion matrix; 0 where undefined."""
    report = []
    for k in range(len(table)):
        right, said, real = (float(v) for v in (table[k, k], table[:, k].sum(), table[k].sum()))
        precision, recall = right / said if said else 0.0, right / real if real else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        report.append({"precision": precision, "recall": recall, "f1": f1, "support": real})
    return report


def auc(positive: np.ndarray, scores: np.ndarray) -> float:
    """The area under the ROC curve, by ranks (Mann and Whitney); NaN where one class is absent."""
    count = int(positive.sum())
    others = len(positive) - count
    if not count or not others:
        return float("nan")
    values, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[places][positive].sum() - count * (count + 1) / 2) / (count * others))


def average_precision(positive: np.ndarray, scores: np.ndarray) -> float:
    """The mean precision over the rows of the class, each at its score; NaN where one class is absent."""
    if positive.all() or not positive.any():
        return float("nan")
    return float(Ranking(scores, positive).value("average_precision"))


def roc_curve(positive: np.ndarray, scores: np.ndarray) -> list[tuple[float, float, float]]:
    """(threshold, false positive rate, true positive rate) at different scores, from the highest on: the corners of the
    curve, so that the area below the points is `auc`."""
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], positive[order]
    last = np.r_[np.nonzero(np.diff(scores))[0], len(scores) - 1]
    true, false = (np.r_[0, np.cumsum(values)[last]] for values in (hits, ~hits))
    corners = np.r_[True, (np.diff(true, 2) != 0) | (np.diff(false, 2) != 0), True]
    right, wrong = max(1, int(hits.sum())), max(1, int((~hits).sum()))
    points = (np.r_[np.inf, scores[last]], false / wrong, true / right)
    return list(zip(*(values[corners].tolist() for values in points)))


def calibration(positive: np.ndarray, scores: np.ndarray, bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean probability, share of the class, rows) in each of the equally wide bins that have rows."""
    places = np.clip((scores * bins).astype("i8"), 0, bins - 1)
    points = []
    for k in range(bins):
        mask = places == k
        if mask.any():
            points.append((float(scores[mask].mean()), float(positive[mask].mean()), int(mask.sum())))
    return points


def interval(value: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was measured on so many rows."""
    if not rows:
        return 0.0, 1.0
    z = 1.959964
    middle = (value + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * math.sqrt(value * (1 - value) / rows + z * z / (4 * rows * rows))
    return max(0.0, middle - half), min(1.0, middle + half)


def intervals(
    measures: Callable[[np.ndarray, np.ndarray], dict[str, float]],
    truth: np.ndarray,
    outputs: np.ndarray,
    repeats: int = 200,
    most: int = 2000,
) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each measure, by the m out of n bootstrap (Bickel, Götze and van Zwet 1997).

    Each repeat draws `most` rows with replacement (all rows, if there are fewer: the ordinary bootstrap); the distances from
    the measure of all rows shrink by the root of m / n. A measure that no repeat has is absent.
    """
    random = np.random.default_rng(0)
    count = len(truth)
    samples = [random.integers(0, count, min(count, most)) for _ in range(repeats)]
    repeat_measures = [measures(truth[rows], outputs[rows]) for rows in samples]
    shrink = math.sqrt(min(count, most) / count)
    ranges = {}
    for name, value in measures(truth, outputs).items():
        values = np.array([repeat.get(name, math.nan) for repeat in repeat_measures], "f8")
        if math.isfinite(value) and np.isfinite(values).any():
            low, high = np.nanpercentile(values[np.isfinite(values)], [2.5, 97.5])
            ranges[name] = (float(value + (low - value) * shrink), float(value + (high - value) * shrink))
    return ranges


def paired_interval(
    first: Callable[[np.ndarray], float],
    second: Callable[[np.ndarray], float],
    count: int,
    repeats: int = 200,
    most: int = 5000,
) -> tuple[float, float]:
    """The 95 % interval of the difference of two measures of the same `count` rows, which take the numbers of rows.

    Each repeat draws the same rows for both; as `intervals`.
    """
    random = np.random.default_rng(0)
    size, all_rows = min(count, most), np.arange(count)
    whole = first(all_rows) - second(all_rows)
    drawn = [random.integers(0, count, size) for _ in range(repeats)]
    values = np.array([first(rows) - second(rows) for rows in drawn])
    low, high = np.nanpercentile(values, [2.5, 97.5]) if np.isfinite(values).any() else (math.nan, math.nan)
    shrink = math.sqrt(size / count)
    return float(whole + (low - whole) * shrink), float(whole + (high - whole) * shrink)


def stability(before: Sequence[float], now: Sequence[float]) -> float:
    """The population stability index of two distributions over the same bins (shares)."""
    least = 1e-4
    return sum((max(b, least) - max(a, least)) * math.log(max(b, least) / max(a, least)) for a, b in zip(before, now))

"""The data of a report of a named model: sections with facts, tables and descriptions of pictures. Pure.

A section is a dictionary of JSON values: `name`, `title`, and any of `note` (a sentence), `facts` ({name: value}), `picture`
(what model.js draws), `tables`, and `code`. model_page.py and the live page make the same page of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pg_mop.backend.arrays import np
from pg_mop.inference import scores
from pg_mop.report.numbers import is_number, rounded, thin

MOST_VERSIONS = 200  # the latest
MOST_CLASSES = 30  # of the matrix and of the bars: the most frequent
MOST_CURVES = 8  # classes with a curve: the most frequent
MOST_DRAWN = 50  # classes whose measures are computed again and again, for their intervals
MOST_BARS = 30
MOST_POINTS = 100  # of a curve
MOST_DOTS = 500  # rows of the picture of predictions
MOST_ROWS = 1000  # of a table
MOST_MEASURES = 8  # columns of the table of versions
OWN = "pg_mop"  # the model's name among its contenders (api/tables/train.py)
MAIN = ("accuracy", "auc", "log_loss", "r2", "rmse", "mae")
UNCERTAIN = (
    "accuracy",
    "balanced_accuracy",
    "precision",
    "recall",
    "f1",
    "auc",
    "average_precision",
    "log_loss",
    "brier",
)
UNCERTAIN_NUMBERS = ("r2", "rmse", "mae", "rmsle", "median_error", "bias", "explained_variance")

Section = dict[str, Any]
Decide = Callable[["np.ndarray"], "np.ndarray"]  # outputs [rows, classes] -> the numbers of the predicted classes


def table(columns: Mapping[str, bool], rows: Iterable[Sequence[Any]], caption: str) -> dict[str, Any]:
    """A table; `columns`: {title: True for numbers}."""
    return {
        "caption": caption,
        "columns": [[title, numeric] for title, numeric in columns.items()],
        "rows": [[rounded(value) if isinstance(value, float) else value for value in row] for row in rows],
    }


# --- what is stored with the versions ---


def stored_sections(versions: Sequence[Mapping[str, Any]], version: int) -> list[Section]:
    """Sections about a model from the rows of its table. `version`: the one that the report is about."""
    version_row = next(row for row in versions if row["version"] == version)
    details = _mapping(version_row["details"])
    return [
        _about(version_row, details),
        _versions(versions),
        *_contenders(details),
        *_folds(details),
        *(
            [{"name": "repeat", "title": "SQL to repeat it", "code": code}]
            if (code := _statements(version_row, details))
            else []
        ),
    ]


def _mapping(value: Any) -> dict[str, Any]:
    """A stored dictionary; nothing for other values, which another role may have written."""
    return value if isinstance(value, dict) else {}


def _is_usable(value: Any) -> bool:
    """Whether a stored value is a number, and finite as a float: an integer of JSON may be larger."""
    return is_number(value) and abs(value) <= sys.float_info.max


def _numbers(value: Any) -> dict[str, float]:
    """The finite numbers of a stored dictionary (jsonb has no order), the main measures first."""
    numbers = {str(name)[:60]: float(number) for name, number in _mapping(value).items() if _is_usable(number)}
    return {
        name: numbers[name] for name in [*(n for n in MAIN if n in numbers), *(n for n in numbers if n not in MAIN)]
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:500]


def _about(own: Mapping[str, Any], details: Mapping[str, Any]) -> Section:
    arguments, rows = _mapping(details.get("arguments")), _mapping(details.get("rows"))
    facts = {
        "target": own["target"],
        "kind": own["kind"],
        "in use": "yes" if own["in_use"] else "no",
        "made": own["created"],
        "owner": own["owner"],
        "trained on": arguments.get("source"),
        "rows": ", ".join(f"{count} {part}" for part, count in rows.items()) or None,
        "net": own["net"],
        "members": _members(details),
        "compiled with": own["compile_params"],
        "fitted with": own["fit_params"],
        "iterations": details.get("iterations"),
        "trials": details.get("trials"),
        "bytes of weights": own["bytes"],
        "description": own["description"],
    }
    metrics = _numbers(own["metrics"])
    interval = details.get("interval")
    caption = "Measures that are stored with the version"
    if isinstance(interval, list) and len(interval) == 2 and all(map(_is_usable, interval)):
        main = str(details.get("metric") or ("r2" if own["kind"] == "regression" else "accuracy"))[:60]
        caption += f"; 95 % interval of {main}: {interval[0]:.4g} to {interval[1]:.4g}"
    if details.get("contenders"):
        caption += ". They are those of the test part of its training"
    return {
        "name": "about",
        "title": f"Version {own['version']}",
        "facts": {name: text for name, value in facts.items() if (text := _text(value)) is not None},
        "tables": [table({"measure": False, "value": True}, metrics.items(), caption)] if metrics else [],
    }


def _members(details: Mapping[str, Any]) -> str | None:
    """The members of an ensemble: each one's weight, and its net, its number in the model table, or its family."""
    members = _mapping(details.get("ensemble")).get("members")
    rows = [_mapping(member) for member in members] if isinstance(members, list) else []
    numbers = [row for row in rows if isinstance(row.get("weight"), float)]
    names = (row.get("net") or row.get("mst_key") or row.get("family") for row in numbers)
    return ", ".join(f"{row['weight']:.3g} {name}" for row, name in zip(numbers, names)) or None


def _versions(versions: Sequence[Mapping[str, Any]]) -> Section:
    latest = list(reversed(versions))[:MOST_VERSIONS]
    metrics = [_numbers(row["metrics"]) for row in latest]
    names = list(dict.fromkeys(name for measures in metrics for name in measures))
    names = [*(name for name in MAIN if name in names), *(name for name in names if name not in MAIN)][:MOST_MEASURES]
    rows = [
        [
            row["version"],
            "yes" if row["in_use"] else "",
            row["created"],
            row["net"],
            *(measures.get(name) for name in names),
            _text(row["description"]),
        ]
        for row, measures in zip(latest, metrics)
    ]
    columns = {"version": True, "in use": False, "made": False, "net": False}
    caption = "The latest version first, with the measures of its own training"
    if len(latest) < versions[0]["count"]:
        caption += f"; {len(latest)} of {versions[0]['count']}"
    return {
        "name": "versions",
        "title": "Versions",
        "tables": [table({**columns, **dict.fromkeys(names, True), "description": False}, rows, caption)],
    }


def _contenders(details: Mapping[str, Any]) -> list[Section]:
    """The baselines that mop_train has measured beside the version."""
    contenders = {str(name)[:60]: _numbers(measures) for name, measures in _mapping(details.get("contenders")).items()}
    contenders = dict(sorted(contenders.items(), key=lambda item: item[0] != OWN)[:MOST_BARS])
    asked = str(details.get("metric"))
    main = next(
        (name for name in (asked, "accuracy", "r2") if any(name in measures for measures in contenders.values())), None
    )
    if main is None or len(contenders) < 2:
        return []
    names = [name for name in MAIN if any(name in measures for measures in contenders.values())]
    have = {name: measures[main] for name, measures in contenders.items() if main in measures}
    return [
        {
            "name": "baselines",
            "title": "Simple models on the same rows",
            "note": f"Trained and measured with the version, on its own parts. The picture shows {main}.",
            "picture": {
                "kind": "bars",
                "label": f"{main} of the model and of {len(have) - 1} simple models.",
                "names": list(have),
                "axis": main,
                "series": [{"name": main, "values": [rounded(value) for value in have.values()]}],
                "colours": ["train" if name == OWN else "grey" for name in have],
            },
            "tables": [
                table(
                    {"model": False, **dict.fromkeys(names, True)},
                    [[name, *(measures.get(measure) for measure in names)] for name, measures in contenders.items()],
                    "Measures on the test part",
                )
            ],
        }
    ]


def _folds(details: Mapping[str, Any]) -> list[Section]:
    folds = _mapping(details.get("folds"))
    if not folds:
        return []
    facts = {str(name).replace("_", " "): _text(rounded(v) if isinstance(v, float) else v) for name, v in folds.items()}
    return [
        {
            "name": "folds",
            "title": "Cross-validation",
            "note": "Means and deviations over the folds of the training part.",
            "facts": {name: value for name, value in facts.items() if value is not None},
        }
    ]


def _statements(own: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    statements = details.get("statements")
    lines = statements if isinstance(statements, list) else [own["statement"]]
    return "\n".join(str(line) for line in lines if line)[:20_000]


# --- what is measured on the rows of a source ---


def measured_sections(
    truth: np.ndarray,
    outputs: np.ndarray,
    labels: Sequence[str],
    importance: Sequence[tuple[str, float, float]],
    drift: Sequence[tuple[str, float, float, float, str]],
    source: str,
    decide: Decide = lambda outputs: outputs.argmax(1),
) -> list[Section]:
    """Sections about predictions for rows with a known target.

    `truth`, `outputs`, `labels` as in api/tables/reports.py; without labels the model predicts numbers. `importance`, `drift`:
    as the functions of the same names return them. `source`: how the rows are called; `decide`: as the model does.
    """
    sections = [_measures(truth, outputs, labels, source, decide)]
    if labels:
        counts = scores.confusion(truth, decide(outputs), len(labels))
        order = np.argsort(-counts.sum(1), kind="stable").tolist()
        sections += [make(counts, labels, order) for make in (_matrix, _classes)]
        sections += [make(truth, outputs, labels, order) for make in (_roc, _calibration)]
    else:
        sections.append(_predicted(truth, outputs[:, 0]))
    return [*sections, _importance(importance, bool(labels)), *([_drift(drift)] if drift else [])]


def _measures(truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str], source: str, decide: Decide) -> Section:
    names = UNCERTAIN if labels else UNCERTAIN_NUMBERS

    def measures(t: np.ndarray, o: np.ndarray) -> dict[str, float]:
        return scores.classification(t, o, predicted=decide(o)) if labels else scores.regression(t, o[:, 0])

    values = measures(truth, outputs)
    intervals, has_bootstrap = {}, len(labels) <= MOST_DRAWN
    if has_bootstrap:
        intervals = scores.intervals(
            lambda t, o: {name: number for name, number in measures(t, o).items() if name in names}, truth, outputs
        )
        # where all rows agree, such as an AUC of 1, the bootstrap has no interval
        intervals = {name: (low, high) for name, (low, high) in intervals.items() if low < high}
    if labels:
        intervals["accuracy"] = scores.interval(values["accuracy"], len(truth))
    if len(labels) == 2:
        for name, positive in (("precision", decide(outputs) == 1), ("recall", truth == 1)):
            intervals[name] = scores.interval(values[name], int(positive.sum()))
    ways = ["Wilson's for shares of rows"] * bool(labels) + ["the bootstrap for the others"] * has_bootstrap
    rows = [[name, value, *intervals.get(name, (None, None))] for name, value in values.items()]
    return {
        "name": "measures",
        "title": "Measures",
        "note": f"Intervals: {', '.join(ways)}. They hold for rows drawn as these were.",
        "tables": [
            table(
                {"measure": False, "value": True, "95 % from": True, "95 % to": True},
                rows,
                f"{len(truth):,} rows of {source}",
            )
        ],
    }


def _few(count: int, most: int, what: str = "classes") -> str | None:
    return f"The {most} most frequent of {count} {what}." if count > most else None


def _matrix(counts: np.ndarray, labels: Sequence[str], order: list[int]) -> Section:
    classes = sorted(order[:MOST_CLASSES])
    names = [labels[k] for k in classes]
    right = int(np.trace(counts))
    rows = [[name, *counts[k, classes].tolist()] for name, k in zip(names, classes)]
    # two classes may have one name, such as NULL
    columns = [["actual", False], *[[f"predicted {name}", True] for name in names]]
    return {
        "name": "confusion",
        "title": "Confusion matrix",
        "note": _few(len(labels), MOST_CLASSES),
        "picture": {
            "kind": "matrix",
            "label": f"Confusion matrix of {len(names)} classes: {right} of {counts.sum()} rows are right.",
            "names": names,
            "counts": [row[1:] for row in rows],
        },
        "tables": [{"caption": "Rows by actual and predicted class", "columns": columns, "rows": rows}],
    }


def _classes(counts: np.ndarray, labels: Sequence[str], order: list[int]) -> Section:
    report = scores.class_report(counts)
    classes = sorted(order[:MOST_CLASSES])
    kinds = ("precision", "recall", "f1")
    classes_in_table = sorted(order[:MOST_ROWS])
    return {
        "name": "classes",
        "title": "Classes",
        "note": _few(len(labels), MOST_CLASSES),
        "picture": {
            "kind": "bars",
            "label": f"Precision, recall and F1 of {len(classes)} classes.",
            "names": [labels[k] for k in classes],
            "axis": "",
            "low": 0,
            "high": 1,
            "series": [{"name": kind, "values": [rounded(report[k][kind]) for k in classes]} for kind in kinds],
        },
        "tables": [
            table(
                {"class": False, **dict.fromkeys(kinds, True), "rows": True},
                [
                    [labels[k], *(report[k][kind] for kind in kinds), int(report[k]["support"])]
                    for k in classes_in_table
                ],
                "Precision, recall and F1 by class",
            )
        ],
    }


def _curves_of(truth: np.ndarray, labels: Sequence[str], order: list[int]) -> list[int]:
    """The classes with a curve: the second of two, else the most frequent ones that have rows."""
    return [len(labels) - 1] if len(labels) <= 2 else sorted(k for k in order[:MOST_CURVES] if (truth == k).any())


def _roc(truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str], order: list[int]) -> Section:
    lines, rows = [], []
    for k in _curves_of(truth, labels, order):
        points = [[rounded(x), rounded(y)] for _, x, y in scores.roc_curve(truth == k, outputs[:, k])]
        lines.append({"name": labels[k], "points": thin(points, MOST_POINTS)})
        rows.append([labels[k], scores.auc(truth == k, outputs[:, k]), int((truth == k).sum())])
    return {
        "name": "roc",
        "title": "ROC curve",
        "note": _few(len(labels), MOST_CURVES) if len(labels) > 2 else f"Of class {labels[-1]}.",
        "picture": {
            "kind": "plot",
            "label": f"ROC curves of {len(lines)} classes, each against the rest.",
            "x": "false positive rate",
            "y": "true positive rate",
            "bounds": [0, 1],
            "lines": lines,
        },
        "tables": [table({"class": False, "area": True, "rows": True}, rows, "Area under the curve of each class")],
    }


def _calibration(truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str], order: list[int]) -> Section:
    lines, rows = [], []
    for k in _curves_of(truth, labels, order):
        bins = scores.calibration(truth == k, outputs[:, k])
        lines.append({"name": labels[k], "points": [[rounded(x), rounded(y)] for x, y, _ in bins], "dots": True})
        rows += [[labels[k], *bin_row] for bin_row in bins]
    return {
        "name": "calibration",
        "title": "Calibration",
        "note": "On the dashed line, the share of a class is its predicted probability."
        + (f" The picture is of class {labels[-1]}." if len(labels) == 2 else ""),
        "picture": {
            "kind": "plot",
            "label": f"Shares of {len(lines)} classes by predicted probability, in ten bins.",
            "x": "mean probability",
            "y": "share of the rows",
            "bounds": [0, 1],
            "lines": lines,
        },
        "tables": [
            table({"class": False, "mean probability": True, "share": True, "rows": True}, rows, "Ten bins by class")
        ],
    }


def _whole(value: float) -> Any:
    """As `rounded`, but large numbers keep their units: seconds since 1970 differ in their last digits."""
    return int(value) if math.isfinite(value) and abs(value) >= 1e6 else rounded(float(value))


def _predicted(truth: np.ndarray, predicted: np.ndarray) -> Section:
    report = scores.regression_report(truth, predicted)
    rows = np.arange(len(truth))
    if len(rows) > MOST_DOTS:
        rows = np.random.default_rng(0).choice(rows, MOST_DOTS, replace=False)
    dots = [[_whole(truth[i]), _whole(predicted[i])] for i in rows]
    means = [[_whole(band["actual"]), _whole(band["predicted"])] for band in report]
    names = ("least", "most", "rows", "actual", "predicted", "mae", "rmse", "bias")
    titles = ("from", "to", "rows", "mean truth", "mean prediction", "mae", "rmse", "bias")
    return {
        "name": "predicted",
        "title": "Predictions by truth",
        "note": f"{len(dots):,} of {len(truth):,} rows, drawn at random." if len(dots) < len(truth) else None,
        "picture": {
            "kind": "plot",
            "label": f"Predictions by truth of {len(dots)} rows, and the means of {len(report)} bands of the truth.",
            "x": "truth",
            "y": "prediction",
            "lines": [{"name": "means of bands", "points": means, "dots": True}],
            "dots": dots,
        },
        "tables": [
            table(
                dict.fromkeys(titles, True),
                [[_whole(band[name]) for name in names] for band in report],
                "Errors in bands of the truth that have about as many rows",
            )
        ],
    }


def _importance(losses: Sequence[tuple[str, float, float]], classes: bool) -> Section:
    measure, bars = "accuracy" if classes else "R2", losses[:MOST_BARS]
    return {
        "name": "importance",
        "title": "Importance of columns",
        "note": f"How much {measure} drops where the values of a column are permuted."
        + (f" The picture has the first {len(bars)} of {len(losses)} columns." if len(bars) < len(losses) else ""),
        "picture": {
            "kind": "bars",
            "label": f"Loss of {measure} for {len(bars)} permuted columns, the largest first.",
            "names": [name for name, _, _ in bars],
            "axis": f"loss of {measure}",
            "series": [
                {
                    "name": f"loss of {measure}",
                    "values": [rounded(value) for _, value, _ in bars],
                    "spread": [rounded(deviation) for _, _, deviation in bars],
                }
            ],
        },
        "tables": [
            table({"column": False, f"loss of {measure}": True, "deviation": True}, losses[:MOST_ROWS], "Every column")
        ],
    }


def _drift(columns: Sequence[tuple[str, float, float, float, str]]) -> Section:
    bars = columns[:MOST_BARS]
    colours = {"drifted": "bad", "changed": "evaluate"}
    return {
        "name": "drift",
        "title": "Drift",
        "note": "The population stability index of each column against the training rows: below 0.1 stable, above 0.25 drifted."
        + (f" The picture has the first {len(bars)} of {len(columns)} columns." if len(bars) < len(columns) else ""),
        "picture": {
            "kind": "bars",
            "label": f"Population stability index of {len(bars)} columns, the largest first.",
            "names": [name for name, *_ in bars],
            "axis": "population stability index",
            "low": 0,
            "series": [{"name": "index", "values": [rounded(row[1]) for row in bars]}],
            "colours": [colours.get(row[4], "train") for row in bars],
            "said": [row[4] for row in bars],
        },
        "tables": [
            table(
                {"column": False, "index": True, "NULL in training": True, "NULL now": True, "verdict": False},
                columns[:MOST_ROWS],
                "Every column",
            )
        ],
    }

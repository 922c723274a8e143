"""Folds in a report: a configuration is shown with the means over its folds, and not its folds."""

from __future__ import annotations

from typing import Any

from pg_mop.call.metrics import HELD_OUT
from pg_mop.plan.folds import summarize
from pg_mop.report.numbers import rounded

Data = dict[str, Any]


def merged(configurations: list[Data]) -> list[Data]:
    """The configurations of a run without their folds (`fold` is not None; both are dicts of report/configurations.py).

    A configuration gets the means over its folds, where all of them have the value: in `last` and `series`, as of a dataset
    HELD_OUT, and as curves in `held_out`: {series: [[iteration, mean], ...]}. It has the seconds and the failures of its
    folds, too.
    """
    by_key = {c["mst_key"]: c for c in configurations if c["fold"] is None}
    folds: dict[int, list[Data]] = {key: [] for key in by_key}
    for c in configurations:
        if c["fold"] is not None:
            folds[c["fold_of"]].append(c)
    for key, c in by_key.items():
        c["held_out"] = {}
        if folds[key]:
            _add(c, folds[key])
    for c in by_key.values():
        del c["fold"], c["fold_of"]
    return list(by_key.values())


def _add(c: Data, folds: list[Data]) -> None:
    c["seconds"] = rounded(sum((fold["seconds"] for fold in folds), c["seconds"]))
    c["failed_units"] += sum(fold["failed_units"] for fold in folds)
    failed = next((fold for fold in folds if fold["status"] == "failed"), None)
    if failed is not None and c["status"] != "failed":
        c["status"], c["reason"] = "failed", f"fold {failed['fold']}: {failed['reason']}"
    if len({fold["metrics_iterations"][-1] if fold["metrics_iterations"] else None for fold in folds}) == 1:
        for name in folds[0]["last"]:
            mean = summarize(fold["last"].get(name) for fold in folds).mean
            if mean is not None:
                c["last"][f"{HELD_OUT} {name.split(' ', 1)[1]}"] = mean
    common = set.intersection(*(set(fold["metrics_iterations"]) for fold in folds))
    for which in ("loss", "metric"):
        points = []
        for iteration in sorted(common):
            values = (_value(fold, which, iteration) for fold in folds)
            if (mean := summarize(values).mean) is not None:
                points.append([iteration, rounded(mean)])
        c["series"][f"{HELD_OUT} {which}"] = [value for _, value in points]
        name = "loss" if which == "loss" else c["metric"]
        if points and name is not None:
            c["held_out"][f"{HELD_OUT} {name}"] = points


def _value(fold: Data, which: str, iteration: int) -> float | None:
    """The loss or the first metric of a fold after an iteration that has been evaluated."""
    values = fold["series"][f"training {which}"]
    return values[fold["metrics_iterations"].index(iteration)] if values else None

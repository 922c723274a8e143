"""The configurations of a run as its report has them: parameters, progress, results, seconds, and their ranks."""

import json
import math
import re
from typing import Any

from pg_mop.backend.database import Database
from pg_mop.plan.watch import Watch
from pg_mop.report.folds import HELD_OUT, merged
from pg_mop.report.numbers import rounded
from pg_mop.report.parameters import flat
from pg_mop.search.goals import goal
from pg_mop.search.ranking import LOSS, judged_by, order

DATASETS = ("training", "validation")
LOOKED_BACK = 3  # latest iterations in which to look for a metric that is not evaluated yet
MOST_TEXT = 2000  # characters of an error

Data = dict[str, Any]


def read(db: Database, schema: str, run: Data) -> list[Data]:
    """A dict for each configuration: its parameters, its progress, its metrics and its seconds. The metrics ("last")
    are those of the state that the output table has: the last one, or the best one where the configuration keeps it."""
    run_id = run["run_id"]
    rows = db.execute(
        f"SELECT mst_key, model_id, compile_params, fit_params, status, iterations, path, metrics_iterations, "
        f"training_loss, training_metric, validation_loss, validation_metric, left(reason, {MOST_TEXT}) AS reason, "
        f"fold, fold_of, kept_by "
        f"FROM {schema}.mop_trials WHERE run_id = $1 ORDER BY mst_key",
        ["bigint"],
        [run_id],
    )
    configurations = {}
    for row in rows:
        series = {
            f"{dataset} {name}": row.pop(f"{dataset}_{name}") for dataset in DATASETS for name in ("loss", "metric")
        }
        configurations[row["mst_key"]] = {
            **row,
            "parameters": flat(row),
            "last": {},
            "series": series,
            "metric": None,
            "seconds": 0.0,
            "failed_units": 0,
            "path": row["path"] or [],
            "metrics_iterations": row["metrics_iterations"] or [],
        }
    # The last evaluation of each dataset. The newest one of a running or stopped configuration may lack a dataset.
    states = _kept(db, schema, run, configurations)
    last = [
        (key, i)
        for key, c in configurations.items()
        for i in ([states[key]] if key in states else c["metrics_iterations"][-1 if _is_whole(c) else -LOOKED_BACK :])
    ]
    for row in (
        db.execute(
            f"SELECT w.* FROM {schema}.mop_metrics_wide w JOIN unnest($2, $3) AS l(mst_key, iteration) "
            f"USING (mst_key, iteration) WHERE run_id = $1 ORDER BY iteration",
            ["bigint", "integer[]", "integer[]"],
            [run_id, [k for k, _ in last], [i for _, i in last]],
        )
        if last
        else ()
    ):
        configuration = configurations[row["mst_key"]]
        configuration["metric"] = row["metric"]
        for dataset in DATASETS:
            if row[f"{dataset}_loss"] is not None:
                metrics = json.loads(row[f"{dataset}_metrics"])
                first = {row["metric"]: metrics[row["metric"]]} if row["metric"] in metrics else {}
                values = {"loss": row[f"{dataset}_loss"], **first, **metrics}
                configuration["last"].update({f"{dataset} {name}": value for name, value in values.items()})
    for row in db.execute(
        f"SELECT mst_key, coalesce(sum(read_seconds + train_seconds + write_seconds) "
        f"FILTER (WHERE kind = 'train'), 0) AS seconds, max(iteration) FILTER (WHERE kind = 'train' "
        f"AND status = 'finished') AS reached, "
        f"count(*) FILTER (WHERE status = 'failed' AND NOT shared) AS failed_units "
        f"FROM {schema}.mop_units WHERE run_id = $1 GROUP BY 1",
        ["bigint"],
        [run_id],
    ):
        configurations[row["mst_key"]]["seconds"] = rounded(row["seconds"])
        configurations[row["mst_key"]]["failed_units"] = row["failed_units"]
        if configurations[row["mst_key"]]["status"] != "finished":  # its `iterations` are the requested ones
            configurations[row["mst_key"]]["iterations"] = max(
                row["reached"] or 0, *configurations[row["mst_key"]]["metrics_iterations"][-1:], 0
            )
    for configuration in configurations.values():
        if configuration["status"] != "finished":
            configuration["iterations"] = min(configuration["iterations"], len(configuration["path"]))
    return merged(list(configurations.values()))


def _kept(db: Database, schema: str, run: Data, configurations: dict[int, Data]) -> dict[int, int]:
    """{mst_key: iteration} of the best state so far, for the configurations that keep their best state."""
    rules, watches = {}, {}
    for key, c in configurations.items():
        if (kept_by := c.pop("kept_by")) is not None:
            dataset, name, goal = (kept_by.split(" ") + ["", ""])[:3]
            rules[key], watches[key] = (name, dataset), Watch(goal)
    for row in (
        db.execute(
            f"SELECT m.mst_key, m.iteration, m.value, l.value AS loss FROM {schema}.mop_metrics m "
            f"JOIN unnest($2, $3, $4) AS r(mst_key, name, dataset) USING (mst_key, name, dataset) "
            f"LEFT JOIN {schema}.mop_metrics l ON (l.run_id, l.mst_key, l.iteration, l.dataset, l.name) "
            f"= (m.run_id, m.mst_key, m.iteration, m.dataset, 'loss') WHERE m.run_id = $1 ORDER BY 2",
            ["bigint", "integer[]", "text[]", "text[]"],
            [run["run_id"], list(rules), *map(list, zip(*rules.values()))],
        )
        if rules
        else ()
    ):
        watches[row["mst_key"]].tell(row["iteration"], row["value"], row["loss"])
    return {key: watch.best[0] for key, watch in watches.items() if watch.best is not None}


def _is_whole(configuration: Data) -> bool:
    """True where all evaluations have the same datasets."""
    of_validation = configuration["series"]["validation loss"]
    return not of_validation or len(of_validation) == len(configuration["metrics_iterations"])


def measure(data: Data, arguments: Data) -> dict[str, str]:
    """The series that ranks configurations: {'series', 'goal'}. It is the search's metric; otherwise the metric by which
    the run chooses its best configuration (search/ranking.py); of the validation rows if the run has them."""
    names = dict.fromkeys(name for c in data["configurations"] for name in c["last"])
    dataset = next((d for d in (HELD_OUT, "validation") if any(name.startswith(f"{d} ") for name in names)), "training")
    match = re.fullmatch(r"(?:(training|validation)_)?(\w+)(?:\s+(max|min))?", (arguments.get("metric") or "").strip())
    judged = dataset if dataset == HELD_OUT else match and match[1] or dataset
    if match and f"{judged} {match[2]}" in names:
        return {"series": f"{judged} {match[2]}", "goal": match[3] or goal(match[2]) or "min"}
    metric, direction = (
        LOSS
        if data["run"]["function"] in ("mop_search", "madlib_keras_automl")
        else judged_by(c["metric"] for c in data["configurations"] if c["last"] and c["status"] != "failed")
    )
    return {"series": f"{dataset} {metric}", "goal": direction}


def rank(data: Data) -> None:
    """Sort the configurations, the best first; set the rank and the best value of each."""
    series, direction = data["measure"]["series"], data["measure"]["goal"]
    better = max if direction == "max" else min
    dataset, name = series.split(" ", 1)
    data["configurations"].sort(
        key=lambda c: (
            c["status"] == "failed",
            order(direction, c["last"].get(series), c["last"].get(f"{dataset} loss"), c["mst_key"]),
        )
    )
    for rank, c in enumerate(data["configurations"], 1):
        which = "loss" if name == "loss" else "metric" if name == c["metric"] else None
        values = [v for v in (which and c["series"][f"{dataset} {which}"]) or () if v is not None and math.isfinite(v)]
        c["rank"], c["best"] = rank, rounded(better(values) if values else c["last"].get(series))

"""The metrics of a run as text and as values: INFO lines while it runs, columns of its output tables at the end.

`rows`: dicts as :meth:`pg_mop.catalog.Catalog.metrics` gives them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pg_mop.plan.folds import summarize
from pg_mop.search.ranking import judged_by, order

Row = dict[str, Any]

FEW, BEST = 8, 5  # with more than FEW configurations, only the BEST have a line each
MOST_TEXT = 200  # characters of a failure's message
HELD_OUT = "held-out"  # in place of a dataset: the mean over the folds of a configuration


def lines(
    iteration: int,
    iterations: int,
    seconds: float | None,
    rows: Sequence[Row],
    named: Callable[[int], str],
    configurations: int = 1,
    failed: dict[int, str] | None = None,
    left: float | None = None,
) -> str:
    """The text about an iteration, in at most ten lines.

    `seconds`: how long it trained, None if an earlier run has trained it (a row whose `took` is None was evaluated by an
    earlier run); `named(mst_key)`: begins a configuration's line; `failed`: {mst_key: message} and `left`: seconds to the
    end, if known, appear only where there are many `configurations`.
    """
    many = configurations > FEW
    by_key: dict[int, list[Row]] = {}
    told = [f"iteration {iteration} of {iterations}: trained in {seconds or 0.0:.3f} s"]
    if rows:
        took = {
            (r["stage"], r["dataset"]): r["took"] or 0.0 for r in rows
        }  # configurations that share a stage share its time
        told[0] += f", evaluated in {sum(took.values()):.3f} s"
    if many and left:
        told[0] += f", about {duration(left)} left"
    for row in rows:
        by_key.setdefault(row["mst_key"], []).append(row)
    keys = list(by_key)
    if many and rows:
        judged = next(d for d in (HELD_OUT, "validation", "training") if any(r["dataset"] == d for r in rows))
        here = [r for r in rows if r["dataset"] == judged]
        found, by = best(here)
        keys = [r["mst_key"] for r in found]
        told.append(f"the best {len(keys)} of {len(here)} configurations by {judged} {by}:")
    told += [f"  {named(key)}{'; '.join(map(described, by_key[key]))}" for key in keys]
    if many and failed:
        first = min(failed)
        message = " ".join(failed[first].split())
        told.append(
            f"{len(failed)} of {configurations} configurations failed, mst_key={first}: "
            f"{message[:MOST_TEXT]}{'...' if len(message) > MOST_TEXT else ''}"
        )
    return "\n".join(told)


def with_folds(rows: Iterable[Row], configurations: Any) -> list[Row]:
    """The rows of configurations, and a row of the dataset HELD_OUT in place of those of a configuration's folds after an
    iteration, where all of its folds have one. `configurations`: a run.configurations.Configurations."""
    found: list[Row] = []
    folded: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        own = configurations.own_key(row["mst_key"])
        if own == row["mst_key"]:
            found.append(row)
        else:
            folded.setdefault((row["iteration"], own), []).append(row)
    found += [mean(own, its) for (_, own), its in folded.items() if len(its) == configurations.folds]
    return sorted(found, key=lambda row: (row["iteration"], row["mst_key"]))


def mean(mst_key: int, rows: Sequence[Row]) -> Row:
    """The row of a configuration's means, from the rows of its folds after an iteration."""
    values = {name: summarize(row["metrics"][name] for row in rows).mean for name in rows[0]["metrics"] or ()}
    return {
        "mst_key": mst_key,
        "iteration": rows[0]["iteration"],
        "stage": -mst_key,  # of no single stage
        "dataset": HELD_OUT,
        "loss": summarize(row["loss"] for row in rows).mean,
        "metric": next(iter(values.values()), None),
        "metrics": values,
        "took": sum(row.get("took") or 0.0 for row in rows),
    }


def described(row: Row) -> str:
    """The metrics of a row as text, with four digits."""
    values = {**(row.get("metrics") or {}), "loss": row["loss"]}
    text = ", ".join(f"{name}={value:.4g}" for name, value in values.items() if value is not None)
    return text if row["dataset"] == "training" else f"{row['dataset']} {text}"


def best(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """The BEST rows of one dataset, in order, and the name of the metric that orders them (search/ranking.py)."""
    name, direction = judged_by(next(iter(r["metrics"] or ()), None) for r in rows)
    value = "loss" if name == "loss" else "metric"
    return sorted(rows, key=lambda r: order(direction, r[value], r["loss"], r["mst_key"]))[:BEST], name


@dataclass
class Differences:
    """How the values of a replay differ from those of the run that it repeats: `values` compared, so many `differ`, by at most
    the `largest` part of their size; `lacking`: values that the replay does not have; `first`: the first one in words."""

    values: int = 0
    differ: int = 0
    lacking: int = 0
    largest: float = 0.0
    first: str | None = None


def differences(before: Mapping[tuple[int, int, str], Row], rows: Iterable[Row]) -> Differences:
    """Compare losses and metrics. `before`: {(mst_key, iteration, dataset): row} of the earlier run.

    >>> row = {"mst_key": 1, "iteration": 2, "dataset": "training", "loss": 0.5, "metrics": {"accuracy": 0.75}}
    >>> differences({(1, 2, "training"): row}, [{**row, "loss": 0.25}])
    Differences(values=2, differ=1, lacking=0, largest=0.5, first='mst_key 1, iteration 2, training loss: 0.5, now 0.25')
    """
    found = Differences()
    now = {(row["mst_key"], row["iteration"], row["dataset"]): row for row in rows}
    for place, row in before.items():
        others = _values(now[place]) if place in now else {}
        for name, value in _values(row).items():
            other = others.get(name)
            found.values += 1
            if other == value:
                continue
            found.first = (
                found.first or "mst_key {}, iteration {}, {} ".format(*place) + f"{name}: {value!r}, now {other!r}"
            )
            if other is None:
                found.lacking += 1
            else:
                found.differ += 1
                apart = abs(other - value) / max(abs(other), abs(value))  # (nan where a value is infinite)
                found.largest = max(found.largest, apart if math.isfinite(apart) else math.inf)
    return found


def _values(row: Row) -> dict[str, float]:
    values = {"loss": row["loss"], **(row["metrics"] or {})}
    return {name: value for name, value in values.items() if value is not None}


def duration(seconds: float) -> str:
    """Seconds as text: 42 s, 5 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def columns(
    rows: Sequence[Row], validated: bool, absent: Any, written: int | None = None, asked: Collection[int] | None = None
) -> dict[str, tuple[str, Any]]:
    """The metrics of one configuration as {column: (SQL type, value)}.

    `validated`: there is a validation table; `absent`: the value for a metric that was not asked for; `written`: the
    iteration whose state is written, which gives the final metrics (None: the last); `asked`: the iterations that the
    arrays list (None: all). Rows may be of other iterations: an earlier run evaluated them, or somebody stopped there.
    """
    made: dict[str, tuple[str, Any]] = {}
    everything: dict[str, dict[str, Any]] = {}
    for dataset in ("training", "validation"):
        its = [m for m in rows if m["dataset"] == dataset]
        for m in its if written is None else [m for m in its if m["iteration"] == written]:
            made[f"{dataset}_metrics_final"] = "float8", absent if m["metric"] is None else m["metric"]
            made[f"{dataset}_loss_final"] = "float8", m["loss"]
        here = [m for m in its if asked is None or m["iteration"] in asked]
        if not here:
            continue
        metrics = [absent if m["metric"] is None else m["metric"] for m in here]
        made[f"{dataset}_metrics"] = "float8[]", metrics if metrics[0] is not None else None
        made[f"{dataset}_loss"] = "float8[]", [m["loss"] for m in here]
        everything[dataset] = {name: [m["metrics"].get(name) for m in here] for name in here[0]["metrics"] or ()}
        if dataset == ("validation" if validated else "training"):
            made["metrics_elapsed_time"] = ("float8[]", [m["seconds"] for m in here])
    if any(everything.values()):
        made["all_metrics"] = ("jsonb", json.dumps(everything))
    return made

"""The summary of a run: how it goes, which configuration is best, what failed and why, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pg_mop.backend.database import Database
from pg_mop.backend.quoting import quote_literal
from pg_mop.report.advice import Facts, next_steps, remedy
from pg_mop.report.causes import causes
from pg_mop.report.folds import HELD_OUT
from pg_mop.report.numbers import rounded, thin
from pg_mop.report.uses import WITHOUT, uses

MOST_POINTS = 60  # of the best value over time
MOST_RANKED = 1000  # best configurations in a summary

Data = dict[str, Any]

OVER_TIME = """
SELECT s.seconds, s.value FROM (
    SELECT e.seconds, e.value, {best}(e.value) OVER (
               ORDER BY e.seconds ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT m.seconds, {column} AS value FROM {schema}.mop_metrics_wide m
          WHERE m.run_id = $1 AND m.mst_key <> ALL ($2)) e
    WHERE e.value NOT IN ('NaN', 'Infinity', '-Infinity')) s
WHERE s.before IS NULL OR s.value {better} s.before ORDER BY s.seconds"""


def add_summary(db: Database, data: Data, tables: Mapping[str, Any], compile_seconds: float) -> None:
    """Add `causes`, `next` and `summary` to a report's data (gather.py), whose configurations still have their series.

    `data` has the run's `progress`, too. `tables`: of the call; `compile_seconds`: in which trainers made nets ready. The
    summary is a dict: status; tone (good, busy, warn, calm or bad); state, in words; done, total and seconds_left, of units
    and time; best (a dict, or None); failed, of and causes, which are counts; over_time, [[seconds since the start, best value
    so far], ...].
    """
    run, configurations = data["run"], data["configurations"]
    data["causes"] = causes(configurations, data["varied"])
    series = data["measure"]["series"]
    failed = sum(c["status"] == "failed" for c in configurations)
    tone, state = told(run["status"], failed, len(configurations))
    best = next((c for c in configurations if c["status"] != "failed" and c["last"].get(series) is not None), None)
    is_own = run["owner"] == db.current_user()
    data["summary"] = {
        "status": run["status"],
        "tone": tone,
        "state": state,
        **data.pop("progress"),
        "seconds": rounded(run["seconds"]),
        "best": None
        if best is None
        else {
            "mst_key": best["mst_key"],
            "series": series,
            "value": best["last"][series],
            "iterations": best["iterations"],
            "parameters": {name: v for name in data["varied"] if (v := best["parameters"].get(name)) is not None},
            **(uses(db, run, best["mst_key"], data["schema"]) if is_own else WITHOUT),
        },
        "failed": failed,
        "of": len(configurations),
        "causes": len(data["causes"]),
        "over_time": _over_time(db, data),
    }
    facts = Facts(
        run=run,
        schema=data["schema"],
        gets=":=" if db.has_segments else "=>",
        configurations=[{**c, "curve": curve(c, series)} for c in configurations],
        measure=data["measure"],
        varied=data["varied"],
        arguments=data["arguments"],
        arch_table=tables.get("model_arch_table") or data["arguments"].get("model_arch_table"),
        object_table=tables.get("object_table") or data["arguments"].get("object_table"),
        own=is_own,
        seconds=_seconds(data, compile_seconds),
        sessions=len(data.get("lanes", ())),
        causes=data["causes"],
    )
    for cause in data["causes"]:
        cause["sql"] = remedy(facts, cause) or listing(data["schema"], run["run_id"], cause["keys"])
    data["next"] = next_steps(facts)
    if not data["next"] and data["summary"]["best"] and data["summary"]["best"]["predict"]:
        data["next"] = [
            {
                "kind": "predict",
                "say": "No curve still rises, and no parameter is at an edge: use the best model.",
                "sql": data["summary"]["best"]["predict"],
            }
        ]


def may_read(db: Database, view: str) -> bool:
    """True if the caller may read a view: a role that only shows runs may have rights on some (docs/bi.md)."""
    return db.value("SELECT has_table_privilege($1, 'SELECT')", ["text"], [f"{db.extension}.{view}"])


def progress(db: Database, run_id: int) -> Data:
    """done and total units of a run, and seconds_left (None: unknown)."""
    row = db.one(
        f"SELECT units_done, units_total, seconds_left FROM {db.extension}.mop_run_progress WHERE run_id = $1"
        if may_read(db, "mop_run_progress")
        else "SELECT sum(units_done)::bigint AS units_done, sum(units_total)::bigint AS units_total, "
        f"max(seconds_left) AS seconds_left FROM {db.extension}.mop_progress WHERE run_id = $1",
        ["bigint"],
        [run_id],
    )
    row = row or {"units_done": 0, "units_total": 0, "seconds_left": None}
    return {
        "done": row["units_done"] or 0,
        "total": row["units_total"] or 0,
        "seconds_left": rounded(row["seconds_left"]),
    }


def told(status: str, failed: int, count: int) -> tuple[str, str]:
    """(tone, words) for the state of a run, of whose `count` configurations `failed` have failed.

    >>> told("finished", 12, 16)
    ('warn', 'finished, 12 of 16 failed')
    >>> told("cancelled", 0, 16), told("running", 1, 16)
    (('calm', 'cancelled'), ('busy', 'running, 1 of 16 failed'))
    """
    tone = {"running": "busy", "finished": "good", "cancelled": "calm"}.get(status, "bad")
    if status == "finished" and failed:
        tone = "bad" if failed == count else "warn"
    return tone, f"{status}, {failed} of {count} failed" if failed and status != "failed" else status


def listing(schema: str, run_id: int, keys: list[int]) -> str:
    """SQL that lists configurations with their parameters and why they ended."""
    return (
        f"SELECT mst_key, compile_params, fit_params, reason FROM {schema}.mop_trials\n"
        f"WHERE run_id = {run_id} AND mst_key IN ({', '.join(map(str, keys))});"
    )


def curve(configuration: Mapping[str, Any], series: str) -> list[list[Any]]:
    """[[iteration, value], ...] of a configuration's series, without the values that are not numbers.

    Only the loss and the first metric have a curve.
    """
    dataset, name = series.split(" ", 1)
    if dataset == HELD_OUT.split(" ")[0] and series.startswith(HELD_OUT):
        return list((configuration.get("held_out") or {}).get(series, ()))
    which = "loss" if name == "loss" else "metric" if name == configuration["metric"] else None
    values = (which and configuration["series"][f"{dataset} {which}"]) or []
    return [[i, v] for i, v in zip(configuration["metrics_iterations"], values) if rounded(v) is not None]


def _over_time(db: Database, data: Data) -> list[list[Any]]:
    """[[seconds, best value so far], ...] of the measure, at each improvement; MOST_POINTS at most."""
    dataset, name = data["measure"]["series"].split(" ", 1)
    configurations = data["configurations"]
    if data["measure"]["series"].startswith(HELD_OUT) or not any(c["metrics_iterations"] for c in configurations):
        return []
    if name == "loss":
        column = f"m.{dataset}_loss"
    elif all(c["metric"] in (name, None) for c in configurations):
        column = f"m.{dataset}_metric"
    else:
        column = f"(m.{dataset}_metrics ->> {quote_literal(name)})::double precision"
    more = data["measure"]["goal"] == "max"
    rows = db.execute(
        OVER_TIME.format(
            best="max" if more else "min", better=">" if more else "<", column=column, schema=db.extension
        ),
        ["bigint", "integer[]"],
        [data["run"]["run_id"], [c["mst_key"] for c in configurations if c["status"] == "failed"]],
    )
    return thin([[rounded(max(0.0, row["seconds"])), rounded(row["value"])] for row in rows], MOST_POINTS)


def _seconds(data: Data, compile_seconds: float) -> dict[str, float]:
    """The trainers' seconds by purpose, and the busy and idle seconds of the sessions (advice.Facts)."""
    parts = {part["what"]: part for part in data.get("time", ())}
    train = parts.get("training units", {}).get("compute", 0.0)
    ready = min(compile_seconds, train)
    busy = sum(part["seconds"] for part in parts.values())
    return {
        "train": train - ready,
        "ready": ready,
        "evaluate": parts.get("evaluations", {}).get("compute", 0.0),
        "busy": busy,
        "idle": max(0.0, len(data.get("lanes", ())) * data.get("makespan", 0.0) - busy),
    }


def compile_seconds(db: Database, run_id: int) -> float:
    """The seconds in which a run's trainers made nets ready: of each unit with compilations, the longest of its kernels."""
    if not may_read(db, "mop_kernel_choices"):
        return 0.0
    return (
        db.value(
            "SELECT sum(greatest(k.plain_compile_seconds, k.loop_compile_seconds, k.xla_compile_seconds, "
            f"k.vmap_compile_seconds)) FROM {db.extension}.mop_kernel_choices k WHERE k.run_id = $1 AND k.compilations > 0",
            ["bigint"],
            [run_id],
        )
        or 0.0
    )


def shortened(data: Data) -> Data:
    """The summary of a report's data alone: for lists of runs and for `mop watch`."""
    series = data["measure"]["series"]
    loss = series.split(" ")[0] + " loss"
    return {
        "run_id": data["run"]["run_id"],
        "measure": data["measure"],
        "summary": data["summary"],
        "causes": data["causes"],
        "next": data["next"],
        "ranked": [
            {
                **{name: c[name] for name in ("mst_key", "rank", "status", "iterations")},
                "value": c["last"].get(series),
                "loss": c["last"].get(loss),
            }
            for c in data["configurations"][:MOST_RANKED]
        ],
    }

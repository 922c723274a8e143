"""mop_explain_run: what a run was expected to take, and what it took."""

from __future__ import annotations

import json
from typing import Any

from pg_mop.api.common.explain import read_format
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, unseen_run
from pg_mop.backend.functions import sql_function
from pg_mop.explain import run_account

MOST_UNITS = 200_000  # attempts that are read one by one


@sql_function
def mop_explain_run(db: Database, run_id: int | None, output_format: str | None) -> str:
    """Predicted against actual of a run that goes on or has ended, as text or JSON. Raises MopError where the caller may not
    see such a run, or where its log is gone."""
    format_name = read_format(output_format)
    account = gather(db, run_id)
    return json.dumps(account) if format_name == "json" else run_account.render(account)


def gather(db: Any, run_id: int | None) -> dict[str, Any]:
    """The account of a run, as plain values with stable names (docs/explain.md). Raises MopError."""
    run = None if run_id is None else _run(db, run_id)
    if run is None:
        raise unseen_run(db, run_id)
    counts = db.one(
        "SELECT count(*) FILTER (WHERE kind = 'train' AND status = 'finished') AS train, "
        "count(*) FILTER (WHERE kind = 'evaluate' AND status = 'finished') AS evaluate, count(*) AS attempts "
        f"FROM {db.extension}.mop_units WHERE run_id = $1 AND NOT shared",
        ["bigint"],
        [run_id],
    )
    if counts["attempts"] > MOST_UNITS:
        raise MopError(
            f"run {run_id} has {counts['attempts']} attempts at units, more than {MOST_UNITS}",
            hint=f"SELECT * FROM {db.extension}.mop_units WHERE run_id = {run_id};",
            sqlstate="54000",
        )
    assert run_id is not None
    units = _units(db, run_id)
    for unit in units:
        unit["session"] = unit["server"], unit["session"]  # sessions of two servers may have one PID
    actual = run_account.account(units, run["elapsed"], run["sessions"])
    actual["seconds"] = run["elapsed"] - actual["paused_seconds"]
    _add_servers(actual, units)
    return {
        "run_id": run_id,
        "function": run["function"],
        "status": run["status"],
        "prediction": None if run["prediction"] is None else json.loads(run["prediction"]),
        "units": {"train": counts["train"], "evaluate": counts["evaluate"]},
        "actual": actual,
        "moved": _moved(db, run_id),
    }


def _run(db: Any, run_id: int) -> dict[str, Any] | None:
    """The run, with `elapsed`: its seconds by now; of a run that was lost, to its last unit."""
    return db.one(
        "SELECT r.function, r.status, r.prediction::text AS prediction, coalesce(r.sessions, r.segments) AS sessions, "
        "extract(epoch FROM coalesce(r.finished_at, CASE WHEN r.status = 'running' THEN clock_timestamp() END, "
        f"(SELECT max(greatest(u.started_at, u.finished_at)) FROM {db.extension}.mop_units u WHERE u.run_id = r.run_id), "
        "r.started_at) - r.started_at)::float8 AS elapsed "
        f"FROM {db.extension}.mop_runs r WHERE r.run_id = $1",
        ["bigint"],
        [run_id],
    )


def _units(db: Any, run_id: int) -> list[dict[str, Any]]:
    """The attempts at units of a run, as run_account.account takes them."""
    return db.execute(
        "SELECT u.mst_key, u.stage, u.iteration, u.segment, u.kind, u.status, u.backend_pid AS session, "
        "u.server::text AS server, "
        "extract(epoch FROM u.started_at - r.started_at)::float8 AS began, "
        "extract(epoch FROM u.finished_at - r.started_at)::float8 AS ended, u.train_seconds AS train, "
        "u.cpu_seconds AS cpu, u.gpu_utilization AS gpu, u.gpu_memory_bytes AS gpu_bytes, u.threads, "
        "u.read_seconds AS read, u.write_seconds AS write, CASE WHEN u.compilations > 0 THEN "
        "greatest(c.plain_compile_seconds, c.loop_compile_seconds, c.xla_compile_seconds, c.vmap_compile_seconds) END "
        f"AS compile FROM {db.extension}.mop_units u JOIN {db.extension}.mop_runs r USING (run_id) "
        f"LEFT JOIN {db.extension}.mop_kernel_choices c ON (c.run_id, c.mst_key, c.iteration, c.segment) = "
        "(u.run_id, u.mst_key, u.iteration, u.segment) AND u.kind = 'train' AND u.status = 'finished' "
        "WHERE u.run_id = $1 AND NOT u.shared",
        ["bigint"],
        [run_id],
    )


def _add_servers(actual: dict[str, Any], units: list[dict[str, Any]]) -> None:
    """Name the server of each session, where the run had several."""
    several = len({unit["server"] for unit in units}) > 1
    for load in actual["sessions"]:
        server, load["session"] = load["session"]
        if several:
            load["server"] = server


def _moved(db: Any, run_id: int) -> dict[str, Any]:
    """The states that went from server to server: how many, their bytes, and the seconds to carry them, in all and by way."""
    ways = db.execute(
        "SELECT way, count(*) AS hops, sum(bytes)::bigint AS bytes, sum(seconds) AS seconds "
        f"FROM {db.extension}.mop_hops WHERE run_id = $1 GROUP BY way ORDER BY way DESC",
        ["bigint"],
        [run_id],
    )
    return {
        **{name: sum(row[name] for row in ways) for name in ("hops", "bytes", "seconds")},
        "ways": {row["way"]: {name: row[name] for name in ("hops", "bytes", "seconds")} for row in ways},
    }

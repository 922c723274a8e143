"""The data of a report of a run, read from the views: a dictionary of JSON values.

Large runs are sampled: `sampled` has a sentence for each part of the report that does not show everything.
"""

import copy
import importlib
import json
from collections.abc import Iterable
from typing import Any

from pg_mop import __version__
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.report import configurations
from pg_mop.report.numbers import rounded
from pg_mop.report.parameters import varied
from pg_mop.report.repeat import repeating_sql
from pg_mop.report.sections import SECTIONS, SHOWN, WHOLE
from pg_mop.report.sessions import add_sessions
from pg_mop.report.spread import spread
from pg_mop.report.summary import add_summary, compile_seconds, may_read, progress

MOST_ATTEMPTS = 2  # at a finished unit, about: to expect how many bars the sessions have

Data = dict[str, Any]


def gather(
    db: Database, run_id: int, repeated: Iterable[str] = (), mst_keys: list[int] | None = None, pictures: bool = True
) -> Data | None:
    """The report's data of a run; None where the role sees no run of that number.

    `repeated`: names of the settings that decide the result. `mst_keys`: the configurations to show, with their ranks
    among all configurations; None: all. `pictures`: also the data of the pictures; else these are empty. Raises MopError
    for a configuration that the run does not have.
    """
    schema = db.extension
    run = db.one(
        f"SELECT r.*, extract(epoch FROM coalesce(finished_at, clock_timestamp()) - started_at)::float8 AS "
        "seconds, CASE WHEN jsonb_typeof(prediction -> 'makespan') = 'number' THEN "
        "least((prediction ->> 'makespan')::numeric, 1e12)::float8 END AS predicted_seconds "
        f"FROM {schema}.mop_runs r WHERE run_id = $1",
        ["bigint"],
        [run_id],
    )
    if run is None:
        return None
    del run["prediction"]  # as long as the plan; mop_explain_run shows it
    if run["finished_at"] is None and run["status"] != "running":  # the run was interrupted
        # a separate query: joined to the one above, its cost would trigger JIT each time
        run["seconds"] = db.value(
            f"SELECT coalesce(extract(epoch FROM max(greatest(started_at, finished_at)) - "
            f"$2::timestamptz), 0)::float8 FROM {schema}.mop_units WHERE run_id = $1",
            ["bigint", "timestamptz"],
            [run_id, run["started_at"]],
        )
    # Arguments are visible to the run's owner only, not to members of the owner's role. A role that may only read the
    # views sees no arguments.
    view = "mop_own_run" if db.has_segments else "mop_run"
    parameters = (
        db.value(f"SELECT parameters FROM {schema}.{view} WHERE run_id = $1", ["bigint"], [run_id])
        if may_read(db, view)
        else None
    )
    parameters = json.loads(parameters) if parameters else {}
    arguments, settings = parameters.get("arguments") or {}, parameters.get("settings") or {}
    tables = parameters.get("tables") or {}
    gets, replay_of = ":=" if db.has_segments else "=>", tables.get("replay_of")
    data = {
        "version": __version__,
        "run": run,
        "arguments": arguments,
        "settings": settings,
        "replay_of": replay_of,
        "sampled": {},
        "schema": db.bare(schema),
        "sql": repeating_sql(run, arguments, settings, repeated, db.bare(schema), gets, replay_of),
        "made_at": db.value("SELECT date_trunc('second', clock_timestamp())::text"),
    }
    data["configurations"] = configurations.read(db, schema, run)
    if run["function"] == "madlib_keras_fit":  # the other ones are replicas of the first
        for replica in data["configurations"][1:]:
            for name in ("seconds", "failed_units"):
                data["configurations"][0][name] += replica[name]
        del data["configurations"][1:]
    data["varied"], data["fixed"] = varied(data["configurations"]) if data["configurations"] else ([], {})
    data["measure"] = configurations.measure(data, arguments)
    configurations.rank(data)
    for configuration in data["configurations"]:
        configuration["last"] = {name: rounded(value) for name, value in configuration["last"].items()}
    data["all"] = len(data["configurations"])
    data["spread"] = spread(data["configurations"], data["varied"], data["measure"])
    data["progress"] = progress(db, run_id)
    if pictures:
        add_sessions(db, run, data, mst_keys, MOST_ATTEMPTS * data["progress"]["done"])
    add_summary(db, data, tables, compile_seconds(db, run_id) if pictures else 0.0)
    if mst_keys is not None:
        keys = set(mst_keys)
        if unknown := keys - {c["mst_key"] for c in data["configurations"]}:
            raise MopError(
                f"run {run_id} has no configuration "
                + ", ".join(sorted("NULL" if key is None else str(key) for key in unknown)),
                hint=f"SELECT mst_key, status FROM {schema}.mop_trials WHERE run_id = {run_id};",
            )
        data["configurations"] = [c for c in data["configurations"] if c["mst_key"] in keys]
    if pictures:
        for section in SECTIONS:
            if section.gathered:
                importlib.import_module(f"pg_mop.report.{section.name}").add(db, data)
    data = {**copy.deepcopy({**SHOWN, **WHOLE}), **data}
    for configuration in data["configurations"]:
        for name in ("path", "metrics_iterations", "series", "metric"):
            del configuration[name]
        configuration.pop("held_out", None)
    return data

"""The data of a report of a run, read from the views: a dictionary of JSON values.

Large runs are sampled: `sampled` has a sentence for each part of the report that does not show everything.
"""

import copy
import json
from collections.abc import Iterable
from typing import Any

from pg_mop import __version__
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.report import configurations, family
from pg_mop.report.configurations import MOST_TEXT
from pg_mop.report.numbers import rounded, thin
from pg_mop.report.parameters import varied
from pg_mop.report.repeat import repeating_sql
from pg_mop.report.sessions import add_sessions
from pg_mop.report.spread import spread
from pg_mop.report.stages import tree
from pg_mop.report.summary import add_summary, compile_seconds, may_read, progress

MOST_CURVES, MOST_POINTS = 60, 60
MOST_PATHS = 120
MOST_FAILURES = 100
MOST_FAMILY = 240
MOST_ATTEMPTS = 2  # at a finished unit, about: to expect how many bars the sessions have

WITHOUT_PICTURES: dict[str, Any] = {
    "series": [],
    "curves": {},
    "times": {},
    "lanes": [],
    "bars": [],
    "merged_bars": False,
    "stages": [],
    "family": [],
    "time": [],
    "makespan": 0.0,
    "paused_seconds": 0.0,
    "failed_units": [],
}

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
    searched = tables.get("searched", run["function"] == "mop_search")
    data["configurations"] = configurations.read(db, schema, run, arguments, searched)
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
        _curves(db, schema, run_id, data)
        _stages(data)
        _family(db, run_id, data)
        _failures(db, schema, run_id, data)
    else:
        data.update(copy.deepcopy(WITHOUT_PICTURES))
    for configuration in data["configurations"]:
        for name in ("path", "metrics_iterations", "series", "metric"):
            del configuration[name]
        configuration.pop("held_out", None)
    return data


def _curves(db: Database, schema: str, run_id: int, data: Data) -> None:
    """Add the learning curves.

    `series`: their names; `curves`: {mst_key: {series: [[iteration, value], ...]}}; `times`: as `_times`.
    """
    ranked = [c["mst_key"] for c in data["configurations"] if c["metrics_iterations"]]
    keys = ranked
    if len(ranked) > MOST_CURVES:
        best = MOST_CURVES * 2 // 3
        rest = ranked[best:]
        step = len(rest) / (MOST_CURVES - best)
        keys = ranked[:best] + [rest[int(i * step)] for i in range(MOST_CURVES - best)]
        data["sampled"]["curves"] = (
            f"{len(keys)} of {len(ranked)} curves: the {best} best configurations and {MOST_CURVES - best} "
            f"evenly spread ones of the others"
        )
    names: dict[str, None] = {}
    data["curves"], thinned = {}, False
    for row in (
        db.execute(
            f"SELECT mst_key, dataset || ' ' || name AS series, array_agg(iteration ORDER BY iteration) AS iterations, "
            f"array_agg(value ORDER BY iteration) AS values FROM {schema}.mop_metrics WHERE run_id = $1 "
            f"AND mst_key = ANY ($2) GROUP BY 1, 2",
            ["bigint", "integer[]"],
            [run_id, keys],
        )
        if keys
        else ()
    ):
        points = [[i, rounded(v)] for i, v in zip(row["iterations"], row["values"])]
        thinned = thinned or len(points) > MOST_POINTS
        data["curves"].setdefault(row["mst_key"], {})[row["series"]] = thin(points, MOST_POINTS)
        names[row["series"]] = None
    for c in data["configurations"]:
        held_out = c.pop("held_out")
        if c["mst_key"] in keys and held_out:
            thinned = thinned or any(len(points) > MOST_POINTS for points in held_out.values())
            data["curves"].setdefault(c["mst_key"], {}).update(
                {series: thin(points, MOST_POINTS) for series, points in held_out.items()}
            )
            names.update(dict.fromkeys(held_out))
    data["times"] = _times(db, schema, run_id, keys)
    if thinned:
        note = f"at most {MOST_POINTS} points of each curve"
        data["sampled"]["curves"] = f"{data['sampled']['curves']}; {note}" if "curves" in data["sampled"] else note
    first = data["measure"]["series"]
    data["series"] = sorted(names, key=lambda n: (n != first, not n.startswith(first.split(" ")[0]), n))


def _times(db: Database, schema: str, run_id: int, keys: list[int]) -> dict[int, list[list[Any]]]:
    """{mst_key: [[iteration, seconds from the start of the run to its evaluation], ...]} of some configurations."""
    return {
        row["mst_key"]: thin([[i, rounded(s)] for i, s in zip(row["iterations"], row["seconds"])], MOST_POINTS)
        for row in (
            db.execute(
                f"SELECT mst_key, array_agg(iteration ORDER BY iteration) AS iterations, "
                f"array_agg(seconds ORDER BY iteration) AS seconds FROM {schema}.mop_metrics_wide "
                f"WHERE run_id = $1 AND mst_key = ANY ($2) GROUP BY 1",
                ["bigint", "integer[]"],
                [run_id, keys],
            )
            if keys
            else ()
        )
    }


def _stages(data: Data) -> None:
    """Add the tree of stages of the best configurations: `stages` (report/stages.py)."""
    paths = {c["mst_key"]: c["path"] for c in data["configurations"] if c["path"]}
    if len(paths) > MOST_PATHS:
        data["sampled"]["stages"] = f"the paths of the {MOST_PATHS} best of {len(paths)} configurations"
        paths = dict(list(paths.items())[:MOST_PATHS])
    data["stages"] = tree(paths)


def _family(db: Database, run_id: int, data: Data) -> None:
    """Add the family tree of a search: `family` (report/family.py)."""
    nodes = family.of_run(db, run_id, data)
    data["family"] = nodes
    if len(nodes) > MOST_FAMILY:
        data["family"] = family.shortened(nodes, data["measure"]["goal"], MOST_FAMILY)
        data["sampled"]["family"] = (
            f"{len(data['family'])} of {len(nodes)} trials, the best ones and those that they descend from; +2 at a trial: two "
            "others that descend from it are left out"
        )


def _failures(db: Database, schema: str, run_id: int, data: Data) -> None:
    """Add the failed units: `failed_units`."""
    keys = [c["mst_key"] for c in data["configurations"] if c["failed_units"]]
    data["failed_units"] = (
        db.execute(
            f"SELECT mst_key, iteration, segment, kind, attempt, status, left(error, {MOST_TEXT}) AS error "
            f"FROM {schema}.mop_units WHERE run_id = $1 AND status = 'failed' AND NOT shared AND mst_key = ANY ($2) "
            f"ORDER BY finished_at, mst_key LIMIT {MOST_FAILURES}",
            ["bigint", "integer[]"],
            [run_id, keys],
        )
        if keys
        else []
    )
    if len(data["failed_units"]) == MOST_FAILURES:
        data["sampled"]["failures"] = f"the first {MOST_FAILURES} failed units"

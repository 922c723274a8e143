"""What a report of a run tells, read from the views: a dictionary that JSON can hold.

Large runs are sampled, and the dictionary says so: `sampled` has a sentence for each part that does not show all.
"""

import json
import math
import re

from mop_udf import params
from pg_mop import __version__
from pg_mop.backend.database import MopError, quote_literal
from pg_mop.plan.watch import Watch
from pg_mop.report.parameters import flat, varied
from pg_mop.report.stages import tree
from pg_mop.search.goals import goal, parts

DATASETS = ("training", "validation")
MOST_CURVES, MOST_POINTS = 60, 60
MOST_PATHS = 120
MOST_BARS, LANE_BARS = 3000, 250  # beyond the first a session has about so many of the second
MOST_EVALUATED = 50  # evaluations that went together, whose configurations are told
MOST_FAILURES = 100
LOOKED_BACK = 3  # iterations in which a metric is looked for that is not there yet
MOST_TEXT = 2000  # characters of an error

# Units, those that went together as one, and of many of them those of a session that begin in the same stretch of time;
# with the configurations that they were for: one that several share has a row for each, of which one is `counted`. (A
# unit that goes on has no end yet.) $3 has the configurations; NULL: all.
UNITS = "SELECT *, NOT shared AS counted FROM {schema}.mop_units WHERE run_id = $1 AND $3::integer[] IS NULL"
UNITS_OF = (
    "SELECT *, row_number() OVER (PARTITION BY stage, segment, kind, dataset, attempt ORDER BY mst_key) = 1 "
    "AS counted FROM {schema}.mop_units WHERE run_id = $1 AND mst_key = ANY ($3)"
)
BARS = f"""
WITH unit AS (
    SELECT backend_pid AS pid, bool_and(kind = 'train') AS trains, min(segment) AS segment,
           array_agg(DISTINCT mst_key) AS mst_keys, count(*) FILTER (WHERE counted) AS units,
           date_part('epoch', started_at - $2::timestamptz) AS begins,
           date_part('epoch', max(finished_at) - $2::timestamptz) AS ends,
           sum(read_seconds) FILTER (WHERE counted) AS read, sum(train_seconds) FILTER (WHERE counted) AS compute,
           sum(write_seconds) FILTER (WHERE counted) AS write
    FROM ({{units}}) AS u WHERE started_at IS NOT NULL AND finished_at IS NOT NULL
    GROUP BY backend_pid, started_at
), whole AS (
    SELECT count(*)::integer AS bars, greatest(max(ends), 1e-3) AS ends FROM unit
)
SELECT coalesce(pid, 0) AS pid, trains, min(segment) AS segment, min(mst_keys) AS mst_keys,
       sum(units)::integer AS units,
       min(begins) AS begins, max(ends) AS ends, sum(ends - begins) AS seconds, coalesce(sum(read), 0) AS read,
       coalesce(sum(compute), 0) AS compute, coalesce(sum(write), 0) AS write, max(bars) AS bars
FROM (SELECT u.*, w.bars, CASE WHEN w.bars <= {MOST_BARS} THEN u.begins
                               ELSE width_bucket(u.begins, 0, w.ends, {LANE_BARS}) END AS bucket
      FROM unit u CROSS JOIN whole w) b
GROUP BY pid, trains, bucket ORDER BY begins"""


def gather(db, run_id, repeated=(), mst_keys=None):
    """The report's data of a run that the role may see; None where there is none.

    `repeated`: names of the settings that decide what is computed. `mst_keys`: the configurations that it tells of,
    with the ranks that they have among all; None: all. Raises MopError where one is not the run's.
    """
    schema = db.extension
    run = db.one(
        f"SELECT r.*, extract(epoch FROM coalesce(finished_at, clock_timestamp()) - started_at)::float8 AS "
        f"seconds FROM {schema}.mop_runs r WHERE run_id = $1",
        ["bigint"],
        [run_id],
    )
    if run is None:
        return None
    if run["finished_at"] is None and run["status"] != "running":  # its session has gone, and nobody has noted the end
        # (asked by itself: within the query above it costs so much that PostgreSQL compiles that, each time)
        run["seconds"] = db.value(
            f"SELECT coalesce(extract(epoch FROM max(greatest(started_at, finished_at)) - "
            f"$2::timestamptz), 0)::float8 FROM {schema}.mop_units WHERE run_id = $1",
            ["bigint", "timestamptz"],
            [run_id, run["started_at"]],
        )
    # (of another role's run, which a member of it sees, the arguments are its own)
    # and a role that reads the views alone sees those of nobody
    own = "mop_own_run" if db.has_segments else "mop_run"
    asked = (
        db.value(f"SELECT parameters FROM {schema}.{own} WHERE run_id = $1", ["bigint"], [run_id])
        if db.value("SELECT has_table_privilege($1, 'SELECT')", ["text"], [f"{schema}.{own}"])
        else None
    )
    asked = json.loads(asked) if asked else {}
    arguments, settings = asked.get("arguments") or {}, asked.get("settings") or {}
    data = {
        "version": __version__,
        "run": run,
        "arguments": arguments,
        "settings": settings,
        "sampled": {},
        "schema": db.bare(schema),
        "sql": _sql(run, arguments, settings, repeated, db.bare(schema), ":=" if db.has_segments else "=>"),
        "made_at": db.value("SELECT date_trunc('second', clock_timestamp())::text"),
    }
    data["configurations"] = _configurations(db, schema, run, arguments)
    if run["function"] == "madlib_keras_fit":  # (the others are the replicas that are averaged)
        for replica in data["configurations"][1:]:
            for name in ("seconds", "failed_units"):
                data["configurations"][0][name] += replica[name]
        del data["configurations"][1:]
    data["varied"], data["fixed"] = varied(data["configurations"]) if data["configurations"] else ([], {})
    data["measure"] = _measure(data, arguments)
    _rank(data)
    data["all"] = len(data["configurations"])
    if mst_keys is not None:
        chosen = set(mst_keys)
        if unknown := chosen - {c["mst_key"] for c in data["configurations"]}:
            raise MopError(
                f"run {run_id} has no configuration "
                + ", ".join(sorted("NULL" if key is None else str(key) for key in unknown)),
                hint=f"SELECT mst_key, status FROM {schema}.mop_trials WHERE run_id = {run_id};",
            )
        data["configurations"] = [c for c in data["configurations"] if c["mst_key"] in chosen]
    _curves(db, schema, run_id, data)
    _sessions(db, run, data, mst_keys)
    _stages(data)
    _failures(db, schema, run_id, data)
    for configuration in data["configurations"]:
        for name in ("path", "metrics_iterations", "series", "metric"):
            del configuration[name]
    return data


def _configurations(db, schema, run, arguments):
    """A dict for each configuration: what was asked for, how far it came, its metrics and its seconds. The metrics
    ("last") are those of the state that is written: the last one, or the best where it keeps that."""
    run_id = run["run_id"]
    rows = db.execute(
        f"SELECT mst_key, model_id, compile_params, fit_params, status, iterations, path, metrics_iterations, "
        f"training_loss, training_metric, validation_loss, validation_metric, left(reason, {MOST_TEXT}) AS reason "
        f"FROM {schema}.mop_trials WHERE run_id = $1 ORDER BY mst_key",
        ["bigint"],
        [run_id],
    )
    found = {}
    for row in rows:
        series = {
            f"{dataset} {what}": row.pop(f"{dataset}_{what}") for dataset in DATASETS for what in ("loss", "metric")
        }
        found[row["mst_key"]] = {
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
    # of each dataset the last one: of those that go on, or were ended, the newest may lack the validation rows' yet
    kept = _kept(db, schema, run, arguments, found)
    last = [
        (key, i)
        for key, c in found.items()
        for i in ([kept[key]] if key in kept else c["metrics_iterations"][-1 if _is_whole(c) else -LOOKED_BACK :])
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
        own = found[row["mst_key"]]
        own["metric"] = row["metric"]
        for dataset in DATASETS:
            if row[f"{dataset}_loss"] is not None:
                metrics = json.loads(row[f"{dataset}_metrics"])
                first = {row["metric"]: metrics[row["metric"]]} if row["metric"] in metrics else {}
                values = {"loss": row[f"{dataset}_loss"], **first, **metrics}
                own["last"].update({f"{dataset} {name}": rounded(value) for name, value in values.items()})
    for row in db.execute(
        f"SELECT mst_key, coalesce(sum(read_seconds + train_seconds + write_seconds) "
        f"FILTER (WHERE kind = 'train'), 0) AS seconds, max(iteration) FILTER (WHERE kind = 'train' "
        f"AND status = 'finished') AS reached, "
        f"count(*) FILTER (WHERE status = 'failed' AND NOT shared) AS failed_units "
        f"FROM {schema}.mop_units WHERE run_id = $1 GROUP BY 1",
        ["bigint"],
        [run_id],
    ):
        found[row["mst_key"]]["seconds"] = rounded(row["seconds"])
        found[row["mst_key"]]["failed_units"] = row["failed_units"]
        if found[row["mst_key"]]["status"] != "finished":  # (it was asked for more)
            found[row["mst_key"]]["iterations"] = max(
                row["reached"] or 0, *found[row["mst_key"]]["metrics_iterations"][-1:], 0
            )
    for own in found.values():
        if own["status"] != "finished":
            own["iterations"] = min(own["iterations"], len(own["path"]))
    return list(found.values())


def _kept(db, schema, run, arguments, found):
    """{mst_key: iteration} of the best states by now of configurations that keep theirs; `found`: {mst_key: a dict with
    its strings}."""
    rules, watches = {}, {}
    for key, c in found.items():
        try:
            fit = params.parse_fit_params(c["fit_params"])
        except params.ParameterError:  # it has failed
            continue
        if fit["keep"] == "best":
            stop = fit["stop"] or {"metric": arguments.get("metric") or "loss", "mode": None}
            name, dataset, direction = parts(stop["metric"])
            name = name if name == "loss" else params.metric_name(name)
            rules[key] = (name, dataset or ("validation" if run["validation_table"] is not None else "training"))
            watches[key] = Watch(stop["mode"] or direction or goal(name) or "min")
    for row in (
        db.execute(
            f"SELECT m.mst_key, m.iteration, m.value FROM {schema}.mop_metrics m JOIN unnest($2, $3, $4) AS r(mst_key, "
            f"name, dataset) USING (mst_key, name, dataset) WHERE m.run_id = $1 ORDER BY 2",
            ["bigint", "integer[]", "text[]", "text[]"],
            [run["run_id"], list(rules), *map(list, zip(*rules.values()))],
        )
        if rules
        else ()
    ):
        watches[row["mst_key"]].tell(row["iteration"], row["value"])
    return {key: watch.best[0] for key, watch in watches.items() if watch.best is not None}


def _is_whole(configuration):
    """True where each evaluation has all that the first ones had."""
    of_validation = configuration["series"]["validation loss"]
    return not of_validation or len(of_validation) == len(configuration["metrics_iterations"])


def _measure(data, arguments):
    """By what configurations are ranked: {'series', 'goal'}: the search's metric; else the first metric whose goal its
    name tells, or the loss; of the validation rows where there are some."""
    names = dict.fromkeys(name for c in data["configurations"] for name in c["last"])
    dataset = "validation" if any(name.startswith("validation ") for name in names) else "training"
    told = re.fullmatch(r"(?:(training|validation)_)?(\w+)(?:\s+(max|min))?", (arguments.get("metric") or "").strip())
    if told and f"{told[1] or dataset} {told[2]}" in names:
        return {"series": f"{told[1] or dataset} {told[2]}", "goal": told[3] or goal(told[2]) or "min"}
    metrics = [name for name in names if name.startswith(dataset) and goal(name.split(" ", 1)[1])]
    metrics.sort(key=lambda name: name.endswith(" loss"))  # (sorting is stable)
    return (
        {"series": metrics[0], "goal": goal(metrics[0].split(" ", 1)[1])}
        if metrics
        else {"series": f"{dataset} loss", "goal": "min"}
    )


def _rank(data):
    """Sort the configurations, the best first, and give each its rank and the best value that it had."""
    series, better = data["measure"]["series"], max if data["measure"]["goal"] == "max" else min
    sign = -1 if better is max else 1
    dataset, name = series.split(" ", 1)

    def order(c):
        value = c["last"].get(series)
        return c["status"] == "failed", value is None, sign * (value or 0), c["mst_key"]

    data["configurations"].sort(key=order)
    for rank, c in enumerate(data["configurations"], 1):
        which = "loss" if name == "loss" else "metric" if name == c["metric"] else None
        values = [v for v in (which and c["series"][f"{dataset} {which}"]) or () if v is not None and math.isfinite(v)]
        c["rank"], c["best"] = rank, rounded(better(values)) if values else c["last"].get(series)


def _curves(db, schema, run_id, data):
    """The curves: `series`, their names, and `curves`, {mst_key: {series: [[iteration, value], ...]}}."""
    ranked = [c["mst_key"] for c in data["configurations"] if c["metrics_iterations"]]
    keys = ranked
    if len(ranked) > MOST_CURVES:
        best = MOST_CURVES * 2 // 3
        rest = ranked[best:]
        step = len(rest) / (MOST_CURVES - best)
        keys = ranked[:best] + [rest[int(i * step)] for i in range(MOST_CURVES - best)]
        data["sampled"]["curves"] = (
            f"{len(keys)} of {len(ranked)} curves: those of the {best} best configurations, "
            f"and of {MOST_CURVES - best} spread over the others"
        )
    data["curves"], names, thinned = {}, {}, False
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
    if thinned:
        said = f"of each {MOST_POINTS} points at most"
        data["sampled"]["curves"] = (
            f"{data['sampled']['curves']}; {said}"
            if "curves" in data["sampled"]
            else f"Of each curve {MOST_POINTS} points at most"
        )
    first = data["measure"]["series"]
    data["series"] = sorted(names, key=lambda n: (n != first, not n.startswith(first.split(" ")[0]), n))


def _sessions(db, run, data, mst_keys):
    """The Gantt: `lanes`, the worker sessions; `bars`, [lane, begin, end, kind, mst_keys, segment, units], in seconds
    since the run's start, with all configurations that a bar is of (none where bars are merged, or of many
    evaluations); and `time`, where the sessions' time went."""
    units = (UNITS if mst_keys is None else UNITS_OF).format(schema=db.extension)
    rows = db.execute(
        BARS.format(units=units), ["bigint", "timestamptz", "integer[]"], [run["run_id"], run["started_at"], mst_keys]
    )
    data["lanes"] = lanes = list(dict.fromkeys(row["pid"] for row in rows))
    data["merged_bars"] = bool(rows) and rows[0]["bars"] > MOST_BARS
    data["bars"] = [
        [
            lanes.index(r["pid"]),
            rounded(r["begins"]),
            rounded(r["ends"]),
            "train" if r["trains"] else "evaluate",
            [] if data["merged_bars"] or not r["trains"] and r["units"] > MOST_EVALUATED else list(r["mst_keys"]),
            r["segment"],
            r["units"],
        ]
        for r in rows
    ]
    if data["merged_bars"]:
        data["sampled"]["sessions"] = (
            f"{rows[0]['bars']} units: those of a session that begin within 1/{LANE_BARS} of the time are drawn as one"
        )
    data["time"] = []
    for trains, what in ((True, "training units"), (False, "evaluations")):
        own = [row for row in rows if row["trains"] == trains]
        if own:
            data["time"].append(
                {
                    "what": what,
                    **{
                        name: rounded(sum(row[name] for row in own))
                        for name in ("units", "seconds", "compute", "read", "write")
                    },
                }
            )
    data["makespan"] = rounded(max(r["ends"] for r in rows) - min(r["begins"] for r in rows)) if rows else 0.0


def _stages(data):
    """The tree of stages, `stages`, of the best configurations: report/stages.py."""
    paths = {c["mst_key"]: c["path"] for c in data["configurations"] if c["path"]}
    if len(paths) > MOST_PATHS:
        data["sampled"]["stages"] = f"the paths of the {MOST_PATHS} best of {len(paths)} configurations"
        paths = dict(list(paths.items())[:MOST_PATHS])
    data["stages"] = tree(paths)


def _failures(db, schema, run_id, data):
    """Units that were lost or failed, and how many there are."""
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
        data["sampled"]["failures"] = f"the first {MOST_FAILURES} units that failed"


def _sql(run, arguments, settings, repeated, schema, gets):
    """SQL that makes the call once more; None where the role does not see its arguments. `gets`: how the server writes
    that an argument gets a value."""
    if not arguments:
        return None
    lines = [f"SET pg_mop.{name} = {_literal(settings[name])};" for name in repeated if settings.get(name) is not None]
    if run["status"] == "finished":
        lines.insert(0, "-- into new tables: those of this call are there already")
    given = [f"    {name} {gets} {_literal(value)}" for name, value in arguments.items() if value is not None]
    return "\n".join([*lines, f"SELECT {schema}.{run['function']}(", ",\n".join(given), ");"])


def _literal(value):
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(_literal, value))}]" if value else "'{}'"
    return quote_literal(value)


def thin(points, most):
    """At most so many of the points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def rounded(value):
    """A number with six digits; None where there is none, or it is not finite."""
    if value is None or isinstance(value, (int, str)):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None

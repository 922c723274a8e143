"""The worker sessions of a run as a Gantt chart, and where their time went."""

from typing import Any

from pg_mop.backend.database import Database
from pg_mop.report.numbers import rounded

MOST_BARS, LANE_BARS = 3000, 250  # with more bars than the first, a session gets about as many as the second
MOST_EVALUATED = 50  # evaluations of one unit batch whose configurations are listed

# One bar for each unit or unit batch. If a run has many bars, one bar for all units of a session that begin in the same
# interval. Each bar has the configurations of its units: a shared unit has one row for each configuration, and one of these
# rows is `counted`. Running units have no end and no bar. $3: the configurations; NULL: all.
UNITS = "SELECT *, NOT shared AS counted FROM {schema}.mop_units WHERE run_id = $1 AND $3::integer[] IS NULL"
UNITS_OF = (
    "SELECT *, row_number() OVER (PARTITION BY stage, segment, kind, dataset, attempt ORDER BY mst_key) = 1 "
    "AS counted FROM {schema}.mop_units WHERE run_id = $1 AND mst_key = ANY ($3)"
)
BARS = f"""
WITH unit AS (
    SELECT server, backend_pid AS pid, bool_and(kind = 'train') AS trains, min(segment) AS segment,
           array_agg(DISTINCT mst_key) AS mst_keys, count(*) FILTER (WHERE counted) AS units,
           date_part('epoch', started_at - $2::timestamptz) AS begins,
           date_part('epoch', max(finished_at) - $2::timestamptz) AS ends,
           sum(read_seconds) FILTER (WHERE counted) AS read, sum(train_seconds) FILTER (WHERE counted) AS compute,
           sum(write_seconds) FILTER (WHERE counted) AS write, sum(cpu_seconds) FILTER (WHERE counted) AS cpu
    FROM ({{units}}) AS u WHERE started_at IS NOT NULL AND finished_at IS NOT NULL
    GROUP BY server, backend_pid, started_at
), whole AS (
    SELECT count(*)::integer AS bars, greatest(max(ends), 1e-3) AS ends FROM unit
)
SELECT server, coalesce(pid, 0) AS pid, trains, min(segment) AS segment, min(mst_keys) AS mst_keys,
       sum(units)::integer AS units,
       min(begins) AS begins, max(ends) AS ends, sum(ends - begins) AS seconds, coalesce(sum(read), 0) AS read,
       coalesce(sum(compute), 0) AS compute, coalesce(sum(write), 0) AS write, sum(cpu) AS cpu,
       max(bars) AS bars
FROM (SELECT u.*, w.bars, CASE WHEN w.bars <= {MOST_BARS} THEN u.begins
                               ELSE width_bucket(u.begins, 0, w.ends, {LANE_BARS}) END AS bucket
      FROM unit u CROSS JOIN whole w) b
GROUP BY server, pid, trains, bucket ORDER BY begins"""


def add_sessions(db: Database, run: dict[str, Any], data: dict[str, Any], mst_keys: list[int] | None) -> None:
    """Add the Gantt chart to a report's data.

    `lanes`: the worker sessions; `bars`: [lane, begin, end, kind, mst_keys, segment, units], in seconds since the run's
    start (mst_keys is empty for merged bars and for batches of many evaluations); `time`: seconds by activity;
    `makespan`: seconds. `mst_keys` limits the units to some configurations.
    """
    units = (UNITS if mst_keys is None else UNITS_OF).format(schema=db.extension)
    rows = db.execute(
        BARS.format(units=units), ["bigint", "timestamptz", "integer[]"], [run["run_id"], run["started_at"], mst_keys]
    )
    for row in rows:
        row["lane"] = row["pid"] if row["server"] is None else f"{row['server']}: {row['pid']}"
    data["lanes"] = lanes = list(dict.fromkeys(row["lane"] for row in rows))
    data["merged_bars"] = bool(rows) and rows[0]["bars"] > MOST_BARS
    data["bars"] = [
        [
            lanes.index(r["lane"]),
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
            f"{rows[0]['bars']} units: one bar for all units of a session that begin in the same 1/{LANE_BARS} of the time"
        )
    data["time"] = []
    for trains, kind in ((True, "training units"), (False, "evaluations")):
        chosen = [row for row in rows if row["trains"] == trains]
        if chosen:
            data["time"].append(
                {
                    "what": kind,
                    **{
                        name: rounded(sum(row[name] for row in chosen))
                        for name in ("units", "seconds", "compute", "read", "write")
                    },
                    "cpu": rounded(sum(row["cpu"] or 0.0 for row in chosen)),
                }
            )
    data["makespan"] = rounded(max(r["ends"] for r in rows) - min(r["begins"] for r in rows)) if rows else 0.0

"""The worker sessions of a run as a Gantt chart, and where their time went."""

from typing import Any

from pg_mop.backend.database import Database
from pg_mop.explain.run_account import pauses
from pg_mop.report.numbers import rounded

MOST_BARS, LANE_BARS = 3000, 250  # with more bars than the first, a session gets about as many as the second
MOST_EVALUATED = 50  # evaluations of one unit batch whose configurations are listed

# One bar for each unit or unit batch. Each bar has the configurations of its units: a shared unit has one row for each
# configuration, and one of these rows is `counted`. Running units have no end and no bar. $3: the configurations; NULL: all.
UNITS = "SELECT *, NOT shared AS counted FROM {schema}.mop_units WHERE run_id = $1 AND $3::integer[] IS NULL"
UNITS_OF = (
    "SELECT *, row_number() OVER (PARTITION BY stage, segment, kind, dataset, attempt ORDER BY mst_key) = 1 "
    "AS counted FROM {schema}.mop_units WHERE run_id = $1 AND mst_key = ANY ($3)"
)
UNIT = """
WITH unit AS (
    SELECT server, backend_pid AS pid, bool_and(kind = 'train') AS trains, min(segment) AS segment,
           {keys} AS mst_keys, count(*) FILTER (WHERE counted) AS units,
           date_part('epoch', started_at - $2::timestamptz) AS begins,
           date_part('epoch', max(finished_at) - $2::timestamptz) AS ends,
           sum(read_seconds) FILTER (WHERE counted) AS read, sum(train_seconds) FILTER (WHERE counted) AS compute,
           sum(write_seconds) FILTER (WHERE counted) AS write, sum(cpu_seconds) FILTER (WHERE counted) AS cpu,
           sum(gpu_utilization * train_seconds) FILTER (WHERE counted) AS gpu,
           sum(train_seconds) FILTER (WHERE counted AND gpu_utilization IS NOT NULL) AS on_gpu
    FROM ({units}) AS u WHERE started_at IS NOT NULL AND finished_at IS NOT NULL
    GROUP BY server, backend_pid, started_at
)"""
BARS = f"""{UNIT}
SELECT server, coalesce(pid, 0) AS pid, trains, segment, mst_keys, units::integer AS units, begins, ends,
       greatest(ends - begins, 0) AS busy, ends - begins AS seconds, coalesce(read, 0) AS read,
       coalesce(compute, 0) AS compute, coalesce(write, 0) AS write, cpu, gpu, on_gpu, ends AS last
FROM unit ORDER BY begins"""
# Of many units: for each session, kind and slice of the time, the busy seconds within the slice. A unit's other numbers count
# in the slice in which it begins.
SLICES = f"""{UNIT}, slice AS (
    SELECT count(*)::integer AS bars, min(begins) AS first, max(ends) AS last,
           greatest((max(ends) - min(begins)) / {LANE_BARS}, 1e-6) AS wide
    FROM unit
), part AS (
    SELECT n.*, generate_series(n.number, greatest(n.number, least({LANE_BARS} - 1,
               ceil((n.ends - n.origin) / n.wide)::integer - 1))) AS place
    FROM (SELECT u.*, s.first AS origin, s.wide, s.last, s.bars,
                 least({LANE_BARS} - 1, floor((u.begins - s.first) / s.wide)::integer) AS number
          FROM unit u CROSS JOIN slice s) n
)
SELECT server, coalesce(pid, 0) AS pid, trains, min(segment) AS segment, NULL::integer[] AS mst_keys,
       (sum(units) FILTER (WHERE place = number))::integer AS units,
       origin + place * wide AS begins, origin + (place + 1) * wide AS ends,
       sum(least(ends, origin + (place + 1) * wide) - greatest(begins, origin + place * wide)) AS busy,
       coalesce(sum(ends - begins) FILTER (WHERE place = number), 0) AS seconds,
       coalesce(sum(read) FILTER (WHERE place = number), 0) AS read,
       coalesce(sum(compute) FILTER (WHERE place = number), 0) AS compute,
       coalesce(sum(write) FILTER (WHERE place = number), 0) AS write,
       sum(cpu) FILTER (WHERE place = number) AS cpu, sum(gpu) FILTER (WHERE place = number) AS gpu,
       sum(on_gpu) FILTER (WHERE place = number) AS on_gpu, max(last) AS last, max(bars) AS bars
FROM part GROUP BY server, pid, trains, place, origin, wide ORDER BY place, pid, trains DESC"""


def add_sessions(
    db: Database, run: dict[str, Any], data: dict[str, Any], mst_keys: list[int] | None, most_bars: int
) -> None:
    """Add the Gantt chart to a report's data. `most_bars`: it has at most so many bars, one for each unit.

    `lanes`: the worker sessions; `bars`: [lane, begin, end, kind, mst_keys, segment, units], in seconds since the run's
    start, one for each unit or unit batch (mst_keys is empty for batches of many evaluations); `time`: seconds by activity,
    and `gpu`, the part of the trainers' time in which their GPUs worked (null: unknown); `makespan`: seconds;
    `paused_seconds`: those of them in which the run was not alive, before a resume (of slices, about; null where units are
    left out). `mst_keys` limits the units to some configurations. Beyond MOST_BARS units, `merged_bars` is true: a bar is a
    slice of the time of a session, `units` how many began in it, and an eighth number the part with such units.
    """
    units = (UNITS if mst_keys is None else UNITS_OF).format(schema=db.extension)
    values = [run["run_id"], run["started_at"], mst_keys]

    def read(query: str, keys: str) -> list[dict[str, Any]]:
        sql = query.format(units=units, keys=keys)
        return db.execute(sql, ["bigint", "timestamptz", "integer[]"], values)

    # a bar has one unit at least, so that few units need no slices
    rows = read(SLICES, "NULL::integer[]") if most_bars > MOST_BARS else []
    begun = rows[0]["bars"] if rows else 0
    data["merged_bars"] = begun > MOST_BARS
    if not data["merged_bars"]:
        rows = read(BARS, "array_agg(DISTINCT mst_key)")
    for row in rows:
        row["lane"] = row["pid"] if row["server"] is None else f"{row['server']}: {row['pid']}"
    data["lanes"] = lanes = list(dict.fromkeys(row["lane"] for row in rows))
    data["bars"] = [
        [
            lanes.index(r["lane"]),
            rounded(r["begins"]),
            rounded(r["ends"]),
            "train" if r["trains"] else "evaluate",
            [] if data["merged_bars"] or not r["trains"] and r["units"] > MOST_EVALUATED else list(r["mst_keys"]),
            r["segment"],
            r["units"] or 0,
            *([round(min(1.0, r["busy"] / max(1e-9, r["ends"] - r["begins"])), 3)] if data["merged_bars"] else []),
        ]
        for r in rows
    ]
    if data["merged_bars"]:
        data["sampled"]["sessions"] = (
            f"{begun} units: of each session, how much of each 1/{LANE_BARS} of the time went into which kind of units"
        )
    data["time"] = []
    for trains, kind in ((True, "training units"), (False, "evaluations")):
        rows_of_kind = [row for row in rows if row["trains"] == trains]
        if rows_of_kind:
            data["time"].append(
                {
                    "what": kind,
                    **{
                        name: rounded(sum(row[name] or 0 for row in rows_of_kind))
                        for name in ("units", "seconds", "compute", "read", "write")
                    },
                    "cpu": rounded(sum(row["cpu"] or 0.0 for row in rows_of_kind)),
                    "gpu": _gpu(rows_of_kind),
                }
            )
    pauses_of_run = pauses([{"session": row["lane"], "began": row["begins"], "ended": row["ends"]} for row in rows])
    data["paused_seconds"] = None if mst_keys is not None else rounded(sum(end - begin for begin, end in pauses_of_run))
    data["makespan"] = rounded(max(r["last"] for r in rows) - min(r["begins"] for r in rows)) if rows else 0.0


def _gpu(rows: list[dict[str, Any]]) -> float | None:
    """The mean utilization of the GPUs while trainers worked, weighted by their seconds; None where no unit tells it."""
    on_gpu = sum(row["on_gpu"] or 0.0 for row in rows)
    return rounded(sum(row["gpu"] or 0.0 for row in rows) / on_gpu) if on_gpu else None

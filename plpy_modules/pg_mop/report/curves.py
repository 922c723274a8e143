"""The learning curves of a run's report: of many configurations, a sample."""

from typing import Any

from pg_mop.backend.database import Database
from pg_mop.report.numbers import rounded, thin

MOST_CURVES, MOST_POINTS = 60, 60


def add(db: Database, data: dict[str, Any]) -> None:
    """Add the learning curves.

    `series`: their names; `curves`: {mst_key: {series: [[iteration, value], ...]}}; `times`: as `_times`.
    """
    schema, run_id = db.extension, data["run"]["run_id"]
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
    data["times"] = _times(db, run_id, keys)
    if thinned:
        note = f"at most {MOST_POINTS} points of each curve"
        data["sampled"]["curves"] = f"{data['sampled']['curves']}; {note}" if "curves" in data["sampled"] else note
    first = data["measure"]["series"]
    data["series"] = sorted(names, key=lambda n: (n != first, not n.startswith(first.split(" ")[0]), n))


def _times(db: Database, run_id: int, keys: list[int]) -> dict[int, list[list[Any]]]:
    """{mst_key: [[iteration, seconds from the start of the run to its evaluation], ...]} of some configurations."""
    return {
        row["mst_key"]: thin([[i, rounded(s)] for i, s in zip(row["iterations"], row["seconds"])], MOST_POINTS)
        for row in (
            db.execute(
                f"SELECT mst_key, array_agg(iteration ORDER BY iteration) AS iterations, "
                f"array_agg(seconds ORDER BY iteration) AS seconds FROM {db.extension}.mop_metrics_wide "
                f"WHERE run_id = $1 AND mst_key = ANY ($2) GROUP BY 1",
                ["bigint", "integer[]"],
                [run_id, keys],
            )
            if keys
            else ()
        )
    }

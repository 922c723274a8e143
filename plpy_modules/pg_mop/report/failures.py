"""The failed units of a run's report."""

from typing import Any

from pg_mop.backend.database import Database
from pg_mop.report.configurations import MOST_TEXT

MOST_FAILURES = 100


def add(db: Database, data: dict[str, Any]) -> None:
    """Add the failed units: `failed_units`."""
    keys = [c["mst_key"] for c in data["configurations"] if c["failed_units"]]
    data["failed_units"] = (
        db.execute(
            f"SELECT mst_key, iteration, segment, kind, attempt, status, left(error, {MOST_TEXT}) AS error "
            f"FROM {db.extension}.mop_units WHERE run_id = $1 AND status = 'failed' AND NOT shared AND mst_key = ANY ($2) "
            f"ORDER BY finished_at, mst_key LIMIT {MOST_FAILURES}",
            ["bigint", "integer[]"],
            [data["run"]["run_id"], keys],
        )
        if keys
        else []
    )
    if len(data["failed_units"]) == MOST_FAILURES:
        data["sampled"]["failures"] = f"the first {MOST_FAILURES} failed units"

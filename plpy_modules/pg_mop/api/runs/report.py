"""mop_report: a run as one HTML file, its data as JSON, or its summary as JSON."""

from __future__ import annotations

import json

from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, unseen_run
from pg_mop.backend.functions import sql_function
from pg_mop.call.earlier import SAME
from pg_mop.report.gather import gather
from pg_mop.report.page import page
from pg_mop.report.summary import shortened

FORMATS = ("html", "json", "table", "summary")  # table: the JSON without the data of the pictures


@sql_function
def mop_report(db: Database, run_id: int | None, format: str | None, mst_keys: list[int] | None) -> str:
    """The report of a run, with all its configurations or those in `mst_keys`.

    Raises MopError if the role sees no such run, or for an unknown `format`.
    """
    if format not in FORMATS:
        raise MopError(
            f"format must be one of {', '.join(FORMATS)}, not {format!r}",
            hint=f"SELECT {db.extension}.mop_report({run_id}, '{FORMATS[0]}');",
        )
    data = None if run_id is None else gather(db, run_id, SAME, mst_keys, pictures=format in ("html", "json"))
    if data is None:
        raise unseen_run(db, run_id)
    if format == "html":
        return page(data)
    return json.dumps(shortened(data) if format == "summary" else data, default=str)

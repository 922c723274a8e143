"""mop_family: the family tree of a search whose trials are made from other ones."""

from __future__ import annotations

from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, unseen_run
from pg_mop.backend.functions import sql_function
from pg_mop.report import family
from pg_mop.report.gather import gather

MOST_TRIALS = 10_000


@sql_function
def mop_family(db: Database, run_id: int | None) -> str:
    """The family tree of a run as text: each trial with its measure, what was changed, and what it inherited.

    Raises MopError if the role sees no such run.
    """
    data = None if run_id is None else gather(db, run_id, pictures=False)
    if run_id is None or data is None:
        raise unseen_run(db, run_id)
    nodes = family.of_run(db, run_id, data)
    if not nodes:
        return f"no trial of run {run_id} is a member of a model space, or made from another trial"
    if len(nodes) > MOST_TRIALS:
        raise MopError(
            f"run {run_id} has {len(nodes)} trials, more than {MOST_TRIALS}",
            hint=f"SELECT * FROM {db.extension}.mop_lineage WHERE run_id = {run_id};",
            sqlstate="54000",
        )
    return "\n".join([f"mst_key  {data['measure']['series']}  change  inherited", *family.text(nodes)])

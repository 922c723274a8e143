"""The end of a run: its output is written, or an error is noted."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.call.spec import RunResult
from pg_mop.catalog import note_output
from pg_mop.connections.sessions import message_of
from pg_mop.run.messages import listed

KEPT = "Nothing is lost: the run is trained to its end, and its models are kept."


@contextlib.contextmanager
def writing(result: RunResult, keeps: bool, late: Callable[[str], None]) -> Iterator[None]:
    """Within it the caller writes the output tables of a run. Then the run is finished; an error is noted in its row.

    `keeps`: later runs may use its states; `late(reason)`: tells of a configuration that was added too late.
    """
    output, catalog, run_id = result.spec.output, result.catalog, result.run_id
    try:
        with catalog:
            if output.previous is not None:
                output.previous.set_aside()
            yield
            if output.previous is not None:
                output.previous.drop()
            if keeps:
                catalog.keep_checkpoints(run_id)
            token = catalog.output_token(run_id)
            catalog.close_run(run_id, "finished", listed(result.failed) or None)
            for request in catalog.control_requests(run_id):  # they came after the last look
                if "add" in request:
                    late(f"added by {request['by']}")
        note_output(result.db, run_id, token)
    except BaseException as error:
        told = _name_taken(result.db, error, run_id, output.table) or _session_failed(result.db, error, run_id)
        _abandon(result, told or error)
        if told is not None:
            raise told from None
        raise


def _abandon(result: RunResult, error: BaseException) -> None:
    """The output could not be written: note that in the run's row. Its states stay."""
    try:
        with result.catalog:
            result.catalog.close_run(result.run_id, *outcome_of(error))
    except (MopError, psycopg2.Error) as trouble:  # the first error is the one to report
        result.db.log(f"run {result.run_id} could not be closed: {trouble}")


def _name_taken(db: Any, error: BaseException, run_id: int | None, output: str) -> MopError | None:
    """The MopError for an `error` in writing the output of a run, if somebody has made a table of the name of `output`
    (quoted) or of its companions meanwhile; None for any other error."""
    # 23505: an open transaction was making the table, and has committed now
    if not isinstance(error, db.plpy.SPIError) or getattr(error, "sqlstate", None) not in ("42P07", "42710", "23505"):
        return None
    found = re.search(r'"([^"]+)" already exists', str(error))
    schema, name = db.parse_name(output)
    made = f"{quote_identifier(schema)}.{quote_identifier(found[1] if found else name)}"
    return MopError(
        f"run {run_id} cannot write its output tables: {error}",
        detail=f"Somebody made one of that name while the run was trained. {KEPT}",
        hint=f"ALTER TABLE {made} RENAME TO ...; SELECT {db.extension}.mop_resume({run_id});",
        sqlstate="42P07",
    )


def _session_failed(db: Any, error: BaseException, run_id: int | None) -> MopError | None:
    """The MopError for an `error` of the session of the run's catalog; None for any other error."""
    if not isinstance(error, psycopg2.Error):
        return None
    return MopError(
        f"run {run_id} cannot write its output tables: {message_of(error)}",
        detail=KEPT,
        hint=f"SELECT {db.extension}.mop_resume({run_id});",
        sqlstate=error.pgcode or "08006",
    )


def outcome_of(error: BaseException) -> tuple[str, str]:
    """(status, error text) of a run that an exception has ended."""
    # not by the exception's class: a cancel that comes while a message is sent is a plpy.Error
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return "cancelled" if sqlstate == "57014" else "failed", str(error).strip()

"""mop_submit: SQL that runs without its client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from typing import Any

import mop_udf
from mop_udf.pool import process
from pg_mop.backend import settings
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier
from pg_mop.connections import targets
from pg_mop.connections.sessions import SessionLost
from pg_mop.connections.targets import Target

SECONDS = 60  # for the job supervisor to open its sessions
MOST_BYTES = 16 << 20  # of a command: the job supervisor, with limited memory, and the catalog store it
# text between tokens
BLANK = re.compile(r"[ \t\n\r\f\v;]+|--[^\n\r]*")
IN_COMMENT = re.compile(r"/\*|\*/")


@sql_function
def mop_submit(db: Database, command: str | None) -> int:
    """Run SQL in a separate session, as the calling role with its search_path and settings, pg_mop's and its application's.

    Returns the job's number. The session is opened like a worker session; a process, the job supervisor
    (run/job_supervisor.py), holds it. PostgreSQL itself raises an error if the command cannot be prepared in this
    transaction. Raises MopError if the command is empty, a setting is wrong, or no session can be opened.
    """
    if command is None or is_empty(command):
        raise MopError("there is no command to run", hint=f"SELECT {db.extension}.mop_submit($$ SELECT ... $$);")
    if (size := len(command.encode())) > MOST_BYTES:
        raise MopError(
            f"the command has {size / (1 << 20):.1f} MB",
            detail=f"It may have {MOST_BYTES >> 20} MB.",
            sqlstate="54000",
            hint=f"Put the command into a procedure: SELECT {db.extension}.mop_submit($$ CALL ... $$);",
        )
    if (
        os.getppid() == 1
    ):  # the postmaster would adopt the job supervisor, and take its end by a signal for a backend's crash
        raise MopError(
            "jobs are not available on a server that is process 1 of its container",
            sqlstate="0A000",
            hint="Start the container with --init, or by tini.",
        )
    target = targets.local(db)
    db.check_sql(command)
    texts = settings.given(db)
    settings.parsed(texts)  # raises an error for a wrong setting
    job = {
        "parameters": target.parameters,
        "role": target.role,
        "lacks": sorted(target.lacks),
        "schema": db.extension,
        "command": command,
        "settings": {
            **dict(target.settings),
            "search_path": db.callers_path,
            **{f"pg_mop.{name}": value for name, value in texts.items()},
        },
    }
    try:
        return _supervise(db, target, job)
    except OSError as error:
        raise MopError(
            "the process that holds the job's session cannot be started, or has ended",
            detail=str(error),
            sqlstate="53000",
        ) from None


def _supervise(db: Database, target: Target, job: dict[str, Any]) -> int:
    """Start a job supervisor for a job (dict), and return the job's number. Raises MopError, OSError."""
    supervisor = subprocess.Popen(
        process.command(mop_udf.home, "pg_mop.run.job_supervisor"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    assert supervisor.stdin is not None and supervisor.stdout is not None
    try:
        supervisor.wait()  # until the supervisor has forked
        _write(supervisor, json.dumps(job))
        until, answer = time.monotonic() + SECONDS, b""
        while not answer.endswith(b"\n"):
            if select.select([supervisor.stdout], [], [], 0.1)[0]:
                more = os.read(supervisor.stdout.fileno(), 1 << 16)
                if not more:
                    raise OSError("no answer")
                answer += more
            elif time.monotonic() > until:
                raise OSError(f"no answer within {SECONDS} s")
            else:
                db.check_interrupts()
        outcome = json.loads(answer)
        if "error" in outcome:
            raise _refused(db, target, **outcome)
        _write(supervisor, "go")
        return outcome["job"]
    finally:
        for pipe in (supervisor.stdin, supervisor.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def is_empty(command: str) -> bool:
    """True if SQL consists of space, comments and semicolons."""
    at = 0
    while at < len(command):
        if blank := BLANK.match(command, at):
            at = blank.end()
        elif command.startswith("/*", at):  # comments are nested
            depth = 0
            for mark in IN_COMMENT.finditer(command, at):
                depth += 1 if mark[0] == "/*" else -1
                if not depth:
                    break
            if depth:
                return False  # an unterminated comment: PostgreSQL reports it
            at = mark.end()
        else:
            return False
    return True


def _refused(
    db: Database, target: Target, error: str, sqlstate: str | None, detail: str | None, hint: str | None
) -> MopError:
    """The MopError for the job supervisor's failure to open its sessions."""
    user = target.parameters["user"]
    if sqlstate == "28000" and not db.value("SELECT rolcanlogin FROM pg_roles WHERE rolname = $1", ["text"], [user]):
        hint = f"ALTER ROLE {quote_identifier(user)} LOGIN;"
    elif sqlstate is None or sqlstate.startswith("28"):  # no answer, or failed authentication
        return target.refused(SessionLost(error, sqlstate))
    elif sqlstate == "53300":
        detail = detail or "A job has two sessions."
        hint = hint or targets.connections_hint(quote_identifier(user))
    elif sqlstate == "55P03":
        hint = hint or "SELECT pid, mode, relation::regclass FROM pg_locks WHERE granted; then call again."
    return MopError(error, detail=detail, hint=hint, sqlstate=sqlstate)


def _write(supervisor: subprocess.Popen[bytes], line: str) -> None:
    assert supervisor.stdin is not None
    supervisor.stdin.write(line.encode() + b"\n")
    supervisor.stdin.flush()

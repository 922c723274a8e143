"""mop_submit: a call that goes on without its client."""

import contextlib
import json
import os
import re
import select
import subprocess
import time

import mop_udf
from mop_udf import process
from pg_mop.backend import settings
from pg_mop.backend.database import MopError, quote_identifier, sql_function
from pg_mop.connections import targets

SECONDS = 60  # in which the job supervisor has its sessions
MOST_BYTES = 16 << 20  # of a command: the job supervisor, whose memory is limited, and the catalog have it
# what there is before the first token of a command or after its last one
BLANK = re.compile(r"[ \t\n\r\f\v;]+|--[^\n\r]*")
IN_COMMENT = re.compile(r"/\*|\*/")


@sql_function
def mop_submit(db, command):
    """Run SQL in a session of its own, as the calling role with its search_path and settings pg_mop.*.

    Returns the job's number. The session is one like a call's worker sessions, held by a process (pg_mop.job supervisor). What
    is wrong with the command by what this transaction sees is PostgreSQL's own error, here. Raises MopError where there
    is no command, a setting is wrong, or no session can be had.
    """
    if is_empty(command or ""):
        raise MopError("there is no command to run", hint=f"SELECT {db.extension}.mop_submit($$ SELECT ... $$);")
    if (size := len(command.encode())) > MOST_BYTES:
        raise MopError(
            f"the command has {size / (1 << 20):.1f} MB",
            detail=f"It may have {MOST_BYTES >> 20} MB.",
            sqlstate="54000",
            hint=f"Put it into a procedure: SELECT {db.extension}.mop_submit($$ CALL ... $$);",
        )
    if os.getppid() == 1:  # it would inherit the job supervisor, and take its end by a signal for a crash of its own
        raise MopError(
            "there are no jobs where the server is process 1 of its container",
            sqlstate="0A000",
            hint="Start the container with --init, or by tini.",
        )
    target = targets.local(db)
    db.check_sql(command)
    given = settings.given(db)
    settings.parsed(given)  # which says what is wrong with them
    asked = {
        "parameters": target.parameters,
        "role": target.role,
        "lacks": sorted(target.lacks),
        "schema": db.extension,
        "command": command,
        "settings": {"search_path": db.callers_path, **{f"pg_mop.{name}": v for name, v in given.items()}},
    }
    try:
        return _keep(db, target, asked)
    except OSError as error:
        raise MopError(
            "the process that holds the session cannot be started, or has ended", detail=str(error), sqlstate="53000"
        ) from None


def _keep(db, target, asked):
    """Have a job supervisor of what is asked; the job's number. Raises MopError, OSError."""
    supervisor = subprocess.Popen(
        process.command(mop_udf.home, "pg_mop.run.job_supervisor"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        supervisor.wait()  # it has forked
        _write(supervisor, json.dumps(asked))
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
        answer = json.loads(answer)
        if "error" in answer:
            raise _refused(db, target, **answer)
        _write(supervisor, "go")
        return answer["job"]
    finally:
        for pipe in (supervisor.stdin, supervisor.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def is_empty(command):
    """True where SQL is space, comments and semicolons alone."""
    at = 0
    while at < len(command):
        if blank := BLANK.match(command, at):
            at = blank.end()
        elif command.startswith("/*", at):  # comments have comments within
            depth = 0
            for mark in IN_COMMENT.finditer(command, at):
                depth += 1 if mark[0] == "/*" else -1
                if not depth:
                    break
            if depth:
                return False  # it has no end, of which PostgreSQL tells
            at = mark.end()
        else:
            return False
    return True


def _refused(db, target, error, sqlstate, detail, hint):
    """The MopError for what the job supervisor has met with in opening its sessions."""
    user = target.parameters["user"]
    if sqlstate == "28000" and not db.value("SELECT rolcanlogin FROM pg_roles WHERE rolname = $1", ["text"], [user]):
        hint = f"ALTER ROLE {quote_identifier(user)} LOGIN;"
    elif sqlstate is None or sqlstate.startswith("28"):  # there is no server there, or it wants to know more
        return target.refused(error)
    elif sqlstate == "53300":
        detail = detail or "A job has two sessions."
        hint = hint or targets.connections_hint(quote_identifier(user))
    elif sqlstate == "55P03":
        hint = hint or "SELECT pid, mode, relation::regclass FROM pg_locks WHERE granted; and call again."
    return MopError(error, detail=detail, hint=hint, sqlstate=sqlstate)


def _write(supervisor, line):
    supervisor.stdin.write(line.encode() + b"\n")
    supervisor.stdin.flush()

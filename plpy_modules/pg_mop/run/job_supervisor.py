"""The supervisor of a job: a small process that holds the session of a call whose client need not stay (api/runs/jobs.py).

The backend of mop_submit starts `python -m pg_mop.run.job_supervisor` as the server's operating-system user. It writes one
line of JSON to the process and reads one: {"job": number}, or {"error": reason, ...}. The command begins once the backend
has answered with a second line, so that no unknown job goes on. A job has two sessions. One runs the command;
the other copies the command's messages to the catalog. The command's session ends with this process, and this process ends
with that session, so a stop of the server ends both. The process keeps its input in memory alone.
"""

import collections
import contextlib
import functools
import json
import os
import resource
import signal
import sys
import time
import types
from typing import Any

import psycopg2
import psycopg2.extensions
from setproctitle import setproctitle

from pg_mop.backend.session_settings import KEEPALIVES, SESSION_OPTIONS, options_without
from pg_mop.connections import libpq
from pg_mop.connections.sessions import SessionLost, WorkerSession, answer, message_of, run, wait, within

CONNECT_SECONDS = 10
ASK_SECONDS = 40  # for the answer to a short statement, which has shorter limits in the server
LOCK_SECONDS = 10
CHECK_SECONDS = 0.5
REST_SECONDS = 5  # after a failure to write to the catalog
NOTE_SECONDS = 60  # for tries to write the job's end
MOST_BYTES = 1 << 30  # of memory
MOST_CHARACTERS = 4000  # of a message
MOST_LINES = 200  # of messages that are not written yet
# the role's own settings hold, as in any of its sessions
OPTIONS = (
    f"-c client_encoding=UTF8 -c client_connection_check_interval=1000 -c idle_session_timeout=0 "
    f"-c idle_in_transaction_session_timeout=0 {KEEPALIVES}"
)
LOG_OPTIONS = f"{SESSION_OPTIONS} {KEEPALIVES} -c statement_timeout=30000 -c lock_timeout={LOCK_SECONDS * 1000}"


def opened(target: Any, name: str, options: str) -> WorkerSession:
    """A session of the role. Raises SessionLost."""
    session = WorkerSession(target, None, name, options)
    session.connection.notices = collections.deque(maxlen=MOST_LINES)
    answer(session, within(CONNECT_SECONDS))
    return session


def ask(session: WorkerSession, sql: str, *values: Any) -> Any:
    """The first value of a short query (%s stands for a value), None where it gives no rows. Raises psycopg2.Error,
    SessionLost."""
    rows = run(session, session.connection.cursor().mogrify(sql, values).decode(), within(ASK_SECONDS))
    return rows[0][0] if rows else None


class Log:
    """The job's row in the catalog, written through a session of the role."""

    def __init__(self, target: Any, schema: str, command: str, backend: str) -> None:
        """Opens the job; `schema`: the extension's, quoted, for `ask`; `backend`: the session that is to run the
        command, as mop_tokens names it. Raises psycopg2.Error, SessionLost."""
        self.target, self.schema, self.pid = target, schema, int(backend.split()[0])
        self.session: WorkerSession | None = None
        self.job = self._ask(f"SELECT {schema}.mop_open_job(%s, %s)", command, backend)

    def _ask(self, sql: str, *values: Any) -> Any:
        session = self.session
        if session is None or session.connection.closed:
            session = self.session = opened(self.target, "pg_mop job's log", LOG_OPTIONS)
        try:
            return ask(session, sql, *values)
        except (psycopg2.Error, SessionLost):
            session.close()  # (it may still be at work, or may have become another role again)
            raise

    def note(self, lines: list[str], outcome: str | None = None, problem: str | None = None) -> bool:
        """Add lines, and how the job has ended; False where that failed."""
        try:
            self._ask(
                f"SELECT {self.schema}.mop_note_job(%s, %s, %s, %s, %s)",
                self.job,
                self.pid,
                lines,
                outcome,
                problem and problem[:MOST_CHARACTERS],
            )
            return True
        except (psycopg2.Error, SessionLost):
            return False

    def was_asked_for(self, error: Exception) -> bool:
        """True where somebody has asked for the cancel, False where statement_timeout has: both have one SQLSTATE.

        The server's message distinguishes them, in the server's language. So this session cancels itself, and the two
        messages are compared.
        """
        try:
            self._ask("SELECT pg_catalog.pg_cancel_backend(pg_catalog.pg_backend_pid()), pg_catalog.pg_sleep(10)")
        except psycopg2.errors.QueryCanceled as asked_for:
            return message_of(error) == message_of(asked_for)
        except (psycopg2.Error, SessionLost):
            pass
        return True  # the usual case


def lines(session: WorkerSession) -> list[str]:
    """The messages that have come in a session since the last look."""
    notices, found = session.connection.notices, []
    while notices:
        found.append(notices.popleft().strip()[:MOST_CHARACTERS])
    return found


def parts(error: Any) -> dict[str, str | None]:
    """The parts of a psycopg2.Error or a SessionLost, as sql_function's MopError has them."""
    if getattr(error, "pgcode", None) is None:  # a session that was ended gives the reason in its first line
        return {
            "error": message_of(error).partition("\n")[0].removeprefix("FATAL:").strip(),
            "sqlstate": getattr(error, "sqlstate", None),
            "detail": None,
            "hint": None,
        }
    return {
        "error": message_of(error),
        "sqlstate": error.pgcode,
        "detail": error.diag.message_detail,
        "hint": error.diag.message_hint,
    }


def shown(error: Exception) -> str:
    """An error as psql shows it, without its CONTEXT."""
    said = parts(error)
    others = (f"{name.upper()}:  {said[name]}" for name in ("detail", "hint") if said[name])
    return "\n".join([said["error"] or "", *others])


def ending(session: WorkerSession, error: Exception | None, log: Log) -> tuple[str, str | None]:
    """How a job has ended, and the error's text; `error`: its command's, or None."""
    if error is None:
        if session.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE:
            return "finished", None
        return "failed", "the command does not end the transaction that it began last: that is rolled back"
    if isinstance(error, psycopg2.errors.QueryCanceled):
        return "cancelled" if log.was_asked_for(error) else "failed", shown(error)
    maybe = "\nDETAIL:  What the command has done may be committed."
    if isinstance(error, SessionLost):
        return "failed", shown(error) + maybe
    if session.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_ACTIVE:
        # (psycopg2 leaves it there in the midst of COPY, and nowhere else)
        return "failed", (
            f"a job has no client, so there is no COPY to STDOUT or from STDIN{maybe}\n"
            "HINT:  INSERT INTO a table, or COPY to or from a file of the server."
        )
    # (the server undoes a statement that it refuses; an error of psycopg2 itself is a row beyond our memory)
    return "failed", shown(error) + (maybe if getattr(error, "pgcode", None) is None else "")


def say(message: dict[str, Any]) -> str:
    """Send the backend a message: its answer, '' where it has gone."""
    try:
        print(json.dumps(message), flush=True)
        return sys.stdin.readline()
    except BrokenPipeError:
        return ""


def main() -> None:
    """Run one job."""
    if os.fork():  # so the backend has no child to wait for
        os._exit(0)
    setproctitle("pg_mop job supervisor")  # until the job has a number
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    asked = json.loads(sys.stdin.readline())
    # (like connections.targets.Target, without its imports)
    target = types.SimpleNamespace(
        server=None,
        parameters=asked["parameters"],
        role=asked["role"],
        by_password=False,
        settings=(),
        options=functools.partial(options_without, frozenset(asked["lacks"])),
    )
    schema = asked["schema"].replace("%", "%%")
    try:
        session = opened(target, "pg_mop job", OPTIONS)
        ask(session, "SELECT pg_catalog.set_config('lock_timeout', %s, false)", f"{LOCK_SECONDS}s")
        for name, value in asked["settings"].items():
            ask(session, "SELECT pg_catalog.set_config(%s, %s, false)", name, value)
        log = Log(target, schema, asked["command"], ask(session, f"SELECT backend FROM {schema}.mop_tokens"))
        ask(session, "SELECT pg_catalog.set_config('application_name', %s, false)", f"pg_mop job {log.job}")
        ask(session, "RESET lock_timeout")  # the command has the role's own
    except (psycopg2.Error, SessionLost) as error:
        say(parts(error))
        return
    setproctitle(
        f"pg_mop job supervisor: port {target.parameters['port']}, database {target.parameters['dbname']}, job {log.job}"
    )
    if not say({"job": log.job}):
        log.note([], "cancelled", "the call of mop_submit was cancelled")
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    kept: collections.deque[str] = collections.deque(maxlen=MOST_LINES)
    next_note = 0.0

    def check_interrupts() -> None:
        nonlocal next_note
        kept.extend(lines(session))
        if kept and time.monotonic() > next_note:
            if done := log.note(list(kept)):
                kept.clear()
            next_note = time.monotonic() + (CHECK_SECONDS if done else REST_SECONDS)

    try:
        session.begin(asked["command"])
        libpq.take_rows_singly(session.connection)  # they are thrown away
        while not (ended := wait([session], check_interrupts, CHECK_SECONDS)):
            pass
        outcome, problem = ending(session, ended[0][1], log)
    except SessionLost as error:
        outcome, problem = ending(session, error, log)
    except MemoryError:
        outcome, problem = "failed", "a row takes too much memory; what the command has done may be committed"
    with contextlib.suppress(psycopg2.Error):  # messages that came with the last results are read by the next look
        session.connection.poll()
    last = [*kept, *lines(session)], outcome, problem
    if not log.note(*last):
        session.close()  # so the job does not count as running, although its end is not in the catalog
        until = time.monotonic() + NOTE_SECONDS
        while not log.note(*last) and time.monotonic() < until:
            time.sleep(1)


if __name__ == "__main__":
    main()

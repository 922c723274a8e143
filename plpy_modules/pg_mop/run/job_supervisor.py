"""The supervisor of a job: a small process that holds the session of a call whose client need not stay (api/jobs.py).

The backend of mop_submit starts `python -m pg_mop.run.job_supervisor` as the server's operating-system user. It writes one
line of JSON to the process and reads one: {"job": number}, or {"error": reason, ...}. The command begins once the backend
has answered with a second line: a job that nobody knows of must not go on. A job has two sessions. One runs the command;
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

import psycopg2
import psycopg2.extensions
from setproctitle import setproctitle

from pg_mop.backend.database import KEEPALIVES, SESSION_OPTIONS, options_without
from pg_mop.connections import libpq
from pg_mop.connections.sessions import SessionLost, WorkerSession, answer, message_of, run, wait

CONNECT_SECONDS = 10
ASK_SECONDS = 40  # for the answer to a short statement, which has shorter limits in the server
LOCK_SECONDS = 10
CHECK_SECONDS = 0.5
REST_SECONDS = 5  # after the catalog could not be told of something
NOTE_SECONDS = 60  # in which it can be told of the end
MOST_BYTES = 1 << 30  # of memory
MOST_CHARACTERS = 4000  # of a message
MOST_LINES = 200  # that are not noted yet
# the login's own settings hold, as in any session of his
OPTIONS = (
    f"-c client_encoding=UTF8 -c client_connection_check_interval=1000 -c idle_session_timeout=0 "
    f"-c idle_in_transaction_session_timeout=0 {KEEPALIVES}"
)
LOG_OPTIONS = f"{SESSION_OPTIONS} {KEEPALIVES} -c statement_timeout=30000 -c lock_timeout={LOCK_SECONDS * 1000}"


def opened(target, name, options):
    """A session in the role's name. Raises SessionLost."""
    session = WorkerSession(target, None, name, options)
    session.connection.notices = collections.deque(maxlen=MOST_LINES)
    answer(session, within(CONNECT_SECONDS))
    return session


def ask(session, sql, *values):
    """The first value of a short query (%s stands for a value), None where it gives no rows. Raises psycopg2.Error,
    SessionLost."""
    rows = run(session, session.connection.cursor().mogrify(sql, values).decode(), within(ASK_SECONDS))
    return rows[0][0] if rows else None


def within(seconds):
    """What is to be called while one waits: raises SessionLost once that has taken so many seconds."""
    until = time.monotonic() + seconds

    def check_interrupts():
        if time.monotonic() > until:
            raise SessionLost(f"no answer within {seconds} s")

    return check_interrupts


class Log:
    """The catalog's row of the job, through a session in the role's name."""

    def __init__(self, target, schema, command, backend):
        """Opens the job; `schema`: the extension's, quoted, for `ask`; `backend`: what mop_tokens tells of the session
        that is to run the command. Raises psycopg2.Error, SessionLost."""
        self.target, self.schema, self.pid, self.session = target, schema, int(backend.split()[0]), None
        self.job = self._ask(f"SELECT {schema}.mop_open_job(%s, %s)", command, backend)

    def _ask(self, sql, *values):
        if self.session is None or self.session.connection.closed:
            self.session = opened(self.target, "pg_mop job's log", LOG_OPTIONS)
        try:
            return ask(self.session, sql, *values)
        except (psycopg2.Error, SessionLost):
            self.session.close()  # (it may be at work still, or be another role again)
            raise

    def note(self, lines, outcome=None, problem=None):
        """Add lines, and how the job has ended; whether that could be done."""
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

    def was_asked_for(self, error):
        """Whether somebody has asked for a cancel: what statement_timeout ends has the same SQLSTATE.

        The server says which it was, in a language that may be any: so a cancel is asked for here, and the words are
        compared.
        """
        try:
            self._ask("SELECT pg_catalog.pg_cancel_backend(pg_catalog.pg_backend_pid()), pg_catalog.pg_sleep(10)")
        except psycopg2.errors.QueryCanceled as asked_for:
            return message_of(error) == message_of(asked_for)
        except (psycopg2.Error, SessionLost):
            pass
        return True  # as it is mostly


def lines(session):
    """What has been said in a session since the last look."""
    notices, found = session.connection.notices, []
    while notices:
        found.append(notices.popleft().strip()[:MOST_CHARACTERS])
    return found


def parts(error):
    """What a psycopg2.Error or SessionLost says, as sql_function's MopError has it."""
    if getattr(error, "pgcode", None) is None:  # a session that has been ended has said why on the first line
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


def told(error):
    """An error as psql shows it, without where."""
    said = parts(error)
    return "\n".join([said["error"], *(f"{name.upper()}:  {said[name]}" for name in ("detail", "hint") if said[name])])


def ending(session, error, log):
    """How a job has ended, and the error's text; `error`: what its command has raised, or None."""
    if error is None:
        if session.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE:
            return "finished", None
        return "failed", "the command does not end the transaction that it began last: that is rolled back"
    if isinstance(error, psycopg2.errors.QueryCanceled):
        return "cancelled" if log.was_asked_for(error) else "failed", told(error)
    maybe = "\nDETAIL:  What the command has done may be committed."
    if isinstance(error, SessionLost):
        return "failed", told(error) + maybe
    if session.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_ACTIVE:
        # (psycopg2 leaves it there in the midst of COPY, and nowhere else)
        return "failed", (
            f"a job has no client, so there is no COPY to STDOUT or from STDIN{maybe}\n"
            "HINT:  INSERT INTO a table, or COPY to or from a file of the server."
        )
    # (what is not the server's, which undoes a statement that it refuses, is that of a row beyond our memory)
    return "failed", told(error) + (maybe if error.pgcode is None else "")


def say(answer):
    """Answer the backend; what it answers: '' where it has gone."""
    try:
        print(json.dumps(answer), flush=True)
        return sys.stdin.readline()
    except BrokenPipeError:
        return ""


def main():
    if os.fork():  # the backend has no child to wait for
        os._exit(0)
    setproctitle("pg_mop job supervisor")  # until it has a number
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    asked = json.loads(sys.stdin.readline())
    # (a Way, without the import of all engines)
    target = types.SimpleNamespace(
        server=None,
        parameters=asked["parameters"],
        role=asked["role"],
        by_password=False,
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
        ask(session, "RESET lock_timeout")  # the command has the login's own
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
    kept, next_note = collections.deque(maxlen=MOST_LINES), 0.0

    def check_interrupts():
        nonlocal next_note
        kept.extend(lines(session))
        if kept and time.monotonic() > next_note:
            if done := log.note(list(kept)):
                kept.clear()
            next_note = time.monotonic() + (CHECK_SECONDS if done else REST_SECONDS)

    try:
        session.begin(asked["command"])
        libpq.take_rows_singly(session.connection)  # nobody wants them
        while not (ended := wait([session], check_interrupts, CHECK_SECONDS)):
            pass
        outcome, problem = ending(session, ended[0][1], log)
    except SessionLost as error:
        outcome, problem = ending(session, error, log)
    except MemoryError:
        outcome, problem = "failed", "a row takes too much memory; what the command has done may be committed"
    with contextlib.suppress(psycopg2.Error):  # what came with the last results is told by the next look
        session.connection.poll()
    last = [*kept, *lines(session)], outcome, problem
    if not log.note(*last):
        session.close()  # a job that has ended does not count as running, though nobody can say how it has ended
        until = time.monotonic() + NOTE_SECONDS
        while not log.note(*last) and time.monotonic() < until:
            time.sleep(1)


if __name__ == "__main__":
    main()

"""The keeper of a job: a small process that holds the session of a call whose client need not stay (api/jobs.py).

`python -m pg_mop.keeper` is a process of the server's user, started by the backend of mop_submit, which writes one line
of JSON to it and reads one: {"job": number}, or {"error": why there is none}. The command begins once the backend has
answered with a second line, so that a job of which nobody knows does not go on. A job has two sessions: one runs the
command, and one tells the catalog what it says. The first ends when this process does, and this process when the first
has: a stop of the server ends it. What it was given it has in memory alone.
"""

import collections
import json
import os
import resource
import select
import signal
import sys
import time

import psycopg2
import psycopg2.extensions
from setproctitle import setproctitle

from pg_mop.database import SESSION_OPTIONS, quote_identifier
from pg_mop.execute.sessions import message_of

CONNECT_SECONDS = 10
TICK_SECONDS = 0.5
NOTE_SECONDS = 60       # in which a lost session of the catalog is had again
MOST_BYTES = 1 << 30    # of memory: of a command's rows all come here
MOST_CHARACTERS = 4000  # of a message
MOST_LINES = 200        # that are not noted yet
# the login's own settings hold, as in any session of his
OPTIONS = ("-c client_encoding=UTF8 -c client_connection_check_interval=1000 -c idle_session_timeout=0 "
           "-c idle_in_transaction_session_timeout=0")


class Running:
    """An asynchronous session in the role's name, and the lines that it is sent."""

    def __init__(self, parameters, role, settings):
        """`settings`: {name: value}. Raises psycopg2.Error."""
        self.connection = psycopg2.connect(**parameters, options=OPTIONS, async_=True)
        self.connection.notices = collections.deque(maxlen=MOST_LINES)
        until = time.monotonic() + CONNECT_SECONDS
        self._wait(lambda: time.monotonic() < until)
        self.ask(f"SET ROLE {quote_identifier(role)}")
        for name, value in settings.items():
            self.ask("SELECT pg_catalog.set_config(%s, %s, false)", (name, value))

    def ask(self, sql, values=None):
        """The first value of a short query, None where it gives no rows."""
        cursor = self.run(sql, values, lambda: True)
        return cursor.fetchone()[0] if cursor.description else None

    def run(self, sql, values, tick):
        cursor = self.connection.cursor()
        cursor.execute(sql, values)
        self._wait(tick)
        return cursor

    def _wait(self, tick):
        """Until what has been asked is there. Raises psycopg2.Error: also where `tick`, called often, gives False."""
        while (state := self.connection.poll()) != psycopg2.extensions.POLL_OK:
            ways = ([self.connection], []) if state == psycopg2.extensions.POLL_READ else ([], [self.connection])
            select.select(*ways, [], TICK_SECONDS)
            if not tick():
                raise psycopg2.OperationalError(f"timeout expired after {CONNECT_SECONDS} s")

    def lines(self):
        """What has been said since the last look."""
        notices, found = self.connection.notices, []
        while notices:
            found.append(notices.popleft().strip()[:MOST_CHARACTERS])
        return found


class Log:
    """The catalog's row of the job, through a session in the role's name."""

    def __init__(self, parameters, role, schema):
        """`schema`: the extension's, quoted. Raises psycopg2.Error."""
        self.parameters, self.role, self.schema = parameters, role, schema.replace("%", "%%")
        self.job, self.pid = None, None
        self._connect()

    def _connect(self):
        self.connection = psycopg2.connect(
            **self.parameters, connect_timeout=CONNECT_SECONDS, application_name="pg_mop job's log",
            options=f"{SESSION_OPTIONS} -c statement_timeout=30000 -c lock_timeout=10000")
        self.connection.autocommit = True
        self._value(f"SET ROLE {quote_identifier(self.role).replace('%', '%%')}")

    def _value(self, sql, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchone()[0] if cursor.description else None

    def open(self, command, backend):
        self.pid = int(backend.split()[0])
        self.job = self._value(f"SELECT {self.schema}.mop_open_job(%s, %s)", command, backend)

    def note(self, lines, outcome=None, problem=None):
        """Add lines, and how the job has ended; whether that could be done. The end is tried for some time."""
        until = time.monotonic() + (NOTE_SECONDS if outcome else 0)
        while True:
            try:
                if self.connection.closed:
                    self._connect()
                self._value(f"SELECT {self.schema}.mop_note_job(%s, %s, %s, %s, %s)", self.job, self.pid, lines,
                            outcome, problem)
                return True
            except psycopg2.Error:
                self.connection.close()
                if time.monotonic() >= until:
                    return False
            time.sleep(1)


def say(answer):
    """Answer the backend; what it answers: '' where it has gone."""
    try:
        print(json.dumps(answer), flush=True)
        return sys.stdin.readline()
    except BrokenPipeError:
        return ""


def told(error):
    """An error as psql shows it, without where."""
    # a session that has been ended has said why on the first line
    parts = [message_of(error).partition("\n")[0].removeprefix("FATAL:").strip() if error.pgcode is None
             else message_of(error)]
    for name, text in (("DETAIL", error.diag.message_detail), ("HINT", error.diag.message_hint)):
        if text:
            parts.append(f"{name}:  {text}")
    return "\n".join(parts)


def main():
    if os.fork():  # the backend has no child to wait for
        os._exit(0)
    setproctitle("pg_mop keeper")  # until it has a number
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    asked = json.loads(sys.stdin.readline())
    parameters, role = asked["parameters"], asked["role"]
    try:
        session = Running(parameters, role, asked["settings"])
        log = Log(parameters, role, asked["schema"])
        log.open(asked["command"], session.ask(f"SELECT backend FROM {asked['schema']}.mop_tickets"))
        session.ask("SELECT pg_catalog.set_config('application_name', %s, false)", (f"pg_mop job {log.job}",))
    except psycopg2.Error as error:
        say({"error": str(error).strip()})
        return
    setproctitle(f"pg_mop keeper: port {parameters['port']}, database {parameters['dbname']}, job {log.job}")
    if not say({"job": log.job}):
        log.note([], "cancelled", "the call of mop_submit was cancelled")
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    kept, noted = collections.deque(maxlen=MOST_LINES), 0.0

    def tick():
        nonlocal noted
        kept.extend(session.lines())
        if kept and time.monotonic() - noted > TICK_SECONDS:
            if log.note(list(kept)):
                kept.clear()
            noted = time.monotonic()
        return True

    outcome = problem = None
    try:
        session.run(asked["command"], None, tick)
        if session.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_IDLE:
            outcome = "finished"
        else:
            outcome = "failed"
            problem = "the command does not end the transaction that it began last: that is rolled back"
    except psycopg2.errors.QueryCanceled as error:
        outcome, problem = "cancelled", told(error)
    except psycopg2.Error as error:
        outcome, problem = "failed", told(error)
        if error.pgcode is None:  # not the server's, which undoes a statement that it refuses
            problem += "\nDETAIL:  What the command has done may be committed."
    except MemoryError:
        outcome, problem = "failed", "its rows take too much memory; what it has done may be committed"
    log.note([*kept, *session.lines()], outcome, problem)


if __name__ == "__main__":
    main()

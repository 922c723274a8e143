"""Asynchronous psycopg2 sessions with a server: opening, commands, waiting, heartbeats."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psycopg2
import psycopg2.extensions

from mop_udf.pool.patience import Patience
from pg_mop.backend.errors import has_lost_segment, without_classes
from pg_mop.backend.session_settings import SESSION_OPTIONS, first_sql
from pg_mop.connections import libpq
from pg_mop.connections.targets import Target

CHECK_SECONDS = 0.1
CONNECT_SECONDS = 30
ATTEMPTS = 3  # to open a session
OPTIONS = f"{SESSION_OPTIONS} -c client_connection_check_interval=500 -c optimizer=off"


class SessionLost(Exception):
    """The connection was lost or refused; `sqlstate`: the server's reason for a refusal, if known."""

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def message_of(error: Exception) -> str:
    """The primary message of a worker session's error, without PL/Python's prefix and context."""
    text = isinstance(error, psycopg2.Error) and error.diag.message_primary or str(error)
    return without_classes(text).strip()


class WorkerSession:
    """One asynchronous connection. At most one command runs at a time; `poll` returns 'ready' when it has ended."""

    def __init__(self, target: Target, worker: Any, application_name: str, options: str = OPTIONS) -> None:
        self.target, self.worker = target, worker
        self.error: Any = None
        self.work: list[Any] = []  # units in progress: (unit, the row of the attempt)
        self.relay: Any = None  # the relay session that moves states for this session
        self.serves: Any = None  # a relay: the session that it moves states for
        self.moves: list[Any] = []  # Moves in progress
        self.carries_since = 0.0  # when its relay began (time.monotonic)
        self.command: Any = None  # follows the Moves
        self.prepared = False  # a relay: its foreign tables exist
        self.nets: list[str] = []  # digests of the compiled models that its trainer had at first
        self._cursor: Any = None  # of the last command
        try:
            self.connection = psycopg2.connect(
                **target.parameters,
                options=target.options(options),
                connect_timeout=CONNECT_SECONDS,
                application_name=application_name,
                async_=True,
            )
            libpq.set_verbosity(self.connection, libpq.VERBOSE)
        except psycopg2.Error as error:
            raise SessionLost(str(error).strip()) from None
        self._first_sql = first_sql(target)
        self._connecting = True

    def fileno(self) -> int:
        """The socket, for select."""
        return self.connection.fileno()

    @property
    def pid(self) -> Any:
        """The process ID of the server's backend; None until connected."""
        return None if self._connecting else self.connection.info.backend_pid

    def begin(self, sql: str) -> None:
        """Send a command (only when ready). Raises SessionLost."""
        if self._first_sql:
            sql, self._first_sql = self._first_sql + sql, ""
        try:
            self._cursor = self.connection.cursor()
            self._cursor.execute(sql)
        except psycopg2.Error as error:
            raise SessionLost(str(error).strip()) from None

    def poll(self) -> str:
        """Advance the command as far as possible without waiting.

        Returns 'ready', or 'read' or 'write': wait until the socket is so. Raises psycopg2.Error if the command failed,
        SessionLost if the connection failed.
        """
        try:
            state = self.connection.poll()
        except psycopg2.Error as error:
            if self._connecting:
                self.close()
                raise SessionLost(*libpq.refusal(error)) from None
            # a server that ends the session sends the reason (class 57P) first
            if self.connection.closed or (error.pgcode or "").startswith("57P") or has_lost_segment(error):
                self.close()
                raise SessionLost(str(error).strip()) from None
            raise
        if state == psycopg2.extensions.POLL_OK:
            if self._connecting:
                if self.target.by_password and not self.connection.info.used_password:
                    self.close()
                    raise SessionLost("the server does not ask for the password of the user mapping", "28000")
                libpq.set_verbosity(self.connection, libpq.DEFAULT)
                self._connecting = False
            return "ready"
        return "read" if state == psycopg2.extensions.POLL_READ else "write"

    def clean_sql(self) -> str:
        """SQL for the start of the next command: it ends a failed transaction. (Without a transaction, the server logs a
        warning.)"""
        return (
            ""
            if self.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE
            else "ROLLBACK; "
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the last command, which has ended."""
        return self._cursor.fetchall() if self._cursor is not None and self._cursor.description else []

    def cancel(self) -> None:
        """Ask the server to cancel the command."""
        try:
            self.connection.cancel()
        except psycopg2.Error:
            pass

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        except psycopg2.Error:
            pass


def wait(
    sessions: Iterable[WorkerSession], check_interrupts: Callable[[], None], seconds: float = CHECK_SECONDS
) -> list[tuple[WorkerSession, Exception | None]]:
    """Wait until one of `sessions` can advance, at most `seconds`, then call `check_interrupts`.

    Returns the sessions whose command has ended, as (session, error or None).
    """
    ended: list[tuple[WorkerSession, Exception | None]] = []
    reading: list[WorkerSession] = []
    writing: list[WorkerSession] = []
    for session in sessions:
        _advance(session, ended, reading, writing)
    if not ended:
        ready = select.select(reading, writing, [], seconds)
        for session in {*ready[0], *ready[1]}:
            _advance(session, ended, [], [])
    check_interrupts()
    return ended


def within(seconds: float, check_interrupts: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """A function to call while waiting: it calls `check_interrupts`, and raises SessionLost after so many seconds."""
    patience = Patience(seconds)

    def check() -> None:
        check_interrupts()
        if patience.over():
            raise SessionLost(f"no answer within {seconds} s")

    return check


def _advance(session: WorkerSession, ended: list[Any], reading: list[Any], writing: list[Any]) -> None:
    """Poll a session, and append it to the list for its new state."""
    try:
        state = session.poll()
    except (psycopg2.Error, SessionLost) as error:
        ended.append((session, error))
        return
    if state == "ready":
        ended.append((session, None))
    else:
        (reading if state == "read" else writing).append(session)


def run(session: WorkerSession, sql: str, check_interrupts: Callable[[], None]) -> list[tuple[Any, ...]]:
    """Send a command, wait for its end, return its rows. Raises psycopg2.Error or SessionLost."""
    session.begin(sql)
    return answer(session, check_interrupts)


def answer(session: WorkerSession, check_interrupts: Callable[[], None]) -> list[tuple[Any, ...]]:
    """Wait for the end of a session's command, return its rows. Raises psycopg2.Error or SessionLost."""
    while True:
        for _, error in wait([session], check_interrupts):
            if error is not None:
                raise error
            return session.rows()


def open_session(
    target: Target,
    worker: Any,
    application_name: str,
    check_interrupts: Callable[[], None],
    seconds: float = CONNECT_SECONDS,
) -> WorkerSession:
    """Open a session within so many seconds. Raises MopError with a hint."""
    return open_sessions([target], worker, application_name, check_interrupts, seconds)[0]


def open_sessions(
    targets: Sequence[Target],
    worker: Any,
    application_name: str,
    check_interrupts: Callable[[], None],
    seconds: float = CONNECT_SECONDS,
) -> list[WorkerSession]:
    """Open a session for each connection target, all within so many seconds. Raises MopError."""
    opened: list[WorkerSession] = []
    connecting: dict[WorkerSession, Target] = {}
    patience = Patience(seconds)
    try:
        for target in targets:
            with _refused_by(target):
                opened.append(WorkerSession(target, worker, application_name))
                connecting[opened[-1]] = target
        while connecting:
            with _refused_by(next(iter(connecting.values()))):  # check_interrupts may raise
                ended = wait(list(connecting), check_interrupts)
            for session, error in ended:
                with _refused_by(connecting.pop(session)):
                    if error is not None:
                        raise error
            if patience.over() and connecting:
                with _refused_by(next(iter(connecting.values()))):
                    raise SessionLost(f"no answer within {seconds} s")
    except BaseException:
        for session in opened:
            session.close()
        raise
    return opened


@contextlib.contextmanager
def _refused_by(target: Target) -> Iterator[None]:
    try:
        yield
    except SessionLost as error:
        raise target.refused(error) from None


class Heartbeat:
    """Checks from time to time whether a server answers, without waiting."""

    EVERY = 5  # seconds

    def __init__(self, target: Target, name: str) -> None:
        self.target, self.name = target, name
        self.session: WorkerSession | None = None
        self.asked: Patience | None = None  # since the open question
        self.answered = time.monotonic()  # time of the last answer

    def look(self) -> float:
        """Ask or receive. Returns the seconds that the open question has waited for its answer; 0 if there is none."""
        now = time.monotonic()
        try:
            if self.session is None:
                self.session, self.asked = WorkerSession(self.target, None, f"{self.name}: heartbeat"), Patience()
            # connecting takes several steps
            while (
                self.asked is not None
                and (state := self.session.poll()) != "ready"
                and any(select.select([self.session] * (state == "read"), [self.session] * (state == "write"), [], 0))
            ):
                pass
            if self.asked is not None and state == "ready":
                self.asked, self.answered = None, now
            elif self.asked is None and now - self.answered > self.EVERY:
                self.session.begin("SELECT 1")
                self.asked = Patience()
        except (psycopg2.Error, SessionLost):  # the sessions with units notice the loss themselves
            self.close()
        return 0 if self.asked is None else self.asked.look()

    @property
    def beats(self) -> bool:
        """True if the server has answered the last question."""
        return self.session is not None and self.asked is None

    def close(self) -> None:
        """Close the session; the next `look` opens another."""
        if self.session is not None:
            self.session.close()
            self.session = None

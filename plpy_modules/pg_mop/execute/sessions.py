"""Worker sessions: asynchronous connections back to the database, each with its trainer; kept warm between calls."""

import contextlib
import json
import re
import select
import time

import psycopg2
import psycopg2.extensions

from pg_mop.database import SESSION_OPTIONS, MopError, first_sql, has_lost_segment, quote_literal
from pg_mop.execute import libpq

TICK_SECONDS = 0.1
CONNECT_SECONDS = 30
ATTEMPTS = 3  # to open a session
MOST_AT_HOME = 1000  # compiled models that are remembered of a session
OPTIONS = (
    f"{SESSION_OPTIONS} -c statement_timeout=0 -c client_connection_check_interval=500 -c jit=off -c optimizer=off"
)

# idle sessions of this backend, by (the way's key, the extension's schema there, place); each trainer's cache holds the
# rows of its segment
_pool = {}


def are_warm(role):
    """True where sessions of an earlier call of the role are kept, on this server."""
    return any(
        session.way.server is None and session.way.role == role and not session.connection.closed
        for session in _pool.values()
    )


class SessionLost(Exception):
    """The connection has gone, or was not made; `sqlstate`: the server's, where it refused that."""

    def __init__(self, message, sqlstate=None):
        super().__init__(message)
        self.sqlstate = sqlstate


def message_of(error):
    """The primary message of an error from a worker session, without PL/Python's prefix and the context."""
    text = isinstance(error, psycopg2.Error) and error.diag.message_primary or str(error)
    return re.sub(r"^((plpy|spiexceptions)\.\w+: |pg_mop: )+", "", text).strip()


class WorkerSession:
    """One asynchronous connection. At most one command runs at a time; `ready()` tells when it has ended."""

    def __init__(self, way, place, application_name, options=OPTIONS):
        self.way, self.place, self.error = way, place, None
        self.work = []  # what it is doing: (unit, the row of the attempt)
        self.relay, self.serves = None, None  # the one that carries states for it; of such a one, the session
        self.moves, self.command = [], None  # what is carried, and what it does then
        self.prepared = False  # a relay has its tables
        self._cursor = None  # of the command that was sent last
        self.at_home = {}  # digest of a compiled model whose home is here (schedule/base.py) -> None, the latest last
        try:
            self.connection = psycopg2.connect(
                **way.parameters,
                options=way.options(options),
                connect_timeout=CONNECT_SECONDS,
                application_name=application_name,
                async_=True,
            )
            libpq.set_verbosity(self.connection, libpq.VERBOSE)
        except psycopg2.Error as error:
            raise SessionLost(str(error).strip()) from None
        self._first_sql = first_sql(way)
        self._connecting = True

    def fileno(self):
        return self.connection.fileno()

    @property
    def pid(self):
        return None if self._connecting else self.connection.info.backend_pid

    def begin(self, sql):
        """Send a command (only when ready). Raises SessionLost."""
        if self._first_sql:
            sql, self._first_sql = self._first_sql + sql, ""
        try:
            self._cursor = self.connection.cursor()
            self._cursor.execute(sql)
        except psycopg2.Error as error:
            raise SessionLost(str(error).strip()) from None

    def poll(self):
        """Go on with what can be done without waiting.

        Returns 'ready', 'read' or 'write' (what to wait for). Raises psycopg2.Error where the command failed and
        SessionLost where the connection did.
        """
        try:
            state = self.connection.poll()
        except psycopg2.Error as error:
            if self._connecting:
                self.close()
                raise SessionLost(*libpq.refusal(error)) from None
            # a server that ends the session says why (class 57P) before it hangs up
            if self.connection.closed or (error.pgcode or "").startswith("57P") or has_lost_segment(error):
                self.close()
                raise SessionLost(str(error).strip()) from None
            raise
        if state == psycopg2.extensions.POLL_OK:
            if self._connecting:
                if self.way.by_password and not self.connection.info.used_password:
                    self.close()
                    raise SessionLost("the server does not ask for the password of the user mapping", "28000")
                libpq.set_verbosity(self.connection, libpq.DEFAULT)
                self._connecting = False
            return "ready"
        return "read" if state == psycopg2.extensions.POLL_READ else "write"

    def clean_sql(self):
        """SQL to begin the next command with: ends a transaction that failed. (A warning in the server's log, where
        there is none.)"""
        return (
            ""
            if self.connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE
            else "ROLLBACK; "
        )

    def rows(self):
        """The rows of the command that has just ended."""
        return self._cursor.fetchall() if self._cursor is not None and self._cursor.description else []

    def cancel(self):
        try:
            self.connection.cancel()
        except psycopg2.Error:
            pass

    def close(self):
        try:
            self.connection.close()
        except psycopg2.Error:
            pass


def wait(sessions, tick, seconds=TICK_SECONDS):
    """Wait until one of `sessions` can go on, at most `seconds`, letting PostgreSQL see interrupts by `tick`.

    Returns the sessions whose command has ended as (session, error or None).
    """
    ended, reading, writing = [], [], []
    for session in sessions:
        _sort(session, ended, reading, writing)
    if not ended:
        ready = select.select(reading, writing, [], seconds)
        for session in {*ready[0], *ready[1]}:
            _sort(session, ended, [], [])
    tick()
    return ended


def _sort(session, ended, reading, writing):
    try:
        state = session.poll()
    except (psycopg2.Error, SessionLost) as error:
        ended.append((session, error))
        return
    if state == "ready":
        ended.append((session, None))
    else:
        (reading if state == "read" else writing).append(session)


def run(session, sql, tick):
    """Send a command, wait for its end, give its rows. Raises psycopg2.Error or SessionLost."""
    session.begin(sql)
    return answer(session, tick)


def answer(session, tick):
    """Wait for the end of what a session does, give its rows. Raises psycopg2.Error or SessionLost."""
    while True:
        for _, error in wait([session], tick):
            if error is not None:
                raise error
            return session.rows()


def open_session(way, place, application_name, tick, seconds=CONNECT_SECONDS):
    """A new session, connected within so many seconds. Raises MopError with what mends it."""
    return open_sessions([way], place, application_name, tick, seconds)[0]


def open_sessions(ways, place, application_name, tick, seconds=CONNECT_SECONDS):
    """New sessions, one for each of some ways, all connected within so many seconds. Raises MopError."""
    opened, connecting, deadline = [], {}, time.monotonic() + seconds
    try:
        for way in ways:
            with _refused_by(way):
                opened.append(WorkerSession(way, place, application_name))
                connecting[opened[-1]] = way
        while connecting:
            with _refused_by(next(iter(connecting.values()))):  # (`tick` may have waited long enough)
                ended = wait(list(connecting), tick)
            for session, error in ended:
                with _refused_by(connecting.pop(session)):
                    if error is not None:
                        raise error
            if connecting and time.monotonic() > deadline:
                with _refused_by(next(iter(connecting.values()))):
                    raise SessionLost(f"no answer within {seconds} s")
    except BaseException:
        for session in opened:
            session.close()
        raise
    return opened


@contextlib.contextmanager
def _refused_by(way):
    try:
        yield
    except SessionLost as error:
        raise way.refused(error) from None


class Pulse:
    """Looks now and then whether a server answers, and never waits for it."""

    EVERY = 5  # seconds

    def __init__(self, way, name):
        self.way, self.name, self.session = way, name, None
        self.asked, self.answered = None, time.monotonic()  # None: no answer is awaited

    def look(self):
        """For how many seconds the server has not answered, a question being asked; 0 where it has."""
        now = time.monotonic()
        try:
            if self.session is None:
                self.session, self.asked = WorkerSession(self.way, None, f"{self.name}: pulse"), now
            # (to connect takes several steps)
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
                self.asked = now
        except (psycopg2.Error, SessionLost):  # those at work find out, too
            self.close()
        return 0 if self.asked is None else now - self.asked

    @property
    def beats(self):
        """True where the server has answered, as far as is known."""
        return self.session is not None and self.asked is None

    def close(self):
        if self.session is not None:
            self.session.close()
            self.session = None


class Sessions:
    """The worker sessions of one run, one for each place, opened or taken from the pool."""

    def __init__(self, db, server, options, name, lock_timeout):
        """`server(place)`: the :class:`~pg_mop.execute.servers.Server` of a place; `options(place)`: the trainer's
        options; `name`: the sessions' application_name; `lock_timeout`: theirs, milliseconds."""
        self.db, self.server, self.options, self.name, self.lock_timeout = db, server, options, name, lock_timeout
        self.tick = db.tick
        self.by_place = {}
        self.relays = {}  # (place, name of a server) -> session of that one that carries states for the place's
        self.pulses = {}  # name of another server -> its Pulse

    def relay(self, session, server, source=None):
        """A session of a Server that carries states for `session`; None: for whoever waits for it, or copies of those
        that are made on the server `source`."""
        place = session.place if session is not None else source
        relay = self.relays.get((place, server.name))
        if relay is None or relay.connection.closed:
            relay = self.relays[place, server.name] = open_session(server.way, place, f"{self.name}: relay", self.tick)
        relay.serves = session
        return relay

    def pulse(self, way, anew=False):
        """The Pulse of the server that a way leads to; `anew`: one that knows nothing of what was before."""
        if anew and way.server in self.pulses:
            self.pulses.pop(way.server).close()
        if way.server not in self.pulses:
            self.pulses[way.server] = Pulse(way, self.name)
        return self.pulses[way.server]

    def silence(self, server):
        """For how many seconds another Server has not answered."""
        return self.pulse(server.way).look()

    def homes(self):
        """{digest of a compiled model: the place whose trainer has it of an earlier call}."""
        return {digest: place for place, session in self.by_place.items() for digest in session.at_home}

    def note_homes(self, homes):
        """Remember such places for the next call."""
        for digest, place in homes.items():
            if place in self.by_place:
                known = self.by_place[place].at_home
                known.pop(digest, None)
                known[digest] = None
                if len(known) > MOST_AT_HOME:
                    del known[next(iter(known))]

    def _key(self, place):
        server = self.server(place)
        return server.way.key, server.schema, place

    def _warm_up(self, place):
        server, options = self.server(place), quote_literal(json.dumps(self.options(place)))
        return (
            f"{server.way.idle_sql(0)}SET application_name = {quote_literal(self.name)}; "
            f"SET lock_timeout = {self.lock_timeout}; SELECT {server.schema}.mop_start_trainer({options})"
        )

    def open(self, places):
        """Open sessions at `places`, all at once; they start their trainers without being waited for.

        Returns the MopError that says why some could not be opened, or None. Raises it where none could.
        """
        opening = {}  # session -> it has been told to start its trainer
        for place in places:
            try:
                self.by_place[place] = self._take(place, places) or self._connect(place, opening)
            except SessionLost:
                pass
        self._connected(opening)
        # what went wrong may go better alone, or say why it cannot
        refused = self.add([place for place in places if place not in self.by_place])
        if refused is not None and not self.by_place:
            raise refused
        return refused

    def _connected(self, opening):
        """Wait until all of `opening` are ready; those that fail are left out of by_place."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while opening and time.monotonic() < deadline:
            for session, error in wait(list(opening), self.tick):
                try:
                    if error is not None:
                        raise error
                    if opening[session]:
                        del opening[session]
                    else:
                        session.begin(self._warm_up(session.place))
                        opening[session] = True
                except (psycopg2.Error, SessionLost):
                    session.close()
                    del opening[session], self.by_place[session.place]
        for session in opening:
            session.close()
            del self.by_place[session.place]

    def add(self, places):
        """Open sessions at more places. Returns the MopError of the first that cannot be opened, which ends it; else
        None."""
        for place in places:
            try:
                self.fresh(place)
            except MopError as error:
                self.end(place)
                return error
        return None

    def end(self, place):
        """End the session at a place, if there is one."""
        session = self.by_place.pop(place, None)
        if session is not None:
            session.close()

    def _connect(self, place, opening):
        session = WorkerSession(self.server(place).way, place, self.name)
        opening[session] = False
        return session

    def _take(self, place, places):
        """A warm session for a place: its own, which has its rows, or one that none of `places` will ask for."""
        key = self._key(place)
        if key not in _pool:
            asked_for = {self._key(other) for other in places}
            key = next((warm for warm in _pool if warm[:2] == key[:2] and warm not in asked_for), None)
        session = _pool.pop(key, None)
        if session is None or session.connection.closed:
            return None
        session.place = place
        try:
            run(session, self._warm_up(place), self.tick)
        except (psycopg2.Error, SessionLost):
            session.close()
            return None
        return session

    def fresh(self, place, seconds=CONNECT_SECONDS):
        """A new session at `place`, its trainer started."""
        for left in reversed(range(ATTEMPTS)):
            session = open_session(self.server(place).way, place, self.name, self.tick, seconds)
            self.by_place[place] = session
            try:
                run(session, self._warm_up(place), self.tick)
                return session
            except SessionLost as error:
                if not left:
                    raise MopError(
                        f"a worker session is lost each time it is opened: {error}", sqlstate="08006"
                    ) from None
            except psycopg2.Error as error:
                raise MopError(
                    f"a worker session cannot start its trainer: {str(error).strip()}", sqlstate=error.pgcode or "XX000"
                ) from None

    def keep(self, idle_milliseconds):
        """Put the sessions, all idle, into the pool; the server ends them when they stay idle too long."""
        for place, session in self.by_place.items():
            try:
                run(session, session.clean_sql() + (session.way.idle_sql(idle_milliseconds) or "SELECT 1"), self.tick)
            except (psycopg2.Error, SessionLost):
                session.close()
                continue
            _pool[self._key(place)] = session
        self.by_place = {}
        self._close_others()

    def _close_others(self):
        """End the sessions that serve no place."""
        for other in (*self.relays.values(), *self.pulses.values()):
            other.close()
        self.relays, self.pulses = {}, {}

    def abandon(self):
        """Cancel what runs and end every session, within two seconds. Gives no control to PostgreSQL meanwhile."""
        busy = [one for s in self.by_place.values() if s.work and not (one := s.relay or s).connection.closed]
        for session in [s for s in busy if s.way.server is not None]:
            session.close()  # a cancel would wait for its server; that notices within half a second
            busy.remove(session)
        for session in busy:
            session.cancel()
        deadline = time.monotonic() + 1.5
        while busy and time.monotonic() < deadline:
            ended = {id(s) for s, _ in wait(busy, lambda: None, 0.05)}
            busy = [s for s in busy if id(s) not in ended]
        stuck = [s.pid for s in busy]
        for session in self.by_place.values():
            session.close()
        self.by_place = {}
        self._close_others()
        return stuck

"""Worker sessions: asynchronous connections back to the database, each with its trainer; kept warm between calls."""

import json
import time

import psycopg2
import psycopg2.extensions

from pg_mop.backend.database import MopError, quote_literal
from pg_mop.connections.sessions import (
    ATTEMPTS,
    CONNECT_SECONDS,
    Pulse,
    SessionLost,
    WorkerSession,
    open_session,
    run,
    wait,
)

MOST_AT_HOME = 1000  # compiled models that are remembered of a session

# idle sessions of this backend, by (the way's key, the extension's schema there, place); each trainer's cache holds the
# rows of its segment
_pool = {}


def are_warm(role):
    """True where sessions of an earlier call of the role are kept, on this server."""
    return any(
        session.target.server is None and session.target.role == role and not session.connection.closed
        for session in _pool.values()
    )


class Sessions:
    """The worker sessions of one run, one for each place, opened or taken from the pool."""

    def __init__(self, db, server, options, name, lock_timeout):
        """`server(place)`: the :class:`~pg_mop.run.servers.Server` of a place; `options(place)`: the trainer's
        options; `name`: the sessions' application_name; `lock_timeout`: theirs, milliseconds."""
        self.db, self.server, self.options, self.name, self.lock_timeout = db, server, options, name, lock_timeout
        self.check_interrupts = db.check_interrupts
        self.by_worker = {}
        self.relays = {}  # (place, name of a server) -> session of that one that carries states for the place's
        self.pulses = {}  # name of another server -> its Pulse

    def relay(self, session, server, source=None):
        """A session of a Server that carries states for `session`; None: for whoever waits for it, or copies of those
        that are made on the server `source`."""
        worker = session.worker if session is not None else source
        relay = self.relays.get((worker, server.name))
        if relay is None or relay.connection.closed:
            relay = self.relays[worker, server.name] = open_session(
                server.target, worker, f"{self.name}: relay", self.check_interrupts
            )
        relay.serves = session
        return relay

    def pulse(self, target, anew=False):
        """The Pulse of the server that a way leads to; `anew`: one that knows nothing of what was before."""
        if anew and target.server in self.pulses:
            self.pulses.pop(target.server).close()
        if target.server not in self.pulses:
            self.pulses[target.server] = Pulse(target, self.name)
        return self.pulses[target.server]

    def silence(self, server):
        """For how many seconds another Server has not answered."""
        return self.pulse(server.target).look()

    def homes(self):
        """{digest of a compiled model: the place whose trainer has it of an earlier call}."""
        return {digest: worker for worker, session in self.by_worker.items() for digest in session.at_home}

    def note_homes(self, homes):
        """Remember such places for the next call."""
        for digest, worker in homes.items():
            if worker in self.by_worker:
                known = self.by_worker[worker].at_home
                known.pop(digest, None)
                known[digest] = None
                if len(known) > MOST_AT_HOME:
                    del known[next(iter(known))]

    def _key(self, worker):
        server = self.server(worker)
        return server.target.key, server.schema, worker

    def _warm_up(self, worker):
        server, options = self.server(worker), quote_literal(json.dumps(self.options(worker)))
        return (
            f"{server.target.idle_sql(0)}SET application_name = {quote_literal(self.name)}; "
            f"SET lock_timeout = {self.lock_timeout}; SELECT {server.schema}.mop_start_trainer({options})"
        )

    def open(self, workers):
        """Open sessions at `places`, all at once; they start their trainers without being waited for.

        Returns the MopError that says why some could not be opened, or None. Raises it where none could.
        """
        opening = {}  # session -> it has been told to start its trainer
        for worker in workers:
            try:
                self.by_worker[worker] = self._take(worker, workers) or self._connect(worker, opening)
            except SessionLost:
                pass
        self._connected(opening)
        # what went wrong may go better alone, or say why it cannot
        refused = self.add([worker for worker in workers if worker not in self.by_worker])
        if refused is not None and not self.by_worker:
            raise refused
        return refused

    def _connected(self, opening):
        """Wait until all of `opening` are ready; those that fail are left out of by_place."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while opening and time.monotonic() < deadline:
            for session, error in wait(list(opening), self.check_interrupts):
                try:
                    if error is not None:
                        raise error
                    if opening[session]:
                        del opening[session]
                    else:
                        session.begin(self._warm_up(session.worker))
                        opening[session] = True
                except (psycopg2.Error, SessionLost):
                    session.close()
                    del opening[session], self.by_worker[session.worker]
        for session in opening:
            session.close()
            del self.by_worker[session.worker]

    def add(self, workers):
        """Open sessions at more places. Returns the MopError of the first that cannot be opened, which ends it; else
        None."""
        for worker in workers:
            try:
                self.fresh(worker)
            except MopError as error:
                self.end(worker)
                return error
        return None

    def end(self, worker):
        """End the session at a place, if there is one."""
        session = self.by_worker.pop(worker, None)
        if session is not None:
            session.close()

    def _connect(self, worker, opening):
        session = WorkerSession(self.server(worker).target, worker, self.name)
        opening[session] = False
        return session

    def _take(self, worker, workers):
        """A warm session for a place: its own, which has its rows, or one that none of `places` will ask for."""
        key = self._key(worker)
        if key not in _pool:
            asked_for = {self._key(other) for other in workers}
            key = next((warm for warm in _pool if warm[:2] == key[:2] and warm not in asked_for), None)
        session = _pool.pop(key, None)
        if session is None or session.connection.closed:
            return None
        session.worker = worker
        try:
            run(session, self._warm_up(worker), self.check_interrupts)
        except (psycopg2.Error, SessionLost):
            session.close()
            return None
        return session

    def fresh(self, worker, seconds=CONNECT_SECONDS):
        """A new session at `place`, its trainer started."""
        for left in reversed(range(ATTEMPTS)):
            session = open_session(self.server(worker).target, worker, self.name, self.check_interrupts, seconds)
            self.by_worker[worker] = session
            try:
                run(session, self._warm_up(worker), self.check_interrupts)
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
        for worker, session in self.by_worker.items():
            try:
                run(
                    session,
                    session.clean_sql() + (session.target.idle_sql(idle_milliseconds) or "SELECT 1"),
                    self.check_interrupts,
                )
            except (psycopg2.Error, SessionLost):
                session.close()
                continue
            _pool[self._key(worker)] = session
        self.by_worker = {}
        self._close_others()

    def _close_others(self):
        """End the sessions that serve no place."""
        for other in (*self.relays.values(), *self.pulses.values()):
            other.close()
        self.relays, self.pulses = {}, {}

    def abandon(self):
        """Cancel what runs and end every session, within two seconds. Gives no control to PostgreSQL meanwhile."""
        busy = [one for s in self.by_worker.values() if s.work and not (one := s.relay or s).connection.closed]
        for session in [s for s in busy if s.target.server is not None]:
            session.close()  # a cancel would wait for its server; that notices within half a second
            busy.remove(session)
        for session in busy:
            session.cancel()
        deadline = time.monotonic() + 1.5
        while busy and time.monotonic() < deadline:
            ended = {id(s) for s, _ in wait(busy, lambda: None, 0.05)}
            busy = [s for s in busy if id(s) not in ended]
        stuck = [s.pid for s in busy]
        for session in self.by_worker.values():
            session.close()
        self.by_worker = {}
        self._close_others()
        return stuck

"""The worker sessions of a run: asynchronous connections back to the database, each with its trainer.

They are kept open for the next call of the same client session, with the rows that their trainers have cached.
"""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import psycopg2
import psycopg2.extensions

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal
from pg_mop.connections.sessions import (
    ATTEMPTS,
    CONNECT_SECONDS,
    Heartbeat,
    SessionLost,
    WorkerSession,
    open_session,
    run,
    wait,
)
from pg_mop.connections.targets import Target
from pg_mop.run.servers import Server

MOST_AFFINITIES = 1000  # compiled models that are remembered of a session
CANCEL_SECONDS = 1.5  # for the sessions of a cancelled run to notice

Key = tuple[Any, str, int]  # of a connection target, the extension's schema there, the worker

# idle sessions of this backend; each trainer's cache holds the rows of its worker's segment
_pool: dict[Key, WorkerSession] = {}


def are_warm(role: str) -> bool:
    """True where this backend keeps sessions of an earlier call of the role on this server."""
    return any(
        session.target.server is None and session.target.role == role and not session.connection.closed
        for session in _pool.values()
    )


class Sessions:
    """The worker sessions of one run, one for each worker, opened or taken from the pool."""

    def __init__(
        self,
        db: Any,
        server: Callable[[int], Server],
        options: Callable[[int], dict[str, Any]],
        name: str,
        lock_timeout: int,
    ) -> None:
        """`server(worker)`: the worker's server; `options(worker)`: the options of its trainer; `name`: the sessions'
        application_name; `lock_timeout`: theirs, in milliseconds."""
        self.db, self.server, self.options, self.name, self.lock_timeout = db, server, options, name, lock_timeout
        self.check_interrupts = db.check_interrupts
        self.by_worker: dict[int, WorkerSession] = {}
        # (worker, name of a server) -> the session there that carries states for the worker
        self.relays: dict[tuple[int | str | None, str | None], WorkerSession] = {}
        self.heartbeats: dict[str | None, Heartbeat] = {}  # name of another server -> its Heartbeat

    # --- other servers ------------------------------------------------------------------------------
    def relay(self, session: WorkerSession | None, server: Server, source: str | None = None) -> WorkerSession:
        """The session on a server that carries states for a worker session. Without a worker session: the one that
        copies states from the server `source`, or that the coordinator itself waits for."""
        worker = session.worker if session is not None else source
        relay = self.relays.get((worker, server.name))
        if relay is None or relay.connection.closed:
            relay = self.relays[worker, server.name] = open_session(
                server.target, worker, f"{self.name}: relay", self.check_interrupts
            )
        relay.serves = session
        return relay

    def heartbeat(self, target: Target, anew: bool = False) -> Heartbeat:
        """The Heartbeat of a target's server; `anew`: a new one, which knows nothing of earlier silence."""
        if anew and target.server in self.heartbeats:
            self.heartbeats.pop(target.server).close()
        if target.server not in self.heartbeats:
            self.heartbeats[target.server] = Heartbeat(target, self.name)
        return self.heartbeats[target.server]

    def silence(self, server: Server) -> float:
        """For how many seconds another server has not answered."""
        return self.heartbeat(server.target).look()

    # --- compiled models ----------------------------------------------------------------------------
    def affinity(self) -> dict[str, int]:
        """{digest of a compiled model: the worker whose trainer has it from an earlier call}."""
        return {digest: worker for worker, session in self.by_worker.items() for digest in session.affinity}

    def note_affinity(self, affinity: dict[str, int]) -> None:
        """Remember for the next call which worker's trainer has which compiled model."""
        for digest, worker in affinity.items():
            if worker in self.by_worker:
                known = self.by_worker[worker].affinity
                known.pop(digest, None)
                known[digest] = None
                if len(known) > MOST_AFFINITIES:
                    del known[next(iter(known))]

    # --- opening ------------------------------------------------------------------------------------
    def _key(self, worker: int) -> Key:
        server = self.server(worker)
        return server.target.key, server.schema, worker

    def _warm_up(self, worker: int) -> str:
        """SQL that prepares a session, and starts its trainer."""
        server, options = self.server(worker), quote_literal(json.dumps(self.options(worker)))
        return (
            f"{server.target.idle_sql(0)}SET application_name = {quote_literal(self.name)}; "
            f"SET lock_timeout = {self.lock_timeout}; SELECT {server.schema}.mop_start_trainer({options})"
        )

    def open(self, workers: list[int]) -> MopError | None:
        """Open the sessions of workers, all at once; nothing waits for their trainers to start.

        Returns the MopError that says why some could not be opened, or None. Raises it where none could.
        """
        opening: dict[WorkerSession, bool] = {}  # session -> it is starting its trainer
        for worker in workers:
            try:
                self.by_worker[worker] = self._take(worker, workers) or self._connect(worker, opening)
            except SessionLost:
                pass
        self._connected(opening)
        # a session that failed may succeed now, or give the reason
        refused = self.add([worker for worker in workers if worker not in self.by_worker])
        if refused is not None and not self.by_worker:
            raise refused
        return refused

    def _connected(self, opening: dict[WorkerSession, bool]) -> None:
        """Wait until all of `opening` are ready; a session that fails leaves `by_worker`."""
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

    def add(self, workers: Iterable[int]) -> MopError | None:
        """Open the sessions of more workers, one after the other. Returns the MopError of the first that fails, and
        stops there; otherwise None."""
        for worker in workers:
            try:
                self.fresh(worker)
            except MopError as error:
                self.end(worker)
                return error
        return None

    def end(self, worker: int) -> None:
        """End a worker's session, if it has one."""
        session = self.by_worker.pop(worker, None)
        if session is not None:
            session.close()

    def _connect(self, worker: int, opening: dict[WorkerSession, bool]) -> WorkerSession:
        session = WorkerSession(self.server(worker).target, worker, self.name)
        opening[session] = False
        return session

    def _take(self, worker: int, workers: list[int]) -> WorkerSession | None:
        """A kept session for a worker: its own, whose trainer has its rows, or one that none of `workers` will take."""
        key = self._key(worker)
        if key not in _pool:
            taken = {self._key(other) for other in workers}
            found = next((warm for warm in _pool if warm[:2] == key[:2] and warm not in taken), None)
            if found is None:
                return None
            key = found
        session = _pool.pop(key)
        if session.connection.closed:
            return None
        session.worker = worker
        try:
            run(session, self._warm_up(worker), self.check_interrupts)
        except (psycopg2.Error, SessionLost):
            session.close()
            return None
        return session

    def fresh(self, worker: int, seconds: float = CONNECT_SECONDS) -> WorkerSession:
        """A new session of a worker, with its trainer started. Raises MopError."""
        left = ATTEMPTS
        while True:
            left -= 1
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

    # --- the end ------------------------------------------------------------------------------------
    def keep(self, idle_milliseconds: int) -> None:
        """Put the sessions, all idle, into the pool; the server ends them after that idle time."""
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

    def _close_others(self) -> None:
        """End relays and heartbeats."""
        for relay in self.relays.values():
            relay.close()
        for heartbeat in self.heartbeats.values():
            heartbeat.close()
        self.relays, self.heartbeats = {}, {}

    def abandon(self) -> list[int]:
        """Cancel all commands and end every session, within two seconds, without checking for interrupts: the process
        IDs of the backends that have not noticed."""
        busy = []
        for session in self.by_worker.values():
            at_work = session.relay or session
            if session.work and not at_work.connection.closed:
                if at_work.target.server is None:
                    at_work.cancel()
                    busy.append(at_work)
                else:
                    at_work.close()  # a cancel would wait for its server, which notices this within half a second
        deadline = time.monotonic() + CANCEL_SECONDS
        while busy and time.monotonic() < deadline:
            ended = {id(s) for s, _ in wait(busy, lambda: None, 0.05)}
            busy = [s for s in busy if id(s) not in ended]
        stuck = [s.pid for s in busy]
        for session in self.by_worker.values():
            session.close()
        self.by_worker = {}
        self._close_others()
        return stuck

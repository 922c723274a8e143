"""The worker sessions of a run: asynchronous connections back to the database, each with the lease of a trainer.

A session ends with the run; its trainer returns to the pool (mop_udf/pool/pool.py) with its compiled models and rows.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import psycopg2
import psycopg2.extensions

from mop_udf.pool.patience import Patience
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal
from pg_mop.call.servers import Server
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

CANCEL_SECONDS = 1.5  # for the sessions of a cancelled run to notice


class Sessions:
    """The worker sessions of one run, one for each worker."""

    def __init__(
        self,
        db: Any,
        server: Callable[[int], Server],
        options: Callable[[int], dict[str, Any]],
        wants: Callable[[int], dict[str, Any]],
        name: str,
        lock_timeout: int,
    ) -> None:
        """`server(worker)`: the worker's server; `options(worker)`: the options of its trainer; `wants(worker)`: what the
        trainer should hold, see process.Trainer; `name`: the sessions' application_name; `lock_timeout`: theirs, in
        milliseconds."""
        self.db, self.server, self.options, self.wants = db, server, options, wants
        self.name, self.lock_timeout = name, lock_timeout
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
    def compiled(self) -> list[tuple[int, str]]:
        """(worker, digest of a compiled model that its trainer has from an earlier lease), by worker."""
        return [(worker, digest) for worker in sorted(self.by_worker) for digest in self.by_worker[worker].nets]

    # --- opening ------------------------------------------------------------------------------------
    def _warm_up(self, worker: int) -> str:
        """SQL that prepares a session, and leases or starts its trainer."""
        server, options = self.server(worker), {**self.options(worker), "wants": self.wants(worker)}
        return (
            f"{server.target.idle_sql(0)}SET lock_timeout = {self.lock_timeout}; "
            f"SELECT {server.schema}.mop_start_trainer({quote_literal(json.dumps(options))})"
        )

    def open(self, workers: list[int]) -> MopError | None:
        """Open the sessions of workers, all at once; nothing waits for their trainers to start.

        Returns the MopError that says why some could not be opened, or None. Raises it where none could.
        """
        opening: dict[WorkerSession, bool] = {}  # session -> it is starting its trainer
        for worker in workers:
            try:
                self.by_worker[worker] = self._connect(worker, opening)
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
        patience = Patience(CONNECT_SECONDS)
        while opening and not patience.over():
            for session, error in wait(list(opening), self.check_interrupts):
                try:
                    if error is not None:
                        raise error
                    if opening[session]:
                        del opening[session]
                        session.nets = _nets(session.rows())
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

    def leave_trainer(self, session: WorkerSession) -> bool:
        """Let an idle session give its trainer back; it gets another one with its next command. False: the session was lost."""
        try:
            schema = self.server(session.worker).schema
            run(session, session.clean_sql() + f"SELECT {schema}.mop_leave_trainer()", self.check_interrupts)
            return True
        except (psycopg2.Error, SessionLost):
            return False

    def _connect(self, worker: int, opening: dict[WorkerSession, bool]) -> WorkerSession:
        session = WorkerSession(self.server(worker).target, worker, self.name)
        opening[session] = False
        return session

    def fresh(self, worker: int, seconds: float = CONNECT_SECONDS) -> WorkerSession:
        """A new session of a worker, with its trainer started. Raises MopError."""
        left = ATTEMPTS
        while True:
            left -= 1
            session = open_session(self.server(worker).target, worker, self.name, self.check_interrupts, seconds)
            self.by_worker[worker] = session
            try:
                session.nets = _nets(run(session, self._warm_up(worker), self.check_interrupts))
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
    def close(self) -> None:
        """End the sessions, all idle: their trainers return to the pool."""
        for session in self.by_worker.values():
            session.close()
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
        patience = Patience(CANCEL_SECONDS)
        while busy and not patience.over():
            ended = {id(s) for s, _ in wait(busy, lambda: None, 0.05)}
            busy = [s for s in busy if id(s) not in ended]
        stuck = [s.pid for s in busy]
        for session in self.by_worker.values():
            session.close()
        self.by_worker = {}
        self._close_others()
        return stuck


def _nets(rows: list[tuple[Any, ...]]) -> list[str]:
    """The digests of compiled models in the answer of mop_start_trainer."""
    return json.loads(rows[0][0])

"""Model states are carried to the servers that need them, and read ahead by the sessions that train them next."""

import time
from collections.abc import Iterable

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.catalog.units import Hop, Move
from pg_mop.connections.sessions import SessionLost, WorkerSession, message_of, wait
from pg_mop.plan.stages import Stage
from pg_mop.run.instructions import CheckServers, Instructions
from pg_mop.run.run import Run
from pg_mop.schedule.board import Unit

DIRECT_SECONDS = 20  # for a state to come directly from another server, and one more for each MB
AHEAD_BYTES = 1 << 20, 256 << 20  # the least and the most bytes of a state that is read ahead
AGAIN_SECONDS = 0.5  # until a state is brought home again after a failure


class NotCarried(Exception):
    """A model state could not be carried to the server that needs it."""


def hop(move: Move, by: str | None, size: int, seconds: float) -> Hop:
    """The log's entry of a move that a relay session on the server `by` has made."""
    direct = by in (move.source, move.to)
    return Hop(move.stage, move.version, move.source, move.to, "direct" if direct else "coordinator", size, seconds)


def note(run: Run, hops: list[Hop]) -> None:
    """Write hops into the log. The run does not depend on it."""
    if hops:
        run.counts.sent_bytes += sum(hop.bytes for hop in hops)
        try:
            run.catalog.note_hops(run.run_id, hops)
        except psycopg2.Error as error:
            if error.pgcode in ("55000", "57014"):  # the run has been taken over, or is cancelled
                raise
            run.db.log(f"hops of run {run.run_id} were not logged: {error}")


class Transfers:
    """The transfers of a run's states, by relay sessions.

    A relay is a session on the target's server, where that can reach the source, or on the coordinator's server. The
    work of a worker session begins once its relay has ended.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    # --- before units begin -------------------------------------------------------------------------
    def read_by(self, unit: Unit) -> list[int]:
        """The stages whose states a unit reads: its own stage's, or its parent's before its own has been trained; where
        replicas are averaged, those of all replicas."""
        read = []
        for number in [unit.stage, *(number for number, _ in self.run.unit_specs.replicas_of(unit) or ())]:
            stage = self.run.plan.stages[number]
            for reads in (stage, stage.parent):
                if reads is not None and self.run.states.has(reads.number):
                    read.append(reads.number)
                    break
        return read

    def moves(self, units: Iterable[Unit], server: str | None) -> list[Move]:
        """The moves that units on a server need before they can begin."""
        states = self.run.states
        return [
            states.expect(stage, self.run.needed.version(stage), server)
            for stage in sorted({stage for unit in units for stage in self.read_by(unit)})
            if not states.is_at(stage, server)
        ]

    def read_ahead(self, worker: int) -> dict[str, int] | None:
        """The stage, with its version, whose state a worker's session may read while it trains another; None: unknown.

        The other workers leave that stage to this one as long as they have others.
        """
        unit, states, board = self.run.scheduler.coming(worker), self.run.states, self.run.board
        least, most = AHEAD_BYTES
        if (
            unit is None
            or not least <= states.bytes(unit.stage) <= most
            or any(not states.is_at(stage, board.server(worker)) for stage in self.read_by(unit))
        ):
            self.run.forget_ahead(worker)
            return None
        board.reserve(worker, unit.stage)
        self.run.ahead[worker] = unit.stage
        return {"stage": unit.stage, "version": self.run.needed.version(unit.stage)}

    def is_movable(self, stage: int) -> bool:
        """True where no unit and no relay reads the stage's state now: it may be moved to another state table."""
        stages = self.run.plan.stages
        return not (
            self.run.board.shares_states
            or self.run.board.is_running(stage)
            or self.run.needed.reading[stage]
            or self.run.carried[stage]
            or stage in self.run.ahead.values()
            or any(stages[ahead].parent is stages[stage] for ahead in self.run.ahead.values())
        )

    # --- carrying -----------------------------------------------------------------------------------
    def carry(self, session: WorkerSession, moves: list[Move]) -> None:
        """Begin to carry states to a worker session's server. Raises NotCarried."""
        states = self.run.states
        at = states.carrier(moves)
        try:
            relay = self.run.sessions.relay(session, at)
            tables = "" if relay.prepared else states.tables_sql(at) + "; "
            relay.begin(relay.clean_sql() + tables + "; ".join(states.move_sql(at, move) for move in moves))
        except (SessionLost, MopError) as error:
            states.not_direct(moves)
            for move in moves:
                states.given_up(move)
            raise NotCarried(f"a model state could not be carried: {message_of(error)}") from None
        session.moves, session.relay, session.carries_since = moves, relay, time.monotonic()
        for move in moves:
            self.run.carried[move.stage] += 1

    def arrived(self, session: WorkerSession, error: Exception | None) -> Exception | None:
        """The relay of a worker session has ended, with an error or None: the error that its units meet, or None."""
        moves, relay, states, hops = session.moves, session.relay, self.run.states, []
        session.moves, session.relay = [], None
        seconds = (time.monotonic() - session.carries_since) / max(1, len(moves))
        for move in moves:
            self.run.carried[move.stage] -= 1
            if error is not None:
                states.given_up(move)
                continue
            try:
                size = states.arrived(move, self.is_movable)
                hops.append(hop(move, relay.target.server, size, seconds))
            except (psycopg2.Error, MopError) as trouble:
                error = trouble
        note(self.run, hops)
        if error is None:
            relay.prepared = True
            return None
        if isinstance(error, SessionLost):
            relay.close()
        if relay.target.server is not None:
            self.run.db.log(f"server {relay.target.server} cannot fetch states: {message_of(error)}")
            states.not_direct(moves)
        elif (getattr(error, "pgcode", None) or "").startswith("42"):  # a right is missing: waiting does not help
            return error
        return NotCarried(f"a model state could not be carried: {message_of(error)}")

    def hurry(self) -> None:
        """Give up direct transfers that take too long: the line between those servers may be down, and the coordinator's
        own sessions to them do not notice. The states then pass through the coordinator."""
        for session in self.run.sessions.by_worker.values():
            if session.relay is not None and session.relay.target.server is not None:
                megabytes = sum(self.run.states.bytes(move.stage) for move in session.moves) >> 20
                if time.monotonic() - session.work[0].begun > DIRECT_SECONDS + megabytes:
                    session.relay.close()

    def leave(self, name: str) -> None:
        """A server is given up: no relay carries states to it or from it any more."""
        for worker, session in self.run.sessions.by_worker.items():
            if self.run.board.server(worker) == name:
                if session.relay is not None:
                    session.relay.close()
                for move in session.moves:
                    self.run.carried[move.stage] -= 1
                session.moves, session.relay = [], None
            elif any(move.source == name for move in session.moves):
                session.relay.close()

    # --- to the coordinator's server ----------------------------------------------------------------
    def bring_home(self, stages: Iterable[Stage]) -> Instructions:
        """Carry the states of stages to the coordinator's server, where it lacks them, and wait for them. Raises MopError."""
        states = self.run.states
        for stage in [s.number for s in stages if states.has(s.number) and not states.is_at(s.number, None)]:
            since, error = time.monotonic(), (yield from self._bring(stage))
            while error is not None:
                if time.monotonic() - since > self.run.policy.server_timeout:
                    raise self.run.waited_in_vain(f"a model state could not be brought home: {message_of(error)}")
                wait([], self.run.sessions.check_interrupts, AGAIN_SECONDS)
                yield CheckServers()
                error = yield from self._bring(stage)

    def _bring(self, stage: int) -> Instructions:
        """Carry a stage's state to the coordinator's server: the error, or None."""
        states, home, began = self.run.states, self.run.servers[None], time.monotonic()
        move = states.expect(stage, self.run.needed.version(stage), None)
        try:
            relay = self.run.sessions.relay(None, home)
        except MopError as error:
            states.given_up(move)
            return error
        try:
            if not relay.prepared:
                yield from self._wait_for(relay, states.tables_sql(home))
                relay.prepared = True
            yield from self._wait_for(relay, relay.clean_sql() + states.move_sql(home, move))
        except (psycopg2.Error, SessionLost) as error:
            states.given_up(move)
            return error
        size = states.arrived(move, self.is_movable)
        note(self.run, [hop(move, None, size, time.monotonic() - began)])
        return None

    def _wait_for(self, relay: WorkerSession, sql: str) -> Instructions:
        """Send a command to a relay and wait for its end. Raises psycopg2.Error or SessionLost."""
        relay.begin(sql)
        while not (ended := wait([relay], self.run.sessions.check_interrupts)):
            yield CheckServers()  # (the relay may hang on another server)
        ((_, error),) = ended
        if error is not None:
            raise error

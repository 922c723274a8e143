"""A run that does without a server: copies of its segments are on others, and its states have copies here.

With pg_mop.replicas = 2 a unit of training that was committed elsewhere counts only once its state has come to the
coordinator's server, too. A server that is away is given up then: nothing that its guest has committed and that does
not count yet will ever count, for the run forgets the guest, durably, before anything is begun anew on copies. When the
server is back it has a new guest. So every unit counts once, whatever a server that was given up has done meanwhile.
"""

import time
from collections import deque
from dataclasses import dataclass

import psycopg2

from mop_udf.aggregate import SOURCE_CHANGED
from pg_mop.backend.database import MopError, quote_identifier
from pg_mop.connections.sessions import SessionLost, message_of

AGAIN_SECONDS = 0.5  # until a copy is tried again
BACK_SECONDS = 1.0, 60.0  # between tries that fail again: at first, and at most
HANGING_SECONDS = 60  # for an answer to a look, until another one is made; for a copy, and one more for each MB


@dataclass
class _Making:
    """An attempt that counts once its state has a copy."""

    unit: object
    row: dict
    released: list
    report: str
    seconds: float | None
    move: object = None


class Copies:
    """The part of an :class:`~pg_mop.run.executor.Executor` that makes copies of states, and uses copies.

    `wanted`: states are to have copies; `take_back(name)`, `away`: see api/remote_runs.py.
    """

    def __init__(self, executor, wanted, take_back, away):
        self.executor, self.wanted, self.take_back = executor, wanted, take_back
        self.queues = {}  # server -> deque of _Making, of which the first is on its way
        self.relays = {}  # session at work -> server
        self.resting = {}  # server -> (when to try again, since when in vain, seconds until the next time)
        self.given_up = {}  # server -> (its Pulse, when to look after it)
        self.delays = {}  # server -> seconds until it is looked after, when it is given up again
        self.away = away

    @property
    def going(self):
        """Stages whose states are given up by what is being copied."""
        return {number for queue in self.queues.values() for own in queue for number in own.released}

    # --- copies of states ---------------------------------------------------------------------------
    @property
    def busy(self):
        """The sessions that are at work on copies."""
        return list(self.relays)

    def makes(self, session):
        return session in self.relays

    def make(self, unit, row, released, report, seconds):
        """Have a unit's state copied, and count it then."""
        name = self.executor.begun_on[unit]
        queue = self.queues.setdefault(name, deque())
        queue.append(_Making(unit, row, released, report, seconds))
        if len(queue) == 1:
            self._begin(name)

    def _begin(self, name):
        """Let the first of a server's states go on its way."""
        own, executor = self.queues[name][0], self.executor
        states, home = executor.states, executor.servers[None]
        own.move = states.copy(own.unit.stage, executor.version(own.unit.stage) + 1, name)
        try:
            relay = executor.sessions.relay(None, home, name)
        except MopError as error:
            self._failed(name, error)
            return
        tables = "" if relay.prepared else states.tables_sql(home) + "; "
        self.relays[relay], relay.since = name, time.monotonic()
        try:
            relay.begin(relay.clean_sql() + tables + states.move_sql(home, own.move))
        except SessionLost:
            relay.close()  # is told of when it is waited for

    def made(self, relay, error):
        """A copy has been made, or `error`: the stages that ended by it."""
        executor, name = self.executor, self.relays.pop(relay)
        queue, ended = self.queues[name], []
        own = queue[0]
        relay.prepared = relay.prepared or error is None
        if error is None:
            try:
                size = executor.catalog.register(executor.run_id, own.report, own.move)
            except psycopg2.Error as trouble:
                if trouble.pgcode == "55000" and "has not arrived" not in str(trouble):  # this run is somebody else's
                    raise
                error = trouble
        if error is None:
            queue.popleft()
            self.resting.pop(name, None)
            executor.states.copied(own.move, size)
            ended = executor.counted(own.unit, own.released, own.seconds, copied=True)
        else:
            if isinstance(error, SessionLost):
                relay.close()
            self._failed(name, error)
        if queue and name in executor.servers and name not in self.resting:
            self._begin(name)
        return ended

    def _failed(self, name, error):
        """A copy could not be made: it is tried again after a while, or the server is given up. Raises MopError."""
        now, code, message = time.monotonic(), getattr(error, "pgcode", None) or "", message_of(error)
        own = self.queues[name][0]
        self.executor.states.given_up(own.move)
        own.move = None
        if code.startswith("42"):  # a right is missing, which waiting does not mend
            raise MopError(f"a model state cannot be copied: {message}", sqlstate=code)
        _, since, delay = self.resting.get(name, (None, now, AGAIN_SECONDS))
        if name in self.resting and code.startswith("08") and self.do_without(name, message):
            return
        if now - since > self.executor.server_timeout / 1000:
            if self.do_without(name, message):
                return
            raise self.executor.waited_in_vain(f"a model state could not be copied: {message}")
        self.resting[name] = now + delay, since, min(BACK_SECONDS[1], 2 * delay)

    # --- servers that are away ----------------------------------------------------------------------
    def begin(self):
        """Begin, or go on, without the servers that are `away`. Raises MopError where they alone have states that the
        run needs."""
        executor, names = self.executor, ", ".join(map(quote_identifier, sorted(self.away)))
        if self.away and (lost := executor.lost_states()):
            raise MopError(
                f"{len(lost)} model states of run {executor.run_id} are on servers that are away alone: {names}",
                detail="; ".join(why for _, why in self.away.values()),
                sqlstate="08006",
                hint=f"SELECT {executor.db.extension}.mop_resume({executor.run_id}); when they are back.",
            )
        for name, (target, why) in self.away.items():
            executor.catalog.forget_remote_run(executor.run_id, name)
            executor.db.warning(f"run {executor.run_id} goes on without server {name}, on copies: {why}")
            self._look_after(name, target)

    def _look_after(self, name, target):
        delay = self.delays.get(name, 0.0)
        self.delays[name] = min(BACK_SECONDS[1], max(BACK_SECONDS[0], 2 * delay))
        self.given_up[name] = self.executor.sessions.pulse(target, anew=True), time.monotonic() + delay

    def do_without(self, name, why):
        """Give a server up, for a reason, where others have copies of all that it holds; False where they have not."""
        executor, board = self.executor, self.executor.board
        if not self.wanted or name is None or name not in executor.servers or executor.states.only_at(name):
            return False
        left = executor.servers.keys() - {name}
        try:
            moved = {
                key: executor.unit_specs.segments[key].at(left).server
                for key, server in board.server_of.items()
                if server == name
            }
        except LookupError:
            return False
        executor.catalog.forget_remote_run(executor.run_id, name)
        executor.states.begin_anew()  # a copy that is on its way may yet be committed
        executor.db.warning(f"run {executor.run_id} goes on without server {name}, on copies: {why}")
        server = executor.servers.pop(name)
        executor.states.lose(name)
        for relay in [relay for relay, of in self.relays.items() if of == name]:
            relay.close()
            del self.relays[relay]
        self.resting.pop(name, None)
        for own in self.queues.pop(name, ()):
            if own.move is not None:
                executor.states.given_up(own.move)
            executor.undo(own.unit, own.row, why)
        executor.leave(name, why)
        server.catalog.close()
        self._look_after(name, server.target)
        board.relocate(moved)
        executor.resize(executor.wanted)
        return True

    def look(self):
        """Go on with what has waited, and look after the servers that were given up."""
        now = time.monotonic()
        for relay, name in list(self.relays.items()):  # its line may be down, which no pulse tells
            megabytes = self.executor.states.bytes(self.queues[name][0].unit.stage) >> 20
            if now - relay.since > HANGING_SECONDS + megabytes:
                relay.close()
        for name, (when, *_) in list(self.resting.items()):
            if now >= when and name not in self.relays.values():
                self._begin(name)
        for name, (pulse, when) in list(self.given_up.items()):
            if now < when:
                continue
            if pulse.look() > HANGING_SECONDS:
                pulse.close()
                pulse.asked = None
            if pulse.beats:
                self._take_back(name, pulse)

    def _take_back(self, name, pulse):
        executor = self.executor
        try:
            self.take_back(name)
            executor.states.add(name)
        except (MopError, psycopg2.Error) as error:
            if (server := executor.servers.pop(name, None)) is not None:  # it has gone once more
                executor.catalog.forget_remote_run(executor.run_id, name)
                server.catalog.close()
            executor.db.plpy.log(f"pg_mop: server {name} is not used again: {error}")
            delay = self.delays[name]
            self.delays[name] = min(BACK_SECONDS[1], 2 * delay)
            self.given_up[name] = pulse, time.monotonic() + delay
            if getattr(error, "sqlstate", None) == SOURCE_CHANGED:
                executor.db.warning(f"run {executor.run_id} goes on without server {name}: {error.message}")
                del self.given_up[name]
            return
        del self.given_up[name]
        for relay in executor.sessions.relays.values():
            relay.prepared = False  # it may have no tables of that server
        segments = executor.unit_specs.segments
        executor.board.relocate({key: segments[key].at(executor.servers).server for key in executor.board.server_of})
        executor.resize(executor.wanted)
        executor.db.info(f"run {executor.run_id}: server {name} is back")

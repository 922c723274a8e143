"""Copies of model states on a second server.

With pg_mop.replicas > 1 a state that another server has made is also copied to the coordinator's server.
A training unit that was committed on another server counts once its state is copied; those of a chain that trained a model
count together, once the model's last state is copied. So the run can go on without that server at any time
(run/failover.py).
"""

import time
from collections import deque

import psycopg2

from pg_mop.backend.errors import MopError
from pg_mop.connections.sessions import SessionLost, WorkerSession, message_of
from pg_mop.run.attempt import Attempt, Copied, CopyFailed
from pg_mop.run.instructions import CountCopied, Instructions
from pg_mop.run.run import Run
from pg_mop.run.transfers import hop, note

HANGING_SECONDS = 60  # for a copy, and one more for each MB of it


class StateCopies:
    """Copies the states of attempts in state COPYING: from each server one after the other."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.queues: dict[str, deque[Attempt]] = {}  # server -> its attempts; the first one is being copied, or rests
        self.relays: dict[WorkerSession, tuple[str, float]] = {}  # relay session at work -> (server, since when)

    @property
    def busy(self) -> list[WorkerSession]:
        """The relay sessions that are at work."""
        return list(self.relays)

    @property
    def resting(self) -> bool:
        """True where a copy is to be tried again."""
        return any(queue[0].retry_at is not None for queue in self.queues.values() if queue)

    def make(self, attempt: Attempt) -> Instructions:
        """Copy the state that an attempt has written. The attempts of its chain at the same model count with it."""
        assert attempt.server is not None
        queue = self.queues.setdefault(attempt.server, deque())
        queue.append(attempt)
        if len(queue) == 1:
            yield from self._begin(attempt.server)

    def _begin(self, name: str) -> Instructions:
        """Copy the state of a server's first attempt."""
        attempt, states, home = self.queues[name][0], self.run.states, self.run.servers[None]
        stage = attempt.unit.stage
        attempt.move = states.copy(stage, attempt.version, name)
        try:
            relay = self.run.sessions.relay(None, home, name)
        except MopError as error:
            yield from self._failed(attempt, error)
            return
        tables = "" if relay.prepared else states.tables_sql(home) + "; "
        self.relays[relay] = name, time.monotonic()
        try:
            relay.begin(relay.clean_sql() + tables + states.move_sql(home, attempt.move))
        except SessionLost:
            relay.close()  # the next wait for it reports that

    def ended(self, relay: WorkerSession, error: Exception | None) -> Instructions:
        """A relay session has ended, with an error or None: the stages that have ended by that."""
        (name, since), ended = self.relays.pop(relay), []
        queue = self.queues[name]
        attempt = queue[0]
        relay.prepared = relay.prepared or error is None
        if error is None:
            try:
                reports = [each.report for each in attempt.model]
                size = self.run.catalog.register(self.run.run_id, attempt.server, *reports, copy=attempt.move)
            except psycopg2.Error as trouble:
                # another coordinator has taken the run over
                if trouble.pgcode == "55000" and "has not arrived" not in str(trouble):
                    raise
                error = trouble
        if error is None:
            queue.popleft()
            self.run.states.copied(attempt.move, size)
            note(self.run, [hop(attempt.move, None, size, time.monotonic() - since)])
            ended = yield CountCopied(attempt, Copied())
        else:
            if isinstance(error, SessionLost):
                relay.close()
            yield from self._failed(attempt, error)
        if queue and name in self.run.servers and queue[0].retry_at is None:
            yield from self._begin(name)
        return ended

    def _failed(self, attempt: Attempt, error: Exception) -> Instructions:
        """A copy could not be made. Raises MopError where the run cannot go on."""
        self.run.states.given_up(attempt.move)
        attempt.move = None
        code = getattr(error, "pgcode", None) or ""
        replaceable = self.run.can_do_without(attempt.server)
        yield CountCopied(attempt, CopyFailed(message_of(error), time.monotonic(), code, replaceable))

    def look(self) -> Instructions:
        """Try failed copies again that have rested long enough, and end relays that hang."""
        now = time.monotonic()
        for relay, (name, since) in list(self.relays.items()):  # its line may be down, and no other session notices
            megabytes = self.run.states.bytes(self.queues[name][0].unit.stage) >> 20
            if now - since > HANGING_SECONDS + megabytes:
                relay.close()
        copied = {name for name, _ in self.relays.values()}
        for name, queue in list(self.queues.items()):
            if queue and queue[0].retry_at is not None and now >= queue[0].retry_at and name not in copied:
                yield from self._begin(name)

    def leave(self, name: str) -> None:
        """A server is given up: nothing is copied from there any more."""
        for relay in [relay for relay, (server, _) in self.relays.items() if server == name]:
            relay.close()
            del self.relays[relay]
        for attempt in self.queues.pop(name, ()):
            if attempt.move is not None:
                self.run.states.given_up(attempt.move)
                attempt.move = None

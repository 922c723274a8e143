"""Applies the decisions about failed attempts (run/attempt.py): retries units, gives configurations up, ends the run."""

import time
from dataclasses import asdict
from typing import Any

import psycopg2

from mop_udf.aggregate import CONFIGURATION_FAILED, DEVICE_FULL, DEVICE_MEMORY, MEMORY_EXCEEDED, TRAINER_LOST
from pg_mop.backend.errors import MopError
from pg_mop.backend.limits import TOO_MANY_TRAINERS
from pg_mop.connections.sessions import SessionLost, message_of
from pg_mop.run.attempt import (
    UNDER_WAY,
    Action,
    Attempt,
    ConfigurationFailed,
    CopyFailed,
    Decision,
    DeviceFull,
    DeviceMemoryExceeded,
    Failure,
    LockTimeout,
    MemoryExceeded,
    NoPlace,
    ServerGivenUp,
    ServerUnreachable,
    State,
    StateNotCarried,
    TrainerLost,
    TrainerRefused,
    TransactionConflict,
    UnexpectedError,
    WorkerLost,
    decide,
)
from pg_mop.run.instructions import Count, FailStage, GiveServerUp, Instructions
from pg_mop.run.run import Run
from pg_mop.run.transfers import NotCarried
from pg_mop.run.workers import Workers

# SQLSTATE of a worker session's error -> the event; all other errors end the run
EVENTS: dict[str, type[Failure]] = {
    CONFIGURATION_FAILED: ConfigurationFailed,
    MEMORY_EXCEEDED: MemoryExceeded,
    DEVICE_MEMORY: DeviceMemoryExceeded,
    TRAINER_LOST: TrainerLost,
    "40001": TransactionConflict,
    "40P01": TransactionConflict,
    "55P03": LockTimeout,
}


class Recovery:
    """Handles the failures of a run's attempts."""

    def __init__(self, run: Run, workers: Workers) -> None:
        self.run, self.workers = run, workers
        self.told = False  # that the run waits for the memory of a device

    def failed(self, worker: int, work: list[Attempt], error: Exception) -> Instructions:
        """The attempts of a worker's command have failed: the stages that have ended after all."""
        ended = []
        message, code = message_of(error), getattr(error, "pgcode", None)
        if len(work) > 1 and code in (CONFIGURATION_FAILED, MEMORY_EXCEEDED, DEVICE_MEMORY):
            together = "chain" if work[0].chain else "batch"
            message = f"one unit of a {together} of {len(work)} failed ({message}): each is retried alone"
        for attempt in work:
            attempt.message = message
        if isinstance(error, SessionLost):
            yield from self.workers.replace(worker)
        for attempt in work:
            if attempt.server not in self.run.servers:  # it has been given up
                yield from self._undo(attempt, message)
            else:
                ended += yield from self._fail(attempt, self._event(attempt, error))
        if isinstance(error, SessionLost):
            self.run.unit_specs.engine.check_whole(self.run.catalog.execute)
        return ended

    def _event(self, attempt: Attempt, error: Exception) -> Failure:
        """The event that an error is for an attempt."""
        message, code = attempt.message, getattr(error, "pgcode", None)
        replaceable = self.run.can_do_without(attempt.server)
        if isinstance(error, SessionLost):
            return WorkerLost(message, replaceable)
        if isinstance(error, NotCarried):
            return StateNotCarried(message, time.monotonic(), replaceable)
        if code in (DEVICE_FULL, TOO_MANY_TRAINERS):
            return (DeviceFull if code == DEVICE_FULL else TrainerRefused)(message, time.monotonic())
        if code in EVENTS:
            return EVENTS[code](message)
        diagnostics = getattr(error, "diag", None)
        return UnexpectedError(
            message, code, getattr(diagnostics, "message_detail", None), getattr(diagnostics, "message_hint", None)
        )

    def _fail(self, attempt: Attempt, event: Failure) -> Instructions:
        """Apply the decision about the failure of an attempt under way: the stages that have ended after all."""
        decision = decide(attempt, event, self.run.policy)
        if isinstance(event, WorkerLost):
            try:
                report = self._fence(attempt, decision)
            except (psycopg2.Error, MopError) as trouble:
                if attempt.server is None:
                    raise
                yield from self._cannot_be_asked(attempt, attempt.server, message_of(trouble))
                return []
            if report is not None:
                return (yield Count(attempt, report))
        else:
            self._note(attempt, decision)
        self._end(attempt)
        yield from self._apply(attempt, decision, event)
        return []

    def _fence(self, attempt: Attempt, decision: Decision) -> Any:
        """Make sure that an attempt whose session was lost is not committed any more: None. Where it is committed, the
        report of its server ('' for the coordinator's own). Raises psycopg2.Error, MopError: it cannot be asked."""
        server = self.run.servers[attempt.server]
        self._note_on(attempt, decision, server)
        if server.home:
            return "" if self.run.catalog.unit_is_finished(attempt.row) else None
        report = server.catalog.report(server.run_id, attempt.unit)
        if report is None:
            self._note_here(attempt, decision)
        return report

    def _cannot_be_asked(self, attempt: Attempt, name: str, message: str) -> Instructions:
        """The attempt may be committed: its unit is not done again until that is known, or its server is given up."""
        event = ServerUnreachable(message, name, time.monotonic(), self.run.can_do_without(name))
        decision = decide(attempt, event, self.run.policy)
        if decision.action is Action.ON_ANOTHER_SERVER:
            yield GiveServerUp(name, message)  # this undoes the attempt, too
        else:
            yield from self._apply(attempt, decision)

    def find_out(self) -> Instructions:
        """Ask again about attempts whose servers could not be asked: the stages that have ended."""
        ended = []
        for attempt in self.run.attempts_in(State.UNKNOWN):
            server = self.run.servers.get(attempt.server)
            if attempt.state is not State.UNKNOWN or server is None or server.silent:
                continue
            event = WorkerLost(attempt.message, self.run.can_do_without(attempt.server))
            ended += yield from self._fail(attempt, event)
            server.silent = attempt.state is State.UNKNOWN
        return ended

    def copy_failed(self, attempt: Attempt, event: CopyFailed) -> Instructions:
        """Apply the decision about a state that could not be copied."""
        decision = decide(attempt, event, self.run.policy)
        if decision.action is Action.ON_ANOTHER_SERVER:
            yield GiveServerUp(str(attempt.server), event.message)  # this undoes the attempt, too
        else:
            yield from self._apply(attempt, decision)

    def undo(self, name: str, why: str) -> Instructions:
        """A server has been given up: its units are to be done on others."""
        for attempt in self.run.attempts_in(*UNDER_WAY):
            if attempt.server == name:
                yield from self._undo(attempt, attempt.message or why)

    def _undo(self, attempt: Attempt, message: str) -> Instructions:
        if attempt.state not in UNDER_WAY:
            return
        decision = decide(attempt, ServerGivenUp(message, str(attempt.server)), self.run.policy)
        attempt.message = message
        self._note_here(attempt, decision)
        self._end(attempt)
        yield from self._apply(attempt, decision)

    # --- applying -----------------------------------------------------------------------------------
    def _apply(self, attempt: Attempt, decision: Decision, event: Failure | None = None) -> Instructions:
        """Enter the state that was decided on. Raises MopError where that ends the run."""
        attempt.apply(decision, time.monotonic())
        if decision.error is not None:
            raise MopError(**asdict(decision.error))
        if decision.action is Action.ON_ANOTHER_SERVER:
            yield GiveServerUp(str(attempt.server), attempt.message)
        if decision.action is Action.FEWER:
            self.run.device_parts.fewer(attempt.unit.stage, attempt.neighbours)
        if decision.action is Action.MORE:
            assert attempt.more_devices is not None
            self.run.device_parts.divided.more(attempt.unit.stage, attempt.more_devices)
        if attempt.state in (State.WAITING, State.GIVEN_UP):
            self.run.board.release(attempt.unit)
        if decision.tells and not self.told:
            self.told = True
            self._tell_of_waiting(attempt, event)
        if decision.blame is not None:
            yield FailStage(attempt, decision.message, decision.blame)

    def _tell_of_waiting(self, attempt: Attempt, event: Failure | None) -> None:
        """Warn the caller that its run waits for what other trainers hold."""
        waited = time.monotonic() - (attempt.place_since or time.monotonic())
        place = event.place if isinstance(event, NoPlace) else NoPlace.place
        self.run.db.warning(
            f"run {self.run.run_id} has waited {waited:.0f} s for {place}, and goes on waiting",
            detail=attempt.message,
            hint=f"SELECT role, pid, state FROM {self.run.servers[None].schema}.mop_trainers; shows the trainers that hold it.",
        )

    def wake(self) -> int:
        """Offer the units again that have rested long enough: how many."""
        now = time.monotonic()
        rested = [a for a in self.run.attempts_in(State.RESTING) if a.retry_at is not None and a.retry_at <= now]
        for attempt in sorted(rested, key=lambda a: a.retry_at or 0.0):
            attempt.state = State.WAITING
            self.run.board.release(attempt.unit)
        return len(rested)

    def _end(self, attempt: Attempt) -> None:
        """The attempt has written nothing."""
        self.run.counts.failed += 1
        if attempt.unit.kind == "train":
            if attempt.begins:
                self.run.needed.end(attempt.unit)
            if attempt.writes and attempt.server in self.run.servers:
                self.run.states.failed(attempt.unit.stage, attempt.server)

    # --- the log ------------------------------------------------------------------------------------
    def _note(self, attempt: Attempt, decision: Decision) -> None:
        """Note in the log that an attempt failed, and why it is retried or not; also on its own server."""
        self._note_here(attempt, decision)
        server = self.run.servers[attempt.server]
        if not server.home:
            try:
                self._note_on(attempt, decision, server)
            except (psycopg2.Error, MopError) as error:
                self.run.db.log(f"server {server.name} could not log a unit's failure: {error}")

    def _note_here(self, attempt: Attempt, decision: Decision) -> None:
        self.run.catalog.fail_unit(attempt.row, attempt.message, decision.reason)

    @staticmethod
    def _note_on(attempt: Attempt, decision: Decision, server: Any) -> None:
        server.catalog.fail_unit({**attempt.row, "run_id": server.run_id}, attempt.message, decision.reason)

"""An attempt at a unit: its states, the events that it can meet, and the decision about each event.

`decide` is a pure function of an attempt, an event and the run's policy. The executor applies the decision and writes
its reason into the log (column decision of mop_unit)::

    WAITING --> PREPARING --> RUNNING --> DONE           begin; states carried; Finished
                    |            |
                    |            +------> COPYING        Finished on another server, with pg_mop.replicas > 1
                    |            |           |
                    |            |           +--> DONE   Copied
                    |            |
                    +------------+------> UNKNOWN        ServerUnreachable
                    |            |           |
                    |            |           +--> DONE, COPYING, RESTING, GIVEN_UP    the server answers
                    |            |
                    +------------+------> RESTING        a worker failed, or a state was not carried
                    |            |           |
                    |            |           +--> WAITING    after `delay` seconds
                    |            |
                    +------------+------> GIVEN_UP       no retry is left, the configuration failed, or the run ends

    PREPARING, RUNNING, COPYING, UNKNOWN --> WAITING     ServerGivenUp: the unit is done on another server
    RUNNING --> WAITING                                  the configuration of a unit in its batch or chain failed

The board offers the unit of a WAITING attempt again, and `Attempt.next` makes the next attempt. With one server neither
COPYING nor UNKNOWN occurs.

The shape follows the state machine of dask's workers (distributed/worker_state_machine.py) and Procrastinate's
RetryDecision (procrastinate/retry.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pg_mop.schedule.board import Unit


class State(Enum):
    """The state of an attempt."""

    WAITING = "waiting"  # the board may offer its unit
    PREPARING = "preparing"  # it is in the log as running, and model states are being carried to its server
    RUNNING = "running"  # its worker session is at work
    COPYING = "copying"  # it is committed on another server, and counts once its model state is copied
    UNKNOWN = "unknown"  # its session was lost, and its server cannot be asked whether it is committed
    RESTING = "resting"  # it has failed; its unit is offered again at `retry_at`
    DONE = "done"
    GIVEN_UP = "given up"


UNDER_WAY = (State.PREPARING, State.RUNNING, State.COPYING, State.UNKNOWN)


@dataclass(eq=False)
class Attempt:
    """One attempt at a unit."""

    unit: Unit
    number: int = 1  # from 1, over all coordinators of the run
    state: State = State.WAITING
    server: str | None = None  # the name of its server; None: the coordinator's own
    row: dict[str, Any] = field(default_factory=dict)  # the attempt's row of the log
    released: list[int] = field(default_factory=list)  # stages whose states its commit releases
    batch: bool = False  # it went with other units as one command, in a unit batch or in a chain
    chain: bool = False  # in a chain
    neighbours: int = 1  # the parts of its device's memory, of which its trainer has one (schedule/device_parts.py)
    more_devices: int | None = None  # that its net may be divided among where it runs out of memory; None: no more
    why_one_device: str | None = None  # why its net cannot be divided among the devices of its server
    begins: bool = True  # a training unit: the first of its stage in its command
    writes: bool = True  # a training unit: its command writes the state that it ends with
    version: int = 0  # a training unit: the version of the state that it ends with
    model: list[Attempt] = field(
        default_factory=list
    )  # the attempts of its command at the same model; the last one writes
    failures: int = 0  # of its unit on its workers so far; unit batches and chains do not count
    moved: bool = False  # a server was given up for its unit's sake
    waiting_since: float | None = None  # since when it waits for a server (time.monotonic)
    place_since: float | None = None  # since when it waits for a place for its trainer (time.monotonic)
    delay: float = 0.0  # seconds until the last retry that was decided on
    retry_at: float | None = None  # RESTING, COPYING: when to try again (time.monotonic)
    begun: float = 0.0  # when (time.monotonic)
    message: str = ""  # of the failure that it met last
    report: Any = (
        None  # COPYING: the other server's report of the commit (the state is copied once all of `model` have one)
    )
    seconds: float | None = None  # of work, where known
    move: Any = None  # COPYING: the Move of its model state, while it is under way

    def next(self) -> Attempt:
        """The attempt that follows this one at the same unit."""
        return Attempt(
            self.unit,
            self.number + 1,
            failures=self.failures,
            moved=self.moved,
            waiting_since=self.waiting_since,
            place_since=self.place_since,
        )

    def apply(self, decision: Decision, now: float) -> None:
        """Enter the state that a decision names; `now`: time.monotonic()."""
        self.state = decision.state
        self.failures, self.moved = decision.failures, decision.moved
        self.waiting_since, self.delay = decision.waiting_since, decision.delay
        self.place_since = decision.place_since
        retries = decision.state is State.RESTING or (decision.state is State.COPYING and decision.delay > 0)
        self.retry_at = now + decision.delay if retries else None


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """The attempt is committed. `to_copy`: on another server, and its model state must have a copy before it counts."""

    to_copy: bool = False


@dataclass(frozen=True)
class Copied:
    """The copy of the attempt's model state has come, and its version is registered."""


@dataclass(frozen=True)
class Failure:
    """Base of the failures; `message`: the text of the error."""

    message: str


@dataclass(frozen=True)
class ConfigurationFailed(Failure):
    """The configuration is at fault: the same units would fail again."""

    cause = "the configuration failed"
    blame = "configuration"


@dataclass(frozen=True)
class MemoryExceeded(ConfigurationFailed):
    """The unit needs more memory than a limit allows; mop_resume tries it again."""

    cause = "the unit needs more memory than a limit allows"
    blame = "infrastructure"


@dataclass(frozen=True)
class DeviceMemoryExceeded(MemoryExceeded):
    """The unit needs more memory than its part of a device's memory: it may have a larger one."""

    cause = "the unit needs more memory than its part of the device has"


@dataclass(frozen=True)
class NoPlace(Failure):
    """Base of the lacks of a place for the unit's trainer, `at` a time (time.monotonic): nothing has failed, and the unit waits
    for `place`."""

    at: float = 0.0
    place = ""
    cause = "there is no place for its trainer"


@dataclass(frozen=True)
class DeviceFull(NoPlace):
    """Other trainers hold the part of a device's memory that the unit's trainer needs."""

    place = "the memory of a device"
    cause = "other trainers hold the memory of the device"


@dataclass(frozen=True)
class TrainerRefused(NoPlace):
    """The role has as many trainers as it may have at once."""

    place = "a trainer that its role may have"
    cause = "the role has as many trainers as it may have"


@dataclass(frozen=True)
class WorkerFailure(Failure):
    """Base of the failures of a worker, after which another attempt may succeed. `replaceable`: other servers have copies of
    everything that the attempt's server holds."""

    replaceable: bool = False
    cause = "the worker failed"


@dataclass(frozen=True)
class WorkerLost(WorkerFailure):
    """The worker session has ended, and the attempt is not committed."""

    cause = "the worker session was lost"


@dataclass(frozen=True)
class TrainerLost(WorkerFailure):
    """The trainer has ended."""

    cause = "the trainer was lost"


@dataclass(frozen=True)
class TransactionConflict(WorkerFailure):
    """A serialization failure or a deadlock."""

    cause = "its transaction conflicted with another one"


@dataclass(frozen=True)
class LockTimeout(Failure):
    """The worker session could not get a lock within pg_mop.lock_timeout."""

    cause = "the worker session waited in vain for a lock"


@dataclass(frozen=True)
class UnexpectedError(Failure):
    """An error that another attempt would meet again, and that is not the configuration's."""

    sqlstate: str | None = None
    detail: str | None = None
    hint: str | None = None
    cause = "the worker session failed"


@dataclass(frozen=True)
class StateNotCarried(Failure):
    """A model state could not be carried to the attempt's server, `at` a time (time.monotonic)."""

    at: float = 0.0
    replaceable: bool = False  # as in WorkerFailure
    cause = "a model state could not be carried to its server"


@dataclass(frozen=True)
class ServerUnreachable(Failure):
    """The session was lost, and the attempt's server (another one, `server`) could not be asked about it, `at` a time."""

    server: str = ""
    at: float = 0.0
    replaceable: bool = False
    cause = "its server cannot be asked"


@dataclass(frozen=True)
class ServerGivenUp(Failure):
    """The run goes on without the attempt's server: commits there that do not count yet never will."""

    server: str = ""

    @property
    def cause(self) -> str:
        """Why the unit is done again."""
        return f"server {self.server} was given up"


@dataclass(frozen=True)
class CopyFailed(Failure):
    """The attempt's model state could not be copied, `at` a time."""

    at: float = 0.0
    sqlstate: str = ""
    replaceable: bool = False
    cause = "its model state could not be copied"


Event = Finished | Copied | Failure

# the events that an attempt can meet in each state; all others are programming errors
MEETS: dict[State, tuple[type, ...]] = {
    State.WAITING: (),
    State.PREPARING: (Finished, WorkerLost, StateNotCarried, UnexpectedError, ServerUnreachable, ServerGivenUp),
    State.RUNNING: (
        Finished,
        ConfigurationFailed,
        NoPlace,
        WorkerFailure,
        LockTimeout,
        UnexpectedError,
        ServerUnreachable,
        ServerGivenUp,
    ),
    State.UNKNOWN: (Finished, WorkerLost, ServerUnreachable, ServerGivenUp),
    State.COPYING: (Copied, CopyFailed, ServerGivenUp),
    State.RESTING: (),
    State.DONE: (),
    State.GIVEN_UP: (),
}


# --- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunError:
    """The error that ends the run."""

    message: str
    sqlstate: str
    detail: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Policy:
    """The limits that a run sets its attempts."""

    retries: int  # pg_mop.unit_retries
    server_timeout: float  # seconds
    resume: str  # the SQL command that goes on with the run
    first_delay: float = 0.5  # seconds before a unit's second attempt; it doubles each time
    longest_delay: float = 60.0
    longest_wait: float = 5.0  # seconds between two attempts that wait for a server

    def waited_in_vain(self, message: str, until: str = "all servers are back", detail: str | None = None) -> RunError:
        """The error that ends a run that has waited for a server for server_timeout."""
        return RunError(message, "08006", detail, f"{self.resume} once {until}.")


class Action(Enum):
    """The executor's reaction to an event."""

    COUNT = "count"
    COPY = "copy"  # the model state first, then count
    RETRY = "retry"
    ALONE = "alone"  # retry, no longer in a unit batch or in a chain
    FEWER = "fewer"  # retry, with fewer trainers on the device
    MORE = "more"  # retry, with the model divided among more devices
    WAIT_FOR_SERVER = "wait for server"
    ON_ANOTHER_SERVER = "on another server"  # give the attempt's server up, and do its units on the others
    GIVE_UP = "give up"  # the unit; `blame` says why its configurations failed
    END_RUN = "end run"  # with `error`


@dataclass(frozen=True)
class Decision:
    """The reaction to an event, and the attempt's state after it."""

    action: Action
    state: State
    reason: str = ""  # for the log
    delay: float = 0.0  # seconds until the unit, or the copy, is tried again
    failures: int = 0
    moved: bool = False
    waiting_since: float | None = None
    place_since: float | None = None
    blame: str | None = None  # GIVE_UP: 'configuration', or 'infrastructure' (mop_resume tries again)
    message: str = ""  # GIVE_UP: the error of the configurations
    tells: bool = False  # the caller is warned, once in a run, that it waits for other runs
    error: RunError | None = None  # END_RUN


def decide(attempt: Attempt, event: Event, policy: Policy) -> Decision:
    """The decision about an event that an attempt meets. Raises ValueError where it cannot meet that event."""
    if not isinstance(event, MEETS[attempt.state]):
        raise ValueError(f"an attempt that is {attempt.state.value} met {event}")
    match event:
        case Finished(to_copy=True):
            return _decision(attempt, Action.COPY, State.COPYING, waiting_since=None)
        case Finished() | Copied():
            return _decision(attempt, Action.COUNT, State.DONE, waiting_since=None)
        case ServerGivenUp():
            return _decision(
                attempt, Action.ON_ANOTHER_SERVER, State.WAITING, f"retried on another server: {event.cause}"
            )
        case NoPlace():
            return _wait_for_place(attempt, event, policy)
        case DeviceMemoryExceeded() if not attempt.batch and attempt.neighbours > 1:
            fewer = attempt.neighbours // 2
            reason = f"retried with at most {fewer} trainer{'s' * (fewer > 1)} on its device: {event.cause}"
            return _decision(attempt, Action.FEWER, State.WAITING, reason, failures=0)
        case DeviceMemoryExceeded() if not attempt.batch and attempt.more_devices is not None:
            reason = f"retried on {attempt.more_devices} devices of its server: {event.cause}"
            return _decision(attempt, Action.MORE, State.WAITING, reason, failures=0)
        case ConfigurationFailed():
            if attempt.batch:
                together = "chain" if attempt.chain else "batch"
                reason = f"retried alone: a unit of its {together} failed: {event.cause}"
                return _decision(attempt, Action.ALONE, State.WAITING, reason)
            return _decision(
                attempt,
                Action.GIVE_UP,
                State.GIVEN_UP,
                f"given up: {event.cause}",
                blame=event.blame,
                message=event.message
                + (
                    f" ({attempt.why_one_device})"
                    if attempt.why_one_device and isinstance(event, DeviceMemoryExceeded)
                    else ""
                ),
            )
        case WorkerFailure():
            return _retry(attempt, event, policy)
        case StateNotCarried():
            return _wait(attempt, event, policy)
        case ServerUnreachable():
            return _ask_again(attempt, event, policy)
        case CopyFailed():
            return _copy_again(attempt, event, policy)
        case LockTimeout():
            return _end(
                attempt,
                event.cause,
                RunError(
                    f"a worker session waited in vain for a lock: {event.message}",
                    "55P03",
                    hint="Another transaction holds it (see pg_locks), perhaps the one that made this "
                    "call: COMMIT it first, or raise pg_mop.lock_timeout.",
                ),
            )
        case UnexpectedError():
            message = f"a worker session failed: {event.message}"
            return _end(attempt, event.cause, RunError(message, event.sqlstate or "XX000", event.detail, event.hint))
    raise TypeError(event)


def _decision(attempt: Attempt, action: Action, state: State, reason: str = "", **changes: Any) -> Decision:
    """A decision that leaves the counters of an attempt as they are, but for `changes`."""
    kept = {"failures": attempt.failures, "moved": attempt.moved, "waiting_since": attempt.waiting_since}
    return Decision(action, state, reason, **{**kept, **changes})


def _end(attempt: Attempt, cause: str, error: RunError) -> Decision:
    return _decision(attempt, Action.END_RUN, State.GIVEN_UP, f"the run ended: {cause}", error=error)


def _retry(attempt: Attempt, event: WorkerFailure, policy: Policy) -> Decision:
    """A worker failed: the unit is retried after a delay that doubles, then once on another server, then given up.

    A failure in a unit batch or in a chain does not count: another of its units may be to blame.
    """
    # (a server that was asked in vain has answered now)
    since = None if attempt.state is State.UNKNOWN else attempt.waiting_since
    if attempt.batch:
        delay = policy.first_delay
        together = "chain" if attempt.chain else "unit batch"
        reason = f"retried alone in {delay:g} s: in a {together}, {event.cause}"
        return _decision(attempt, Action.ALONE, State.RESTING, reason, delay=delay, waiting_since=since)
    failures = attempt.failures + 1
    if failures <= policy.retries:
        delay = min(policy.longest_delay, policy.first_delay * 2 ** (failures - 1))
        reason = f"retried in {delay:g} s: {event.cause}"
        return _decision(
            attempt, Action.RETRY, State.RESTING, reason, delay=delay, failures=failures, waiting_since=since
        )
    after = f"after {failures} attempt{'s' * (failures > 1)}"
    if event.replaceable and not attempt.moved:
        return _decision(
            attempt,
            Action.ON_ANOTHER_SERVER,
            State.WAITING,
            f"retried on another server {after}: {event.cause}",
            failures=0,
            moved=True,
            waiting_since=since,
        )
    return _decision(
        attempt,
        Action.GIVE_UP,
        State.GIVEN_UP,
        f"given up {after}: {event.cause}",
        failures=failures,
        blame="infrastructure",
        message=f"given up after {failures} attempt{'s' * (failures > 1)}: {event.message}",
    )


def _wait_for_place(attempt: Attempt, event: NoPlace, policy: Policy) -> Decision:
    """The unit is retried until other runs' trainers leave it a place: such a run may take long, and then ends. After
    server_timeout the caller is told."""
    since = event.at if attempt.place_since is None else attempt.place_since
    waited = event.at - since
    delay = min(policy.longest_wait, max(policy.first_delay, waited))
    reason = f"retried in {delay:.3g} s: {event.cause}"
    tells = waited > policy.server_timeout
    return _decision(attempt, Action.RETRY, State.RESTING, reason, delay=delay, place_since=since, tells=tells)


def _wait(attempt: Attempt, event: StateNotCarried, policy: Policy) -> Decision:
    """A model state is on a server that is away, or on its way to one: the unit is retried for server_timeout."""
    since = event.at if attempt.waiting_since is None else attempt.waiting_since
    waited = event.at - since
    if waited > policy.server_timeout:
        if event.replaceable:
            return _decision(
                attempt, Action.ON_ANOTHER_SERVER, State.WAITING, f"retried on another server: {event.cause}"
            )
        return _end(attempt, event.cause, policy.waited_in_vain(event.message))
    delay = min(policy.longest_wait, max(policy.first_delay, waited))
    reason = f"retried in {delay:.3g} s: {event.cause}"
    return _decision(attempt, Action.WAIT_FOR_SERVER, State.RESTING, reason, delay=delay, waiting_since=since)


def _ask_again(attempt: Attempt, event: ServerUnreachable, policy: Policy) -> Decision:
    """The attempt may still be committed: its server is asked again for server_timeout."""
    if event.replaceable:
        return _decision(attempt, Action.ON_ANOTHER_SERVER, State.WAITING, f"retried on another server: {event.cause}")
    if attempt.state is not State.UNKNOWN:
        return _decision(attempt, Action.WAIT_FOR_SERVER, State.UNKNOWN, event.cause, waiting_since=event.at)
    if event.at - (attempt.waiting_since or 0.0) > policy.server_timeout:
        message = f"server {event.server} cannot be asked: {event.message}"
        return _end(attempt, event.cause, policy.waited_in_vain(message, "it is back"))
    return _decision(attempt, Action.WAIT_FOR_SERVER, State.UNKNOWN, event.cause)


def _copy_again(attempt: Attempt, event: CopyFailed, policy: Policy) -> Decision:
    """The copy is tried again for server_timeout; its server is given up at a second lost connection."""
    if event.sqlstate.startswith("42"):  # a right is missing: waiting does not help
        return _end(attempt, event.cause, RunError(f"a model state cannot be copied: {event.message}", event.sqlstate))
    since = event.at if attempt.waiting_since is None else attempt.waiting_since
    lost_again = attempt.waiting_since is not None and event.sqlstate.startswith("08")
    in_vain = event.at - since > policy.server_timeout
    if event.replaceable and (lost_again or in_vain):
        return _decision(attempt, Action.ON_ANOTHER_SERVER, State.WAITING, f"retried on another server: {event.cause}")
    if in_vain:
        error = policy.waited_in_vain(f"a model state could not be copied: {event.message}")
        return _end(attempt, event.cause, error)
    delay = min(policy.longest_delay, 2 * attempt.delay) if attempt.delay else policy.first_delay
    return _decision(attempt, Action.RETRY, State.COPYING, event.cause, delay=delay, waiting_since=since)

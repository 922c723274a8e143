"""What is decided about an attempt at a unit: every event in every state that can meet it."""

import pytest

from pg_mop.run.attempt import (
    MEETS,
    UNDER_WAY,
    Action,
    Attempt,
    ConfigurationFailed,
    Copied,
    CopyFailed,
    DeviceFull,
    DeviceMemoryExceeded,
    Failure,
    Finished,
    LockTimeout,
    MemoryExceeded,
    Policy,
    RunError,
    ServerGivenUp,
    ServerUnreachable,
    State,
    StateNotCarried,
    TrainerLost,
    TrainerRefused,
    TransactionConflict,
    UnexpectedError,
    WorkerFailure,
    WorkerLost,
    decide,
)
from pg_mop.schedule.board import Unit

UNIT = Unit(1, 1, "train", "training", 0)
POLICY = Policy(retries=2, server_timeout=10.0, resume="SELECT madlib.mop_resume(7);")
ENDED = "the run ended: "
ELSEWHERE = "retried on another server: "


def one(state, **what):
    return Attempt(UNIT, state=state, **what)


# attempt, event, action, state afterwards, delay, reason
TABLE = [
    # --- committed
    (one(State.RUNNING), Finished(), Action.COUNT, State.DONE, 0, ""),
    (one(State.RUNNING, batch=True), Finished(), Action.COUNT, State.DONE, 0, ""),
    (one(State.RUNNING, server="w1"), Finished(to_copy=True), Action.COPY, State.COPYING, 0, ""),
    (one(State.PREPARING), Finished(), Action.COUNT, State.DONE, 0, ""),
    (one(State.PREPARING, server="w1"), Finished(to_copy=True), Action.COPY, State.COPYING, 0, ""),
    (one(State.UNKNOWN, server="w1", waiting_since=3.0), Finished(), Action.COUNT, State.DONE, 0, ""),
    (one(State.UNKNOWN, server="w1", waiting_since=3.0), Finished(to_copy=True), Action.COPY, State.COPYING, 0, ""),
    (one(State.COPYING, server="w1"), Copied(), Action.COUNT, State.DONE, 0, ""),
    # --- the configuration is at fault
    (
        one(State.RUNNING),
        ConfigurationFailed("NaN"),
        Action.GIVE_UP,
        State.GIVEN_UP,
        0,
        "given up: the configuration failed",
    ),
    (
        one(State.RUNNING),
        MemoryExceeded("2 GB"),
        Action.GIVE_UP,
        State.GIVEN_UP,
        0,
        "given up: the unit needs more memory than a limit allows",
    ),
    (
        one(State.RUNNING, batch=True),
        ConfigurationFailed("NaN"),
        Action.ALONE,
        State.WAITING,
        0,
        "retried alone: a unit of its batch failed: the configuration failed",
    ),
    (
        one(State.RUNNING, batch=True),
        MemoryExceeded("2 GB"),
        Action.ALONE,
        State.WAITING,
        0,
        "retried alone: a unit of its batch failed: the unit needs more memory than a limit allows",
    ),
    # --- the memory of a device: first alone, then with half as many neighbours, then given up
    (
        one(State.RUNNING, neighbours=4, batch=True),
        DeviceMemoryExceeded("2 GB"),
        Action.ALONE,
        State.WAITING,
        0,
        "retried alone: a unit of its batch failed: the unit needs more memory than its part of the device has",
    ),
    (
        one(State.RUNNING, neighbours=4),
        DeviceMemoryExceeded("2 GB"),
        Action.FEWER,
        State.WAITING,
        0,
        "retried with at most 2 trainers on its device: the unit needs more memory than its part of the device has",
    ),
    (
        one(State.RUNNING, neighbours=3, failures=2),
        DeviceMemoryExceeded("2 GB"),
        Action.FEWER,
        State.WAITING,
        0,
        "retried with at most 1 trainer on its device: the unit needs more memory than its part of the device has",
    ),
    (
        one(State.RUNNING, neighbours=1),
        DeviceMemoryExceeded("2 GB"),
        Action.GIVE_UP,
        State.GIVEN_UP,
        0,
        "given up: the unit needs more memory than its part of the device has",
    ),
    (
        one(State.RUNNING),
        DeviceFull("x", at=5.0),
        Action.RETRY,
        State.RESTING,
        0.5,
        "retried in 0.5 s: other trainers hold the memory of the device",
    ),
    (
        one(State.RUNNING, memory_since=5.0),
        DeviceFull("x", at=8.0),
        Action.RETRY,
        State.RESTING,
        3.0,
        "retried in 3 s: other trainers hold the memory of the device",
    ),
    (
        one(State.RUNNING, memory_since=5.0),
        DeviceFull("x", at=15.5),
        Action.RETRY,
        State.RESTING,
        POLICY.longest_wait,
        "retried in 5 s: other trainers hold the memory of the device",
    ),
    # --- the worker failed
    (one(State.RUNNING), TrainerLost("x"), Action.RETRY, State.RESTING, 0.5, "retried in 0.5 s: the trainer was lost"),
    (
        one(State.RUNNING, failures=1),
        TrainerLost("x"),
        Action.RETRY,
        State.RESTING,
        1.0,
        "retried in 1 s: the trainer was lost",
    ),
    (
        one(State.RUNNING, failures=2),
        TrainerLost("x"),
        Action.GIVE_UP,
        State.GIVEN_UP,
        0,
        "given up after 3 attempts: the trainer was lost",
    ),
    (
        one(State.RUNNING, failures=2, batch=True),
        TrainerLost("x"),
        Action.ALONE,
        State.RESTING,
        0.5,
        "retried alone in 0.5 s: in a unit batch, the trainer was lost",
    ),
    (
        one(State.RUNNING),
        TrainerRefused("x"),
        Action.RETRY,
        State.RESTING,
        0.5,
        "retried in 0.5 s: no trainer could be had",
    ),
    (
        one(State.RUNNING),
        TransactionConflict("x"),
        Action.RETRY,
        State.RESTING,
        0.5,
        "retried in 0.5 s: its transaction conflicted with another one",
    ),
    (
        one(State.RUNNING),
        WorkerLost("x"),
        Action.RETRY,
        State.RESTING,
        0.5,
        "retried in 0.5 s: the worker session was lost",
    ),
    (
        one(State.PREPARING),
        WorkerLost("x"),
        Action.RETRY,
        State.RESTING,
        0.5,
        "retried in 0.5 s: the worker session was lost",
    ),
    (
        one(State.RUNNING, server="w1", failures=1),
        WorkerLost("x", replaceable=True),
        Action.RETRY,
        State.RESTING,
        1.0,
        "retried in 1 s: the worker session was lost",
    ),
    (
        one(State.RUNNING, server="w1", failures=2),
        WorkerLost("x", replaceable=True),
        Action.ON_ANOTHER_SERVER,
        State.WAITING,
        0,
        "retried on another server after 3 attempts: the worker session was lost",
    ),
    (
        one(State.RUNNING, server="w1", failures=2, moved=True),
        WorkerLost("x", replaceable=True),
        Action.GIVE_UP,
        State.GIVEN_UP,
        0,
        "given up after 3 attempts: the worker session was lost",
    ),
    (
        one(State.UNKNOWN, server="w1", waiting_since=1.0),
        WorkerLost("x"),
        Action.RETRY,
        State.RESTING,
        0.5,
        "retried in 0.5 s: the worker session was lost",
    ),
    (
        one(State.UNKNOWN, server="w1", waiting_since=1.0, batch=True, failures=2),
        WorkerLost("x"),
        Action.ALONE,
        State.RESTING,
        0.5,
        "retried alone in 0.5 s: in a unit batch, the worker session was lost",
    ),
    # --- a server is away
    (
        one(State.PREPARING),
        StateNotCarried("x", at=100.0),
        Action.WAIT_FOR_SERVER,
        State.RESTING,
        0.5,
        "retried in 0.5 s: a model state could not be carried to its server",
    ),
    (
        one(State.PREPARING, waiting_since=98.0),
        StateNotCarried("x", at=100.0),
        Action.WAIT_FOR_SERVER,
        State.RESTING,
        2.0,
        "retried in 2 s: a model state could not be carried to its server",
    ),
    (
        one(State.PREPARING, waiting_since=91.0),
        StateNotCarried("x", at=100.0, replaceable=True),
        Action.WAIT_FOR_SERVER,
        State.RESTING,
        5.0,
        "retried in 5 s: a model state could not be carried to its server",
    ),
    (
        one(State.PREPARING, waiting_since=89.0),
        StateNotCarried("x", at=100.0),
        Action.END_RUN,
        State.GIVEN_UP,
        0,
        ENDED + "a model state could not be carried to its server",
    ),
    (
        one(State.PREPARING, server="w1", waiting_since=89.0),
        StateNotCarried("x", at=100.0, replaceable=True),
        Action.ON_ANOTHER_SERVER,
        State.WAITING,
        0,
        ELSEWHERE + "a model state could not be carried to its server",
    ),
    *(
        (
            one(state, server="w1"),
            ServerUnreachable("x", "w1", 100.0),
            Action.WAIT_FOR_SERVER,
            State.UNKNOWN,
            0,
            "its server cannot be asked",
        )
        for state in (State.PREPARING, State.RUNNING)
    ),
    (
        one(State.RUNNING, server="w1"),
        ServerUnreachable("x", "w1", 100.0, replaceable=True),
        Action.ON_ANOTHER_SERVER,
        State.WAITING,
        0,
        ELSEWHERE + "its server cannot be asked",
    ),
    (
        one(State.UNKNOWN, server="w1", waiting_since=95.0),
        ServerUnreachable("x", "w1", 100.0),
        Action.WAIT_FOR_SERVER,
        State.UNKNOWN,
        0,
        "its server cannot be asked",
    ),
    (
        one(State.UNKNOWN, server="w1", waiting_since=89.0),
        ServerUnreachable("x", "w1", 100.0),
        Action.END_RUN,
        State.GIVEN_UP,
        0,
        ENDED + "its server cannot be asked",
    ),
    (
        one(State.UNKNOWN, server="w1", waiting_since=89.0),
        ServerUnreachable("x", "w1", 100.0, replaceable=True),
        Action.ON_ANOTHER_SERVER,
        State.WAITING,
        0,
        ELSEWHERE + "its server cannot be asked",
    ),
    *(
        (
            one(state, server="w1", failures=2),
            ServerGivenUp("x", "w1"),
            Action.ON_ANOTHER_SERVER,
            State.WAITING,
            0,
            ELSEWHERE + "server w1 was given up",
        )
        for state in UNDER_WAY
    ),
    # --- copies
    (
        one(State.COPYING, server="w1"),
        CopyFailed("x", at=100.0),
        Action.RETRY,
        State.COPYING,
        0.5,
        "its model state could not be copied",
    ),
    (
        one(State.COPYING, server="w1", waiting_since=99.0, delay=2.0),
        CopyFailed("x", at=100.0, replaceable=True),
        Action.RETRY,
        State.COPYING,
        4.0,
        "its model state could not be copied",
    ),
    (
        one(State.COPYING, server="w1", waiting_since=99.0, delay=50.0),
        CopyFailed("x", at=100.0, sqlstate="08006"),
        Action.RETRY,
        State.COPYING,
        60.0,
        "its model state could not be copied",
    ),
    (
        one(State.COPYING, server="w1"),
        CopyFailed("x", at=100.0, sqlstate="08006", replaceable=True),
        Action.RETRY,
        State.COPYING,
        0.5,
        "its model state could not be copied",
    ),
    (
        one(State.COPYING, server="w1", waiting_since=99.0, delay=0.5),
        CopyFailed("x", at=100.0, sqlstate="08006", replaceable=True),
        Action.ON_ANOTHER_SERVER,
        State.WAITING,
        0,
        ELSEWHERE + "its model state could not be copied",
    ),
    (
        one(State.COPYING, server="w1", waiting_since=89.0, delay=0.5),
        CopyFailed("x", at=100.0, replaceable=True),
        Action.ON_ANOTHER_SERVER,
        State.WAITING,
        0,
        ELSEWHERE + "its model state could not be copied",
    ),
    (
        one(State.COPYING, server="w1", waiting_since=89.0, delay=0.5),
        CopyFailed("x", at=100.0),
        Action.END_RUN,
        State.GIVEN_UP,
        0,
        ENDED + "its model state could not be copied",
    ),
    (
        one(State.COPYING, server="w1"),
        CopyFailed("x", at=100.0, sqlstate="42501", replaceable=True),
        Action.END_RUN,
        State.GIVEN_UP,
        0,
        ENDED + "its model state could not be copied",
    ),
    # --- the run cannot go on
    (
        one(State.RUNNING),
        LockTimeout("x"),
        Action.END_RUN,
        State.GIVEN_UP,
        0,
        ENDED + "the worker session waited in vain for a lock",
    ),
    *(
        (
            one(state),
            UnexpectedError("x", "MOP03"),
            Action.END_RUN,
            State.GIVEN_UP,
            0,
            ENDED + "the worker session failed",
        )
        for state in (State.PREPARING, State.RUNNING)
    ),
]
EVENTS = [
    Finished(),
    Copied(),
    ConfigurationFailed("x"),
    MemoryExceeded("x"),
    DeviceMemoryExceeded("x"),
    DeviceFull("x"),
    TrainerLost("x"),
    TrainerRefused("x"),
    TransactionConflict("x"),
    WorkerLost("x"),
    LockTimeout("x"),
    UnexpectedError("x"),
    StateNotCarried("x"),
    ServerUnreachable("x"),
    ServerGivenUp("x"),
    CopyFailed("x"),
]


@pytest.mark.parametrize("attempt, event, action, state, delay, reason", TABLE)
def test_decisions(attempt, event, action, state, delay, reason):
    decision = decide(attempt, event, POLICY)
    assert (decision.action, decision.state, decision.delay, decision.reason) == (action, state, delay, reason)
    assert (decision.error is not None) == (action is Action.END_RUN)
    assert (decision.blame is not None) == (action is Action.GIVE_UP)


def test_the_table_has_every_event_in_every_state_that_can_meet_it():
    known = {type(event) for event in EVENTS}
    assert {kind for kind in known if kind in (Finished, Copied)} | leaves(Failure) == known
    shown = {(attempt.state, type(event)) for attempt, event, *_ in TABLE}
    assert shown == {(state, kind) for state in State for kind in known if issubclass(kind, MEETS[state])}


def leaves(kind):
    """The event classes below one, without the mere bases."""
    return {kind for kind in below(kind) if kind not in (Failure, WorkerFailure)}


def below(kind):
    return {kind}.union(*map(below, kind.__subclasses__()))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_that_cannot_come_is_refused(state, event):
    if not isinstance(event, MEETS[state]):
        with pytest.raises(ValueError, match=f"an attempt that is {state.value} met"):
            decide(one(state), event, POLICY)


# --- counters and errors


@pytest.mark.parametrize(
    "attempt, event, counters",
    [
        (one(State.RUNNING), TrainerLost("x"), (1, False, None)),
        (one(State.RUNNING, failures=1, batch=True), TrainerLost("x"), (1, False, None)),
        (one(State.RUNNING, failures=2), WorkerLost("x", replaceable=True), (0, True, None)),
        (one(State.RUNNING, failures=1), ServerGivenUp("x"), (1, False, None)),
        (one(State.RUNNING, failures=2, neighbours=2), DeviceMemoryExceeded("x"), (0, False, None)),
        (one(State.RUNNING, failures=1), DeviceFull("x", 5.0), (1, False, None)),
        (one(State.PREPARING, failures=1, waiting_since=95.0), StateNotCarried("x", 100.0), (1, False, 95.0)),
        (one(State.PREPARING), StateNotCarried("x", 100.0), (0, False, 100.0)),
        (one(State.PREPARING, waiting_since=95.0), ServerUnreachable("x", "w1", 100.0), (0, False, 100.0)),
        (one(State.UNKNOWN, waiting_since=95.0), ServerUnreachable("x", "w1", 100.0), (0, False, 95.0)),
        (one(State.UNKNOWN, waiting_since=95.0), WorkerLost("x"), (1, False, None)),
        (one(State.UNKNOWN, waiting_since=95.0), Finished(to_copy=True), (0, False, None)),
        (one(State.COPYING), CopyFailed("x", 100.0), (0, False, 100.0)),
    ],
)
def test_counters(attempt, event, counters):
    decision = decide(attempt, event, POLICY)
    assert (decision.failures, decision.moved, decision.waiting_since) == counters


@pytest.mark.parametrize(
    "attempt, event, blame, message",
    [
        (one(State.RUNNING), ConfigurationFailed("NaN"), "configuration", "NaN"),
        (one(State.RUNNING), MemoryExceeded("2 GB"), "infrastructure", "2 GB"),
        (one(State.RUNNING, failures=2), TrainerLost("gone"), "infrastructure", "given up after 3 attempts: gone"),
    ],
)
def test_who_is_to_blame(attempt, event, blame, message):
    decision = decide(attempt, event, POLICY)
    assert (decision.blame, decision.message) == (blame, message)


@pytest.mark.parametrize(
    "attempt, event, error",
    [
        (
            one(State.RUNNING),
            UnexpectedError("no", "XX001", "detail", "hint"),
            RunError("a worker session failed: no", "XX001", "detail", "hint"),
        ),
        (one(State.RUNNING), UnexpectedError("no"), RunError("a worker session failed: no", "XX000")),
        (
            one(State.RUNNING),
            LockTimeout("no"),
            RunError(
                "a worker session waited in vain for a lock: no",
                "55P03",
                hint="Another transaction holds it (see pg_locks), perhaps the one that made this call: COMMIT it "
                "first, or raise pg_mop.lock_timeout.",
            ),
        ),
        (
            one(State.UNKNOWN, waiting_since=0.0),
            ServerUnreachable("no", "w1", 11.0),
            RunError("server w1 cannot be asked: no", "08006", hint="SELECT madlib.mop_resume(7); once it is back."),
        ),
        (
            one(State.PREPARING, waiting_since=0.0),
            StateNotCarried("no", 11.0),
            RunError("no", "08006", hint="SELECT madlib.mop_resume(7); once all servers are back."),
        ),
        (
            one(State.COPYING),
            CopyFailed("no", sqlstate="42501"),
            RunError("a model state cannot be copied: no", "42501"),
        ),
        (
            one(State.COPYING, waiting_since=0.0),
            CopyFailed("no", 11.0),
            RunError(
                "a model state could not be copied: no",
                "08006",
                hint="SELECT madlib.mop_resume(7); once all servers are back.",
            ),
        ),
    ],
)
def test_errors_that_end_the_run(attempt, event, error):
    assert decide(attempt, event, POLICY).error == error


def test_the_delays_double_up_to_a_minute():
    attempt, delays = one(State.RUNNING), []
    policy = Policy(retries=9, server_timeout=10.0, resume="")
    while (decision := decide(attempt, TrainerLost("x"), policy)).action is Action.RETRY:
        attempt.apply(decision, now=100.0)
        assert attempt.state is State.RESTING and attempt.retry_at == 100.0 + decision.delay
        delays.append(decision.delay)
        attempt = attempt.next()
        assert (attempt.state, attempt.delay, attempt.retry_at) == (State.WAITING, 0.0, None)
        attempt.state = State.RUNNING
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 60, 60] and attempt.number == 10


def test_a_unit_moves_to_another_server_once_and_has_all_its_attempts_there():
    attempt, actions = one(State.RUNNING, server="w1"), []
    while True:
        decision = decide(attempt, WorkerLost("x", replaceable=True), POLICY)
        actions.append(decision.action.value)
        attempt.apply(decision, now=0.0)
        if decision.action is Action.GIVE_UP:
            break
        attempt = attempt.next()
        attempt.state = State.RUNNING
    assert actions == ["retry"] * 2 + ["on another server"] + ["retry"] * 2 + ["give up"]


def test_a_copy_waits_for_its_turn_and_only_a_failed_one_for_a_time():
    """The next copy of a queue begins at once: nothing but a failure sets a time for it."""
    attempt = one(State.RUNNING)
    attempt.apply(decide(attempt, Finished(to_copy=True), POLICY), now=100.0)
    assert attempt.state is State.COPYING and attempt.retry_at is None
    attempt.apply(decide(attempt, CopyFailed("the line is down", 100.0), POLICY), now=100.0)
    assert attempt.state is State.COPYING and attempt.retry_at > 100.0

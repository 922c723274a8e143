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
    NoPlace,
    Policy,
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
from support.golden import assert_golden

UNIT = Unit(1, 1, "train", "training", 0)
POLICY = Policy(retries=2, server_timeout=10.0, resume="SELECT madlib.mop_resume(7);")


def one(state, **what):
    return Attempt(UNIT, state=state, **what)


# attempt, event; tests/golden/decisions.txt has the decisions
CASES = [
    # --- committed
    (one(State.RUNNING), Finished()),
    (one(State.RUNNING, batch=True), Finished()),
    (one(State.RUNNING, server="w1"), Finished(to_copy=True)),
    (one(State.PREPARING), Finished()),
    (one(State.PREPARING, server="w1"), Finished(to_copy=True)),
    (one(State.UNKNOWN, server="w1", waiting_since=3.0), Finished()),
    (one(State.UNKNOWN, server="w1", waiting_since=3.0), Finished(to_copy=True)),
    (one(State.COPYING, server="w1"), Copied()),
    # --- the configuration is at fault
    (one(State.RUNNING), ConfigurationFailed("NaN")),
    (one(State.RUNNING), MemoryExceeded("2 GB")),
    (one(State.RUNNING, batch=True), ConfigurationFailed("NaN")),
    (one(State.RUNNING, batch=True), MemoryExceeded("2 GB")),
    # --- the memory of a device: first alone, then with half as many neighbours, then given up
    (one(State.RUNNING, neighbours=4, batch=True), DeviceMemoryExceeded("2 GB")),
    (one(State.RUNNING, neighbours=4), DeviceMemoryExceeded("2 GB")),
    (one(State.RUNNING, neighbours=3, failures=2), DeviceMemoryExceeded("2 GB")),
    (one(State.RUNNING, neighbours=1), DeviceMemoryExceeded("2 GB")),
    (one(State.RUNNING), DeviceFull("x", at=5.0)),
    (one(State.RUNNING, place_since=5.0), DeviceFull("x", at=8.0)),
    (one(State.RUNNING, place_since=5.0), DeviceFull("x", at=15.5)),
    # --- the worker failed
    (one(State.RUNNING), TrainerLost("x")),
    (one(State.RUNNING, failures=1), TrainerLost("x")),
    (one(State.RUNNING, failures=2), TrainerLost("x")),
    (one(State.RUNNING, failures=2, batch=True), TrainerLost("x")),
    (one(State.RUNNING), TrainerRefused("x", at=5.0)),
    (one(State.RUNNING, failures=2, place_since=5.0), TrainerRefused("x", at=15.5)),
    (one(State.RUNNING), TransactionConflict("x")),
    (one(State.RUNNING), WorkerLost("x")),
    (one(State.PREPARING), WorkerLost("x")),
    (one(State.RUNNING, server="w1", failures=1), WorkerLost("x", replaceable=True)),
    (one(State.RUNNING, server="w1", failures=2), WorkerLost("x", replaceable=True)),
    (one(State.RUNNING, server="w1", failures=2, moved=True), WorkerLost("x", replaceable=True)),
    (one(State.UNKNOWN, server="w1", waiting_since=1.0), WorkerLost("x")),
    (one(State.UNKNOWN, server="w1", waiting_since=1.0, batch=True, failures=2), WorkerLost("x")),
    # --- a server is away
    (one(State.PREPARING), StateNotCarried("x", at=100.0)),
    (one(State.PREPARING, waiting_since=98.0), StateNotCarried("x", at=100.0)),
    (one(State.PREPARING, waiting_since=91.0), StateNotCarried("x", at=100.0, replaceable=True)),
    (one(State.PREPARING, waiting_since=89.0), StateNotCarried("x", at=100.0)),
    (one(State.PREPARING, server="w1", waiting_since=89.0), StateNotCarried("x", at=100.0, replaceable=True)),
    *((one(state, server="w1"), ServerUnreachable("x", "w1", 100.0)) for state in (State.PREPARING, State.RUNNING)),
    (one(State.RUNNING, server="w1"), ServerUnreachable("x", "w1", 100.0, replaceable=True)),
    (one(State.UNKNOWN, server="w1", waiting_since=95.0), ServerUnreachable("x", "w1", 100.0)),
    (one(State.UNKNOWN, server="w1", waiting_since=89.0), ServerUnreachable("x", "w1", 100.0)),
    (one(State.UNKNOWN, server="w1", waiting_since=89.0), ServerUnreachable("x", "w1", 100.0, replaceable=True)),
    *((one(state, server="w1", failures=2), ServerGivenUp("x", "w1")) for state in UNDER_WAY),
    # --- copies
    (one(State.COPYING, server="w1"), CopyFailed("x", at=100.0)),
    (one(State.COPYING, server="w1", waiting_since=99.0, delay=2.0), CopyFailed("x", at=100.0, replaceable=True)),
    (one(State.COPYING, server="w1", waiting_since=99.0, delay=50.0), CopyFailed("x", at=100.0, sqlstate="08006")),
    (one(State.COPYING, server="w1"), CopyFailed("x", at=100.0, sqlstate="08006", replaceable=True)),
    (
        one(State.COPYING, server="w1", waiting_since=99.0, delay=0.5),
        CopyFailed("x", at=100.0, sqlstate="08006", replaceable=True),
    ),
    (one(State.COPYING, server="w1", waiting_since=89.0, delay=0.5), CopyFailed("x", at=100.0, replaceable=True)),
    (one(State.COPYING, server="w1", waiting_since=89.0, delay=0.5), CopyFailed("x", at=100.0)),
    (one(State.COPYING, server="w1"), CopyFailed("x", at=100.0, sqlstate="42501", replaceable=True)),
    # --- the run cannot go on
    (one(State.RUNNING), LockTimeout("x")),
    *((one(state), UnexpectedError("x", "MOP03")) for state in (State.PREPARING, State.RUNNING)),
    # --- counters, and the errors that end the run
    (one(State.RUNNING, failures=1, batch=True), TrainerLost("x")),
    (one(State.RUNNING, failures=2), WorkerLost("x", replaceable=True)),
    (one(State.RUNNING, failures=1), ServerGivenUp("x")),
    (one(State.RUNNING, failures=2, neighbours=2), DeviceMemoryExceeded("x")),
    (one(State.RUNNING, failures=1), DeviceFull("x", 5.0)),
    (one(State.PREPARING, failures=1, waiting_since=95.0), StateNotCarried("x", 100.0)),
    (one(State.PREPARING), StateNotCarried("x", 100.0)),
    (one(State.PREPARING, waiting_since=95.0), ServerUnreachable("x", "w1", 100.0)),
    (one(State.UNKNOWN, waiting_since=95.0), ServerUnreachable("x", "w1", 100.0)),
    (one(State.UNKNOWN, waiting_since=95.0), WorkerLost("x")),
    (one(State.UNKNOWN, waiting_since=95.0), Finished(to_copy=True)),
    (one(State.COPYING), CopyFailed("x", 100.0)),
    (one(State.RUNNING, failures=2), TrainerLost("gone")),
    (one(State.RUNNING), UnexpectedError("no", "XX001", "detail", "hint")),
    (one(State.RUNNING), UnexpectedError("no")),
    (one(State.RUNNING), LockTimeout("no")),
    (one(State.UNKNOWN, waiting_since=0.0), ServerUnreachable("no", "w1", 11.0)),
    (one(State.PREPARING, waiting_since=0.0), StateNotCarried("no", 11.0)),
    (one(State.COPYING), CopyFailed("no", sqlstate="42501")),
    (one(State.COPYING, waiting_since=0.0), CopyFailed("no", 11.0)),
]
FAILURES = (
    *(ConfigurationFailed, MemoryExceeded, DeviceMemoryExceeded, DeviceFull, TrainerLost, TrainerRefused),
    *(TransactionConflict, WorkerLost, LockTimeout, UnexpectedError, StateNotCarried, ServerUnreachable),
    *(ServerGivenUp, CopyFailed),
)
EVENTS = [Finished(), Copied(), *(kind("x") for kind in FAILURES)]


USUAL = {"server": None, "batch": False, "neighbours": 1, "delay": 0, "blame": None, "message": "", "error": None}
USUAL |= {"failures": 0, "moved": False, "waiting_since": None, "place_since": None}


def told(found, names):
    """The state of an attempt or of a decision, and the values that are not the usual ones."""
    values = ((name, getattr(found, name)) for name in names.split())
    return " ".join([found.state.value, *(f"{name}={value!r}" for name, value in values if value != USUAL[name])])


def test_decisions():
    lines = []
    for attempt, event in CASES:
        found = decide(attempt, event, POLICY)
        assert (found.error is not None) == (found.action is Action.END_RUN)
        assert (found.blame is not None) == (found.action is Action.GIVE_UP)
        before = told(attempt, "server batch neighbours delay failures moved waiting_since place_since")
        then = told(found, "delay failures moved waiting_since place_since blame message error")
        lines.append(f"{before}, {event}: {found.action.name} -> {then}; {found.reason}")
    assert_golden("decisions", "\n".join(lines))


def test_the_table_has_every_event_in_every_state_that_can_meet_it():
    known = {type(event) for event in EVENTS}
    assert {kind for kind in known if kind in (Finished, Copied)} | leaves(Failure) == known
    shown = {(attempt.state, type(event)) for attempt, event in CASES}
    assert shown == {(state, kind) for state in State for kind in known if issubclass(kind, MEETS[state])}


def leaves(kind):
    """The event classes below one, without the mere bases."""
    return {kind for kind in below(kind) if kind not in (Failure, WorkerFailure, NoPlace)}


def below(kind):
    return {kind}.union(*map(below, kind.__subclasses__()))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_that_cannot_come_is_refused(state, event):
    if not isinstance(event, MEETS[state]):
        with pytest.raises(ValueError, match=f"an attempt that is {state.value} met"):
            decide(one(state), event, POLICY)


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

"""The event loop without a database: sessions, servers and copies fail at random, and every unit counts once."""

import random
import types

import psycopg2
import pytest

from pg_mop.backend.errors import MopError
from pg_mop.connections.sessions import SessionLost
from pg_mop.plan.stages import Plan
from pg_mop.run import executor, failover, recovery, transfers, workers
from pg_mop.run.attempt import Policy, State
from pg_mop.run.executor import Executor
from pg_mop.run.servers import Server
from pg_mop.run.turns import Turns
from pg_mop.schedule.board import Board
from pg_mop.schedule.dealing import Threads
from pg_mop.schedule.longest_first import LongestFirst

TRIALS, ITERATIONS, SEGMENTS = 6, 3, 4
UNITS = TRIALS * SEGMENTS * (ITERATIONS + 1)  # the last iteration is evaluated


class Failed(psycopg2.OperationalError):
    """A server's error with a SQLSTATE."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code

    pgcode = property(lambda self: self.code)


class World:
    """The servers, and the faults that come by a seed: `faults`, {name of a fault: its probability}."""

    def __init__(self, seed, faults):
        self.random, self.faults = random.Random(seed), faults
        self.committed = {}  # server -> {unit: attempt} of its run
        self.registered, self.given_up, self.noted = [], [], []
        self.together = []  # the units of each commit

    def happens(self, fault):
        return self.random.random() < self.faults.get(fault, 0)


class Catalog:
    """A server's catalog."""

    least_state_table_bytes, fencing_token, execute = 1 << 20, 1, None

    def __init__(self, world, name):
        self.world, self.name = world, name
        world.committed[name] = {}

    def __getattr__(self, name):
        if name in (
            "begin_units",
            "release_states",
            "new_state_table",
            "move_states",
            "note_growth",
            "note_counts",
            "close",
            "partials",
        ):
            return lambda *arguments: None
        raise AttributeError(name)

    def ask_server(self):
        if self.name is not None and self.world.happens("server does not answer"):
            raise Failed(None, "no answer")

    def models(self, run_id):
        return {}

    def state_tables(self, run_id):
        return {1}

    def state_bytes(self, run_id, stage):
        return 2 << 20

    def drop_state_tables(self, run_id, state_tables):
        return set(state_tables)

    def arrived(self, run_id, stage, version, state_table):
        return 2 << 20

    def begin_units_sql(self, run_id, rows):
        self.ask_server()
        return ""

    def reports_sql(self, run_id, units):
        return ""

    def fail_unit(self, row, error, decision):
        assert error and decision
        self.ask_server()
        self.world.noted.append((row["stage"], row["attempt"], error, decision))

    def unit_is_finished(self, row):
        return any(attempt.row == row for attempt in self.world.committed[None].values())

    def report(self, run_id, unit):
        self.ask_server()
        return unit if unit in self.world.committed[self.name] else None

    def register(self, run_id, server, *reported, copy=None):
        if copy is not None and self.world.happens("copy fails"):
            raise Failed("08006", "the copy was cut")
        for unit in reported:
            assert unit in self.world.committed[server]
            self.world.registered.append(unit)
        return 2 << 20

    def note_hops(self, run_id, hops):
        assert self.name is None and all(hop.source != hop.target and hop.bytes == 2 << 20 for hop in hops)

    def forget_remote_run(self, run_id, name):
        self.world.committed[name] = {}

    def control_requests(self, run_id, last=False):
        return []

    def wanted_sessions(self, run_id):
        return SEGMENTS

    def fail_configurations(self, run_id, keys, message, blame):
        self.world.given_up += keys


class Session:
    """A worker session, or a relay: every command ends at once."""

    def __init__(self, world, worker, server):
        self.world, self.worker, self.target = world, worker, types.SimpleNamespace(server=server)
        self.work, self.moves, self.relay, self.serves, self.prepared = [], [], None, None, False
        self.connection = types.SimpleNamespace(closed=False)

    def fileno(self):
        return 0

    def clean_sql(self):
        return ""

    def begin(self, command):
        if self.world.happens("session refuses"):
            raise SessionLost("gone")

    def rows(self):
        return [[self.reported]]

    def poll(self):
        world = self.world
        if not self.work:  # a relay
            if world.happens("state is not carried"):
                raise Failed("08006", "the line was cut")
            return "ready"
        if world.happens("configuration fails"):
            raise Failed("MOP01", "the loss became NaN")
        if world.happens("trainer dies"):
            raise Failed("MOP02", "the trainer ended")
        lost = world.happens("session dies")
        if not lost or world.happens("it had committed"):
            world.together.append([attempt.unit for attempt in self.work])
            for attempt in self.work:
                assert attempt.unit not in world.committed[self.target.server]
                world.committed[self.target.server][attempt.unit] = attempt
            self.reported = [attempt.unit for attempt in self.work]
        if lost:
            raise SessionLost("the connection was lost")
        return "ready"

    def close(self):
        self.connection.closed = True


class Sessions:
    def __init__(self, world, server):
        self.world, self.server = world, server
        self.by_worker, self.relays, self.check_interrupts = {}, {}, lambda: None

    def fresh(self, worker, seconds=0):
        name = self.server(worker).name
        if name is not None and self.world.happens("server refuses"):
            raise MopError("connection refused", sqlstate="08001")
        self.by_worker[worker] = Session(self.world, worker, name)

    def add(self, workers):
        for worker in workers:
            try:
                self.fresh(worker)
            except MopError as error:
                return error

    def end(self, worker):
        self.by_worker.pop(worker, None)

    def silence(self, server):
        return 0

    def relay(self, session, server, source=None):
        relay = Session(self.world, None, server.name)
        relay.serves = session
        return relay

    def heartbeat(self, target, anew=False):
        return types.SimpleNamespace(look=lambda: 0, beats=True, close=lambda: None)


class Controller:
    done = True

    def __init__(self):
        self.stages = []

    def begin(self):
        yield from ()

    def ended(self, stages):
        self.stages += stages
        yield from ()

    def failed(self, mst_keys):
        yield from ()

    def control_requests(self, requests):
        yield from ()


class Specs:
    """Unit specs; a segment with a copy is at its own server, or at the coordinator's."""

    replicas = None
    engine = types.SimpleNamespace(check_whole=lambda execute: None)
    sharing = types.SimpleNamespace(key=lambda stage: (stage.mst_key, "batch"))

    def __init__(self, board, chains):
        self.segments = {key: _Segment(server) for key, server in board.server_of.items()}
        self.chains = chains

    def replicas_of(self, unit):
        return None

    def describe(self, steps, worker, threads=None, parts=None):
        first, *then = [{"models": [unit and {"unit": unit.segment} for unit in units]} for units in steps]
        return {**first, "then": then}

    def may_chain(self, worker):
        return self.chains

    def functions_of(self, stage):
        return []

    def why_one_device(self, worker):
        return None


class _Segment:
    def __init__(self, server):
        self.server = server

    def at(self, servers):
        return self if self.server in servers else _Segment(None)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    """All delays are short."""
    monkeypatch.setattr(executor, "LOOK_SECONDS", 0)
    monkeypatch.setattr(workers, "BACK_OFF", (0.001, 0.01))
    monkeypatch.setattr(failover, "BACK_SECONDS", (0.001, 0.01))
    monkeypatch.setattr(transfers, "AGAIN_SECONDS", 0.001)


def run(seed, faults, names=(), replicas=1, retries=1000, chain_seconds=0.0):
    """A run whose segments are dealt out over the coordinator's server and the servers `names`."""
    world, plan, controller = World(seed, faults), Plan(), Controller()
    for key in range(1, TRIALS + 1):
        plan.ask(key, f"root {key}", lambda i: ("lr=0.1", "batch_size=1"), ITERATIONS, evaluated=(ITERATIONS,))
    on = [None, *names]
    board = Board(plan, range(SEGMENTS), [], {("training", k): on[k % len(on)] for k in range(SEGMENTS)}, [None])
    if chain_seconds:
        board.anywhere = True
        board.serve(board.workers)
    servers = {}

    def reach(name):
        info = {"servers": {}, "identity": str(name)}
        target = types.SimpleNamespace(server=name)
        servers[name] = Server(name, target, Catalog(world, name), 1, "madlib", info)

    for name in on:
        reach(name)
    sessions = Sessions(world, lambda worker: servers[board.server(worker)])
    for worker in board.workers:
        sessions.by_worker[worker] = Session(world, worker, board.server(worker))
    silent = lambda *arguments, **more: None  # noqa: E731
    db = types.SimpleNamespace(extension="madlib", has_segments=False, log=silent, warning=silent, info=silent)
    options = {"checkpoint_mb": 1, "reuse": False, "server_timeout": 60_000}
    options |= {"unit_retries": retries, "replicas": replicas, "chain_seconds": chain_seconds}
    loop = Executor(
        db,
        servers[None].catalog,
        servers,
        sessions,
        1,
        plan,
        board,
        LongestFirst(board, seed),
        Specs(board, chain_seconds > 0),
        controller,
        lambda stages: [],
        None,
        options,
        {},
        SEGMENTS,
        reach,
        {},
        Turns(None, 1, 1),
        Threads(1),
    )
    policy = Policy(retries, 60.0, "", first_delay=0.001, longest_delay=0.01, longest_wait=0.01)
    loop.run.policy = policy
    loop.go()
    left = [attempt for attempt in loop.run.attempts.values() if attempt.state is not State.GIVEN_UP]
    assert all(plan.stages[attempt.unit.stage].failed for attempt in left)
    if not left:
        assert not +loop.needed.reading and not +loop.transfers.carried and not loop.copies.busy
    assert len(controller.stages) == len({stage.number for stage in controller.stages})
    return world, loop, controller


FAULTS = {"session dies": 0.1, "it had committed": 0.3, "trainer dies": 0.05, "session refuses": 0.02}
LINES = {"state is not carried": 0.1, "copy fails": 0.2, "server refuses": 0.1, "server does not answer": 0.05}


@pytest.mark.parametrize("seed", range(5))
def test_every_unit_counts_once_on_one_server(seed):
    world, loop, controller = run(seed, FAULTS)
    assert loop.done == UNITS == len(world.committed[None])
    assert len(controller.stages) == TRIALS * ITERATIONS and not loop.failed


@pytest.mark.parametrize("seed", range(5))
def test_every_unit_of_a_chain_counts_once_and_only_the_last_state_is_written(seed):
    world, loop, controller = run(seed, {**FAULTS, "configuration fails": 0.0}, chain_seconds=0.5)
    assert loop.done == UNITS == len(world.committed[None])
    assert len(controller.stages) == TRIALS * ITERATIONS and not loop.failed
    stages = loop.run.plan.stages.values()
    assert loop.versions == {stage.number: SEGMENTS * stage.iteration for stage in stages}
    trained = [[unit for unit in units if unit.kind == "train"] for units in world.together]
    assert any(len({unit.iteration for unit in units}) > 1 for units in trained), "a chain goes into the next iteration"
    assert loop.run.states.stages() == {stage.number for stage in stages if stage.iteration == ITERATIONS}
    assert not loop.run.board.training


def test_configurations_that_fail_in_chains_leave_the_others_alone():
    reasons = set()
    for seed in range(10):
        world, loop, controller = run(seed, {**FAULTS, "configuration fails": 0.05}, chain_seconds=0.5)
        assert loop.failed.keys() == set(world.given_up)
        trained = {key for stage in controller.stages if stage.iteration == ITERATIONS for key in stage.trials}
        assert trained == set(range(1, TRIALS + 1)) - loop.failed.keys()
        reasons |= {decision for *_, decision in world.noted}
    assert "retried alone: a unit of its chain failed: the configuration failed" in reasons
    assert "given up: the configuration failed" in reasons


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_unit_counts_once_on_several_servers(seed, replicas):
    world, loop, controller = run(seed, {**FAULTS, **LINES}, ("w1", "w2"), replicas)
    assert loop.done == UNITS and len(controller.stages) == TRIALS * ITERATIONS and not loop.failed
    registered = world.registered
    assert len(registered) == len(set(registered)) and not set(registered) & world.committed[None].keys()
    assert len(registered) + len(world.committed[None]) == UNITS


def chains_elsewhere(world):
    """The units of each chain that counts and was done on another server."""
    counted = set(world.registered)
    return [units for units in world.together if counted >= set(units) and len({unit.segment for unit in units}) > 1]


def test_units_of_a_chain_count_where_their_last_state_is_copied():
    """Copies fail, and sessions are lost after a commit; the state that was copied has the version of the chain's end."""
    chains = 0
    for seed in range(5):
        world, loop, _ = run(
            seed, {"copy fails": 0.3, "session dies": 0.05, "it had committed": 1.0}, ("w1",), 2, chain_seconds=0.5
        )
        assert loop.done == UNITS and not loop.failed
        assert loop.versions == {s.number: SEGMENTS * s.iteration for s in loop.run.plan.stages.values()}
        chains += len(chains_elsewhere(world))
    assert chains > 5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_unit_of_a_chain_counts_once_on_several_servers(seed, replicas):
    world, loop, controller = run(seed, {**FAULTS, **LINES}, ("w1",), replicas, chain_seconds=0.5)
    assert loop.done == UNITS and len(controller.stages) == TRIALS * ITERATIONS and not loop.failed
    registered = world.registered
    assert len(registered) == len(set(registered)) and not set(registered) & world.committed[None].keys()
    assert len(registered) + len(world.committed[None]) == UNITS
    elsewhere = chains_elsewhere(world)
    assert elsewhere or replicas > 1, "a chain on the other server (which may be done without early)"
    if replicas == 1:  # (else its segments may have gone to the other server meanwhile)
        assert all(loop.run.board.server_of["training", u.segment] == "w1" for units in elsewhere for u in units)
    stages = loop.run.plan.stages.values()
    assert loop.versions == {stage.number: SEGMENTS * stage.iteration for stage in stages}
    assert loop.run.states.stages() == {stage.number for stage in stages if stage.iteration == ITERATIONS}


@pytest.mark.parametrize("seed", range(5))
def test_configurations_that_fail_leave_the_others_alone(seed):
    world, loop, controller = run(seed, {**FAULTS, "configuration fails": 0.02})
    assert loop.failed.keys() == set(world.given_up)
    trained = {key for stage in controller.stages if stage.iteration == ITERATIONS for key in stage.trials}
    assert trained == set(range(1, TRIALS + 1)) - loop.failed.keys()
    reasons = {decision for *_, decision in world.noted}
    assert not loop.failed or "given up: the configuration failed" in reasons


@pytest.mark.parametrize("seed", range(5))
def test_units_are_given_up_while_servers_come_and_go(seed):
    world, loop, controller = run(seed, {**FAULTS, **LINES, "session dies": 0.5}, ("w1", "w2"), replicas=2, retries=1)
    assert loop.failed.keys() == set(world.given_up)
    trained = {key for stage in controller.stages if stage.iteration == ITERATIONS for key in stage.trials}
    assert trained == set(range(1, TRIALS + 1)) - loop.failed.keys()
    assert any("retried on another server" in decision for *_, decision in world.noted)


def test_without_retries_the_unit_is_given_up():
    world, loop, _ = run(1, {"trainer dies": 1}, retries=0)
    assert loop.failed.keys() == set(range(1, TRIALS + 1))
    assert all("given up after 1 attempt: the trainer ended" in message for message in loop.failed.values())
    assert {decision for *_, decision in world.noted} <= {
        "given up after 1 attempt: the trainer was lost",
        "retried alone in 0.001 s: in a unit batch, the trainer was lost",
    }
    assert recovery.EVENTS["MOP02"].cause == "the trainer was lost"

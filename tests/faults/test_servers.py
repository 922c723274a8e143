"""Segments on several servers, and faults on the way: killed, hanging, never coming back; and the coordinator's own."""

import os
import signal
import time

import pytest

from cluster import Cluster
from conftest import Calling, Client, add_server, eventually
from relay import Relay
from workload import ADAM, assert_invariants, dense, load, make_data, selection

CALL = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 3, FALSE, NULL, 1)"


class Servers:
    """A coordinator and two workers that hold a segment each; the coordinator has one, too. To the first worker it
    comes by a relay."""

    def __init__(self):
        self.coordinator, *self.workers = (Cluster(max_connections=40) for _ in range(3))
        self.db = Client(self.coordinator, "postgres")
        self.db.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; "
                    "CREATE EXTENSION postgres_fdw")
        self.relay = Relay(self.workers[0].port)
        for name, worker, port in zip(("w1", "w2"), self.workers, (self.relay.port, None)):
            add_server(self.db, name, worker, port).close()
        self.db.run("SET pg_mop.servers = 'w1, local, w2'; SET pg_mop.threads = 1")
        make_data(self.db, rows=101, segments=3, buffer_size=9)
        load(self.db, "arch", dense())
        selection(self.db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=4") for rate in (0.01, 0.02)])

    def begin(self, settings=""):
        """Let a session train until something is done on the first worker: (what it is in, the run's number)."""
        self.db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
        other = Client(self.coordinator, "postgres")
        other.run(f"SET pg_mop.kernel = plain; SET pg_mop.seed = 5; {settings}")
        call = Calling(other, CALL)
        find = "SELECT max(run_id) FROM madlib.mop_run WHERE status = 'running'"
        done = ("SELECT count(*) FROM madlib.mop_unit JOIN madlib.mop_segment USING (run_id, dataset, segment) "
                "WHERE run_id = %s AND server = 'w1' AND mop_unit.status = 'finished'")
        assert eventually(lambda: self.db.value(find) and self.db.value(done, [self.db.value(find)]) > 1, 120)
        return call, self.db.value(find)

    def check(self, run_id, replay=False):
        """The run is whole: every unit once, and nothing of it is left on the workers. `replay`: the weights are those
        of an undisturbed run in the same order."""
        assert_invariants(self.db, run_id)
        assert self.db.value("SELECT count(*) FROM models") == 2
        if replay:
            self.db.run("DROP TABLE IF EXISTS again, again_info, again_summary; SELECT madlib.mop_replay(%s, 'again')",
                        [run_id])
            assert self.db.value("SELECT array_agg(a.model_weights = m.model_weights) FROM models m JOIN again a "
                                 "USING (mst_key)") == [True, True]
        for worker in self.workers:
            client = Client(worker, "postgres")
            assert client.value("SELECT count(*) FROM mop.mop_run") == 0
            client.close()

    def kill_and_start(self, call, run_id):
        """The first worker is killed and comes back: the run goes on, and nothing is lost."""
        self.workers[0].kill()
        time.sleep(1)
        self.workers[0].start()
        assert call.end() is None
        self.check(run_id, replay=True)

    def stop(self):
        self.relay.close()
        for cluster in (self.coordinator, *self.workers):
            cluster.stop()


@pytest.fixture(scope="module")
def servers():
    made = Servers()
    yield made
    made.stop()


def test_a_server_that_is_killed_comes_back_and_nothing_is_lost(servers):
    call, run_id = servers.begin()
    servers.kill_and_start(call, run_id)


def test_a_server_that_hangs_is_waited_for(servers):
    call, run_id = servers.begin()
    worker = servers.workers[0]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in (worker.process.pid, *worker.processes()):
            os.kill(pid, number)
        time.sleep(3)
    assert call.end() is None
    servers.check(run_id)


def test_a_server_that_stays_away_ends_the_run_which_is_resumed(servers):
    call, run_id = servers.begin("SET pg_mop.server_timeout = '2s'")
    servers.workers[0].kill()
    error = call.end(60)
    assert "w1" in str(error) and f"mop_resume({run_id})" in error.diag.message_hint
    error = servers.db.error("SELECT madlib.mop_resume(%s)", [run_id])
    assert "cannot open a session on server" in str(error)
    servers.workers[0].start()
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id)


def test_a_hanging_server_ends_the_run_after_a_while_and_a_cancel_is_heard(servers):
    worker = servers.workers[0]
    call, run_id = servers.begin("SET pg_mop.server_timeout = '6s'")
    for pid in (worker.process.pid, *worker.processes()):
        os.kill(pid, signal.SIGSTOP)
    try:
        error = call.end(60)
        assert "has not answered for" in str(error) or "w1" in str(error)
    finally:
        for pid in (worker.process.pid, *worker.processes()):
            os.kill(pid, signal.SIGCONT)
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id)


def test_a_line_that_is_cut_costs_what_was_under_way(servers):
    call, run_id = servers.begin()
    for _ in range(5):
        servers.relay.cut()
        time.sleep(0.5)
    assert call.end() is None
    servers.check(run_id, replay=True)


def test_a_line_on_which_all_comes_late_only_costs_time(servers):
    servers.relay.delay = 0.02
    try:
        call, run_id = servers.begin()
        assert call.end() is None
    finally:
        servers.relay.delay = 0.0
    servers.check(run_id)


@pytest.mark.parametrize("seconds", [1, 12])
def test_a_line_that_is_down_for_a_while_is_waited_for(servers, seconds):
    call, run_id = servers.begin()
    servers.relay.holds.set()
    time.sleep(seconds)
    servers.relay.holds.clear()
    assert call.end() is None
    servers.check(run_id)


@pytest.mark.parametrize("seconds", [0.3, 7])
def test_a_cancel_is_heard_while_the_line_is_down(servers, seconds):
    call, run_id = servers.begin()
    pid = servers.db.value("SELECT coordinator_pid FROM madlib.mop_run WHERE run_id = %s", [run_id])
    servers.relay.holds.set()
    try:
        time.sleep(seconds)
        servers.db.run("SELECT pg_cancel_backend(%s)", [pid])
        assert call.end(3).pgcode == "57014"
    finally:
        servers.relay.holds.clear()
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id)


def test_a_line_that_stays_down_ends_the_run_with_an_error_that_names_the_server(servers):
    call, run_id = servers.begin("SET pg_mop.server_timeout = '4s'")
    servers.relay.holds.set()
    try:
        error = call.end(60)
        assert "w1" in str(error) and f"mop_resume({run_id})" in error.diag.message_hint
    finally:
        servers.relay.holds.clear()
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id, replay=True)


@pytest.mark.parametrize("moment", range(2))
def test_the_coordinator_is_killed_and_what_others_have_committed_counts_once(servers, moment):
    call, run_id = servers.begin()
    time.sleep(0.07 * moment)
    servers.coordinator.kill()
    assert call.end() is not None
    servers.coordinator.start()
    servers.db = Client(servers.coordinator, "postgres")
    servers.db.run("SET pg_mop.threads = 1; SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id, replay=moment == 0)


def fetches(servers):
    """True while a session on a worker fetches states from the other one."""
    for worker in servers.workers:
        client = Client(worker, "postgres")
        try:
            if client.value("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_mop run % relay'"):
                return True
        finally:
            client.close()
    return False


def test_states_go_straight_where_servers_know_one_another(servers):
    call, run_id = servers.begin()
    assert not fetches(servers)
    assert call.end() is None
    servers.check(run_id)
    rows = servers.db.run("SELECT on_server, server, role, missing FROM madlib.mop_connect_servers('w1, w2')")
    assert [tuple(row.values()) for row in rows] == [("w1", "w2", "postgres", None), ("w2", "w1", "postgres", None)]
    call, run_id = servers.begin()
    assert eventually(lambda: fetches(servers), 60)
    servers.kill_and_start(call, run_id)


def test_a_line_between_servers_that_is_down_is_gone_around(servers):
    worker = Client(servers.workers[1], "postgres")
    between = Relay(servers.workers[0].port)
    worker.run(f"ALTER SERVER w1 OPTIONS (SET port '{between.port}')")
    between.holds.set()
    try:
        call, run_id = servers.begin()
        assert call.end() is None
    finally:
        between.close()
    servers.check(run_id, replay=True)
    assert "server w2 cannot fetch states" in servers.coordinator.said()
    worker.close()


def test_a_server_that_is_another_one_of_that_name_does_no_harm(servers):
    worker = Client(servers.workers[1], "postgres")
    worker.run(f"ALTER SERVER w1 OPTIONS (SET port '{servers.workers[1].port}')")
    call, run_id = servers.begin()
    assert call.end() is None
    servers.check(run_id, replay=True)
    assert "server w2 cannot fetch states" in servers.coordinator.said()
    worker.close()

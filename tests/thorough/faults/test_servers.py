"""Segments on several servers, and faults on the way: killed, hanging, never coming back; and the coordinator's own."""

import time
from collections import Counter

import pytest

from support.client import Client
from support.cluster import eventually
from support.relay import Relay
from support.servers import Servers
from support.tries import tries


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
    for act in (servers.hang, servers.go_on):
        act()
        time.sleep(3)
    assert call.end() is None
    servers.check(run_id)


def test_a_server_that_stays_away_ends_the_run_which_is_resumed(servers):
    with servers.running("SET pg_mop.server_timeout = '6s'") as (call, run_id, let_some_begin):
        servers.kill_at_work(run_id, let_some_begin)
        error = call.end()
    assert "w1" in str(error) and f"mop_resume({run_id})" in error.diag.message_hint
    error = servers.db.error("SELECT madlib.mop_resume(%s)", [run_id])
    assert "cannot open a session on server" in str(error)
    servers.workers[0].start()
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id)


def test_a_hanging_server_ends_the_run_after_a_while_and_a_cancel_is_heard(servers):
    with servers.running("SET pg_mop.server_timeout = '6s'") as (call, run_id, _), servers.hanging():
        error = call.end()
        assert "has not answered for" in str(error) or "w1" in str(error)
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
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
    for once in tries():  # (the machine may stand still while it is heard)
        with servers.running() as (call, run_id, _):
            pid = servers.db.value("SELECT coordinator_pid FROM madlib.mop_run WHERE run_id = %s", [run_id])
            servers.relay.holds.set()
            try:
                time.sleep(seconds)
                began = time.monotonic()
                servers.db.run("SELECT pg_cancel_backend(%s)", [pid])
                assert call.end().pgcode == "57014"
                took = time.monotonic() - began
            finally:
                servers.relay.holds.clear()
        servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
        servers.check(run_id)
        once.counts = took < 3


def test_a_line_that_stays_down_ends_the_run_with_an_error_that_names_the_server(servers):
    with servers.running("SET pg_mop.server_timeout = '6s'") as (call, run_id, _):
        servers.relay.holds.set()
        try:
            error = call.end()
            assert "w1" in str(error) and f"mop_resume({run_id})" in error.diag.message_hint
        finally:
            servers.relay.holds.clear()
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id, replay=True)


@pytest.mark.parametrize("moment", range(2))
def test_the_coordinator_is_killed_and_what_others_have_committed_counts_once(servers, moment):
    with servers.running() as (call, run_id, _):
        time.sleep(0.07 * moment)
        servers.coordinator.kill()
        assert call.end() is not None
    servers.revive()
    servers.db.run("SET pg_mop.threads = 1; SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id, replay=moment == 0)


def test_what_the_coordinator_lost_of_begun_units_when_it_was_killed_does_not_matter(servers):
    """It does not wait for the disk there; a server on which they have begun knows of them."""
    with servers.running() as (call, run_id, _):
        servers.db.run("SELECT pg_cancel_backend(%s)", [call.client.connection.info.backend_pid])
        assert call.end().pgcode == "57014"
    worker = Client(servers.workers[0], "postgres")
    begun = worker.run(
        "INSERT INTO mop.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, queued_at) "
        "SELECT run_id, stage, iteration, 0, 'train', 'training', 1, 'cancelled', now() FROM mop.mop_stage s WHERE "
        "NOT EXISTS (SELECT 1 FROM mop.mop_unit u WHERE (u.run_id, u.stage, u.segment, u.kind) = "
        "(s.run_id, s.stage, 0, 'train')) RETURNING stage"
    )
    worker.close()
    assert begun
    servers.db.run("SELECT madlib.mop_resume(%s)", [run_id])
    servers.check(run_id, replay=True)


@pytest.fixture(scope="module")
def crowded():
    """Servers with two segments each, so that their units form chains."""
    made = Servers(segments=6)
    yield made
    made.stop()


def chained(servers, run_id):
    """The servers on which a configuration was trained on two segments in one transaction."""
    rows = servers.db.run(
        "SELECT DISTINCT coalesce(s.server, '') AS server FROM madlib.mop_unit u JOIN madlib.mop_segment s USING (run_id, "
        "dataset, segment) WHERE u.run_id = %s AND u.kind = 'train' AND u.status = 'finished' GROUP BY s.server, u.stage, "
        "u.xmin::text HAVING count(DISTINCT u.segment) > 1",
        [run_id],
    )
    return {row["server"] for row in rows}


@pytest.mark.parametrize(
    "fault", ["none", "a line that is cut", "a server that is killed", "a coordinator that is killed"]
)
def test_chains_on_other_servers_count_once_and_have_the_weights_of_single_units(crowded, fault):
    chains = "SET pg_mop.chain_seconds = 30"
    if fault == "a coordinator that is killed":
        with crowded.running(chains) as (call, run_id, _):
            crowded.coordinator.kill()
            assert call.end() is not None
    else:
        call, run_id = crowded.begin(chains)
    if fault == "a server that is killed":
        crowded.kill_and_start(call, run_id)
    elif fault == "a coordinator that is killed":
        crowded.revive()
        crowded.db.run("SET pg_mop.threads = 1; SELECT madlib.mop_resume(%s)", [run_id])
    else:
        if fault != "none":
            crowded.cut(5, 0.3)
        assert call.end() is None
    if fault == "none":
        assert chained(crowded, run_id) == {"", "w1", "w2"}
    crowded.db.run("SET pg_mop.threads = 1; SET pg_mop.chain_seconds = 0")
    crowded.check(run_id, replay=True)  # each unit by itself
    again = crowded.db.value("SELECT max(run_id) FROM madlib.mop_run")
    assert again > run_id and not chained(crowded, again)


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


def ways(servers, run_id):
    """{(between w1 and w2, way): hops} of a run; each has the bytes of a state."""
    rows = servers.db.run("SELECT source, target, way, bytes, seconds FROM madlib.mop_hops WHERE run_id = %s", [run_id])
    assert all(row["source"] != row["target"] and row["bytes"] > 0 and row["seconds"] > 0 for row in rows)
    return Counter((None not in (row["source"], row["target"]), row["way"]) for row in rows)


def test_states_go_straight_where_servers_know_one_another(servers):
    sent = "SELECT coalesce(sum(sent_bytes_total), 0)::bigint FROM madlib.mop_monitoring"
    before = servers.db.value(sent)
    call, run_id = servers.begin()
    assert not fetches(servers)
    assert call.end() is None
    servers.check(run_id)
    hops = servers.db.value("SELECT sum(bytes)::bigint FROM madlib.mop_hops WHERE run_id = %s", [run_id])
    assert servers.db.value(sent) - before >= hops > 0
    found = ways(servers, run_id)
    assert found[True, "coordinator"] > 0 and not found[True, "direct"] and not found[False, "coordinator"]
    text = servers.db.value("SELECT madlib.mop_explain_run(%s)", [run_id])
    assert f"States between servers: {found.total()} hops, " in text
    assert f"; {found[True, 'coordinator']} of them through the coordinator's server" in text
    assert "Processors: " in text
    rows = servers.db.run("SELECT on_server, server, role, missing FROM madlib.mop_connect_servers('w1, w2')")
    assert [tuple(row.values()) for row in rows] == [("w1", "w2", "postgres", None), ("w2", "w1", "postgres", None)]
    with servers.running() as (call, run_id, let_some_begin):
        assert eventually(
            lambda: fetches(servers) and ways(servers, run_id)[True, "direct"] > 0 or let_some_begin(), 120
        )
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


def test_what_a_server_keeps_of_a_run_that_is_done_goes_with_the_next_call_there(servers):
    """The run ends well while a server does not drop its part of it."""
    worker = Client(servers.workers[0], "postgres")
    with servers.running() as (call, run_id, _):
        worker.run("ALTER FUNCTION mop.mop_drop(bigint, boolean, text) RENAME TO mop_drop_away")
    try:
        assert call.end() is None
    finally:
        worker.run("ALTER FUNCTION mop.mop_drop_away(bigint, boolean, text) RENAME TO mop_drop")
    assert "is left behind" in " ".join(call.client.connection.notices)
    assert worker.value("SELECT count(*) FROM mop.mop_run") == 1
    servers.check(run_id, replay=True)
    worker.close()

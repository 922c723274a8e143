"""Threads by what is left to do, on several servers: the configuration that is left has all cores of each server."""

import os

import pytest

from support.client import Client
from support.servers import Servers
from support.workload import ADAM, assert_invariants, dense, last_run, load, make_data, selection

CORES = len(os.sched_getaffinity(0))
FEW = max(1, CORES // 2)  # threads of a trainer, of two sessions of a server
BIG, TIMES = 2, 8
DEALS = "SET pg_mop.reuse = off; SET pg_mop.chain_seconds = 0.2; SET pg_mop.deal_threads = on"

pytestmark = pytest.mark.skipif(CORES < 2, reason="not run: there is one processor core")


@pytest.fixture(scope="module")
def servers():
    made = Servers("RESET pg_mop.threads", segments=6)
    db = made.db
    make_data(db, rows=4200, segments=6, then=DEALS)
    load(db, "arch_sizes", dense(8), dense(900, name="large"))
    selection(
        db,
        "sizes",
        "arch_sizes",
        [(1, ADAM.format(0.01), "batch_size=50"), (BIG, ADAM.format(0.01), "batch_size=5, epochs=8")],
    )
    yield made
    made.stop()


def fit(db, iterations=TIMES):
    db.run("DROP TABLE IF EXISTS m, m_info, m_summary, again, again_info, again_summary")
    db.run(f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'm', 'sizes', {iterations}, FALSE)")
    return last_run(db)


@pytest.fixture
def history(servers):
    """A history by which nets are far faster with all cores, and ready at once there."""
    db = servers.db
    db.run(f"{DEALS}; SET pg_mop.deal_threads = off")
    fit(db, 2)
    db.run(DEALS)
    few, all_cores = f", {FEW} threads", f", {CORES} threads"
    db.run("DELETE FROM madlib.mop_cost WHERE device LIKE '%%' || %s", [all_cores])
    db.run(
        "INSERT INTO madlib.mop_cost (owner, net, part, version, device, kernel, architecture, optimizer, loss, batch_size, "
        "shape, batch_seconds, compile_seconds, place) SELECT owner, net, part, version, replace(device, %s, %s), kernel, "
        "architecture, optimizer, loss, batch_size, shape, ARRAY(SELECT b / 10 FROM unnest(batch_seconds) b, "
        "generate_series(1, 9)), ARRAY[0.001], place FROM madlib.mop_cost WHERE device LIKE '%%' || %s",
        [few, all_cores, few],
    )


def threads(db, run_id, key):
    """{server: threads of a configuration's units}."""
    rows = db.run(
        "SELECT DISTINCT coalesce(server, 'local') AS server, threads FROM madlib.mop_units WHERE run_id = %s AND mst_key = %s "
        "AND status = 'finished' AND kind = 'train'",
        [run_id, key],
    )
    found = {}
    for row in rows:
        found.setdefault(row["server"], set()).add(row["threads"])
    return found


def test_the_configuration_that_is_left_has_all_cores_of_each_server_and_a_replay_the_same_bytes(servers, history):
    db = servers.db
    run_id = fit(db)
    assert_invariants(db, run_id)
    assert threads(db, run_id, 1) == {server: {FEW} for server in ("local", "w1", "w2")}
    large = threads(db, run_id, BIG)
    assert all(CORES in found for found in large.values()) and large.keys() == {"local", "w1", "w2"}, large
    ended = db.value(
        "SELECT max(finished_at) FROM madlib.mop_units WHERE run_id = %s AND mst_key = 1 AND kind = 'train'", [run_id]
    )
    assert not db.value(
        "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND threads > %s AND started_at < %s",
        [run_id, FEW, ended],
    ), "there was work for both sessions of a server"
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    units = (
        "SELECT mst_key, iteration, segment, threads FROM madlib.mop_units WHERE run_id = %s AND status = 'finished' "
        "AND kind = 'train' ORDER BY 1, 2, 3"
    )
    assert db.run(units, [last_run(db)]) == db.run(units, [run_id])
    assert (
        db.value("SELECT count(*) FROM m JOIN again USING (mst_key) WHERE m.model_weights = again.model_weights") == 2
    )


@pytest.mark.parametrize("limited", ["local", "w1"])
def test_the_threads_of_a_server_are_limited_by_its_own_limit(servers, history, limited):
    """A limit on the coordinator's server alone leaves the other servers all cores; one on another server counts there."""
    db = servers.db
    there = Client(servers.workers[0], "postgres") if limited == "w1" else db
    schema = "mop" if limited == "w1" else "madlib"
    there.run(f"INSERT INTO {schema}.mop_limit (role, threads) VALUES (NULL, %s)", [FEW])
    try:
        run_id = fit(db)
    finally:
        there.run(f"DELETE FROM {schema}.mop_limit")
        if there is not db:
            there.close()
    large = threads(db, run_id, BIG)
    assert large[limited] == {FEW}, large
    assert all(CORES in found for server, found in large.items() if server != limited), large

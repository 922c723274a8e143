"""With pg_mop.replicas = 3 a run goes on without two of three servers."""

import pytest

from support.client import Client
from support.servers import CALL, Servers
from support.workload import ADAM, assert_invariants, last_run, selection

REPLICAS = "SET pg_mop.replicas = 3"
DROP = "DROP TABLE IF EXISTS models, models_info, models_summary"


@pytest.fixture(scope="module")
def servers():
    made = Servers(REPLICAS, segments=6)
    yield made
    made.stop()


def revive(servers):
    for worker in servers.workers:
        if worker.process is None or worker.process.poll() is not None:
            worker.start()


def test_each_segment_has_copies_on_the_two_other_servers(servers):
    db = servers.db
    at = {
        row["key"]: row["server"]
        for row in db.run(
            "SELECT substring(relname FROM '\\d+$')::int AS key, srvname AS server FROM pg_class c LEFT JOIN "
            "(pg_foreign_table f JOIN pg_foreign_server s ON s.oid = f.ftserver) ON f.ftrelid = c.oid "
            "WHERE relname LIKE 'flowers_packed_segment_%%' AND relkind IN ('r', 'f')"
        )
    }
    copies = {}
    for key, server, _, table in db.value("SELECT __internal_copies__::json FROM flowers_packed_summary"):
        copies.setdefault(key, {})[server] = table
    digest = "SELECT md5(string_agg(t::text, ';' ORDER BY buffer_id)) FROM public.{} t"
    clients = {None: db, "w1": Client(servers.workers[0], "postgres"), "w2": Client(servers.workers[1], "postgres")}
    for key, server in at.items():
        assert copies.get(key, {}).keys() == ({"w1", "w2", None} - {server} if server else set())
        own = clients[server].value(digest.format(f"flowers_packed_segment_{key}"))
        assert all(clients[place].value(digest.format(table)) == own for place, table in copies.get(key, {}).items())
    assert len(at) == 6 and len(copies) == 4


def test_two_of_three_servers_are_killed_at_once(servers):
    call, run_id = servers.begin()
    for worker in servers.workers:
        worker.kill()
    try:
        assert call.end() is None
    finally:
        revive(servers)
    servers.check(run_id, replay=True)


def test_a_run_begins_and_is_resumed_without_both(servers):
    db = servers.db
    db.run(
        f"{DROP}; {REPLICAS}; SET pg_mop.kernel = plain; SET pg_mop.seed = 5; SET pg_mop.reuse = off; {CALL}"
    )  # compares
    db.run(DROP)
    for worker in servers.workers:
        worker.kill()
    try:
        db.connection.notices.clear()
        db.run(CALL)
        run_id = last_run(db)
        notices = " ".join(db.connection.notices)
        assert all(f"run {run_id} goes on without server {name}, on copies" in notices for name in ("w1", "w2"))
    finally:
        revive(servers)
    servers.check(run_id, replay=True)
    with servers.running("SET pg_mop.reuse = off") as (call, run_id, _):
        db.run("SELECT pg_cancel_backend(%s)", [call.client.connection.info.backend_pid])
        assert "canceling statement" in str(call.end())
    for worker in servers.workers:
        worker.kill()
    try:
        db.run("SELECT madlib.mop_resume(%s)", [run_id])
    finally:
        revive(servers)
    assert_invariants(db, run_id)
    db.run(f"{DROP}; {CALL}")
    servers.check(last_run(db))  # (what the run has left on the servers is gone, too)


SHORT = "'short', {iterations}, FALSE, NULL, 12)"  # (evaluated seldom, so that chains are long and notices few)
CHAINED_ON_WORKERS = (
    "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' AND "
    "status = 'finished' AND server IS NOT NULL GROUP BY xmin::text, stage) AS transactions"
)


def short_call(servers, iterations):
    """A call with units so short that they form chains; its tables are new."""
    rows = [(1, ADAM.format(round(0.004 * n, 3)), "batch_size=10") for n in range(1, 4)]
    selection(servers.db, "short", "arch", rows)
    servers.db.run(DROP)
    return CALL.replace("'mst', 3, FALSE, NULL, 1)", SHORT.format(iterations=iterations))


def equals_its_replay_without_chains(servers, run_id):
    servers.db.run("DROP TABLE IF EXISTS again, again_info, again_summary")
    servers.db.run(
        f"SET pg_mop.chain_seconds = 0; SELECT madlib.mop_replay({run_id}, 'again'); RESET pg_mop.chain_seconds"
    )
    same = "SELECT array_agg(a.model_weights = m.model_weights) FROM models m JOIN again a USING (mst_key)"
    assert servers.db.value(same) == [True] * 3


def test_units_of_a_chain_count_together_once_the_last_state_is_copied(servers):
    sql = short_call(servers, 12)
    client = Client(servers.coordinator, "postgres")
    client.run(f"SET pg_mop.kernel = plain; SET pg_mop.seed = 5; {REPLICAS}; {sql}")
    run_id = last_run(servers.db)
    assert_invariants(servers.db, run_id)
    assert servers.db.value(CHAINED_ON_WORKERS, [run_id]) > 1
    assert (
        servers.db.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND kind = 'train'", [run_id])
        == 3 * 12 * 6
    )
    equals_its_replay_without_chains(servers, run_id)


def test_a_table_with_fewer_copies_is_trained_and_the_run_says_so(servers):
    db = servers.db
    db.run(
        "SET pg_mop.replicas = 2; SET pg_mop.servers = 'w1, local, w2'; SELECT madlib.training_preprocessor_dl('flowers', "
        f"'two_packed', 'y', 'x', 9); {REPLICAS}; {DROP}"
    )
    db.connection.notices.clear()
    db.run(CALL.replace("flowers_packed", "two_packed"))
    notices = " ".join(db.connection.notices)
    assert 'but 4 of the segments of "two_packed" have fewer than 2 copies' in notices
    db.run("SELECT madlib.mop_drop_packed('two_packed')")

"""Citus: what is packed is distributed as its source is; what is refused, with what mends it; nodes that go."""

import time

import pytest

from support.citus_nodes import Nodes
from support.client import Calling, Client
from support.cluster import eventually
from support.workload import ADAM, alike, assert_invariants, dense, fit, load, make_data, runs_made, selection

PACK = "SELECT madlib.training_preprocessor_dl('{}', 'packed', 'y', 'x', 9)"
DROP = "DROP TABLE IF EXISTS packed, packed_summary"
DISTRIBUTE = "SELECT create_distributed_table('flowers', 'id', shard_count => 4)"


@pytest.fixture(scope="module")
def nodes():
    made = Nodes(2, "SET pg_mop.threads = 1; SET pg_mop.kernel = plain")
    make_data(made.db, rows=101, segments=3, buffer_size=9, then=DISTRIBUTE)
    load(made.db, "arch", dense())
    selection(made.db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02)])
    fit(made.db, "flowers_packed", "models", "mst", iterations=1)
    yield made
    made.stop()


@pytest.fixture
def db(nodes):
    nodes.db.run(f"RESET pg_mop.servers; RESET pg_mop.replicas; SET pg_mop.segments = 3; {DROP}")
    return nodes.db


def rows_of(db, table, order="buffer_id"):
    return [tuple(row.values()) for row in db.run(f"SELECT * FROM {table} ORDER BY {order}")]


def classes(db, summary):
    return db.value(f"SELECT y_class_values FROM {summary}")


def examples(db, table):
    """[(inputs, label), ...] of a packed table, in order."""
    found = []
    for row in db.run(
        f"SELECT madlib.convert_bytea_to_real_array(x) AS x, y_shape, "
        f"madlib.convert_bytea_to_smallint_array(y) AS y FROM {table} ORDER BY buffer_id"
    ):
        for i in range(row["y_shape"][0]):
            found.append((tuple(row["x"][4 * i : 4 * i + 4]), row["y"][3 * i : 3 * i + 3].index(1)))
    return found


def test_a_distributed_source_is_packed_into_shards_one_for_each_segment(db):
    db.run(PACK.format("flowers"))
    shards = db.run(
        "SELECT nodeport, count(*) AS shards FROM citus_shards WHERE table_name = 'packed'::regclass GROUP BY 1"
    )
    assert sorted(row["shards"] for row in shards) == [1, 2]
    used = db.run(
        "SELECT get_shard_id_for_distribution_column('packed', __dist_key__) AS shard, __dist_key__ AS key "
        "FROM packed GROUP BY 1, 2"
    )
    assert len(used) == len({row["shard"] for row in used}) == 3
    for row in used:  # the smallest key that is in the shard
        assert (
            db.value(
                "SELECT min(k) FROM generate_series(0, 100) k WHERE get_shard_id_for_distribution_column("
                "'packed', k) = %s",
                [row["shard"]],
            )
            == row["key"]
        )
    assert classes(db, "packed_summary") == ["a", "b", "c"]
    assert sorted(examples(db, "packed")) == sorted(
        (tuple(row["x"]), "abc".index(row["y"])) for row in db.run("SELECT x, y FROM flowers")
    )
    assert db.value("SELECT attstorage FROM pg_attribute WHERE attrelid = 'packed'::regclass AND attname = 'x'") == "e"
    assert db.value("SHOW citus.shard_replication_factor") == "1"


def test_a_view_of_a_distributed_table_is_packed_so_too_and_a_reference_table_is_not(db):
    db.run(
        "CREATE VIEW seen AS SELECT id, x, y FROM flowers WHERE id > 1; CREATE TABLE everywhere AS TABLE flowers; "
        "SELECT create_reference_table('everywhere')"
    )
    db.run(PACK.format("seen"))
    assert db.value("SELECT count(*) FROM citus_shards WHERE table_name = 'packed'::regclass") == 3
    assert db.value("SELECT sum(y_shape[1]) FROM packed") == 100
    db.run(f"{DROP}; {PACK.format('everywhere')}")
    assert db.value("SELECT relkind FROM pg_class WHERE oid = 'packed'::regclass") == "p"
    assert len(examples(db, "packed")) == 101
    db.run(f"{DROP}; DROP VIEW seen; DROP TABLE everywhere")


def test_as_many_segments_as_the_nodes_have_cores(db):
    cores = db.value("SELECT (madlib.mop_server_info()->>'cores')::int")
    db.run(f"RESET pg_mop.segments; {PACK.format('flowers')}")
    assert db.value("SELECT count(*) FROM citus_shards WHERE table_name = 'packed'::regclass") == 2 * cores


SHARDS_ON_THE_FIRST = (
    "SELECT citus_set_node_property('127.0.0.1', nodeport, 'shouldhaveshards', {}) FROM pg_dist_node WHERE groupid = 1"
)


@pytest.mark.parametrize(
    "sql,text,hint",
    [
        ("SET pg_mop.servers = 'w1, w2'", "pg_mop.servers is set, but rows of", "RESET pg_mop.servers"),
        (
            "SET pg_mop.replicas = 2; " + SHARDS_ON_THE_FIRST.format("false"),
            "pg_mop.replicas is 2, but Citus has 1 node for shards",
            "citus_add_node",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(db, sql, text, hint):
    db.run(sql)
    error = db.error(PACK.format("flowers"))
    assert text in str(error) and hint in error.diag.message_hint and db.value("SELECT to_regclass('packed')") is None
    db.run(SHARDS_ON_THE_FIRST.format("true"))


def test_without_a_foreign_server_the_hint_makes_it(nodes, db):
    port = nodes.workers[1].port
    db.run("ALTER SERVER w2 OPTIONS (DROP dbname)")
    for call in (
        PACK.format("flowers"),
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 1, FALSE)",
    ):
        error = db.error(call)
        assert f"no foreign server leads to node 127.0.0.1:{port} of Citus" in str(error)
        assert "takes where one is missing does not count" in error.diag.message_detail
    commands = error.diag.message_hint
    assert f'CREATE SERVER "127.0.0.1:{port}"' in commands and 'CREATE USER MAPPING FOR "postgres"' in commands
    db.run(commands)
    assert_invariants(db, fit(db, "flowers_packed", "models", "mst", iterations=1))
    db.run(f"DROP SERVER \"127.0.0.1:{port}\" CASCADE; ALTER SERVER w2 OPTIONS (ADD dbname 'postgres')")


def test_a_table_that_is_distributed_otherwise_is_refused_and_the_hint_mends_it(db):
    db.run(PACK.format("flowers"))
    db.run(
        "ALTER TABLE packed DROP CONSTRAINT packed_pkey; SELECT undistribute_table('packed'); "
        "SELECT create_distributed_table('packed', 'buffer_id')"
    )
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'never', 'mst', 1, FALSE)")
    assert 'is distributed by Citus, but not by hash of "__dist_key__"' in str(error)
    db.run(error.diag.message_hint)
    assert_invariants(db, fit(db, "packed", "others", "mst", iterations=1))


def test_a_transaction_on_the_nodes_is_refused(db):
    db.run("BEGIN; SELECT count(*) FROM flowers")
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 1, FALSE)")
    assert "this transaction has used tables that Citus distributes" in str(error)
    assert error.diag.message_hint == "COMMIT; and call again."


def scores(db, table):
    db.run("DROP TABLE IF EXISTS out")
    _, by_run = runs_made(
        db, lambda: db.run(f"SELECT madlib.madlib_keras_evaluate('models', '{table}', 'out', FALSE, 1)")
    )
    return db.value("SELECT loss FROM out"), by_run


def predictions(db, table):
    db.run("DROP TABLE IF EXISTS out")
    _, by_run = runs_made(
        db,
        lambda: db.run(f"SELECT madlib.madlib_keras_predict('models', '{table}', 'id', 'x', 'out', 'prob', FALSE, 1)"),
    )
    return rows_of(db, "out", "id, rank"), by_run


def test_what_others_do_not_see_the_session_evaluates_and_predicts_alone(db):
    db.run("CREATE TABLE here AS TABLE flowers")
    loss, by_run = scores(db, "flowers_packed")
    predicted, by_runs = predictions(db, "flowers")
    assert by_run and by_runs and predictions(db, "here") == (alike(predicted), 0)
    db.run("BEGIN; INSERT INTO flowers SELECT 1000, x, y FROM here WHERE id = 1")
    more, by_run = predictions(db, "flowers")
    assert not by_run and more[: len(predicted)] == alike(predicted) and len(more) == len(predicted) + 3
    db.run("ROLLBACK; BEGIN; DELETE FROM flowers_packed WHERE buffer_id = 0")
    less, by_run = scores(db, "flowers_packed")
    assert not by_run and less != pytest.approx(loss, rel=1e-6)
    db.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ")
    again, by_run = scores(db, "flowers_packed")
    assert not by_run and again == pytest.approx(loss, rel=1e-6)
    db.run("ROLLBACK; DROP TABLE here")


def test_nodes_that_know_one_another_send_states_straight(nodes, db):
    made = db.run("SELECT * FROM madlib.mop_connect_servers('w1, w2')")
    assert [(row["role"], row["missing"]) for row in made] == [("postgres", None)] * 2
    for worker in nodes.workers:
        client = Client(worker, "postgres")
        assert client.value("SELECT count(*) FROM pg_user_mappings WHERE usename = 'postgres'") == 1
        client.close()
    assert_invariants(db, fit(db, "flowers_packed", "models", "mst", iterations=1))


def test_nobody_writes_to_shards_meanwhile(nodes, db):
    selection(db, "slow", "arch", [(1, ADAM.format(0.01), "batch_size=1, epochs=10")] * 2)
    other = db.another()
    call = Calling(other, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'slowly', 'slow', 2, FALSE)")
    units = (
        "SELECT count(*) FROM madlib.mop_units JOIN madlib.mop_runs r USING (run_id) WHERE r.status = 'running' "
        "AND mop_units.status = 'finished'"
    )
    assert eventually(lambda: db.value(units) > 0, 60)
    error = db.error("SET statement_timeout = '1s'; UPDATE flowers_packed SET buffer_id = buffer_id")
    assert error.pgcode == "57014" and db.value("SHOW statement_timeout") == "0"
    assert call.end() is None
    other.close()


def test_a_cancel_while_rows_are_packed_is_heard(db):
    db.run(
        "CREATE TABLE many (id integer, x real[], y integer); SELECT create_distributed_table('many', 'id'); "
        "INSERT INTO many SELECT i, array_fill(i, ARRAY[200]), i % 3 FROM generate_series(1, 20000) AS i"
    )
    other = db.another()
    other.run("SET pg_mop.segments = 3")
    for wait in (1.0, 1.5, 2.0):
        call = Calling(other, "SELECT madlib.training_preprocessor_dl('many', 'packed', 'y', 'x', 3)")
        time.sleep(wait)
        db.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
        assert call.end().pgcode == "57014"
        assert db.value("SELECT to_regclass('packed')") is None
    other.run(PACK.format("flowers"))
    other.close()
    db.run("DROP TABLE many")


def test_a_role_packs_trains_and_drops_what_is_its_own(nodes, db):
    db.run(
        "CREATE ROLE ann LOGIN; GRANT mop_user TO ann; CREATE SCHEMA data AUTHORIZATION ann; "
        "GRANT SELECT ON flowers, mst, mst_summary, arch TO ann"
    )
    for number in (1, 2):
        db.run(
            f"GRANT USAGE ON FOREIGN SERVER w{number} TO ann; CREATE USER MAPPING FOR ann SERVER w{number} OPTIONS "
            f"(user 'ann', password_required 'false')"
        )
    ann = db.another("ann")
    ann.run("SET search_path = data, public; SET pg_mop.segments = 3; SET pg_mop.threads = 1")
    ann.run(PACK.format("flowers"))
    assert_invariants(ann, fit(ann, "packed", "mine", "mst", iterations=1))
    ann.run("SELECT madlib.madlib_keras_evaluate('mine', 'packed', 'scores', FALSE, 1)")
    ann.run("SELECT madlib.madlib_keras_predict('mine', 'flowers', 'id', 'x', 'out', 'response', FALSE, 1)")
    assert ann.value("SELECT count(*) FROM out") == 101
    db.run("CREATE ROLE eve LOGIN; GRANT mop_user TO eve; GRANT USAGE ON SCHEMA data TO eve")
    eve = db.another("eve")
    error = eve.error("SELECT madlib.madlib_keras_fit_multiple_model('data.packed', 'never', 'mst', 1, FALSE)")
    assert "permission denied" in str(error)
    ann.run("GRANT SELECT ON packed, packed_summary TO eve")
    db.run(
        "GRANT SELECT ON mst, mst_summary, arch TO eve; CREATE SCHEMA eve AUTHORIZATION eve; "
        "REVOKE USAGE ON FOREIGN SERVER w1 FROM eve"
    )
    eve.run("SET search_path = eve, public")
    error = eve.error("SELECT madlib.madlib_keras_fit_multiple_model('data.packed', 'never', 'mst', 1, FALSE)")
    assert "permission denied for foreign server" in str(error)
    assert "GRANT USAGE ON FOREIGN SERVER" in error.diag.message_hint
    ann.run("SELECT madlib.mop_drop_packed('packed')")
    for worker in nodes.workers:
        client = Client(worker, "postgres")
        client.run("SET citus.override_table_visibility = off")
        assert client.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'packed\\_%'") == 0
        assert client.value("SELECT count(*) FROM madlib.mop_run") == 0
        client.close()
    ann.close()
    eve.close()
    db.run("DROP OWNED BY ann, eve CASCADE; DROP ROLE ann, eve")


def test_shards_on_the_coordinator_are_trained_by_sessions_there(nodes, db):
    db.run(
        "SELECT citus_set_node_property('127.0.0.1', nodeport, 'shouldhaveshards', true) FROM pg_dist_node "
        "WHERE groupid = 0"
    )
    db.run(PACK.format("flowers"))
    run_id = fit(db, "packed", "others", "mst", iterations=1)
    assert_invariants(db, run_id)
    assert (
        db.value("SELECT count(DISTINCT coalesce(server, '')) FROM madlib.mop_segment WHERE run_id = %s", [run_id]) == 3
    )
    assert scores(db, "packed")[1] == 1
    db.run(
        "DROP TABLE packed, packed_summary; SELECT citus_set_node_property('127.0.0.1', nodeport, "
        "'shouldhaveshards', false) FROM pg_dist_node WHERE groupid = 0"
    )


def test_a_run_goes_on_without_a_node_that_was_killed_and_uses_it_again(nodes, db):
    db.run(f"SET pg_mop.replicas = 2; {PACK.format('flowers')}")
    assert db.value("SELECT count(*) FROM citus_shards WHERE table_name = 'packed'::regclass") == 6
    selection(db, "slow", "arch", [(1, ADAM.format(0.01), "batch_size=1, epochs=10")] * 2)
    other = db.another()
    other.run("SET pg_mop.replicas = 2; SET pg_mop.threads = 1; SET pg_mop.kernel = plain")
    db.run("DROP TABLE IF EXISTS slowly, slowly_info, slowly_summary")
    call = Calling(other, "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'slowly', 'slow', 2, FALSE)")
    units = (
        "SELECT count(*) FROM madlib.mop_units JOIN madlib.mop_runs r USING (run_id) WHERE r.status = 'running' "
        "AND mop_units.status = 'finished'"
    )
    assert eventually(lambda: db.value(units) > 1, 60)
    nodes.workers[0].kill()
    try:
        assert call.end() is None
    finally:
        nodes.workers[0].start()
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_run WHERE model_output_table = 'slowly'")
    assert f"run {run_id} goes on without server w1, on copies" in " ".join(other.connection.notices)
    assert_invariants(db, run_id)
    assert eventually(lambda: db.value("SELECT count(*) FROM citus_check_cluster_node_health() WHERE NOT result") == 0)
    db.run("RESET pg_mop.replicas")
    assert_invariants(db, fit(db, "packed", "others", "mst", iterations=1))
    other.close()


def test_a_node_that_is_disabled_is_left_out(nodes, db):
    db.run(f"SET pg_mop.replicas = 2; {PACK.format('flowers')}; RESET pg_mop.replicas")
    where = f"FROM pg_dist_node WHERE nodeport = {nodes.workers[1].port}"
    # (while it has the one placement of a shard Citus does not let it go)
    db.run(f"UPDATE pg_dist_node SET isactive = false {where[where.index('WHERE') :]}")
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 1, FALSE)")
    assert 'of "flowers_packed" is on no active node of Citus' in str(error)
    assert "citus_activate_node" in error.diag.message_hint
    db.run(
        f"UPDATE pg_dist_node SET isactive = true {where[where.index('WHERE') :]}; "
        "DROP TABLE flowers_packed, flowers_packed_summary, flowers"
    )
    db.run(f"SELECT citus_disable_node('127.0.0.1', nodeport, true) {where}")
    assert eventually(lambda: not db.value(f"SELECT isactive {where}"))
    try:
        run_id = fit(db, "packed", "others", "mst", iterations=1)
        assert_invariants(db, run_id)
        assert db.run("SELECT DISTINCT server FROM madlib.mop_segment WHERE run_id = %s", [run_id]) == [
            {"server": "w1"}
        ]
    finally:
        db.run(f"SELECT citus_activate_node('127.0.0.1', nodeport) {where}")


def test_an_update_reaches_all_nodes(nodes):
    """From the release before at once; from any other on each node by itself."""
    for source, nodewise in (("0.3.0", False), ("0.2.0", True)):
        nodes.db.run(f"DROP EXTENSION pg_mop CASCADE; CREATE EXTENSION pg_mop SCHEMA madlib VERSION '{source}' CASCADE")
        clients = [Client(cluster, "postgres") for cluster in (nodes.coordinator, *nodes.workers)]
        assert {client.value("SELECT extversion FROM pg_extension WHERE extname = 'pg_mop'") for client in clients} == {
            source
        }
        for client in clients if nodewise else clients[:1]:
            if nodewise:
                client.run("SET citus.enable_ddl_propagation = off")
            client.run("ALTER EXTENSION pg_mop UPDATE")
        assert all(
            client.value(
                "SELECT extversion = default_version FROM pg_extension JOIN pg_available_extensions "
                "ON name = extname WHERE extname = 'pg_mop'"
            )
            for client in clients
        )
        for client in clients:
            client.close()

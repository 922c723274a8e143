"""Several servers: what is refused, with what mends it, and nothing is left behind; roles; tables made by hand."""

import pytest

from support.client import Client
from support.cluster import Cluster
from support.workload import ADAM, alike, assert_invariants, dense, fit, load, make_data, pickled, runs_made, selection

PACK = "SELECT madlib.training_preprocessor_dl('flowers', 'packed', 'y', 'x', 10)"


@pytest.fixture(scope="module")
def worker():
    with Cluster(max_connections=40) as cluster:
        client = Client(cluster, "postgres")
        client.run("CREATE DATABASE bare")
        client.run(
            "CREATE SCHEMA mop; CREATE EXTENSION pg_mop SCHEMA mop CASCADE; CREATE ROLE ann LOGIN; "
            "CREATE SCHEMA ann AUTHORIZATION ann"
        )
        client.cluster = cluster
        yield client
        client.close()


@pytest.fixture(scope="module")
def data(db, worker):
    make_data(db, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.02), "batch_size=8"), (1, ADAM.format(0.05), "batch_size=8")])
    db.run(
        "CREATE EXTENSION postgres_fdw; CREATE ROLE ann LOGIN; GRANT mop_user TO ann; CREATE SCHEMA ann "
        "AUTHORIZATION ann; GRANT SELECT ON ALL TABLES IN SCHEMA public TO ann"
    )
    for name, database in (("w1", "postgres"), ("bare", "bare")):
        db.run(
            f"CREATE SERVER {name} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port "
            f"'{worker.cluster.port}', dbname '{database}'); CREATE USER MAPPING FOR postgres SERVER {name} OPTIONS "
            f"(user 'postgres')"
        )
    db.run(
        "CREATE SERVER shut FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1'); "
        "CREATE USER MAPPING FOR postgres SERVER shut OPTIONS (user 'postgres'); "
        "CREATE SERVER plain FOREIGN DATA WRAPPER pg_mop"
    )
    yield
    db.run("RESET pg_mop.servers; DROP OWNED BY ann CASCADE; DROP ROLE ann")


@pytest.fixture(autouse=True)
def clean(db, data):
    db.run("RESET pg_mop.servers; RESET pg_mop.replicas; DROP TABLE IF EXISTS packed, packed_summary CASCADE")


def tables(worker):
    return worker.value("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")


@pytest.mark.parametrize(
    "servers,text,hint",
    [
        ("nowhere", 'server "nowhere" does not exist', "SELECT srvname"),
        ("plain", 'server "plain" is not a server of postgres_fdw', "CREATE SERVER"),
        ("w1, w1", 'names "w1" twice', "RESET"),
        ("w1,,local", 'invalid value for setting "pg_mop.servers"', "w1, w2"),
        ("shut", 'cannot open a session on server "shut" as role "postgres"', "ALTER SERVER"),
        ("bare", 'pg_mop is not installed on server "bare"', "CREATE EXTENSION pg_mop"),
    ],
)
def test_servers_that_do_not_serve_are_refused(db, worker, servers, text, hint):
    before = tables(worker)
    db.run(f"SET pg_mop.servers = '{servers}'")
    error = db.error(PACK)
    assert text in str(error) and hint in error.diag.message_hint
    assert tables(worker) == before and db.value("SELECT to_regclass('packed')") is None


def test_another_version_is_refused_and_both_are_named(db, worker):
    worker.run(
        "CREATE OR REPLACE FUNCTION mop.mop_server_info() RETURNS json LANGUAGE sql AS "
        '$$SELECT \'{"pg_mop": "0.3.0"}\'::json$$'
    )
    db.run("SET pg_mop.servers = 'w1'")
    error = db.error(PACK)
    assert 'server "w1" has pg_mop 0.3.0, this one has ' in str(error)
    assert "ALTER EXTENSION pg_mop UPDATE" in error.diag.message_hint
    worker.run("DROP EXTENSION pg_mop; CREATE EXTENSION pg_mop SCHEMA mop CASCADE")


@pytest.mark.parametrize(
    "mapping,text,hint",
    [
        (None, "permission denied for foreign server", "GRANT USAGE ON FOREIGN SERVER"),
        ("", 'has no user mapping for server "w1"', "CREATE USER MAPPING"),
        ("OPTIONS (password 'x')", "names no user", "ADD user"),
        ("OPTIONS (user 'ann')", "has no password", "password_required"),
        ("OPTIONS (user 'ann', password 'x')", "does not ask for the password", "ALTER USER MAPPING"),
        ("OPTIONS (user 'ann', password_required 'false')", "may not use pg_mop on server", "GRANT mop_user"),
    ],
)
def test_a_role_needs_what_postgres_fdw_asks_of_it(db, worker, mapping, text, hint):
    if mapping is not None:
        db.run("GRANT USAGE ON FOREIGN SERVER w1 TO ann")
    if mapping:
        db.run(f"CREATE USER MAPPING FOR ann SERVER w1 {mapping}")
    ann = db.another("ann")
    ann.run("SET search_path = ann, public; SET pg_mop.servers = 'w1, local'")
    error = ann.error(PACK)
    assert text in str(error) and hint in error.diag.message_hint
    ann.close()
    db.run("DROP USER MAPPING IF EXISTS FOR ann SERVER w1; REVOKE USAGE ON FOREIGN SERVER w1 FROM ann")


def test_a_role_trains_on_another_server_as_its_mapping_says(db, worker):
    """Her name there is another; nobody else's runs and states are hers."""
    worker.run("CREATE ROLE annie LOGIN; GRANT mop_user TO annie; CREATE SCHEMA data AUTHORIZATION annie")
    db.run(
        "CREATE SCHEMA data AUTHORIZATION ann; GRANT USAGE ON FOREIGN SERVER w1 TO ann; CREATE USER MAPPING FOR ann "
        "SERVER w1 OPTIONS (user 'annie', password_required 'false'); GRANT SELECT ON mst, mst_summary, arch TO ann"
    )
    ann = db.another("ann")
    ann.run("SET search_path = data, public; SET pg_mop.segments = 2; SET pg_mop.servers = 'w1, local'")
    ann.run(PACK)
    assert worker.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'data' AND tableowner = 'annie'") == 1
    run_id = fit(ann, "packed", "models", "mst")
    assert_invariants(ann, run_id)
    assert worker.value("SELECT count(*) FROM mop.mop_run") == 0
    ann.run("SELECT madlib.mop_drop_packed('packed')")
    assert worker.value("SELECT count(*) FROM pg_tables WHERE schemaname = 'data'") == 0
    ann.close()
    db.run("DROP SCHEMA data CASCADE; DROP USER MAPPING FOR ann SERVER w1; REVOKE USAGE ON FOREIGN SERVER w1 FROM ann")


@pytest.mark.parametrize("replicas", [1, 2])
def test_folds_on_several_servers_measure_what_they_do_on_one(db, worker, replicas):
    """Each of two folds trains on one segment alone, so the order of visits is the same everywhere."""
    db.run("SET pg_mop.segments = 2; SET pg_mop.seed = 9; SET pg_mop.threads = 1; SET pg_mop.kernel = plain")
    measured = []
    for servers in ("w1, local", None):
        if servers:
            db.run(f"SET pg_mop.servers = '{servers}'; SET pg_mop.replicas = {replicas}")
        else:
            db.run("RESET pg_mop.servers; RESET pg_mop.replicas")
        db.run(PACK)
        db.run("DROP TABLE IF EXISTS folded, folded_info, folded_summary")
        db.run("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'folded', 'mst', 3, FALSE, folds => 2)")
        run_id = db.value("SELECT max(run_id) FROM madlib.mop_run")
        wrong = (
            "SELECT count(*) FROM madlib.mop_units u JOIN madlib.mop_configuration c USING (run_id, mst_key) WHERE run_id = %s "
            "AND c.fold IS NOT NULL AND (u.kind = 'train') = (u.segment = ANY (c.held_out))"
        )
        assert db.value(wrong, [run_id]) == 0
        measured.append(
            db.run("SELECT mst_key, folds_loss, folds_metrics, folds_loss_mean FROM folded_info ORDER BY mst_key")
        )
        db.run("SELECT madlib.mop_drop_packed('packed')" if servers else "DROP TABLE packed, packed_summary")
    for setting in ("segments", "seed", "threads", "kernel"):
        db.run(f"RESET pg_mop.{setting}")
    assert len(measured[0]) == 2 and measured[0] == measured[1]
    assert all(len(row["folds_loss"]) == 2 and None not in row["folds_loss"] for row in measured[0])


def test_what_a_rolled_back_preprocessor_leaves_is_replaced(db, worker):
    db.run("SET pg_mop.servers = 'w1, local'; SET pg_mop.segments = 2")
    db.run("BEGIN")
    db.run(PACK)
    db.run("ROLLBACK")
    assert tables(worker) == 1
    db.run(PACK)
    assert db.value("SELECT sum(y_shape[1]) FROM packed") == 100
    # what is somebody else's is not
    name = worker.value("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
    db.run("DROP TABLE packed, packed_summary")
    worker.run(f"COMMENT ON TABLE {name} IS 'mine'")
    error = db.error(PACK)
    assert "already exists on server" in str(error) and "DROP TABLE" in error.diag.message_hint
    worker.run(f"DROP TABLE {name}")
    db.run(PACK)
    db.run("SELECT madlib.mop_drop_packed('packed')")
    assert tables(worker) == 0 and db.value("SELECT to_regclass('packed_summary')") is None


def test_segments_have_copies_on_other_servers_where_they_are_wanted(db, worker):
    """Also on the coordinator's, where there is no other one; and all goes with the packed table."""
    db.run("SET pg_mop.servers = 'w1, local'; SET pg_mop.segments = 2; SET pg_mop.replicas = 2")
    db.run("CREATE TABLE packed_copy_segment_0 ()")
    assert "packed_copy_segment_0" in str(db.error(PACK))
    db.run("DROP TABLE packed_copy_segment_0")
    db.run(PACK)
    db.run("DROP TABLE packed, packed_summary")  # what it leaves is replaced
    db.run(PACK)
    own, copy = (
        db.value(f"SELECT md5(string_agg(t::text, ';' ORDER BY buffer_id)) FROM {table} t")
        for table in ("packed_segment_0", "packed_copy_segment_0")
    )
    assert (
        own == copy
        and db.value("SELECT __internal_copies__ FROM packed_summary")
        == '[[0, null, "public", "packed_copy_segment_0"]]'
    )
    run_id = fit(db, "packed", "models", "mst")
    copies = (
        "SELECT count(*) FROM madlib.mop_copy c JOIN madlib.mop_segment s USING (run_id, dataset, segment) "
        "WHERE s.server = 'w1' AND c.server IS NULL AND run_id = %s"
    )
    assert db.value(copies, [run_id]) == 1
    # somebody writes to one of the two
    runs = db.value("SELECT count(*) FROM madlib.mop_run")
    db.run("UPDATE packed SET buffer_id = 1000 + buffer_id WHERE __dist_key__ = 0 AND buffer_id < 3")
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'none', 'mst', 1, FALSE)")
    assert 'the copy of segment 0 of "packed" here has other rows' in str(error)
    assert "RESET pg_mop.replicas" in error.diag.message_hint
    assert db.value("SELECT count(*) FROM madlib.mop_run") == runs
    db.run("RESET pg_mop.replicas")
    assert db.value(copies, [fit(db, "packed", "models", "mst")]) == 0
    db.run("SELECT madlib.mop_drop_packed('packed')")
    assert tables(worker) == 0 and db.value("SELECT to_regclass('packed_copy_segment_0')") is None


@pytest.mark.parametrize(
    "settings,text",
    [
        ("SET pg_mop.replicas = 2", "but the segments are on 1 server"),
        ("SET pg_mop.servers = 'w1'; SET pg_mop.replicas = 2", "but the segments are on 1 server"),
        ("SET pg_mop.servers = 'w1, local'; SET pg_mop.replicas = 3", "but the segments are on 2 servers"),
        ("SET pg_mop.replicas = 17", 'invalid value for setting "pg_mop.replicas"'),
    ],
)
def test_more_copies_than_servers_are_refused(db, worker, settings, text):
    db.run(settings)
    error = db.error(PACK)
    assert text in str(error) and error.diag.message_hint
    assert db.value("SELECT to_regclass('packed')") is None and tables(worker) == 0


def test_copies_that_a_summary_names_are_looked_at(db, worker):
    """It is a table of the role's own, who may write anything to it."""
    db.run("SET pg_mop.servers = 'w1, local'; SET pg_mop.segments = 2")
    db.run(PACK)
    call = "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'none', 'mst', 1, FALSE)"
    db.run("SET pg_mop.replicas = 2")
    error = db.error(call)
    assert 'segment 0 of "packed" has no copy on another server' in str(error)
    assert "RESET pg_mop.replicas" in error.diag.message_hint
    db.run(
        "ALTER TABLE packed_summary ADD __internal_copies__ text; CREATE ROLE bob; CREATE TABLE theirs (); "
        "ALTER TABLE theirs OWNER TO bob; CREATE VIEW seen AS TABLE packed"
    )
    for copies, text in (
        ("{", "is not what a preprocessor writes"),
        ("[[0, null]]", "is not what a preprocessor"),
        ('[[0, "nowhere", "public", "packed_segment_0"]]', "has no copy on another server"),
        ('[[0, "w1", "public", "packed_segment_0"]]', "has no copy on another server"),
        ('[[0, null, "public", "theirs"]]', "is no copy of a segment"),
        ('[[0, null, "public", "seen"]]', "is no copy of a segment"),
        ('[[0, null, "public", "packed_segment_1"]]', "has no copy on another server"),
    ):
        db.run("UPDATE packed_summary SET __internal_copies__ = %s", [copies])
        assert text in str(db.error(call)), copies
    db.run(PACK.replace("'packed'", "'live'").replace("replicas = 2", ""))
    db.run(
        "UPDATE packed_summary SET __internal_copies__ = %s",
        ['[[0, null, "public", "theirs"], [0, "w1", "public", "live_segment_0"], [0, null, "public", "mst"]]'],
    )
    db.run("RESET pg_mop.replicas; DROP VIEW seen; SELECT madlib.mop_drop_packed('packed')")
    assert db.value("SELECT to_regclass('theirs')") == "theirs" and db.value("SELECT to_regclass('mst')") == "mst"
    assert db.value("SELECT count(*) > 0 FROM live")
    db.run("SELECT madlib.mop_drop_packed('live')")
    assert tables(worker) == 0
    db.run("DROP OWNED BY bob; DROP ROLE bob")


def test_a_table_made_by_hand_is_trained_where_it_is(db, worker):
    worker.run(
        "CREATE SCHEMA mine; CREATE TABLE mine.rows (__dist_key__ integer, x bytea, y bytea, x_shape integer[], "
        "y_shape integer[], buffer_id integer)"
    )
    db.run(
        "CREATE TABLE packed (__dist_key__ integer, x bytea, y bytea, x_shape integer[], y_shape integer[], "
        "buffer_id integer) PARTITION BY LIST (__dist_key__); CREATE FOREIGN TABLE far PARTITION OF packed FOR "
        "VALUES IN (1, 7) SERVER w1 OPTIONS (schema_name 'mine', table_name 'rows'); CREATE TABLE near PARTITION OF "
        "packed FOR VALUES IN (0); CREATE TABLE packed_summary AS TABLE flowers_packed_summary; "
        "INSERT INTO packed SELECT CASE WHEN __dist_key__ = 1 AND buffer_id > 5 THEN 7 ELSE __dist_key__ END, x, y, "
        "x_shape, y_shape, buffer_id FROM flowers_packed"
    )
    run_id = fit(db, "packed", "models", "mst")
    assert_invariants(db, run_id)
    assert db.run("SELECT segment, server FROM madlib.mop_segment WHERE run_id = %s ORDER BY 1", [run_id]) == [
        {"segment": 0, "server": None},
        {"segment": 1, "server": "w1"},
        {"segment": 7, "server": "w1"},
    ]
    worker.run("ALTER TABLE mine.rows RENAME TO kept; CREATE VIEW mine.rows AS SELECT *, ctid FROM mine.kept")
    assert "is no table" in str(
        db.error("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'none', 'mst', 1, FALSE)")
    )
    worker.run("DROP SCHEMA mine CASCADE")
    assert "which has no table" in str(
        db.error("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'none', 'mst', 1, FALSE)")
    )


def test_custom_functions_must_be_the_same_everywhere(db, worker):
    db.run("SET pg_mop.servers = 'w1, local'; SET pg_mop.segments = 2")
    db.run(PACK)
    mine, theirs = (pickled("mine", f"def mine(y_true, y_pred):\n    return y_pred[:, {n}]\n") for n in (0, 1))
    db.run("SELECT madlib.load_custom_function('functions', %s, 'mine')", [mine])
    compiled = ADAM.format(0.01).replace("accuracy", "mine")
    call = (
        "SELECT madlib.madlib_keras_fit('packed', 'one', 'arch', 1, %s, 'batch_size=8', 1, FALSE, NULL, 1, FALSE, "
        "NULL, NULL, 'functions')"
    )
    runs = db.value("SELECT count(*) FROM madlib.mop_run")
    error = db.error(call, [compiled])
    assert "has not the same custom function 'mine'" in str(error) and "does not exist" in error.diag.message_detail
    worker.run("SELECT mop.load_custom_function('functions', %s, 'mine')", [theirs])
    error = db.error(call, [compiled])
    assert "is another" in error.diag.message_detail and '"mop".load_custom_function' in error.diag.message_hint
    assert db.value("SELECT count(*) FROM madlib.mop_run") == runs
    assert worker.value("SELECT count(*) FROM mop.mop_run") == 0
    worker.run("SELECT mop.delete_custom_function('functions', 'mine')")
    worker.run("SELECT mop.load_custom_function('functions', %s, 'mine')", [mine])
    db.run(call, [compiled])
    db.run("SELECT madlib.mop_drop_packed('packed')")


def test_a_partition_of_another_wrapper_is_refused(db, worker, tmp_path):
    db.run(
        "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE TABLE packed "
        "(LIKE flowers_packed) PARTITION BY LIST (__dist_key__); CREATE FOREIGN TABLE lines PARTITION OF packed FOR "
        f"VALUES IN (1) SERVER files OPTIONS (filename '{tmp_path}/nothing'); "
        "CREATE TABLE packed_summary AS TABLE flowers_packed_summary"
    )
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'none', 'mst', 1, FALSE)")
    assert 'on server "files", which is not a server of postgres_fdw' in str(error)


def test_servers_are_connected_by_superusers_and_passwords_are_left_to_people(db, worker):
    make = "SELECT * FROM madlib.mop_connect_servers('w1, w3')"
    for names in ("NULL", "''", "'w1'", "'w1, w1'", "'w1,,w3'"):
        assert "at least two servers" in str(db.error(f"SELECT madlib.mop_connect_servers({names})"))
    assert 'server "nobody" does not exist' in str(db.error("SELECT madlib.mop_connect_servers('w1, nobody')"))
    db.run(
        f"CREATE SERVER w3 FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port "
        f"'{worker.cluster.port}', dbname 'postgres', fetch_size '7')"
    )
    bare = Client(worker.cluster, "bare")
    bare.run("CREATE SCHEMA mop; CREATE EXTENSION pg_mop SCHEMA mop CASCADE")
    db.run("CREATE USER MAPPING FOR postgres SERVER w3 OPTIONS (user 'ann', password_required 'false')")
    worker.run("GRANT mop_user TO ann")
    assert 'servers "w1" and "w3" are one' in str(db.error(make))
    db.run("ALTER SERVER w3 OPTIONS (SET dbname 'bare')")
    assert 'role "ann" is no superuser on server "w3"' in str(db.error(make))
    db.run("ALTER USER MAPPING FOR postgres SERVER w3 OPTIONS (SET user 'postgres', DROP password_required)")
    assert worker.value("SELECT count(*) FROM pg_foreign_server") == 0, "nothing is left behind"
    db.run(
        "CREATE ROLE bob; CREATE USER MAPPING FOR bob SERVER w1 OPTIONS (user 'ann', password 's3cr3t'); "
        "CREATE USER MAPPING FOR bob SERVER w3 OPTIONS (user 'ann', password 's3cr3t')"
    )
    rows = {(r["on_server"], r["server"], r["role"]): r["missing"] for r in db.run(make)}
    alter = 'ALTER USER MAPPING FOR "ann" SERVER "{}" OPTIONS (ADD password \'...\');'
    assert rows == {
        ("w1", "w3", "ann"): alter.format("w3"),
        ("w1", "w3", "postgres"): None,
        ("w3", "w1", "ann"): alter.format("w1"),
        ("w3", "w1", "postgres"): None,
    }
    worker.run(rows["w1", "w3", "ann"].replace("...", "s3cr3t"))
    assert {r["missing"] for r in db.run(make) if r["server"] == "w3"} == {None}
    made = worker.run("SELECT srvname, srvoptions FROM pg_foreign_server ORDER BY 1")
    assert [row["srvname"] for row in made] == ["w3"]
    assert sorted(made[0]["srvoptions"]) == [
        "connect_timeout=10",
        "dbname=bare",
        "host=127.0.0.1",
        f"port={worker.cluster.port}",
    ]
    assert worker.value("SELECT has_server_privilege('ann', 'w3', 'USAGE')")
    # of two roles that are one there, neither gets what the other may; and a server that leads elsewhere is left alone
    db.run(
        "CREATE ROLE eve; CREATE USER MAPPING FOR eve SERVER w1 OPTIONS (user 'ann'); CREATE USER MAPPING FOR eve "
        "SERVER w3 OPTIONS (user 'postgres', password_required 'false'); CREATE ROLE nameless; CREATE USER MAPPING "
        "FOR nameless SERVER w1; CREATE USER MAPPING FOR nameless SERVER w3"
    )
    worker.run("DROP USER MAPPING FOR ann SERVER w3")
    rows = {(r["on_server"], r["role"]): r["missing"] for r in db.run(make)}
    assert '"ann" stands for several roles of the coordinator' in rows["w1", "ann"]
    assert worker.value("SELECT count(*) FROM pg_user_mappings WHERE usename = 'ann'") == 0
    worker.run("ALTER SERVER w3 OPTIONS (SET dbname 'elsewhere')")
    rows = {(r["on_server"], r["role"]): r["missing"] for r in db.run(make)}
    assert "has another address" in rows["w1", None] and ("w1", "ann") not in rows
    db.run("DROP USER MAPPING FOR eve SERVER w1; DROP USER MAPPING FOR nameless SERVER w1")
    ann = db.another("ann")
    assert "only a superuser" in str(ann.error(make))
    ann.close()
    for each in (worker, bare):
        each.run("DROP EXTENSION postgres_fdw CASCADE")
    bare.run("DROP EXTENSION pg_mop; DROP SCHEMA mop")
    bare.close()
    db.run("DROP SERVER w3 CASCADE; DROP USER MAPPING FOR bob SERVER w1; DROP ROLE bob, eve, nameless")


@pytest.fixture(scope="module")
def trained(db, data):
    """A model to evaluate and predict with."""
    fit(db, "flowers_packed", "models", "mst", iterations=1)


def scores(db, table):
    """What evaluate says, whether by a run, and the NOTICEs."""
    db.run("DROP TABLE IF EXISTS out")
    db.connection.notices.clear()
    _, by_run = runs_made(
        db, lambda: db.run(f"SELECT madlib.madlib_keras_evaluate('models', '{table}', 'out', FALSE, 1)")
    )
    return db.value("SELECT loss FROM out"), by_run, "".join(db.connection.notices)


def test_segments_in_several_partitions_are_evaluated_alone_and_not_trained(db, worker, trained):
    whole = scores(db, "flowers_packed")[0]
    db.run(
        "DROP TABLE IF EXISTS scattered, scattered_summary; CREATE TABLE scattered (LIKE flowers_packed) PARTITION "
        "BY HASH (buffer_id); CREATE TABLE scattered_summary AS TABLE flowers_packed_summary; "
        "CREATE TABLE scattered_0 PARTITION OF scattered FOR VALUES WITH (MODULUS 2, REMAINDER 0)"
    )
    worker.run(
        "DROP TABLE IF EXISTS scattered_1; CREATE TABLE scattered_1 (__dist_key__ integer, x bytea, y bytea, "
        "x_shape integer[], y_shape integer[], buffer_id integer)"
    )
    db.run(
        "CREATE FOREIGN TABLE scattered_1 PARTITION OF scattered FOR VALUES WITH (MODULUS 2, REMAINDER 1) SERVER w1 "
        "OPTIONS (schema_name 'public'); INSERT INTO scattered SELECT * FROM flowers_packed"
    )
    loss, _, notices = scores(db, "scattered")
    assert loss == pytest.approx(whole, rel=1e-6) and "in several partitions" in notices
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('scattered', 'never', 'mst', 1, FALSE)")
    assert 'has rows of "__dist_key__"' in str(error) and "LIST" in error.diag.message_hint
    db.run("DROP TABLE scattered, scattered_summary")


def test_evaluation_sees_what_the_caller_sees(db, worker, trained):
    db.run("SET pg_mop.servers = 'w1, local'; " + PACK)
    everything, by_run, _ = scores(db, "packed")
    assert by_run
    db.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM packed")
    theirs = db.value(
        "SELECT c.relname FROM pg_foreign_table t JOIN pg_class c ON c.oid = t.ftrelid "
        "JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = 'packed'::regclass"
    )
    worker.run(f"CREATE TABLE kept AS TABLE {theirs}; DELETE FROM {theirs}")
    loss, by_run, _ = scores(db, "packed")
    assert not by_run and loss == pytest.approx(everything, rel=1e-6)
    db.run("ROLLBACK")
    worker.run(f"INSERT INTO {theirs} TABLE kept; DROP TABLE kept")
    db.run(
        "GRANT SELECT ON packed, packed_summary, models, models_info, models_summary TO ann; "
        "GRANT ALL ON SCHEMA public TO ann; GRANT USAGE ON FOREIGN SERVER w1 TO ann; "
        "CREATE USER MAPPING IF NOT EXISTS FOR ann SERVER w1 OPTIONS (user 'ann', password_required 'false'); "
        "ALTER TABLE packed ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON packed USING (buffer_id < 2)"
    )
    worker.run(f"GRANT SELECT ON {theirs} TO ann; GRANT mop_user TO ann")
    ann = db.another("ann")
    ann.run("SELECT madlib.madlib_keras_evaluate('models', 'packed', 'anns', FALSE, 1)")
    ann.run(
        "CREATE TEMP TABLE few AS SELECT * FROM packed; CREATE TEMP TABLE few_summary AS TABLE packed_summary; "
        "SELECT madlib.madlib_keras_evaluate('models', 'few', 'anns_few', FALSE, 1)"
    )
    assert ann.value("SELECT loss FROM anns") == pytest.approx(ann.value("SELECT loss FROM anns_few"), rel=1e-6)
    assert ann.value("SELECT loss FROM anns") != pytest.approx(everything, rel=1e-6)
    ann.run("DROP TABLE anns, anns_few")
    ann.close()


def test_servers_without_pg_mop_are_read_through_postgres_fdw(db, worker, trained):
    bare = Client(worker.cluster, "bare")
    bare.run("CREATE TABLE rows (id integer, x real[], y text)")
    db.run(
        "CREATE TABLE raw (LIKE flowers) PARTITION BY HASH (id); CREATE FOREIGN TABLE raw_0 PARTITION OF raw FOR "
        "VALUES WITH (MODULUS 1, REMAINDER 0) SERVER bare OPTIONS (schema_name 'public', table_name 'rows'); "
        "INSERT INTO raw SELECT * FROM flowers; CREATE TABLE raw_of_two (LIKE flowers) PARTITION BY LIST (y); "
        "CREATE TABLE raw_a PARTITION OF raw_of_two FOR VALUES IN ('a'); "
    )
    bare.run("CREATE VIEW others AS SELECT * FROM rows WHERE y <> 'a'")
    db.run(
        "CREATE FOREIGN TABLE raw_b PARTITION OF raw_of_two DEFAULT SERVER bare OPTIONS (schema_name 'public', "
        "table_name 'others'); INSERT INTO raw_a SELECT * FROM flowers WHERE y = 'a'"
    )
    wanted = None
    for table in ("flowers", "raw", "raw_of_two"):
        db.run("DROP TABLE IF EXISTS out")
        db.connection.notices.clear()
        db.run(f"SELECT madlib.madlib_keras_predict('models', '{table}', 'id', 'x', 'out', 'prob', FALSE, 1)")
        rows = db.run("SELECT * FROM out ORDER BY id, rank")
        wanted = wanted or rows
        assert rows == alike(wanted)
        assert ("pg_mop is not installed" in "".join(db.connection.notices)) == (table == "raw_of_two")
    db.run("DROP TABLE raw, raw_of_two")
    bare.close()


def test_the_scores_of_a_one_shot_search_leave_the_transaction_without_other_servers(db, worker):
    """Else it would depend on them until its end: a server that is lost after the scoring would undo the search."""
    db.run("""DROP TABLE IF EXISTS widths; SELECT madlib.mop_space('widths', 'arch', ARRAY[1], '[{"change": "value", "match":
        {"class": "Dense", "position": 1}, "argument": "units", "choices": [8, 12, 16]}]'::text)""")
    found = []
    for server in ("w1", "local"):  # (one segment: several may be visited in another order, and give other weights)
        db.run(
            f"DROP TABLE IF EXISTS packed, packed_summary CASCADE; SET pg_mop.servers = '{server}'; SET pg_mop.segments = 1; "
            "SET pg_mop.seed = 3"  # (else each packing shuffles the rows in another order)
        )
        db.run(PACK + "; RESET pg_mop.seed")
        db.run("DROP TABLE IF EXISTS found, found_info, found_summary, found_trials, found_one_shot")
        client = db.another()
        client.run("""SET pg_mop.kernel = plain; SET pg_mop.seed = 3; SELECT madlib.mop_search('packed', 'found', NULL, $${
            'loss': ['categorical_crossentropy'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.01]}],
            'batch_size': [8]}$$, 'one-shot', 'iterations=1, retrain=0', 'loss', model_space := 'widths')""")
        assert client.value("SELECT count(*) FROM postgres_fdw_get_connections()") == 0
        found.append(db.run("SELECT member, one_shot_score FROM found_one_shot ORDER BY member"))
        client.close()
    scores = [{row["member"]: row["one_shot_score"] for row in rows} for rows in found]
    assert len(scores[0]) == 3 and scores[0] == pytest.approx(scores[1], rel=1e-4), (
        "the scores are not those of all rows"
    )

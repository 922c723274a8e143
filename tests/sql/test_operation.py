"""What administrators meet: time-outs, killed sessions, privileges, credentials, disk, odd names."""

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, dense, fit, holding, load, make_data, selection, under_way


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    db.run(f"ALTER DATABASE \"{db.database}\" SET pg_mop.kernel = 'plain'; SET pg_mop.kernel = 'plain'")
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    db.run(
        "DROP ROLE IF EXISTS analyst; CREATE ROLE analyst LOGIN PASSWORD 'secret'; GRANT mop_user TO analyst; "
        "CREATE SCHEMA analyst AUTHORIZATION analyst; GRANT SELECT ON ALL TABLES IN SCHEMA public TO analyst"
    )


def call(output, mst="mst", iterations=1, source="flowers_packed", validation="NULL"):
    return (
        f"SELECT madlib.madlib_keras_fit_multiple_model('{source}', '{output}', '{mst}', {iterations}, FALSE, "
        f"{validation})"
    )


@pytest.fixture
def analyst(db, data):
    client = db.another("analyst")
    client.run("SET search_path = analyst, public; DROP TABLE IF EXISTS m, m_info, m_summary")
    yield client
    client.close()


# --- sessions that go -------------------------------------------------------------------------------


def test_an_idle_session_timeout_does_not_touch_a_run(db, analyst):
    """Neither the sessions that wait for a unit, nor those that have none, are ended."""
    db.run("ALTER ROLE analyst SET idle_session_timeout = '1s'")
    try:
        with under_way(db, analyst, call("m", iterations=2)) as running:
            assert eventually(
                lambda: db.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE usename = 'analyst' AND application_name ~ 'pg_mop' "
                    "AND state = 'idle' AND state_change < clock_timestamp() - interval '2 s'"
                )
            )
        assert running.end() is None
        assert analyst.value("SELECT status FROM madlib.mop_runs ORDER BY run_id DESC LIMIT 1") == "finished"
    finally:
        db.run("ALTER ROLE analyst RESET idle_session_timeout")


@pytest.mark.parametrize("commits", ["before", "after"])
@pytest.mark.parametrize("table", ["m", "m_info", "m_summary"])
def test_an_output_table_that_appears_meanwhile_costs_nothing(db, analyst, table, commits):
    """Whether its maker has committed when the run ends, or commits while it waits."""
    analyst.run("DROP TABLE IF EXISTS kept")
    other = db.another("analyst")
    analyst.run("SET pg_mop.lock_timeout = '300s'")
    run_before = analyst.value("SELECT coalesce(max(run_id), 0) FROM madlib.mop_runs")
    with holding(db.another()):  # so that the run does not end before
        running = Calling(analyst, call("m"))
        begun = "SELECT count(*) FROM madlib.mop_runs WHERE status = 'running' AND run_id > coalesce(%s, 0)"
        assert eventually(lambda: db.value(begun, [run_before]))
        other.run(f"BEGIN; CREATE TABLE analyst.{table} AS SELECT 1 AS mine")
        if commits == "before":
            other.run("COMMIT")
    if commits == "after":
        assert eventually(
            lambda: (
                db.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'fit_multiple'"
                )
                == 1
            ),
            120,
        )
        other.run("COMMIT")
    error = running.end()
    run_id = analyst.value("SELECT max(run_id) FROM madlib.mop_runs")
    assert f"run {run_id} cannot write its output tables" in str(error) and error.pgcode == "42P07"
    assert "Nothing is lost" in error.diag.message_detail
    rename, resume = error.diag.message_hint.split("; ")
    assert resume == f'SELECT "madlib".mop_resume({run_id});'
    if commits == "before":
        assert rename == f'ALTER TABLE "analyst"."{table}" RENAME TO ...'
    analyst.run(f"ALTER TABLE {table} RENAME TO kept")
    before = analyst.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s", [run_id])
    analyst.run(resume)
    assert analyst.value("SELECT mine FROM kept") == 1 and analyst.value("SELECT count(*) FROM m") == 1
    assert analyst.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s", [run_id]) == before
    other.close()


def test_a_run_whose_session_was_killed_is_not_shown_as_running(db, analyst):
    killed = db.another("analyst")
    killed.run("SET search_path = analyst, public")
    with under_way(db, killed, call("m", iterations=50)) as running:
        run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs")
        db.run("SELECT pg_terminate_backend(coordinator_pid) FROM madlib.mop_run WHERE run_id = %s", [run_id])
    assert running.end() is not None
    for watcher in (db, analyst):
        assert eventually(
            lambda w=watcher: w.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "failed"
        )
        assert (
            watcher.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND status = 'running'", [run_id])
            == 0
        )
        assert watcher.value("SELECT status FROM madlib.mop_progress WHERE run_id = %s", [run_id]) == "failed"


# --- disk -------------------------------------------------------------------------------------------


def test_states_go_once_the_output_is_committed_whatever_becomes_of_it(db, data):
    db.run("DELETE FROM madlib.mop_run")
    db.run(call("gone"))
    first = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    db.run("DROP TABLE gone, gone_info, gone_summary")
    db.run("BEGIN; SAVEPOINT s")
    db.run(call("gone"))
    second = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    db.run("ROLLBACK TO s; COMMIT")
    db.run(call("gone"))
    left = {r["run_id"] for r in db.run("SELECT DISTINCT run_id FROM madlib.mop_state_table")}
    assert first not in left, "committed, though dropped since"
    assert second in left, "rolled back: the trained models are still there"
    db.run("DELETE FROM madlib.mop_run WHERE run_id = %s", [second])
    assert db.value("SELECT count(*) FROM madlib.mop_state_table WHERE run_id = %s", [second]) == 0


# --- credentials ------------------------------------------------------------------------------------


@pytest.fixture
def server_object(db, data):
    db.run(
        "CREATE SERVER pg_mop FOREIGN DATA WRAPPER pg_mop OPTIONS (host '127.0.0.1'); "
        "GRANT USAGE ON FOREIGN SERVER pg_mop TO analyst"
    )
    yield
    db.run("DROP SERVER pg_mop CASCADE")


def trains_over_tcp(db, analyst):
    """A call of the analyst trains with two worker sessions, which connect by TCP."""
    sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'analyst' AND client_addr = '127.0.0.1' "
        "AND application_name LIKE 'pg_mop run%'"
    )
    with under_way(db, analyst, call("m")) as running:
        found = eventually(lambda: db.value(sessions) == 2)
    return running.end(300) is None and found


def test_a_user_mapping_gives_the_password(db, analyst, server_object):
    analyst.run("CREATE USER MAPPING FOR analyst SERVER pg_mop OPTIONS (password 'secret')")
    assert trains_over_tcp(db, analyst)


def test_a_user_mapping_cannot_name_another_role_or_host(db, analyst, server_object):
    analyst.run("CREATE USER MAPPING FOR analyst SERVER pg_mop OPTIONS (user 'postgres', host '/tmp')")
    assert "connect as the role that calls" in str(analyst.error(call("m")))
    analyst.run("ALTER USER MAPPING FOR analyst SERVER pg_mop OPTIONS (DROP user)")
    assert trains_over_tcp(db, analyst), "the server's host, not the mapping's"
    analyst.run("ALTER USER MAPPING FOR analyst SERVER pg_mop OPTIONS (DROP host)")
    analyst.run(call("without_options"))


def test_a_user_mapping_that_cannot_be_read_says_what_to_grant(db, analyst, server_object):
    db.run(
        "CREATE USER MAPPING FOR analyst SERVER pg_mop OPTIONS (password 'secret'); "
        "REVOKE USAGE ON FOREIGN SERVER pg_mop FROM analyst"
    )
    assert "GRANT USAGE ON FOREIGN SERVER pg_mop" in analyst.error(call("m")).diag.message_hint


def test_a_security_definer_function_cannot_borrow_the_callers_session(db, data):
    db.run(
        "CREATE FUNCTION analyst.trap() RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = analyst, "
        f"public AS $f$ {call('m')} $f$; ALTER FUNCTION analyst.trap() OWNER TO analyst"
    )
    assert "SECURITY DEFINER" in str(db.error("SELECT analyst.trap()"))


# --- what would fail only after the work ------------------------------------------------------------


def test_two_calls_into_one_table_do_not_both_train(db, analyst):
    other = db.another("analyst")
    other.run("SET search_path = analyst, public")
    with under_way(db, other, call("m")) as running:
        assert "another session is training into" in str(analyst.error(call("m")))
    assert running.end(300) is None
    other.close()


@pytest.mark.parametrize(
    "change,fragment",
    [
        ("ALTER TABLE odd ALTER mst_key TYPE text", 'column "mst_key"'),
        ("ALTER TABLE odd ALTER mst_key TYPE bigint; UPDATE odd SET mst_key = 3000000000", 'column "mst_key"'),
        ("ALTER TABLE odd ALTER model_id TYPE float8", 'column "model_id"'),
        ("BEGIN READ ONLY", "read-only"),
        (
            "CREATE VIEW packed_view AS SELECT * FROM flowers_packed; CREATE VIEW packed_view_summary AS "
            "SELECT * FROM flowers_packed_summary",
            "is a view",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(db, data, change, fragment):
    selection(db, "odd", "arch", [(1, ADAM.format(0.05), "")])
    db.run("ALTER TABLE odd ALTER mst_key DROP DEFAULT; " + change)
    runs = db.value("SELECT count(*) FROM madlib.mop_runs")
    source = "packed_view" if "packed_view" in change else "flowers_packed"
    assert fragment in str(db.error(call("odd_models", "odd", source=source)))
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == runs


# --- silent errors ----------------------------------------------------------------------------------


def test_a_validation_table_of_other_classes_or_scale_is_refused(db, data):
    db.run("DROP TABLE IF EXISTS other_y, other_p, other_p_summary, other_c, other_c_summary")
    db.run("CREATE TABLE other_y AS SELECT id, x, CASE y WHEN 'a' THEN 'z' ELSE y END AS y FROM flowers")
    db.run("SELECT madlib.training_preprocessor_dl('other_y', 'other_p', 'y', 'x', 10)")
    db.run("SELECT madlib.training_preprocessor_dl('flowers', 'other_c', 'y', 'x', 10, 5)")
    fit(db, "flowers_packed", "models", "mst", 1)
    for table, fragment in (("other_p", "the classes {b, c, z}, not {a, b, c}"), ("other_c", "normalizing_const 5")):
        assert fragment in str(db.error(call("m", validation=f"'{table}'")))
        assert fragment in str(db.error(f"SELECT madlib.madlib_keras_evaluate('models', '{table}', 'e', FALSE, 1)"))


def test_float_ids_and_classes_come_back_as_they_were(db, data):
    db.run("DROP TABLE IF EXISTS floats, guesses; CREATE TABLE floats AS SELECT random() AS id, x FROM flowers")
    fit(db, "flowers_packed", "models", "mst", 1)
    db.run("SET extra_float_digits = 0")
    db.run("SELECT madlib.madlib_keras_predict('models', 'floats', 'id', 'x', 'guesses', 'response', FALSE, 1)")
    assert db.value("SHOW extra_float_digits") == "0"
    db.run("RESET extra_float_digits")
    assert db.value("SELECT count(*) FROM guesses JOIN floats USING (id)") == 100


def test_column_privileges_are_checked(db, analyst):
    fit(db, "flowers_packed", "public.models", "mst", 1)
    db.run(
        "GRANT SELECT ON models, models_info, models_summary TO analyst; REVOKE ALL ON flowers FROM analyst; "
        "GRANT SELECT (id) ON flowers TO analyst"
    )
    for sql in (
        "training_preprocessor_dl('flowers', 'mine', 'y', 'x')",
        "madlib_keras_predict('models', 'flowers', 'id', 'x', 'mine', 'prob', FALSE, 1)",
    ):
        assert "permission denied for column" in str(analyst.error("SELECT madlib." + sql))
    db.run("GRANT SELECT (id, x) ON flowers TO analyst")
    analyst.run(
        "DROP TABLE IF EXISTS mine; SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'mine', "
        "'prob', FALSE, 1)"
    )
    db.run("GRANT SELECT ON flowers TO analyst")


def test_an_id_column_named_as_an_output_column_is_refused(db, data):
    db.run("CREATE TABLE clash AS SELECT id AS prob, x FROM flowers")
    fit(db, "flowers_packed", "models", "mst", 1)
    error = db.error("SELECT madlib.madlib_keras_predict('models', 'clash', 'prob', 'x', 'guesses2', 'prob', FALSE, 1)")
    assert "another name" in error.diag.message_hint


def test_a_database_of_another_encoding_is_refused(db, data):
    db.run("DROP DATABASE IF EXISTS latin; ")
    db.run("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    other = type(db)(db.server, "latin")
    assert "UTF8" in str(other.error("CREATE EXTENSION pg_mop CASCADE"))
    other.close()
    db.run("DROP DATABASE latin")

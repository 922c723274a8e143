"""Bad input to fit_multiple: one clear error each, before any work, and nothing is left behind."""

import psycopg2
import pytest

from support.workload import ADAM, dense, load, make_data, nothing_is_left, selection, sequential, state


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    db.run(
        "CREATE TABLE taken (x integer); CREATE TABLE hollow AS SELECT * FROM flowers_packed LIMIT 0;"
        "CREATE TABLE hollow_summary AS SELECT * FROM flowers_packed_summary;"
        "CREATE TABLE raw AS SELECT id, x, y, 0 AS __dist_key__, 0 AS buffer_id, ARRAY[1] x_shape, ARRAY[1] y_shape "
        "FROM flowers; CREATE TABLE raw_summary AS SELECT * FROM flowers_packed_summary;"
        "CREATE TABLE bare AS SELECT buffer_id, x, y FROM flowers_packed;"
        "CREATE TABLE bare_summary AS SELECT * FROM flowers_packed_summary;"
        "CREATE TABLE old AS SELECT * FROM flowers_packed;"
        "CREATE TABLE old_summary AS SELECT 'x'::text AS independent_varname, 'y'::text AS dependent_varname;"
        "CREATE TABLE lonely AS SELECT * FROM flowers_packed;"
        "CREATE TABLE two AS SELECT *, x AS x2, x_shape AS x2_shape FROM flowers_packed;"
        "CREATE TABLE two_summary AS SELECT ARRAY['x','x2'] AS independent_varname, ARRAY['y'] AS dependent_varname"
    )


def call(source="'flowers_packed'", output="'models'", mst="'mst'", rest="2, FALSE"):
    return f"SELECT madlib.madlib_keras_fit_multiple_model({source}, {output}, {mst}, {rest})"


@pytest.mark.parametrize(
    "arguments,fragment",
    [
        ({"source": "NULL"}, "NULL/empty input table name"),
        ({"source": "'nowhere'"}, "source table 'nowhere' does not exist"),
        ({"source": "'lonely'"}, "summary of the source table 'lonely_summary' does not exist"),
        ({"source": "'hollow'"}, 'source table "hollow" is empty'),
        ({"source": "'raw'"}, "it should be minibatched"),
        ({"source": "'bare'"}, "it must be preprocessed"),
        ({"source": "'old'"}, "old preprocessor"),
        ({"source": "'two'"}, "input shape does not match"),
        ({"output": "NULL"}, "NULL/empty output table name"),
        ({"output": "'taken'"}, 'output table "taken" already exists'),
        ({"output": "'nowhere.models'"}, 'schema "nowhere"'),
        ({"output": "'9models'"}, "invalid output table name"),
        ({"rest": "0, FALSE"}, "num_iterations must be at least 1"),
        ({"rest": "2, FALSE, 'nowhere'"}, "validation table 'nowhere' does not exist"),
        ({"rest": "2, FALSE, NULL, 3"}, "metrics_compute_frequency must be from 1"),
        ({"rest": "2, FALSE, NULL, NULL, TRUE"}, "warm start continues from"),
        ({"output": "'taken'", "rest": "2, FALSE, NULL, NULL, TRUE"}, 'model table "taken" is empty'),
        ({"rest": "2, TRUE"}, "no GPU"),
    ],
)
def test_bad_arguments_have_clear_errors(db, data, arguments, fragment):
    before = state(db)
    assert fragment in str(db.error(call(**arguments)))
    nothing_is_left(db, before)


@pytest.mark.parametrize(
    "row,fragment",
    [
        ((1, "loss='categorical_crossentropy',optimizer='Adom()'", ""), "unknown optimizer"),
        ((1, "loss='mine',optimizer='Adam()'", ""), "object table missing"),
        ((1, ADAM.format(0.1), "epochs=__import__('os')"), "literal"),
        ((7, ADAM.format(0.1), ""), "model_id 7 is not in"),
        ((2, ADAM.format(0.1), ""), "not the JSON of a Keras model"),
        ((3, ADAM.format(0.1), ""), "Lambda"),
        ((1, ADAM.format(0.1), "callbacks=[EarlyStopping()]"), "TensorBoard"),
    ],
)
def test_a_configuration_that_cannot_be_read_stops_the_call_before_any_work(db, data, row, fragment):
    lambda_layer = {
        "module": "keras.layers",
        "class_name": "Lambda",
        "config": {"function": "x"},
        "registered_name": None,
    }
    load(db, "arch_bad", dense(), '{"a": 1}', sequential("evil", [4], lambda_layer))
    selection(db, "mst_bad", "arch_bad", [(1, ADAM.format(0.1), ""), row])
    before = state(db)
    error = str(db.error(call(mst="'mst_bad'")))
    assert fragment in error and "mst_key 2" in error
    nothing_is_left(db, before)


def test_an_object_table_must_exist(db, data):
    selection(db, "mst_obj", "arch", [(1, ADAM.format(0.1), "")])
    db.run("UPDATE mst_obj_summary SET object_table = 'functions'")
    before = state(db)
    assert "object table 'madlib.functions' does not exist" in str(db.error(call(mst="'mst_obj'")))
    nothing_is_left(db, before)


def test_a_source_made_in_the_same_transaction_is_refused_with_a_hint(db, data):
    before = state(db)
    db.run("BEGIN")
    make_data(db, "fresh", segments=2)
    error = db.error(call(source="'fresh_packed'"))
    assert "fresh_packed" in str(error) and "COMMIT" in error.diag.message_hint
    nothing_is_left(db, before)
    db.run("BEGIN; UPDATE flowers_packed SET buffer_id = buffer_id + 0")
    error = db.error(call())
    assert "other sessions do not see" in str(error) and "COMMIT" in error.diag.message_hint
    nothing_is_left(db, before)


def test_a_temporary_source_is_refused_with_a_hint(db, data):
    db.run(
        "CREATE TEMP TABLE temporary AS SELECT * FROM flowers_packed;"
        "CREATE TEMP TABLE temporary_summary AS SELECT * FROM flowers_packed_summary"
    )
    error = db.error(call(source="'temporary'"))
    assert "permanent" in error.diag.message_hint
    db.run("DROP TABLE temporary, temporary_summary")


@pytest.mark.parametrize(
    "statement",
    [
        call(source="'pg_temp.packed'"),
        call(rest="1, FALSE, 'pg_temp.packed'"),
        f"SELECT madlib.madlib_keras_fit('pg_temp.packed', 'models', 'arch', 1, $${ADAM.format(0.1)}$$, '', 1)",
    ],
)
def test_a_table_that_was_packed_as_a_temporary_one_is_refused_with_a_hint(db, data, statement):
    db.run(
        "DROP TABLE IF EXISTS pg_temp.packed, pg_temp.packed_summary; SET pg_mop.segments = 2; "
        "SELECT madlib.training_preprocessor_dl('flowers', 'pg_temp.packed', 'y', 'x')"
    )
    before = state(db)
    error = db.error(statement)
    assert "is not visible to other sessions" in str(error) and "permanent" in error.diag.message_hint
    nothing_is_left(db, before)
    db.run("DROP TABLE pg_temp.packed, pg_temp.packed_summary")


def test_a_source_locked_by_the_caller_is_refused_at_once(db, data):
    before = state(db)
    db.run("BEGIN; LOCK TABLE flowers_packed IN ACCESS EXCLUSIVE MODE")
    error = db.error(call())
    assert "locked by this transaction itself" in str(error) and "COMMIT" in error.diag.message_hint
    nothing_is_left(db, before)


def test_a_source_locked_by_somebody_else_is_an_error_after_lock_timeout(db, data):
    other = db.another()
    other.run("BEGIN; LOCK TABLE flowers_packed IN EXCLUSIVE MODE")
    db.run("SET pg_mop.lock_timeout = '200ms'")
    before = state(db)
    assert isinstance(db.error(call()), psycopg2.errors.LockNotAvailable)
    nothing_is_left(db, before)
    other.run("ROLLBACK")
    other.close()
    db.run("RESET pg_mop.lock_timeout")


def test_a_role_needs_rights_on_the_source_and_its_runs_are_its_own(db, data):
    db.run("DROP ROLE IF EXISTS analyst; CREATE ROLE analyst LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO analyst")
    client = db.another(user="analyst")
    assert isinstance(client.error(call()), psycopg2.errors.InsufficientPrivilege), "mop_user is needed"
    db.run("GRANT mop_user TO analyst")
    before = state(db)
    error = client.error(call())
    assert 'permission denied for source table "flowers_packed"' in str(error)
    assert error.diag.message_hint.startswith("GRANT SELECT")
    nothing_is_left(db, before)
    db.run("GRANT SELECT ON ALL TABLES IN SCHEMA public TO analyst")
    client.run(call(output="'analysts'"))
    assert client.value("SELECT count(*) FROM analysts") == 1
    assert [r["owner"] for r in client.run("SELECT DISTINCT owner FROM madlib.mop_runs")] == ["analyst"]
    assert client.value("SELECT count(*) FROM madlib.mop_run") == client.value("SELECT count(*) FROM madlib.mop_runs")
    db.run("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN; GRANT mop_user TO stranger")
    stranger = db.another(user="stranger")
    for view in ("mop_runs", "mop_progress", "mop_units", "mop_visit_order", "mop_stage_state", "mop_configuration"):
        assert stranger.value(f"SELECT count(*) FROM madlib.{view}") == 0
    run_id = client.value("SELECT max(run_id) FROM madlib.mop_runs")
    assert "there is no run" in str(stranger.error("SELECT madlib.mop_drop_run(%s)", [run_id]))
    for someone in (stranger, client):
        for sql in (
            "DELETE FROM madlib.mop_run",
            "UPDATE madlib.mop_run SET status = 'failed'",
            "INSERT INTO madlib.mop_output VALUES (1)",
            "UPDATE madlib.mop_stage_state SET version = 9",
            "DELETE FROM madlib.mop_unit",
            f"SELECT * FROM madlib.mop_state_{run_id}_1",
        ):
            assert isinstance(
                someone.error(sql), (psycopg2.errors.InsufficientPrivilege, psycopg2.errors.UndefinedTable)
            ), sql
    stranger.close()
    client.close()
    assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE owner = 'analyst'") == 1
    db.run("DROP OWNED BY analyst CASCADE; DROP ROLE analyst; DROP OWNED BY stranger; DROP ROLE stranger")
    assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE owner = 'unknown (analyst)'") == 1, "it stays"


@pytest.mark.parametrize(
    "setting,value,fragment",
    [
        ("seed", "-1", "0 to"),
        ("segments", "0", "1 to 1024"),
        ("scheduler", "fifo", "one of"),
        ("cache_mb", "1GB", "integer"),
        ("threads", "0", "1 to"),
        ("keras_backend", "mxnet", "one of"),
        ("lock_timeout", "-5", "duration"),
        ("fork_server_idle_timeout", "1 year", "duration"),
        ("same_start", "maybe", "on or off"),
    ],
)
def test_a_bad_setting_is_an_error(db, data, setting, value, fragment):
    client = db.another()
    client.run(f"SET pg_mop.{setting} = '{value}'")
    error = client.error(call())
    assert f'invalid value for setting "pg_mop.{setting}": "{value}"' in str(error)
    assert fragment in error.diag.message_hint
    client.close()


@pytest.mark.parametrize(
    "name", ["pg_mop.segmants", "pg_mop.quite_another_name", "pg_mop.Seeds", '"Pg_Mop"."Sed"', '"PG_MOP".sed']
)
def test_an_unknown_setting_is_an_error_until_it_is_reset(db, data, name):
    client = db.another()
    client.run(f"SET {name} = 'x'")
    assert "unrecognized setting" in str(client.error(call(output="'never'")))
    client.run(f"RESET {name}")
    client.run(f"BEGIN; SET LOCAL {name} = 'x'")
    assert "unrecognized setting" in str(client.error(call(output="'never'")))
    client.run("ROLLBACK")
    assert "NULL/empty output" in str(client.error(call(output="NULL")))
    client.close()

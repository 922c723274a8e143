"""Two roles train on one source at once: each gets what it gets alone, and neither reaches the other's runs."""

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.places import DEFAULTS, prepare
from support.workload import holding

ONE = {**DEFAULTS, "pg_mop.segments": "1"}
HIDDEN = ("mop_runs", "mop_progress", "mop_units", "mop_visit_order", "mop_kernel_choices")


def call(output):
    return f"SELECT madlib.madlib_keras_fit_multiple_model('shared.packed', '{output}', 'shared.mst', 3, FALSE)"


def train(client, output):
    client.run(call(output))


def weights(client, table):
    return client.run(f"SELECT mst_key, model_weights::text FROM {table} ORDER BY 1")


@pytest.fixture(scope="module")
def two(db):
    """The sessions of two roles, a shared source, and what each gets from it alone."""
    db.run(
        "DROP ROLE IF EXISTS anna, bert; CREATE ROLE anna LOGIN; CREATE ROLE bert LOGIN; "
        "GRANT mop_user TO anna, bert; CREATE SCHEMA anna AUTHORIZATION anna; CREATE SCHEMA bert AUTHORIZATION bert"
    )
    prepare(db, "shared")
    db.run("UPDATE shared.mst SET fit_params = 'batch_size=1,epochs=30'")
    clients = [db, db.another("anna"), db.another("bert")]
    for client in clients:
        for name, value in {**ONE, "pg_mop.lock_timeout": "300s"}.items():
            client.run("SELECT set_config(%s, %s, false)", [name, value])
    db.run("SELECT madlib.training_preprocessor_dl('shared.flowers', 'shared.packed', 'y', 'x', 10)")
    db.run("GRANT USAGE ON SCHEMA shared TO anna, bert; GRANT SELECT ON ALL TABLES IN SCHEMA shared TO anna, bert")
    yield clients[1:]
    for client in clients[1:]:
        client.close()
    db.run("DROP OWNED BY anna, bert CASCADE; DROP ROLE anna, bert")


def test_runs_of_two_roles_at_once_are_those_of_each_alone(db, two):
    anna, bert = two
    train(anna, "anna.alone")
    at_work = (
        "SELECT count(DISTINCT r.owner) FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) "
        "WHERE u.status = 'running'"
    )
    with holding(db.another()) as let_some_begin:  # (the first does not end before the second begins)
        calls = [Calling(anna, call("anna.models")), Calling(bert, call("bert.models"))]
        both = eventually(lambda: db.value(at_work) == 2 or let_some_begin(), 120)
    assert both, "they train at the same time"
    assert [call.end() for call in calls] == [None, None]
    assert weights(anna, "anna.models") == weights(bert, "bert.models") == weights(anna, "anna.alone")


def test_neither_role_reaches_the_others_runs(db, two):
    anna, bert = two
    db.run("DELETE FROM madlib.mop_run")
    anna.run("BEGIN")  # a run that was rolled back keeps its states
    train(anna, "anna.hers")
    anna.run("ROLLBACK")
    run_id = anna.value("SELECT max(run_id) FROM madlib.mop_runs")
    states = f"mop_state_{run_id}_1"
    assert db.value(f"SELECT count(*) FROM madlib.{states}") > 0
    for view in HIDDEN:
        assert anna.value(f"SELECT count(*) FROM madlib.{view}") > 0, view
        assert bert.value(f"SELECT count(*) FROM madlib.{view}") == 0, view
    before = everything(db)
    for table in (*TABLES, states):
        assert touched(bert, f"SELECT * FROM madlib.{table}") == 0, table
        assert touched(bert, f"DELETE FROM madlib.{table}") == 0, table
    for change in (
        "mop_run SET status = 'failed'",
        "mop_run SET owner = 1",
        "mop_configuration SET error = 'x'",
        "mop_unit SET loss = 0",
        rf"{states} SET data = '\x00'",
        "mop_segment SET rows = 0",
        "mop_stage_state SET version = 0",
        "mop_state_table SET state_table = 7",
    ):
        assert touched(bert, f"UPDATE madlib.{change}") == 0, change
    for call in (
        f"mop_resume({run_id})",
        f"mop_replay({run_id}, 'bert.stolen')",
        f"mop_drop_run({run_id})",
        f"mop_set_sessions({run_id}, 1)",
        f"mop_set_priority({run_id}, 1)",
        f"mop_note_counts({run_id}, 1, 1, 1, 1, 1)",
        f"mop_read_states({run_id}, '{{1}}', '{{1}}')",
        f"mop_close_run({run_id}, NULL, 'failed', 'x')",
        f"mop_reopen_run({run_id}, (SELECT backend FROM madlib.mop_tokens))",
        f"mop_new_state_table({run_id}, 9)",
        f"mop_put_state({run_id}, 1, 9, 1, 0, 'x')",
        f"mop_finish_units({run_id}, 'train', 'training', '[]')",
        f"mop_drop_state_tables({run_id}, ARRAY[1])",
        f"mop_fail_configurations({run_id}, NULL, '{{1}}', 'x', 'infrastructure')",
        f"mop_take_states({run_id}, 1, '{{1}}', '{{3}}', true)",
        f"mop_move_states({run_id}, ARRAY[1], 1)",
        f"mop_put_weights({run_id}, ARRAY[1], 'x')",
        f"mop_begin_units({run_id}, 1, 'train', 'training', '{{1}}', '{{1}}', '{{0}}', '{{9}}', '{{0}}')",
        f"mop_fail_unit({run_id}, NULL, 1, 1, 0, 'train', 'training', 1, 0, 'x')",
    ):
        assert f"there is no run {run_id} of role" in str(bert.error(f"SELECT madlib.{call}")), call
    train(bert, "bert.his")  # its housekeeping, too, leaves hers alone
    assert everything(db, run_id) == before


TABLES = (
    "mop_run",
    "mop_configuration",
    "mop_stage",
    "mop_request",
    "mop_segment",
    "mop_unit",
    "mop_stage_state",
    "mop_state_table",
    "mop_search_log",
)


def everything(db, run_id=None):
    """The rows of all runs, or of one, and its model states."""
    where = "" if run_id is None else f"WHERE run_id = {run_id}"
    states = db.run(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ %s ORDER BY 1",
        [f"^mop_state_{run_id or '[0-9]+'}_"],
    )
    return [
        *(db.run(f"SELECT md5(t::text) FROM madlib.{table} t {where} ORDER BY 1") for table in TABLES),
        *((row, db.run(f"SELECT md5(t::text) FROM madlib.{row['relname']} t ORDER BY 1")) for row in states),
    ]


def touched(client, sql):
    """How many rows a statement reaches; none where it is forbidden."""
    with client.connection.cursor() as cursor:
        try:
            cursor.execute(sql)
        except psycopg2.errors.InsufficientPrivilege:
            return 0
        return cursor.rowcount


def test_a_second_call_into_the_same_table_is_refused_at_once(db, two):
    anna, bert = two
    db.run("GRANT USAGE, CREATE ON SCHEMA shared TO anna, bert")
    running = "SELECT count(*) FROM madlib.{} WHERE status = 'running'"
    with holding(db.another()) as let_some_begin:  # (the first does not end meanwhile)
        calling = Calling(anna, call("shared.models"))
        assert eventually(lambda: db.value(running.format("mop_units")) or let_some_begin(), 120)
        with pytest.raises(psycopg2.errors.ObjectInUse, match="another session is training into"):
            train(bert, "shared.models")
        assert db.value(running.format("mop_runs")), "while the first still trains"
    assert calling.end() is None

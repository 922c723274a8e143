"""Two roles train on one source at once: each gets what it gets alone, and neither reaches the other's runs."""

import pytest

from support.client import Calling
from support.cluster import eventually
from support.places import DEFAULTS, prepare
from support.workload import holding

ONE = {**DEFAULTS, "pg_mop.segments": "1"}


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

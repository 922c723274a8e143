"""DROP EXTENSION takes pg_mop away and nothing of its users; they go on when it is back."""

import pytest

from support.cluster import eventually
from support.places import DEFAULTS, job, outcome, prepare
from support.trainers import all_trainers
from support.workload import alike


@pytest.fixture(scope="module")
def data(db):
    db.run("DROP ROLE IF EXISTS lodger; CREATE ROLE lodger LOGIN; GRANT mop_user TO lodger")
    prepare(db, "lodger", "lodger")
    yield db
    db.run("DROP OWNED BY lodger CASCADE; DROP ROLE lodger")


def sessions(db):
    """The process ids of pg_mop's own sessions in this database."""
    return {
        row["pid"]
        for row in db.run(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%' AND datname = current_database()"
        )
    }


def test_the_users_tables_stay_and_are_used_again(data, db):
    client = db.another("lodger")
    job(client, "lodger")
    before = outcome(db, "lodger")
    client.close()
    db.run("DROP EXTENSION pg_mop")
    assert outcome(db, "lodger") == before
    db.run("CREATE EXTENSION pg_mop SCHEMA madlib")
    db.run("GRANT mop_user TO lodger")
    client = db.another("lodger")
    for name, value in DEFAULTS.items():
        client.run("SELECT set_config(%s, %s, false)", [name, value])
    client.run(
        "SELECT madlib.madlib_keras_predict('lodger.models', 'lodger.flowers', 'id', 'x', 'lodger.anew', "
        "'prob', FALSE, 1)"
    )
    assert client.run("SELECT * FROM lodger.anew ORDER BY id, class_value") == alike(
        client.run("SELECT * FROM lodger.predicted ORDER BY id, class_value")
    )
    client.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('lodger.packed', 'lodger.again', 'lodger.mst', 2, FALSE, "
        "'lodger.packed')"
    )
    assert client.run("SELECT mst_key, model_weights::text FROM lodger.again ORDER BY 1") == client.run(
        "SELECT mst_key, model_weights::text FROM lodger.models ORDER BY 1"
    )
    client.close()


# owner: the pool must hear of DROP EXTENSION
def test_no_idle_trainer_outlives_the_extension(data, db):
    client = db.another("lodger")
    job(client, "lodger")
    try:
        assert eventually(lambda: not sessions(db)), "the run's sessions have ended"
        idle = [row["pid"] for row in db.run("SELECT pid FROM madlib.mop_trainers WHERE database = current_database()")]
        assert idle, "its trainers wait in the pool"
        db.run("DROP EXTENSION pg_mop")
        assert eventually(lambda: not set(idle) & set(all_trainers())), "no trainer is left"
    finally:
        client.close()
        db.run("DROP EXTENSION IF EXISTS pg_mop; CREATE EXTENSION pg_mop SCHEMA madlib")

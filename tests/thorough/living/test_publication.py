"""A publication of all tables, as logical replication and CDC make one: nothing is refused for lack of a key."""

import json

import pytest

from support.client import Client, add_server
from support.cluster import Cluster
from support.workload import ADAM, NAN, dense, fit, last_run, load, make_data, runs_made, selection

SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [8], "
    "'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.01, 0.02]}]}"
)
# tables that must identify their rows and do not: the extension's, and those of users that are written more than once
KEYLESS = """
SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
AND (c.relnamespace = 'madlib'::regnamespace
    OR c.relnamespace = 'public'::regnamespace AND c.relname ~ '_(packed|packed_summary|info|trials|segment_\\d+)$')
AND NOT (c.relreplident = 'f' OR c.relreplident IN ('d', 'i') AND EXISTS (
    SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)))"""


@pytest.fixture(scope="module")
def published(db):
    """The database, with a publication from before anything is done."""
    db.run("CREATE PUBLICATION everything FOR ALL TABLES")
    yield db
    db.run("DROP PUBLICATION everything")


@pytest.fixture(scope="module")
def trained(published):
    """A packed table and its validation rows, an architecture, a selection table, and a run of two iterations."""
    db = published
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense())
    selection(
        db,
        "mst",
        "arch",
        [(1, ADAM.format(0.01), "batch_size=8"), (1, ADAM.format(0.02), "batch_size=8"), (1, NAN, "batch_size=8")],
    )
    return fit(db, "flowers_packed", "models", "mst", 2, "flowers_val", 1)


def test_every_table_of_the_catalog_identifies_its_rows(published):
    assert published.run(KEYLESS) == []


def test_training_going_on_searching_and_dropping(published, trained):
    db = published
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [trained])
    assert db.value("SELECT iteration FROM models_info WHERE mst_key = 1") == 3
    # a run that was rolled back is resumed
    other = db.another()
    other.run("BEGIN")
    cut = fit(other, "flowers_packed", "later", "mst", 2)
    other.run("ROLLBACK")
    assert db.value("SELECT count(*) FROM pg_class WHERE relname ~ %s", [f"^mop_state_{cut}_"]) > 0
    assert db.run(KEYLESS) == [], "nor tables of model states"
    db.run("SELECT madlib.mop_resume(%s)", [cut])
    assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [cut]) == "finished"
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'later', 'mst', 1, FALSE, NULL, 1, TRUE)")
    for averaging in ("averaging", "sequential"):
        db.run(f"SET pg_mop.fit_strategy = {averaging}; DROP TABLE IF EXISTS one, one_summary")
        db.run(
            "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'arch', 1, %s, 'batch_size=8', 2)",
            [ADAM.format(0.01)],
        )
        db.run(
            "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'arch', 1, %s, 'batch_size=8', 1, FALSE, NULL, "
            "NULL, TRUE)",
            [ADAM.format(0.01)],
        )
    db.run("CALL madlib.mop_fit_multiple_model('flowers_packed', 'called', 'mst', 1, FALSE)")
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'found', 'arch', %s, 'random', %s, validation_table => "
        "'flowers_val', metric => 'accuracy')",
        [SPACE, "trials=3, iterations=2"],
    )
    searched = last_run(db)
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [searched])
    db.run("SELECT madlib.mop_replay(%s, 'replayed')", [trained])
    assert "<html" in db.value("SELECT madlib.mop_report(%s)", [searched])
    db.run(
        "SELECT madlib.mop_drop_states(%s); SELECT madlib.mop_drop_checkpoints(); SELECT madlib.mop_drop_run(%s); "
        "SELECT madlib.mop_drop_run(%s)",
        [cut, cut, searched],
    )
    assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE run_id IN (%s, %s)", [cut, searched]) == 0


def test_automl_with_a_schedule(published, trained):
    db = published
    db.run(
        "SELECT madlib.madlib_keras_automl('flowers_packed', 'auto', 'arch', 'auto_mst', ARRAY[1], %s, %s, "
        "'hyperband', 'R=3, eta=3, skip_last=0', validation_table => 'flowers_val')",
        [
            "{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'], 'optimizer_params_list': "
            "[{'optimizer': ['Adam'], 'learning_rate': [0.01, 0.02, 'log']}]}",
            "{'batch_size': [8], 'epochs': [1]}",
        ],
    )
    assert db.value("SELECT count(*) FROM auto_info WHERE metrics_iters IS NOT NULL") > 0
    db.run("SELECT madlib.hyperband_schedule('schedule', 9, 3, 0)")


def test_evaluating_and_predicting(published, trained):
    db = published
    _, made = runs_made(
        db,
        lambda: db.run(
            "SELECT madlib.madlib_keras_evaluate('models', 'flowers_val', 'evaluated', FALSE, 1); "
            "SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'predicted', 'response', FALSE, 1)"
        ),
    )
    assert db.value("SELECT count(*) FROM predicted") == 100
    db.run("SELECT madlib.mop_housekeeping()")


def test_what_people_make_and_change(published, trained):
    """Rows of architectures, functions and selection tables are deleted; a limit is set, changed and lifted."""
    db = published
    load(db, "several", dense(), dense(width=3))
    db.run("SELECT madlib.delete_keras_model('several', 1)")
    for _ in range(2):  # the second adds to the table of the first
        db.run(
            "SELECT madlib.generate_model_configs('several', 'chosen', ARRAY[2], %s, %s)",
            [
                "{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'], 'optimizer_params_list': "
                "[{'optimizer': ['Adam'], 'learning_rate': [0.01]}]}",
                "{'batch_size': [%d], 'epochs': [1]}" % (8 + _),
            ],
        )
    db.run(
        "DELETE FROM chosen WHERE mst_key = 1; UPDATE chosen_summary SET object_table = NULL; "
        "UPDATE flowers_packed_summary SET normalizing_const = normalizing_const"
    )
    db.run(
        "INSERT INTO madlib.mop_limit (role, threads) VALUES (NULL, 3); UPDATE madlib.mop_limit SET threads = 4; "
        "DELETE FROM madlib.mop_limit"
    )
    assert json.loads(db.value("SELECT to_json(madlib.mop_limits())::text"))["threads"] is None


def test_a_job_and_its_log(published, trained):
    db = published
    job = db.value(
        "SELECT madlib.mop_submit(%s)",
        ["SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'jobs', 'mst', 1, FALSE)"],
    )
    assert db.value("SELECT madlib.mop_wait(%s, '10min')", [job]) == "finished"


def test_copies_of_segments_and_packed_tables_are_dropped(published, trained):
    db = published
    db.run(
        "UPDATE madlib.mop_copy SET server = server; DELETE FROM madlib.mop_copy; "
        "UPDATE madlib.mop_secret SET secret = secret WHERE false"
    )
    db.run("SELECT madlib.mop_drop_packed('flowers_val')")


def test_an_output_table_of_before_without_a_key_is_told_of_before_anything_is_trained(published, trained):
    db = published
    run_id = fit(db, "flowers_packed", "old", "mst", 1)
    db.run("ALTER TABLE old DROP CONSTRAINT old_pkey")
    error = db.error("SELECT madlib.mop_more(%s, 1, 1)", [run_id])
    assert "cannot be updated: cannot update table" in str(error) and "REPLICA IDENTITY FULL" in error.diag.message_hint
    assert last_run(db) == run_id
    db.run(error.diag.message_hint)
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [run_id])


def test_segments_and_their_copies_on_another_server_that_has_such_a_publication_too(published, trained):
    db = published
    with Cluster(max_connections=40) as cluster:
        db.run("CREATE EXTENSION postgres_fdw")
        worker = add_server(db, "w1", cluster)
        worker.run("CREATE PUBLICATION everything FOR ALL TABLES")
        db.run("SET pg_mop.servers = 'w1, local'; SET pg_mop.replicas = 2")
        make_data(db, "spread", segments=2)
        run_id = fit(db, "spread_packed", "over", "mst", 2)
        assert db.value("SELECT count(*) FROM madlib.mop_copy") == 1
        assert db.run(KEYLESS) == [{"name": "spread_packed"}], "which is filled once, and cannot have a key"
        assert (
            worker.value(
                "SELECT count(*) FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary "
                "WHERE c.relname ~ '^spread_packed'"
            )
            == 1
        )
        db.run("RESET pg_mop.replicas; RESET pg_mop.servers")
        db.run("SELECT madlib.mop_drop_run(%s); SELECT madlib.mop_drop_packed('spread_packed')", [run_id])
        assert db.value("SELECT count(*) FROM madlib.mop_copy") == 0
        worker.close()
        db.run("DROP SERVER w1 CASCADE")


@pytest.mark.parametrize("older", ["0.1.0", "0.2.0", "0.3.0"])
def test_an_older_version_is_updated(published, older):
    maker = Client(published.server, "postgres")
    maker.run("DROP DATABASE IF EXISTS replicated WITH (FORCE)")
    maker.run("CREATE DATABASE replicated")
    client = Client(published.server, "replicated")
    client.run(
        f"CREATE PUBLICATION everything FOR ALL TABLES; CREATE SCHEMA madlib; "
        f"CREATE EXTENSION pg_mop SCHEMA madlib VERSION '{older}' CASCADE"
    )
    client.run("ALTER EXTENSION pg_mop UPDATE")
    assert client.run(KEYLESS) == []
    client.close()
    maker.run("DROP DATABASE replicated WITH (FORCE)")
    maker.close()

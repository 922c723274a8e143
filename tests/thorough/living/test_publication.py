"""A publication of all tables, as logical replication and CDC make one: nothing is refused for lack of a key."""

import pytest

from support.client import Client
from support.workload import ADAM, NAN, dense, fit, last_run, load, make_data, selection

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


def test_an_output_table_of_before_without_a_key_is_told_of_before_anything_is_trained(published, trained):
    db = published
    run_id = fit(db, "flowers_packed", "old", "mst", 1)
    db.run("ALTER TABLE old DROP CONSTRAINT old_pkey")
    error = db.error("SELECT madlib.mop_more(%s, 1, 1)", [run_id])
    assert "cannot be updated: cannot update table" in str(error) and "REPLICA IDENTITY FULL" in error.diag.message_hint
    assert last_run(db) == run_id
    db.run(error.diag.message_hint)
    db.run("SELECT madlib.mop_more(%s, 1, 1)", [run_id])


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

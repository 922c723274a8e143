"""Where training starts: warm start from an earlier run, transfer learning from the architecture table."""

import json

import pytest

from support.workload import ADAM, NAN, dense, fit, last_run, layer, load, make_data, selection, sequential


def frozen():
    """A net none of whose layers trains."""
    return sequential(
        "frozen",
        [4],
        layer("Dense", name="hidden", units=8, activation="relu", trainable=False),
        layer("Dense", name="out", units=3, activation="softmax", trainable=False),
    )


def rows(*numbers):
    return [(1, ADAM.format(0.01 * n), "batch_size=10") for n in numbers]


@pytest.fixture(scope="module")
def data(db):
    make_data(db)
    load(db, "arch", dense(), frozen())


def warm(db, output="models", iterations=2, validation=None):
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', %s, 'mst', %s, FALSE, %s, 1, TRUE)",
        [output, iterations, validation],
    )
    return last_run(db)


THREE = [*rows(1, 2), (2, ADAM.format(0.1), "batch_size=10")]
TABLES = ("models", "models_info", "models_summary")


@pytest.fixture(scope="module")
def trained(db, data):
    db.run("SET pg_mop.seed = 3")
    selection(db, "mst", "arch", THREE)
    fit(db, "flowers_packed", "models", "mst", 2, None, 1)
    for table in TABLES:
        db.run(f"CREATE TABLE kept_{table} (LIKE {table} INCLUDING ALL); INSERT INTO kept_{table} TABLE {table}")


@pytest.fixture
def models(db, trained):
    """A copy of the trained models, so that no test sees changes of another."""
    db.run("SET pg_mop.seed = 3")
    selection(db, "mst", "arch", THREE)
    for table in TABLES:
        db.run(
            f"DROP TABLE IF EXISTS {table} CASCADE; CREATE TABLE {table} (LIKE kept_{table} INCLUDING ALL); "
            f"INSERT INTO {table} TABLE kept_{table}"
        )
    return "models"


def test_a_frozen_model_keeps_its_loss_and_the_arrays_are_of_the_new_run(db, models):
    before = db.run("SELECT * FROM models_info ORDER BY mst_key")
    weights = {r["mst_key"]: bytes(r["model_weights"]) for r in db.run("SELECT * FROM models")}
    db.run("SET pg_mop.seed = 99")
    warm(db)
    after = db.run("SELECT * FROM models_info ORDER BY mst_key")
    assert after[2]["training_loss"] == pytest.approx([before[2]["training_loss_final"]] * 2, abs=1e-6)
    assert after[2]["training_metrics"] == pytest.approx([before[2]["training_metrics_final"]] * 2, abs=1e-10)
    assert bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 3")) == weights[3]
    assert after[0]["training_loss_final"] < before[0]["training_loss_final"]
    assert [len(r["training_loss"]) for r in after] == [2, 2, 2]
    summary = db.run("SELECT * FROM models_summary")[0]
    assert summary["warm_start"] is True and summary["metrics_iters"] == [1, 2]
    assert db.value("SELECT relpersistence FROM pg_class WHERE relname = 'models'") == "p"


def test_the_selection_table_decides_which_models_exist_afterwards(db, models):
    db.run("DELETE FROM mst WHERE mst_key = 1")
    db.run("INSERT INTO mst VALUES (9, 1, %s, 'batch_size=10')", [ADAM.format(0.05)])
    warm(db)
    for table in ("models", "models_info"):
        assert [r["mst_key"] for r in db.run(f"SELECT mst_key FROM {table} ORDER BY 1")] == [2, 3, 9]


def test_a_new_configuration_of_a_warm_start_does_not_take_the_architecture_tables_weights(db, models):
    weights = bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 3"))
    load(db, "arch_weights", dense(), frozen())
    db.run("UPDATE arch_weights SET model_weights = %s WHERE model_id = 2", [weights])
    db.run(
        "UPDATE mst_summary SET model_arch_table = 'arch_weights'; INSERT INTO mst VALUES (4, 2, %s, '')",
        [ADAM.format(0.05)],
    )
    db.run("SET pg_mop.seed = 99")
    warm(db)
    assert bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 3")) == weights
    assert bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 4")) != weights, "drawn from the seed"


def test_transfer_learning_starts_from_the_architecture_tables_weights(db, models):
    trained = db.run("SELECT * FROM models_info ORDER BY mst_key")
    load(db, "arch_weights", dense(), frozen())
    db.run(
        "UPDATE arch_weights a SET model_weights = m.model_weights FROM models m "
        "WHERE (a.model_id, m.mst_key) IN ((1, 1), (2, 3))"
    )
    selection(db, "mst2", "arch_weights", rows(1) + [(2, ADAM.format(0.1), "batch_size=10")])
    fit(db, "flowers_packed", "transferred", "mst2", 2, None, 1)
    after = db.run("SELECT * FROM transferred_info ORDER BY mst_key")
    assert after[1]["training_loss"] == pytest.approx([trained[2]["training_loss_final"]] * 2, abs=1e-6)
    assert after[0]["training_loss"][0] < trained[0]["training_loss_final"]


def test_a_warm_start_continues_exactly_where_plain_keras_would(db, data):
    """With SGD, whose state is its weights alone, 1 + 1 iterations with a warm start are 2 iterations."""
    db.run(
        "SET pg_mop.seed = 11; SET pg_mop.scheduler = 'round-robin'; SET pg_mop.kernel = plain; SET pg_mop.threads = 1"
    )
    sgd = [(1, "loss='categorical_crossentropy', optimizer='SGD(lr=0.05)'", "batch_size=10")]
    selection(db, "mst", "arch", sgd)
    fit(db, "flowers_packed", "once", "mst", 2)
    fit(db, "flowers_packed", "twice", "mst", 1)
    warm(db, "twice", 1)
    a, b = (bytes(db.value(f"SELECT model_weights FROM {t}")) for t in ("once", "twice"))
    db.run("RESET pg_mop.scheduler; RESET pg_mop.kernel; RESET pg_mop.threads")
    assert a == b


@pytest.mark.parametrize(
    "spoil,fragment",
    [
        ("DROP TABLE models", "does not exist"),
        ("DROP TABLE models_summary", "does not exist"),
        ("TRUNCATE models", "is empty"),
        ("UPDATE mst SET model_id = 2 WHERE mst_key = 1", "a warm start needs the same architecture"),
        ("CREATE VIEW best AS SELECT mst_key FROM models_info", "cannot be replaced by a warm start"),
        ("ALTER TABLE models RENAME COLUMN model_weights TO w", 'no column "model_weights"'),
        ("BEGIN READ ONLY", "read-only"),
        ("BEGIN; UPDATE models SET model_weights = model_weights || '\\x00000000'", "those that other sessions see"),
        (
            "CREATE TEMP TABLE mine AS TABLE models; CREATE TEMP TABLE mine_info AS TABLE models_info; "
            "CREATE TEMP TABLE mine_summary AS TABLE models_summary",
            "temporary",
        ),
    ],
)
def test_a_warm_start_that_cannot_be_is_refused_before_any_work(db, models, spoil, fragment):
    db.run(spoil)
    runs, output = db.value("SELECT count(*) FROM madlib.mop_runs"), "pg_temp.mine" if "mine" in spoil else "models"
    error = db.error(
        f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{output}', 'mst', 1, FALSE, NULL, NULL, TRUE)"
    )
    assert fragment in str(error) and db.value("SELECT count(*) FROM madlib.mop_runs") == runs
    assert "other sessions" not in fragment or "COMMIT" in error.diag.message_hint
    db.run("DROP VIEW IF EXISTS best; DROP FUNCTION IF EXISTS one")
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'pg_mop_old%'") == 0


def test_a_configuration_that_fails_now_keeps_the_weights_it_had(db, models):
    before = bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 2"))
    db.run("UPDATE mst SET compile_params = %s WHERE mst_key = 2", [NAN])
    warm(db)
    assert "NaN" in db.value("SELECT error FROM models_info WHERE mst_key = 2")
    assert bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 2")) == before
    assert db.value("SELECT count(*) FROM models") == 3


def test_a_single_models_warm_start_that_fails_keeps_the_model(db, models):
    db.run("DROP TABLE IF EXISTS one, one_summary")
    call = (
        "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'arch', 1, %s, 'batch_size=10', 1, FALSE, NULL, NULL"
    )
    db.run(call + ")", [ADAM.format(0.05)])
    before = bytes(db.value("SELECT model_weights FROM one"))
    assert "NaN" in str(db.error(call + ", TRUE)", [NAN]))
    assert bytes(db.value("SELECT model_weights FROM one")) == before


def test_empty_weights_are_none(db, models):
    load(db, "arch_weights", dense(), frozen())
    db.run("UPDATE arch_weights SET model_weights = ''")
    selection(db, "mst2", "arch_weights", rows(1))
    fit(db, "flowers_packed", "transferred", "mst2", 1)
    assert db.value("SELECT error FROM transferred_info") is None


def test_weights_that_do_not_fit_fail_their_configuration_with_both_counts(db, models):
    db.run("UPDATE models SET model_weights = model_weights || '\\x00000000' WHERE mst_key = 2")
    warm(db)
    error = db.value("SELECT error FROM models_info WHERE mst_key = 2")
    assert "68 elements" in error and "67" in error
    assert db.value("SELECT count(*) FROM models") == 3, "the failed one keeps what it had"


def test_weights_travel_between_model_and_architecture_tables_in_plain_sql(db, models):
    arch = json.loads(dense())
    db.run(
        "DROP TABLE IF EXISTS copies; SELECT madlib.load_keras_model('copies', m.model_arch, m.model_weights, "
        "'a copy') FROM models m WHERE mst_key = 1"
    )
    row = db.run("SELECT * FROM copies")[0]
    assert row["model_arch"] == arch and row["name"] == "a copy"
    assert bytes(row["model_weights"]) == bytes(db.value("SELECT model_weights FROM models WHERE mst_key = 1"))

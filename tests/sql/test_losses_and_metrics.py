"""Losses and metrics with arguments, by output, and for class numbers, in a run."""

import pytest

from support.workload import dense, fit, load, make_data, selection, two_in_two_out


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    load(db, "arch", dense())
    db.run("SET pg_mop.segments = 2; SET pg_mop.seed = 4")
    db.run(
        "CREATE TABLE raw AS SELECT i AS id, ARRAY[i % 3, i % 2, 1]::real[] AS b, ARRAY[i % 3, 0]::real[] AS a, "
        "i % 3 AS kind, i % 2 AS side FROM generate_series(1, 60) AS i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('raw', 'two', 'kind, side', 'b, a', 10)")
    load(db, "arch_two", two_in_two_out())


def info(db, packed, arch, *compiled, **more):
    selection(db, "mst", arch, [(1, text, "batch_size=8") for text in compiled])
    fit(db, packed, "models", "mst", 1, **more)
    return db.run("SELECT * FROM models_info ORDER BY mst_key")


def test_arguments_reach_keras_and_reports(db, data):
    rows = info(
        db,
        "flowers_packed",
        "arch",
        "loss='CategoricalCrossentropy(label_smoothing=0.1)', optimizer='SGD(lr=0.05, clipnorm=0.5)', "
        """metrics=['TopKCategoricalAccuracy(k=2, name="top2")', 'AUC(curve="PR")']""",
        "loss='sparse_categorical_crossentropy', optimizer='SGD(lr=0.05)', metrics=['sparse_categorical_accuracy']",
        "loss='categorical_crossentropy', optimizer='SGD(lr=0.05)', metrics=['accuracy']",
    )
    assert [row["error"] for row in rows] == [None] * 3
    assert rows[0]["metrics_type"] == ["top2", "AUC(curve='PR')"]
    assert rows[0]["loss_type"] == "CategoricalCrossentropy(label_smoothing=0.1)"
    assert 0 < rows[0]["all_metrics"]["training"]["top2"][-1] <= 1
    assert rows[1]["training_loss_final"] > 0 and 0 < rows[1]["training_metrics_final"] <= 1
    db.run("DROP TABLE IF EXISTS scores")
    db.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_packed', 'scores', FALSE, 1)")
    score = db.run("SELECT * FROM scores")[0]
    assert score["loss"] == pytest.approx(rows[0]["training_loss_final"], rel=1e-5)
    assert score["metric"] == pytest.approx(rows[0]["training_metrics_final"], rel=1e-5)


def test_a_metric_with_a_name_stops_a_configuration(db, data):
    selection(
        db,
        "mst",
        "arch",
        [
            (
                1,
                "loss='mse', optimizer='SGD(lr=0.05)', metrics=['TopKCategoricalAccuracy(k=3,name=\"all\")']",
                "batch_size=8, stop={'metric': 'all', 'target': 0.9, 'mode': 'max'}",
            )
        ],
    )
    fit(db, "flowers_packed", "models", "mst", 3, frequency=1)
    assert db.value("SELECT iteration FROM models_info") == 1


def test_every_output_may_have_a_loss_of_its_own(db, data):
    rows = info(
        db,
        "two",
        "arch_two",
        "loss=['categorical_crossentropy', 'mse'], optimizer='SGD(lr=0.05)'",
        "loss={'side': 'mse', 'kind': 'sparse_categorical_crossentropy'}, optimizer='SGD(lr=0.05)', "
        "loss_weights={'side': 1, 'kind': 1}",
        "loss={'side': 'mse', 'kind': 'CategoricalCrossentropy()'}, optimizer='SGD(lr=0.05)', loss_weights=[1, 1]",
        "loss={'side': 'mse'}, optimizer='SGD(lr=0.05)'",
        "loss=['mse'], optimizer='SGD(lr=0.05)'",
    )
    assert [row["error"] for row in rows[:3]] == [None] * 3
    assert "loss names the outputs side, the architecture's are kind, side" in rows[3]["error"]
    assert "losses for 1 outputs, but the data have 2" in rows[4]["error"]
    losses = [row["training_loss_final"] for row in rows[:3]]
    assert all(loss > 0 for loss in losses)
    db.run("DROP TABLE IF EXISTS predicted")
    db.run("SELECT madlib.madlib_keras_predict('models', 'raw', 'id', 'b, a', 'predicted', 'response', FALSE, 1)")
    assert db.value("SELECT count(*) FROM predicted") > 0


def test_sparse_losses_need_classes(db, data):
    db.run("CREATE TABLE numbers AS SELECT id, x, ARRAY[0.2, 0.3, 0.5] AS y FROM flowers")
    db.run(
        "SELECT madlib.training_preprocessor_dl('numbers', 'numbers_packed', 'y', 'x', 10, dependent_dtype => 'float32')"
    )
    selection(db, "mst", "arch", [(1, "loss='sparse_categorical_crossentropy', optimizer='SGD()'", "batch_size=8")])
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('numbers_packed', 'never', 'mst', 1, FALSE)")
    assert 'sparse_categorical_crossentropy needs classes, but column "y" has numbers' in str(error)

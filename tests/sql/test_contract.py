"""Assertions of MADlib's own tests (deep_learning/test) that no other module has."""

import json
import pathlib

import pytest

from support.custom_code import SQUARED, ZERO, put
from support.workload import ADAM, dense, fit, layer, load, make_data, selection, sequential, two_in_two_out

COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']"


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=3)
    load(db, "arch", dense())


def train(
    db,
    source="flowers_packed",
    output="one",
    model_id=1,
    compiled=COMPILE,
    fit="batch_size=8",
    rest="2",
    arch="arch",
    keep=False,
):
    if not keep:
        db.run(f"DROP TABLE IF EXISTS {output}, {output}_summary")
    db.run(
        f"SELECT madlib.madlib_keras_fit(%s, %s, %s, %s, %s, %s, {rest})",
        [source, output, arch, model_id, compiled, fit],
    )
    return db.run(f"SELECT * FROM {output}_summary")[0]


def test_a_superusers_tensorboard_writes_its_files_for_each_segment(db, data, tmp_path):
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o777)
    train(db, fit=f'batch_size=8, callbacks=[TensorBoard(log_dir="{tmp_path}/fit/", histogram_freq=1)]')
    selection(db, "mst", "arch", [(1, ADAM.format(0.1), f"callbacks=[TensorBoard(log_dir='{tmp_path}/many/')]")])
    fit(db, "flowers_packed", "models", "mst", 1)
    for kind in ("fit", "many"):
        folders = sorted(p.name for p in (pathlib.Path(tmp_path) / kind).iterdir())
        assert folders == ["0", "1", "2"]
        assert list((pathlib.Path(tmp_path) / kind / "0").rglob("events.out.tfevents*"))


def test_a_hand_edited_packed_table_and_a_hand_made_summary(db, data):
    db.run(
        "DROP TABLE IF EXISTS edited, edited_summary; CREATE TABLE edited AS SELECT * FROM flowers_packed; "
        "CREATE TABLE edited_summary AS SELECT source_table, dependent_varname, independent_varname, "
        "dependent_vartype, ARRAY[NULL, 'b', 'c']::text[] AS y_class_values, normalizing_const "
        "FROM flowers_packed_summary"
    )
    assert train(db, "edited")["y_class_values"] == [None, "b", "c"]
    db.run(
        "DROP TABLE IF EXISTS guesses; SELECT madlib.madlib_keras_predict('one', 'flowers', 'id', 'x', 'guesses', "
        "'response')"
    )
    assert {r["c"] for r in db.run("SELECT DISTINCT class_value AS c FROM guesses")} <= {None, "b", "c"}


def test_data_on_some_segments_alone(db, data):
    db.run(
        "DROP TABLE IF EXISTS sparse, sparse_summary; CREATE TABLE sparse AS SELECT * FROM flowers_packed; "
        "UPDATE sparse SET __dist_key__ = __dist_key__ * 4 + 1; DELETE FROM sparse WHERE __dist_key__ > 5; "
        "CREATE TABLE sparse_summary AS SELECT * FROM flowers_packed_summary"
    )
    assert train(db, "sparse")["training_loss_final"] >= 0
    selection(db, "mst", "arch", [(1, ADAM.format(0.1), ""), (1, ADAM.format(0.05), "")])
    fit(db, "sparse", "models", "mst", 1)
    assert db.value("SELECT count(*) FROM models_info WHERE error IS NULL") == 2


def test_two_models_in_one_session_and_a_validation_table_with_other_names(db, data):
    db.run("DROP TABLE IF EXISTS renamed, renamed_packed, renamed_packed_summary, onehot_packed, onehot_packed_summary")
    db.run(
        "CREATE TABLE renamed AS SELECT id, x AS features, y AS label, ARRAY[(y = 'a')::int, (y = 'b')::int, "
        "(y = 'c')::int] AS vector FROM flowers"
    )
    db.run(
        "SELECT madlib.validation_preprocessor_dl('renamed', 'renamed_packed', 'label', 'features', 'flowers_packed')"
    )
    db.run("SELECT madlib.training_preprocessor_dl('renamed', 'onehot_packed', 'vector', 'features')")
    for validation in ("renamed_packed", "onehot_packed"):
        row = train(db, rest=f"2, FALSE, '{validation}'")
        assert row["validation_loss"] == pytest.approx(row["training_loss"], rel=1e-5)
    other = train(db, "onehot_packed", "other")
    assert other["vector_class_values"] is None and other["metrics_type"] == ["accuracy"]
    db.run("DROP TABLE IF EXISTS scores, guesses")
    db.run("SELECT madlib.madlib_keras_evaluate('other', 'onehot_packed', 'scores')")
    db.run("SELECT madlib.madlib_keras_predict('other', 'renamed', 'id', 'features', 'guesses', 'response')")
    assert {r["c"] for r in db.run("SELECT DISTINCT class_value AS c FROM guesses")} <= {"0", "1", "2"}


def test_a_temporary_selection_table_and_outputs_in_another_schema(db, data):
    db.run(
        "CREATE SCHEMA IF NOT EXISTS elsewhere; DROP TABLE IF EXISTS pg_temp.chosen, pg_temp.chosen_summary, "
        "elsewhere.models, elsewhere.models_info, elsewhere.models_summary"
    )
    db.run(
        "SELECT madlib.load_model_selection_table('public.arch', 'pg_temp.chosen', ARRAY[1], ARRAY[%s], "
        "ARRAY['batch_size=8'])",
        [COMPILE],
    )
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('public.flowers_packed', 'elsewhere.models', "
        "'pg_temp.chosen', 2, FALSE)"
    )
    row = db.run("SELECT * FROM elsewhere.models_summary")[0]
    assert (row["model"], row["model_info"], row["model_selection_table"]) == (
        "elsewhere.models",
        "elsewhere.models_info",
        "pg_temp.chosen",
    )
    db.run("DROP TABLE IF EXISTS scores, guesses")
    db.run("SELECT madlib.madlib_keras_evaluate('elsewhere.models', 'flowers_packed', 'scores', FALSE, 1)")
    db.run(
        "SELECT madlib.madlib_keras_predict('elsewhere.models', 'flowers', 'id', 'x', 'guesses', 0.2::float8, FALSE, 1)"
    )
    assert db.value("SELECT loss FROM scores") == pytest.approx(
        db.value("SELECT training_loss_final FROM elsewhere.models_info"), rel=1e-5
    )


def test_a_custom_zero_loss_by_madlib_keras_fit(db, data):
    db.run("DROP TABLE IF EXISTS madlib.functions, scores")
    put(db, "zero_loss", ZERO, "functions")
    db.run("SELECT madlib.load_top_k_accuracy_function('functions', 3)")
    row = train(
        db,
        compiled="loss='zero_loss', optimizer='SGD(lr=0.1)', metrics=['top_3_accuracy']",
        rest="3, FALSE, NULL, 1, object_table := 'functions'",
    )
    assert row["training_loss"] == [0, 0, 0] and row["metrics_type"] == ["top_3_accuracy"]
    assert row["training_metrics"] == [1, 1, 1], "one of three classes is among the best three"
    db.run("SELECT madlib.madlib_keras_evaluate('one', 'flowers_packed', 'scores')")
    assert db.run("SELECT * FROM scores")[0] == {
        "loss": 0,
        "metric": 1,
        "metrics_type": ["top_3_accuracy"],
        "loss_type": "zero_loss",
        "all_metrics": {"top_3_accuracy": 1},
    }


def test_several_inputs_and_outputs_by_madlib_keras_fit(db, data):
    db.run("DROP TABLE IF EXISTS raw2, packed2, packed2_summary, val2, val2_summary, scores, guesses, madlib.functions")
    db.run(
        "CREATE TABLE raw2 AS SELECT i AS id, ARRAY[i % 3, i % 2, 1]::real[] AS wide, "
        "ARRAY[i % 3, 0]::real[] AS slim, i % 3 AS kind, (ARRAY['left', 'right'])[1 + i % 2] AS side "
        "FROM generate_series(1, 60) AS i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('raw2', 'packed2', 'kind, side', 'wide, slim', 10)")
    db.run("SELECT madlib.validation_preprocessor_dl('raw2', 'val2', 'kind, side', 'wide, slim', 'packed2')")
    load(db, "arch2", two_in_two_out())
    row = train(db, "packed2", arch="arch2", rest="4, FALSE, 'val2'")
    assert row["num_classes"] == [3, 2] and row["kind_class_values"] == [0, 1, 2]
    assert row["validation_loss"] == pytest.approx(row["training_loss"], rel=1e-5)
    assert row["training_metrics_final"] <= 1, "the mean accuracy, not a loss"
    db.run("SELECT madlib.madlib_keras_evaluate('one', 'val2', 'scores')")
    assert db.value("SELECT loss FROM scores") == pytest.approx(row["validation_loss_final"], rel=1e-5)
    db.run("SELECT madlib.madlib_keras_predict('one', 'raw2', 'id', 'wide, slim', 'guesses', 0.5::float8)")
    assert {r["n"] for r in db.run("SELECT DISTINCT class_name AS n FROM guesses")} <= {"kind", "side"}
    again = train(db, "packed2", arch="arch2", rest="2, FALSE, 'val2', NULL, TRUE", keep=True)
    assert again["training_loss_final"] < row["training_loss_final"]
    db.run("UPDATE arch2 SET model_weights = (SELECT model_weights FROM one)")
    moved = train(db, "packed2", "moved", arch="arch2", rest="1, FALSE, 'val2'")
    assert moved["training_loss_final"] < row["training_loss_final"]
    put(db, "squared", SQUARED, "functions")
    own = train(
        db,
        "packed2",
        "own",
        arch="arch2",
        compiled="loss='squared', optimizer='SGD(lr=0.1)', metrics=['squared']",
        rest="1, FALSE, 'val2', object_table := 'functions'",
    )
    assert own["training_loss_final"] == pytest.approx(2 * own["training_metrics_final"], rel=1e-4), "sum and mean"


# --- scripts of Keras 2, as MADlib publishes such ----------------------------------------------------


def keras2(*layers, name="sequential_1"):
    return json.dumps({"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": layers})


def old(kind, **config):
    return {"class_name": kind, "config": config}


def scaled(**config):
    """An initializer as Keras 2 writes it."""
    return {
        "class_name": "VarianceScaling",
        "config": {"distribution": "uniform", "scale": 1.0, "seed": None, "mode": "fan_avg", **config},
    }


CIFAR = keras2(
    old(
        "Conv2D",
        name="conv2d_1",
        batch_input_shape=[None, 8, 8, 3],
        dtype="float32",
        filters=4,
        kernel_size=[3, 3],
        strides=[1, 1],
        padding="same",
        data_format="channels_last",
        dilation_rate=[1, 1],
        activation="linear",
        use_bias=True,
        kernel_initializer=scaled(),
        bias_initializer=old("Zeros"),
    ),
    old(
        "BatchNormalization",
        name="bn",
        axis=-1,
        momentum=0.99,
        epsilon=0.001,
        center=True,
        scale=True,
        beta_initializer=old("Zeros"),
        gamma_initializer=old("Ones"),
        moving_mean_initializer=old("Zeros"),
        moving_variance_initializer=old("Ones"),
    ),
    old("Activation", name="relu", activation="relu"),
    old("MaxPooling2D", name="pool", pool_size=[2, 2], padding="valid", strides=[2, 2], data_format="channels_last"),
    old("Dropout", name="drop", rate=0.2, noise_shape=None, seed=None),
    old("Flatten", name="flat", data_format="channels_last"),
    old("Dense", name="out", units=3, activation="softmax"),
)


def test_the_cifar_script_of_keras_2_and_transfer_learning_from_it(db, data):
    db.run("DROP TABLE IF EXISTS images, images_packed, images_packed_summary")
    db.run(
        "CREATE TABLE images AS SELECT i AS id, i % 3 AS y, (SELECT array_agg(r) FROM (SELECT (SELECT array_agg("
        "ARRAY[(i % 3) * 80, a * 10 + b, (i * 7 + a) % 255]) FROM generate_series(1, 8) b) AS r "
        "FROM generate_series(1, 8) a) s)::integer[] AS x FROM generate_series(1, 40) AS i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('images', 'images_packed', 'y', 'x', NULL, 255)")
    load(db, "cifar_arch", CIFAR)
    compiled = "optimizer=SGD(lr=0.01, decay=1e-6, nesterov=True), loss='categorical_crossentropy', metrics=['mae']"
    row = train(
        db,
        "images_packed",
        "cifar",
        arch="cifar_arch",
        compiled=compiled,
        fit="batch_size=2, epochs=1, verbose=0",
        rest="2, FALSE, NULL, 1",
    )
    assert row["normalizing_const"] == 255 and len(row["training_loss"]) == 2
    db.run("UPDATE cifar_arch SET model_weights = (SELECT model_weights FROM cifar)")
    again = train(
        db, "images_packed", "transferred", arch="cifar_arch", compiled=compiled, fit="batch_size=2", rest="1"
    )
    assert again["training_loss_final"] < row["training_loss"][0]


def test_a_sequential_model_within_a_functional_one(db, data):
    """Nested models keep the order of their weights."""
    inner = json.loads(sequential("inner", [4], layer("Dense", name="h", units=8, activation="relu")))
    outer = json.loads(dense())
    outer["config"]["layers"] = [outer["config"]["layers"][0], inner, outer["config"]["layers"][2]]
    load(db, "nested", json.dumps(outer))
    row = train(db, arch="nested")
    again = train(db, arch="nested", rest="1, FALSE, NULL, NULL, TRUE", keep=True)
    assert again["training_loss_final"] < row["training_loss_final"]

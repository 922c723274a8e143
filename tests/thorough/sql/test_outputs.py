"""Models whose JSON does not say what they output: trained and predicted with, or refused, each by itself."""

import os

import pytest

from support.workload import ADAM, dense, fit, layer, load, make_data, selection, sequential

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")


def pooled(classes, name):
    return sequential(
        name,
        [4],
        layer("Dense", name="d", units=4 * classes),
        layer("Reshape", name="r", target_shape=[4, classes]),
        layer("GlobalAveragePooling1D", name="p"),
        layer("Softmax", name="s"),
    )


def sequence():
    return sequential(
        "sequence", [4], layer("RepeatVector", name="r", n=5), layer("LSTM", name="l", units=3, return_sequences=True)
    )


@pytest.fixture(scope="module")
def trained(db):
    """Six architectures; only what fits is trained."""
    import keras

    x = keras.Input((4,))
    y = keras.layers.Dense(3)(x)
    operators = keras.Model(x, keras.layers.Softmax()(y * 2 + keras.ops.mean(x, axis=-1, keepdims=True)))
    make_data(db, segments=2)
    load(
        db,
        "arch",
        dense(),
        pooled(3, "fits"),
        pooled(5, "wide"),
        sequence(),
        operators.to_json(),
        dense(classes=4, name="known"),
    )
    selection(db, "mst", "arch", [(i, ADAM.format(0.05), "batch_size=10") for i in range(1, 7)])
    fit(db, "flowers_packed", "models", "mst", 2)
    return {r["mst_key"]: r for r in db.run("SELECT * FROM models_info")}


def test_what_fits_is_trained_and_what_does_not_fails_alone(db, trained):
    assert [key for key, row in trained.items() if row["error"] is None] == [1, 2, 5]
    assert trained[3]["error"].endswith('the architecture outputs 5 classes but "flowers_packed" has 3')
    assert trained[4]["error"].endswith('the architecture outputs [5, 3] for a row, but "flowers_packed" has [3]')
    assert trained[6]["error"] == 'the architecture outputs 4 classes but "flowers_packed" has 3'
    assert db.value("SELECT count(*) FROM madlib.mop_units WHERE mst_key = 6") == 0, "known before any work"
    assert db.value("SELECT max(attempt) FROM madlib.mop_units") == 1, "it is not tried again"


@pytest.mark.parametrize("key", [2, 5])
def test_it_is_evaluated_and_predicted_with(db, trained, key):
    db.run("DROP TABLE IF EXISTS score, guess")
    db.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_packed', 'score', FALSE, %s)", [key])
    assert db.value("SELECT loss FROM score") == pytest.approx(trained[key]["training_loss_final"], rel=1e-5)
    db.run("SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'guess', 'prob', FALSE, %s)", [key])
    assert db.value("SELECT count(*) FROM guess") == 300
    assert db.run("SELECT DISTINCT class_value FROM guess ORDER BY 1") == [{"class_value": v} for v in "abc"]


def test_ones_own_model_says_its_width_itself(db, trained):
    db.run(
        "DROP TABLE IF EXISTS own, guess; CREATE TABLE own AS SELECT 1 AS model_id, model_arch, model_weights "
        "FROM models WHERE mst_key = 2"
    )
    call = "SELECT madlib.madlib_keras_predict_byom('own', 1, 'flowers', 'id', 'x', 'guess', 'prob', FALSE, {})"
    error = str(db.error(call.format("ARRAY[ARRAY['a','b']]")))
    assert "class_values has [2] values, the model outputs [3] classes" in error
    db.run(call.format("ARRAY[ARRAY['a','b','c']]"))
    assert db.value("SELECT count(*) FROM guess") == 300
    db.run("UPDATE own SET model_arch = %s", [sequence()])
    db.run("UPDATE own SET model_weights = (SELECT decode(repeat('00', 4 * (4*12 + 3*12 + 12)), 'hex'))")
    db.run("DROP TABLE IF EXISTS steps")
    db.run(call.replace("guess", "steps").format("ARRAY[ARRAY['a','b','c']]"))
    assert db.value("SELECT count(*) FROM steps") == 300 * 5, "one step for each of five"


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "float16", "mixed_float16"])
def test_short_floats_are_trained_and_go_on_from_a_hop(db, trained, policy):
    text = sequential(
        "short",
        [4],
        layer("Dense", name="d", units=8, activation="tanh", dtype=policy),
        layer("Dense", name="o", units=3, activation="softmax", dtype=policy),
    )
    load(db, "short_arch", text)
    # Adam's epsilon is no number of float16, and its beta_2, 0.999, is 1 in bfloat16: Keras' Adam changes nothing there
    optimizer = "Adam(learning_rate=0.05)" if "mixed" in policy else "SGD(learning_rate=0.05, momentum=0.9)"
    selection(
        db,
        "short_mst",
        "short_arch",
        [(1, f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']", "batch_size=10")],
    )
    db.run("SET pg_mop.kernel = 'plain'")
    fit(db, "flowers_packed", "short", "short_mst", 2, frequency=1)
    db.run("RESET pg_mop.kernel")
    row = db.run("SELECT training_loss, error FROM short_info")[0]
    assert row["error"] is None and row["training_loss"][1] < row["training_loss"][0]
    db.run("DROP TABLE IF EXISTS guess")
    db.run("SELECT madlib.madlib_keras_predict('short', 'flowers', 'id', 'x', 'guess', 'prob', FALSE, 1)")
    assert db.value("SELECT max(abs(s - 1)) FROM (SELECT sum(prob) AS s FROM guess GROUP BY id) AS q") < 0.02
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs")
    db.run("SELECT madlib.mop_replay(%s, 'short_again')", [run_id])
    same = "SELECT a.model_weights = b.model_weights FROM short a, short_again b"
    assert db.value(same)
    db.run("DROP TABLE short, short_info, short_summary, short_again, short_again_info, short_again_summary")


@pytest.mark.parametrize("name", ["MobileNet", "MobileNetV3Small"])
def test_a_model_of_keras_applications_is_trained_from_end_to_end(db, name):
    import keras

    db.run("DROP TABLE IF EXISTS pictures, pictures_packed, pictures_packed_summary")
    db.run(
        "CREATE TABLE pictures AS SELECT i AS id, array_fill((i % 3)::real, ARRAY[32, 32, 3]) AS x, i % 3 AS y "
        "FROM generate_series(1, 12) AS i; SET pg_mop.segments = 1"
    )
    db.run("SELECT madlib.training_preprocessor_dl('pictures', 'pictures_packed', 'y', 'x', 6)")
    model = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=3)
    load(db, "apps", model.to_json())
    selection(db, "apps_mst", "apps", [(1, ADAM.format(0.001), "batch_size=6")])
    fit(db, "pictures_packed", "apps_models", "apps_mst", 1)
    assert db.value("SELECT octet_length(model_weights) FROM apps_models") == 4 * sum(
        w.size for w in model.get_weights()
    )
    assert db.value("SELECT error FROM apps_models_info") is None

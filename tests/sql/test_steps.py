"""Targets of several steps: a class, or numbers, for each step of a sequence or each pixel of an image."""

import numpy as np
import pytest

from support.workload import ADAM, fit, layer, load, make_tags, selection, sequential, tagger

PIXELS = sequential(
    "pixels",
    [2, 3, 1],
    layer("Conv2D", name="out", filters=2, kernel_size=[1, 1], padding="same", activation="softmax"),
)
SPARSE = ADAM.format(0.05).replace("categorical_crossentropy", "sparse_categorical_crossentropy")


@pytest.fixture(scope="module")
def tags(db):
    """Sentences of at most five words (0: no word), in which the tag of a word is its number modulo 3."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 5; SET pg_mop.segments = 2")
    make_tags(db, 200)
    db.run("SELECT training_preprocessor_dl('tags', 'tags_packed', 'y', 'x')")
    db.run("SELECT validation_preprocessor_dl('tags', 'tags_checked', 'y', 'x', 'tags_packed')")
    db.run("SELECT training_preprocessor_dl('tags', 'numbers_packed', 'n', 'x')")
    load(db, "arch", tagger(), PIXELS)
    return db


def test_each_step_is_predicted_and_evaluated(tags):
    selection(tags, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=16"), (1, ADAM.format(0.03), "batch_size=16")])
    fit(tags, "tags_packed", "models", "mst", iterations=8, validation="tags_checked")
    assert tags.value("SELECT min(validation_metrics_final) FROM models_info") > 0.95
    tags.run("SELECT madlib_keras_predict('models', 'tags', 'id', 'x', 'said', 'response', FALSE, 1)")
    rows = tags.run("SELECT s.id, s.class_name, s.class_value, t.n, t.x FROM said s JOIN tags t USING (id)")
    assert len(rows) == 200 * 5 and {r["class_name"] for r in rows} == {f"y[{k}]" for k in range(1, 6)}
    right = [
        r["class_value"] == str(r["n"][step]) for r in rows for step in [int(r["class_name"][2]) - 1] if r["x"][step]
    ]
    assert np.mean(right) > 0.95
    tags.run("SELECT madlib_keras_evaluate('models', 'tags_checked', 'measured', FALSE, 1)")
    measured = tags.run("SELECT loss, metric FROM measured")[0]
    info = tags.run(
        "SELECT validation_loss_final AS loss, validation_metrics_final AS metric FROM models_info ORDER BY 1"
    )
    assert any(measured["metric"] == pytest.approx(r["metric"]) for r in info)
    assert any(measured["loss"] == pytest.approx(r["loss"], rel=1e-4) for r in info)


def test_class_numbers_of_steps_train_as_one_hot_steps_do(tags):
    weights = []
    tags.run(
        "SET pg_mop.kernel = plain; SET pg_mop.threads = 1"
    )  # (of several kernels a run takes the fastest that it measures)
    for packed, parameters in (("tags_packed", SPARSE), ("numbers_packed", SPARSE)):
        selection(tags, "one", "arch", [(1, parameters, "batch_size=16")])
        fit(tags, packed, "by_number", "one", iterations=2)
        weights.append(bytes(tags.value("SELECT model_weights FROM by_number")))
    tags.run("RESET pg_mop.kernel; RESET pg_mop.threads")
    assert weights[0] == weights[1]
    assert tags.value("SELECT training_metrics_final FROM by_number_info") > 0.5


@pytest.mark.parametrize("kernel", ["loop", "xla"])
def test_kernels_train_steps_alike(tags, kernel):
    tags.run(
        "SET pg_mop.segments = 1; DROP TABLE IF EXISTS single, single_summary"
    )  # (so that all runs visit in one order)
    tags.run("SELECT training_preprocessor_dl('tags', 'single', 'y', 'x'); SET pg_mop.segments = 2")
    selection(tags, "two", "arch", [(1, ADAM.format(0.05), "batch_size=16"), (1, ADAM.format(0.02), "batch_size=16")])
    found = []
    for name in ("plain", kernel):
        tags.run(f"SET pg_mop.kernel = {name}")
        fit(tags, "single", "by_kernel", "two", iterations=2)
        found.append(
            [bytes(r["model_weights"]) for r in tags.run("SELECT model_weights FROM by_kernel ORDER BY mst_key")]
        )
    tags.run("RESET pg_mop.kernel")
    for plain, other in zip(*found):
        assert np.allclose(np.frombuffer(plain, "<f4"), np.frombuffer(other, "<f4"), rtol=1e-3, atol=1e-4)


def test_each_pixel_is_predicted(tags):
    tags.run(
        "CREATE TABLE pixels AS SELECT i AS id, "
        "ARRAY[ARRAY[ARRAY[a], ARRAY[b], ARRAY[c]], ARRAY[ARRAY[c], ARRAY[a], ARRAY[b]]] AS x, "
        "ARRAY[ARRAY[a, b, c], ARRAY[c, a, b]] AS y FROM (SELECT i, (i % 2)::real AS a, (i / 2 % 2)::real AS b, "
        "(i / 4 % 2)::real AS c FROM generate_series(1, 160) i) t"
    )
    tags.run("SELECT training_preprocessor_dl('pixels', 'pixels_packed', 'y', 'x')")
    selection(tags, "three", "arch", [(2, SPARSE, "batch_size=8")])
    fit(tags, "pixels_packed", "of_pixels", "three", iterations=6)
    tags.run("SELECT madlib_keras_predict('of_pixels', 'pixels', 'id', 'x', 'pixels_said', 'response', FALSE, 1)")
    rows = tags.run("SELECT class_name, class_value, y FROM pixels_said JOIN pixels USING (id)")
    assert len(rows) == 160 * 6 and "y[2][3]" in {r["class_name"] for r in rows}
    right = [float(r["class_value"]) == r["y"][int(r["class_name"][2]) - 1][int(r["class_name"][5]) - 1] for r in rows]
    assert np.mean(right) > 0.99


@pytest.mark.parametrize(
    "packed,compile_params,fit_params,message",
    [
        ("tags_packed", ADAM.format(0.1), "class_weight={0: 2.0}", "class_weight needs one class in each row"),
        ("tags_packed", ADAM.format(0.1), "class_weight='balanced'", "class_weight needs one class in each row"),
        ("numbers_packed", SPARSE, "class_weight={0: 2.0}", "class_weight needs one class in each row"),
        ("numbers_packed", ADAM.format(0.1), "", "the architecture outputs 3 classes"),
        ("numbers_packed", "loss='mse', optimizer='SGD'", "", "the architecture outputs 3 classes"),
    ],
)
def test_what_does_not_suit_steps_is_refused(tags, packed, compile_params, fit_params, message):
    selection(tags, "odd", "arch", [(1, compile_params, fit_params or "batch_size=8")])
    error = tags.error(f"SELECT madlib_keras_fit_multiple_model('{packed}', 'never', 'odd', 1, FALSE)")
    assert message in str(error)
    assert not tags.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'never%'")


def test_other_numbers_of_steps_are_refused(tags):
    tags.run("CREATE TABLE cut AS SELECT id, x, y[1:3] AS y FROM tags")
    error = tags.error("SELECT validation_preprocessor_dl('cut', 'cut_packed', 'y', 'x', 'tags_packed')")
    assert "vectors of 3 for each of 3 steps" in str(error)
    tags.run("SELECT training_preprocessor_dl('cut', 'cut_packed', 'y', 'x')")
    selection(tags, "odd", "arch", [(1, ADAM.format(0.1), "batch_size=8")])
    error = tags.error("SELECT madlib_keras_fit_multiple_model('cut_packed', 'never', 'odd', 1, FALSE)")
    assert 'the architecture outputs [5, 3] for a row, but "cut_packed" has [3, 3]' in str(error)


def test_named_models_and_mop_pack_take_no_steps(tags):
    tags.run("SELECT mop_deploy('tagger', 'models', 1)")
    error = tags.error("SELECT * FROM mop_predict('tagger', source => 'tags')")
    assert "has an output of several steps" in str(error)
    error = tags.error("SELECT mop_pack('tags', 'never', target => 'y', id => 'id', exclude => 'n')")
    assert "mop_pack takes vectors" in str(error)

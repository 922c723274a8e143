"""A sigmoid of one unit for two classes of any type is the same net on labels 0 and 1."""

import numpy as np
import pytest

from support.workload import load, needs_jax, selection

ADAM = "loss='{}', optimizer='Adam(lr=0.03)', metrics=['accuracy', 'AUC', 'Precision']"


def one_unit(activation="sigmoid"):
    from keras import Input, Sequential, layers

    return Sequential(
        [Input((3,)), layers.Dense(6, activation="relu"), layers.Dense(1, activation=activation)]
    ).to_json()


@pytest.fixture(scope="module")
def data(db):
    db.run(
        "SET pg_mop.segments = 1; SET pg_mop.seed = 5; "
        "SET pg_mop.reuse = off; SET search_path = public, madlib; CREATE TABLE rows AS SELECT i AS id, "
        "ARRAY[i % 7, i % 5, i % 3]::real[] AS x, CASE WHEN (i % 7) + (i % 3) > 4 THEN 'yes' ELSE 'no' END AS word, "
        "ARRAY[((i % 7) + (i % 3) > 4)::int] AS number FROM generate_series(1, 90) i"
    )
    for column in ("word", "number"):
        db.run(f"SELECT training_preprocessor_dl('rows', '{column}_packed', '{column}', 'x', 10)")
        db.run(f"SELECT validation_preprocessor_dl('rows', '{column}_valid', '{column}', 'x', '{column}_packed', 10)")
    load(db, "arch", one_unit())


def train(db, column, configurations, **settings):
    for name, value in settings.items():
        db.run(f"SET pg_mop.{name} = '{value}'")
    selection(db, "mst", "arch", [(1, ADAM.format(loss), fitted) for loss, fitted in configurations])
    db.run(f"DROP TABLE IF EXISTS {column}_models, {column}_models_info, {column}_models_summary")
    db.run(
        f"SELECT madlib_keras_fit_multiple_model('{column}_packed', '{column}_models', 'mst', 2, FALSE, '{column}_valid', 1)"
    )
    for name in settings:
        db.run(f"RESET pg_mop.{name}")
    weights = [
        np.frombuffer(bytes(r["model_weights"]), "<f4")
        for r in db.run(f"SELECT model_weights FROM {column}_models ORDER BY mst_key")
    ]
    info = db.run(
        f"SELECT training_loss, validation_loss, validation_metrics FROM {column}_models_info ORDER BY mst_key"
    )
    return weights, [[v for values in row.values() for v in np.ravel(values)] for row in info]


CONFIGURATIONS = [
    ("binary_crossentropy", "batch_size=8"),
    ("BinaryCrossentropy(label_smoothing=0.1)", "batch_size=8"),
    ("mse", "batch_size=8, epochs=2"),
    ("binary_crossentropy", "batch_size=8, class_weight={1: 3}"),
    ("hinge", "batch_size=8"),
    ("dice", "batch_size=16"),
]


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": "plain"},
        {"kernel": "loop"},
        {"kernel": "xla"},
        pytest.param({"keras_backend": "jax"}, marks=needs_jax),
    ],
    ids=lambda s: next(iter(s.values())),
)
def test_words_are_trained_on_as_numbers(db, data, settings):
    # (the other kernels give the plain one's results, which thorough/equivalence/test_kernels.py proves)
    configurations = CONFIGURATIONS if settings == {"kernel": "plain"} else CONFIGURATIONS[:2]
    words, word_values = train(db, "word", configurations, **settings)
    numbers, values = train(db, "number", configurations, **settings)
    for own, other in zip(words, numbers, strict=True):
        assert np.abs(own - other).max() <= 1e-6
    for own, other in zip(word_values, values, strict=True):
        assert own == pytest.approx(other, abs=1e-6)


def test_predictions_and_evaluations_have_both_classes(db, data):
    train(db, "word", CONFIGURATIONS[:1])
    train(db, "number", CONFIGURATIONS[:1])
    db.run("DROP TABLE IF EXISTS p, q, e")
    db.run("SELECT madlib_keras_predict('word_models', 'rows', 'id', 'x', 'p', 'prob', FALSE, 1)")
    db.run("SELECT madlib_keras_predict('number_models', 'rows', 'id', 'x', 'q', 'prob', FALSE, 1)")
    both = db.run(
        "SELECT p.class_value, p.prob, q.prob AS other FROM p JOIN q USING (id) WHERE q.class_value IS NULL OR "
        "q.class_value::text = '1' OR q.class_value::text = '0'"
    )
    assert len(both) == 180 and {r["class_value"] for r in both} == {"yes", "no"}
    for row in both:
        wanted = row["other"] if row["class_value"] == "yes" else 1 - row["other"]
        assert row["prob"] == pytest.approx(wanted, abs=1e-6)
    db.run("SELECT madlib_keras_evaluate('word_models', 'word_valid', 'e', FALSE, 1)")
    info = db.run("SELECT validation_loss_final, validation_metrics_final FROM word_models_info")[0]
    found = db.run("SELECT loss, metric FROM e")[0]
    assert found["loss"] == pytest.approx(info["validation_loss_final"], abs=1e-6)
    assert found["metric"] == pytest.approx(info["validation_metrics_final"], abs=1e-6)


def test_named_models_answer_with_both_classes(db, data):
    train(db, "word", CONFIGURATIONS[:1])
    db.run("DROP TABLE IF EXISTS yes_or_no; SELECT mop_deploy('yes_or_no', 'word_models', 1)")
    rows = db.run("SELECT r.word, p.* FROM rows r, mop_predict('yes_or_no', r) AS p")
    assert all(set(r["probabilities"]) == {"no", "yes"} and r["probability"] >= 0.5 for r in rows)
    assert all(sum(r["probabilities"].values()) == pytest.approx(1) for r in rows)
    values = {r["metric"]: r["value"] for r in db.run("SELECT * FROM mop_evaluate('yes_or_no', 'rows')")}
    assert values["accuracy"] == pytest.approx(np.mean([r["word"] == r["prediction"] for r in rows]))


@pytest.mark.parametrize(
    "architecture, loss, fragment",
    [
        (one_unit(), "categorical_crossentropy", "needs a unit for each of two classes"),
        (one_unit("linear"), "binary_crossentropy", "its activation must be sigmoid"),
    ],
)
def test_nets_that_cannot_predict_two_classes(db, data, architecture, loss, fragment):
    db.run("DROP TABLE IF EXISTS arch_bad")
    load(db, "arch_bad", architecture)
    selection(db, "mst_bad", "arch_bad", [(1, ADAM.format(loss), "batch_size=8")])
    db.run("DROP TABLE IF EXISTS never, never_info, never_summary")
    call = "SELECT madlib_keras_fit_multiple_model('word_packed', 'never', 'mst_bad', 1, FALSE)"
    try:
        db.run(call)
        text = db.value("SELECT error FROM never_info")
    except Exception as error:
        text = str(error)
    assert fragment in text


def test_three_classes_need_three_units(db, data):
    db.run(
        "CREATE TABLE three AS SELECT x, id % 3 AS y FROM rows; "
        "SELECT training_preprocessor_dl('three', 'three_packed', 'y', 'x', 10)"
    )
    selection(db, "mst_three", "arch", [(1, ADAM.format("binary_crossentropy"), "batch_size=8")])
    error = db.error("SELECT madlib_keras_fit_multiple_model('three_packed', 'never', 'mst_three', 1, FALSE)")
    assert "the architecture outputs 1 classes" in str(error)

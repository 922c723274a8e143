"""A sigmoid of one unit for two classes of any type is the same net on labels 0 and 1."""

import numpy as np
import pytest

from support.one_unit import ADAM, CONFIGURATIONS, assert_words_are_trained_on_as_numbers, data, one_unit, train
from support.workload import load, selection

__all__ = ["data"]  # a fixture


def test_words_are_trained_on_as_numbers(db, data):
    """On the other kernels and on JAX: tests/thorough/equivalence/test_one_unit.py."""
    assert_words_are_trained_on_as_numbers(db, CONFIGURATIONS, kernel="plain")


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

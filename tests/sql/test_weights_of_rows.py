"""Sample weights of mop_pack: several targets, replay, resume, other servers' copies of rows, and numbers by hand."""

import numpy as np
import pytest

from support.workload import selection

COMPILE = "loss='{}', optimizer='Adam(lr=0.01)', metrics=['{}']"


@pytest.fixture(scope="module")
def data(db):
    db.run("SET search_path = public, madlib; SET pg_mop.segments = 2; SET pg_mop.seed = 3; SET pg_mop.reuse = off")
    db.run(
        "CREATE TABLE sales AS SELECT i AS id, (i % 11)::float8 AS a, (i % 7)::float8 AS b, 'k' || i % 5 AS k, "
        "CASE WHEN (i % 11) + (i % 7) > 8 THEN 'much' ELSE 'little' END AS y, ((i % 11) * 2 + 5)::float8 AS z, "
        "(CASE WHEN i % 3 = 0 THEN 5 ELSE 0.5 END)::real AS w FROM generate_series(1, 120) i"
    )
    for name, target in (("classes", "y"), ("numbers", "z"), ("both", "y, z")):
        other = {"y": "z", "z": "y"}.get(target)
        db.run(
            f"SELECT mop_pack('sales', '{name}', target => '{target}', id => 'id', weight => 'w'"
            + (f", exclude => '{other}')" if other else ")")
        )
        db.run(f"SELECT mop_pack('SELECT * FROM sales WHERE id <= 50', '{name}_valid', fitted_on => '{name}')")
        db.run(f"SELECT mop_architecture('{name}_nets', '{name}', 'small')")


def train(db, name, compiled, output, iterations=2):
    selection(db, f"{name}_mst", f"{name}_nets", [(1, compiled, "batch_size=16")])
    db.run(f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary")
    db.run(
        f"SELECT madlib_keras_fit_multiple_model('{name}', '{output}', '{name}_mst', {iterations}, FALSE, '{name}_valid', 1)"
    )
    return db.run(f"SELECT * FROM {output}_info")[0]


def test_the_loss_is_keras_weighted_mean_of_the_rows(db, data):
    """Keras' sum_over_batch_size: the sum of weight times loss, by the number of rows."""
    info = train(db, "classes", COMPILE.format("categorical_crossentropy", "accuracy"), "of_classes")
    db.run("DROP TABLE IF EXISTS named_classes; SELECT mop_deploy('named_classes', 'of_classes', 1)")
    rows = db.run("SELECT s.id, s.y, s.w, p.probabilities FROM sales s, mop_predict('named_classes', s) AS p")
    losses = np.array([-np.log(r["probabilities"][r["y"]]) for r in rows])
    weights = np.array([r["w"] for r in rows])
    valid = np.array([r["id"] <= 50 for r in rows])
    assert info["training_loss_final"] == pytest.approx((losses * weights).mean(), rel=1e-4)
    assert info["validation_loss_final"] == pytest.approx((losses * weights)[valid].mean(), rel=1e-4)
    right = np.array([max(r["probabilities"], key=r["probabilities"].get) == r["y"] for r in rows])
    assert info["training_metrics_final"] == pytest.approx(right.mean(), abs=1e-6)  # (metrics are not weighted)
    db.run(
        "DROP TABLE IF EXISTS raw_scores; SELECT madlib_keras_evaluate('of_classes', 'sales', 'raw_scores', FALSE, 1)"
    )
    assert db.value("SELECT loss FROM raw_scores") == pytest.approx(info["training_loss_final"], rel=1e-5)


def test_numbers_are_weighted_in_the_unit_of_training(db, data):
    info = train(db, "numbers", COMPILE.format("mse", "mae"), "of_numbers")
    db.run("DROP TABLE IF EXISTS named_numbers; SELECT mop_deploy('named_numbers', 'of_numbers', 1)")
    rows = db.run("SELECT s.z, s.w, p.prediction::float8 AS p FROM sales s, mop_predict('named_numbers', s) AS p")
    z, w, p = (np.array([r[name] for r in rows]) for name in "zwp")
    assert info["training_loss_final"] == pytest.approx((w * ((p - z) / z.std()) ** 2).mean(), rel=1e-4)


def test_two_targets_share_the_weights(db, data):
    weighted = train(db, "both", COMPILE.format("mse", "mae"), "of_both")
    db.run("SELECT mop_pack('SELECT id, a, b, k, y, z FROM sales', 'both_plain', target => 'y, z', id => 'id')")
    db.run("SELECT mop_pack('SELECT * FROM sales WHERE id <= 50', 'both_plain_valid', fitted_on => 'both_plain')")
    db.run("SELECT mop_architecture('both_plain_nets', 'both_plain', 'small')")
    plain = train(db, "both_plain", COMPILE.format("mse", "mae"), "of_both_plain")
    assert weighted["training_loss_final"] != pytest.approx(plain["training_loss_final"], rel=1e-2)


def test_the_weights_are_part_of_what_a_run_may_reuse(db, data):
    """Another weight of the rows is other training: nothing of the earlier run is taken over."""
    compiled = COMPILE.format("categorical_crossentropy", "accuracy")
    db.run("SET pg_mop.reuse = on")
    try:
        first = train(db, "classes", compiled, "first_weights")
        db.run("CREATE TABLE other_weights AS SELECT id, a, b, k, y, z, 2 * w AS w FROM sales")
        db.run(
            "SELECT mop_pack('other_weights', 'doubled', target => 'y', id => 'id', weight => 'w', exclude => 'z'); "
            "SELECT mop_pack('SELECT * FROM other_weights WHERE id <= 50', 'doubled_valid', fitted_on => 'doubled'); "
            "SELECT mop_architecture('doubled_nets', 'doubled', 'small')"
        )
        second = train(db, "doubled", compiled, "second_weights")
    finally:
        db.run("SET pg_mop.reuse = off")
    assert second["training_loss_final"] > 1.5 * first["training_loss_final"]

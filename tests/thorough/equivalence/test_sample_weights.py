"""Sample weights in a packed table have the effect of Keras' sample_weight."""

import numpy as np
import pytest

from support.replays import by_keras, job, visited
from support.workload import add_sample_weights, dense, fit, load, make_data, needs_jax, selection

SEED = 11
COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.02)', metrics=['accuracy']"


def uneven(x):
    return np.where(x[:, 1] > 2, 3.0, 0.25 * x[:, 0])


@pytest.fixture(scope="module")
def data(db):
    db.run(f"SET pg_mop.seed = {SEED}; SET pg_mop.threads = 1; SET pg_mop.kernel = plain")
    make_data(db, rows=101, segments=2, buffer_size=9, seed=SEED)
    make_data(db, rows=101, segments=2, buffer_size=9, packed="weighted", seed=SEED)
    add_sample_weights(db, "weighted", uneven)
    # one segment: the order of visits is always the same
    for name, weight in (("one", None), ("one_even", lambda x: np.ones(len(x))), ("one_weighted", uneven)):
        make_data(db, rows=101, segments=1, buffer_size=9, packed=name, seed=SEED)
        if weight:
            add_sample_weights(db, name, weight)
    load(db, "arch", dense())


@pytest.fixture(params=["tensorflow", pytest.param("jax", marks=needs_jax)])
def backend(db, request):
    db.run(f"SET pg_mop.keras_backend = '{request.param}'")
    yield request.param
    db.run("SET pg_mop.keras_backend = 'tensorflow'")


def train(db, packed, *configurations, **more):
    """Train configurations (more of the compile parameters, more of the fit parameters): their final weights."""
    selection(
        db, "mst", "arch", [(1, COMPILE + compiled, "batch_size=8" + fitted) for compiled, fitted in configurations]
    )
    run_id = fit(db, packed, "models", "mst", 2, **more)
    rows = db.run("SELECT model_weights FROM models ORDER BY mst_key")
    return run_id, [np.frombuffer(bytes(r["model_weights"]), "<f4") for r in rows]


@pytest.mark.parametrize("cached", [True, False])
def test_a_run_is_plain_keras_with_sample_weight(db, data, backend, cached):
    db.run(f"SET pg_mop.cache_mb = {1024 if cached else 0}; SET pg_mop.reuse = off")
    run_id, ours = train(db, "weighted", ("", ""), frequency=1)
    db.run("RESET pg_mop.cache_mb; RESET pg_mop.reuse")
    visits = visited(db, run_id, "weighted", columns="xyw")
    (keras,) = by_keras(job(dense(), "Adam", {"learning_rate": 0.02}, visits, SEED), backend=backend)
    assert np.abs(ours[0] - keras).max() <= 1e-6


def test_equal_weights_change_nothing_and_class_weights_multiply(db, data):
    _, (plain, weighted) = train(db, "one", ("", ""), ("", ", class_weight={1: 3}"))
    _, (same, multiplied) = train(db, "one_even", ("", ""), ("", ", class_weight={1: 3}"))
    assert np.abs(plain - same).max() <= 1e-6 and np.abs(weighted - multiplied).max() <= 1e-6
    _, (of_rows, of_both) = train(db, "one_weighted", ("", ""), ("", ", class_weight={1: 3}"))
    assert np.abs(plain - of_rows).max() > 1e-3 and np.abs(of_both - of_rows).max() > 1e-3


def test_weighted_metrics_are_reported_beside_the_others(db, data):
    weighted = ", weighted_metrics=['accuracy', 'mae']"
    train(
        db,
        "weighted",
        (weighted, ", stop={'metric': 'weighted_accuracy', 'patience': 9}"),
        (weighted, ", keep='best'"),
        validation="weighted",
        frequency=1,
    )
    info = db.run("SELECT * FROM models_info ORDER BY mst_key")
    assert [row["error"] for row in info] == [None, None]
    for row in info:
        assert row["metrics_type"] == ["accuracy", "weighted_accuracy", "mae"]
        for dataset in ("training", "validation"):
            found = row["all_metrics"][dataset]
            assert found["weighted_accuracy"] != found["accuracy"] and found["mae"]
    db.run("DROP TABLE IF EXISTS scores")
    db.run("SELECT madlib.madlib_keras_evaluate('models', 'weighted', 'scores', FALSE, 1)")
    score = db.run("SELECT * FROM scores")[0]
    last = {name: values[-1] for name, values in info[0]["all_metrics"]["training"].items()}
    assert score["all_metrics"] == pytest.approx(last, rel=1e-5)
    assert score["loss"] == pytest.approx(info[0]["training_loss_final"], rel=1e-5)


def test_averaged_models_take_sample_weights_too(db, data):
    def averaged(packed):
        db.run("DROP TABLE IF EXISTS averaged, averaged_summary")
        db.run("SELECT madlib.madlib_keras_fit(%s, 'averaged', 'arch', 1, %s, 'batch_size=8', 1)", [packed, COMPILE])
        return np.frombuffer(bytes(db.value("SELECT model_weights FROM averaged")), "<f4")

    plain, same, other = map(averaged, ("one", "one_even", "one_weighted"))
    assert np.abs(plain - same).max() <= 1e-6 < 1e-3 < np.abs(plain - other).max()


@pytest.mark.parametrize(
    "packed,extra,text",
    [
        (
            "flowers_packed",
            ", weighted_metrics=['mae']",
            'weighted_metrics need sample weights, but "flowers_packed" has',
        ),
        ("weighted", ", sample_weight_mode='temporal'", "needs a weight for every time step"),
    ],
)
def test_what_has_no_weights_to_work_with_is_refused(db, data, packed, extra, text):
    selection(db, "mst", "arch", [(1, COMPILE + extra, "batch_size=8")])
    error = db.error(f"SELECT madlib.madlib_keras_fit_multiple_model('{packed}', 'never', 'mst', 1, FALSE)")
    assert text in str(error)

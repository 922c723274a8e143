"""madlib_keras_fit: averaging equals plain Keras replicas averaged by hand, sequential equals fit_multiple_model."""

import base64

import numpy as np
import pytest

from support.replays import job
from support.workload import LOSS, NOISY, buffers, dense, fit, load, make_data, replayed, selection

CASES = {
    "SGD with momentum": (1, dense(), "SGD", {"learning_rate": 0.1, "momentum": 0.9}, 3),
    "Adam": (1, dense(), "Adam", {"learning_rate": 0.05}, 2),
    "moving averages of weights": (1, dense(), "Adam", {"learning_rate": 0.05, "use_ema": True}, 3),
    "Dropout and BatchNormalization": (2, NOISY, "Adam", {"learning_rate": 0.05}, 2),
}


def text(optimizer, arguments):
    return f"loss='{LOSS}', optimizer='{optimizer}({', '.join(f'{k}={v}' for k, v in arguments.items())})'"


def train(db, model_id, compile_params, iterations, strategy):
    db.run("DROP TABLE IF EXISTS one, one_summary")
    db.run(f"SET pg_mop.fit_strategy = {strategy}")
    db.run(
        "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'arch', %s, %s, 'batch_size=8, epochs=2', %s)",
        [model_id, compile_params, iterations],
    )
    return bytes(db.value("SELECT model_weights FROM one"))


@pytest.fixture(scope="module")
def data(db):
    db.run("SET pg_mop.threads = 1; SET pg_mop.kernel = plain")
    load(db, "arch", dense(), NOISY)


def test_averaging_equals_keras(db, data):
    make_data(db, rows=97, segments=3, seed=6)
    jobs, ours = [], []
    for model_id, architecture, optimizer, arguments, iterations in CASES.values():
        ours.append(train(db, model_id, text(optimizer, arguments), iterations, "averaging"))
        visits = [buffers(db, "flowers_packed", s) for s in range(3)]
        more = {"epochs": 2, "iterations": iterations, "metrics": []}
        jobs.append(job(architecture, optimizer, arguments, visits, 6, model_id, **more))
    for name, mine, theirs in zip(CASES, ours, replayed(jobs, average=True)):
        a, b = np.frombuffer(mine, "<f4"), np.frombuffer(base64.b64decode(theirs), "<f4")
        assert np.abs(a - b).max() <= 1e-6 * np.abs(b).max(), name


def test_sequential_is_what_fit_multiple_model_does(db, data):
    make_data(db, rows=97, segments=3, seed=6)
    compiled = text("Adam", {"learning_rate": 0.05})
    mine = train(db, 1, compiled, 2, "sequential")
    selection(db, "mst", "arch", [(1, compiled, "batch_size=8, epochs=2")])
    fit(db, "flowers_packed", "models", "mst", 2)
    assert mine == bytes(db.value("SELECT model_weights FROM models"))
    assert mine != train(db, 1, compiled, 2, "averaging")

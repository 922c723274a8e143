"""Runs on a framework of Keras, compared with plain Keras on it. A test file imports the fixtures `data` and `on`."""

import numpy as np
import psycopg2
import pytest

from support.replays import by_keras, job, visited
from support.workload import (
    ADAM,
    CNN,
    LOSS,
    NOISY,
    assert_invariants,
    dense,
    ended_early,
    fit,
    last_run,
    load,
    make_data,
    make_images,
    selection,
)

SEED = 11
# (on PyTorch Keras draws from a generator that is not the model's where a layer has no seed)
SEEDED = NOISY.replace('"rate": 0.3', '"rate": 0.3, "seed": 7')
MODELS = {
    "dense net with Adam": (1, "flowers_packed", "Adam", {"learning_rate": 0.02}),
    "moving averages of weights": (1, "flowers_packed", "Adam", {"learning_rate": 0.02, "use_ema": True}),
    "CNN with momentum": (2, "images_packed", "SGD", {"learning_rate": 0.05, "momentum": 0.9}),
    "Dropout and BatchNormalization": (3, "flowers_packed", "Adam", {"learning_rate": 0.01}),
    "Dropout with a seed": (4, "flowers_packed", "Adam", {"learning_rate": 0.01}),
}


@pytest.fixture(scope="module")
def data(db):
    db.run(f"SET pg_mop.threads = 1; SET pg_mop.kernel = plain; SET pg_mop.seed = {SEED}")
    make_data(db, rows=101, segments=2, buffer_size=9, seed=SEED)
    make_data(db, "one", rows=101, segments=1, seed=SEED)
    make_images(db)
    load(db, "arch", dense(), CNN, NOISY, SEEDED)


@pytest.fixture
def on(db):
    """A function: Keras works on this framework from now on."""
    yield lambda backend: db.run(f"SET pg_mop.keras_backend = '{backend}'")
    db.run("SET pg_mop.keras_backend = 'tensorflow'; RESET pg_mop.reuse")


def train(db, case):
    """The final weights of one configuration (bytes)."""
    model_id, packed, optimizer, arguments = MODELS[case]
    text = ", ".join(f"{key}={value}" for key, value in arguments.items())
    compiled = f"loss='{LOSS}', optimizer='{optimizer}({text})', metrics=['accuracy']"
    selection(db, "mst", "arch", [(model_id, compiled, "batch_size=8")])
    fit(db, packed, "models", "mst", 2)
    return final(db)


def final(db, table="models"):
    assert db.value(f"SELECT error FROM {table}_info") is None
    return bytes(db.value(f"SELECT model_weights FROM {table}"))


def logged(db):
    """The framework of the last run."""
    return db.value(
        "SELECT parameters->'settings'->>'keras_backend' FROM madlib.mop_run WHERE run_id = %s", [last_run(db)]
    )


def assert_a_run_is_plain_keras(db, backend, case):
    db.run(f"SET pg_mop.keras_backend = '{backend}'")
    ours = train(db, case)
    run_id, (model_id, packed, optimizer, arguments) = last_run(db), MODELS[case]
    assert_invariants(db, run_id)
    architecture = {1: dense(), 2: CNN, 4: SEEDED}[model_id]
    question = job(architecture, optimizer, arguments, visited(db, run_id, packed), SEED, model_id)
    (keras,) = by_keras(question, backend=backend)
    assert backend != "torch" or ours == keras.tobytes()
    assert np.abs(np.frombuffer(ours, "<f4") - keras).max() <= 1e-5 * np.abs(keras).max()


def assert_a_cancelled_run_goes_on(db, backend):
    """On its framework, and it ends as one that was not cancelled: bit for bit, random streams included."""
    settings = f"SET pg_mop.reuse = off; SET pg_mop.keras_backend = '{backend}'"
    db.run(settings)
    selection(db, "mst", "arch", [(3, ADAM.format(0.01), "batch_size=1, epochs=10")])
    call = "SELECT madlib.madlib_keras_fit_multiple_model('one_packed', '{}', 'mst', 3, FALSE)"
    db.run(call.format(f"undisturbed_{backend}"))
    client = db.another()
    client.run(f"SET pg_mop.threads = 1; SET pg_mop.kernel = plain; SET pg_mop.seed = {SEED}; {settings}")
    error = ended_early(db, client, call.format(f"resumed_{backend}"), 0)
    assert isinstance(error, psycopg2.errors.QueryCanceled)
    client.close()
    db.run("SET pg_mop.keras_backend = 'tensorflow'")
    db.run("SELECT madlib.mop_resume(%s)", [last_run(db)])
    assert logged(db) == backend
    assert final(db, f"resumed_{backend}") == final(db, f"undisturbed_{backend}")

"""Keras on JAX and on PyTorch: the results are those of plain Keras on the same framework, and states cross them."""

import base64
import functools
import json
import subprocess
import sys

import numpy as np
import psycopg2
import pytest

from support.cluster import ROOT
from support.workload import (
    CNN,
    NOISY,
    OTHERS,
    assert_invariants,
    buffers,
    dense,
    ended_early,
    fit,
    last_run,
    load,
    make_data,
    make_images,
    needs_jax,
    needs_torch,
    replayed,
    selection,
)

SEED = 11
KINDS = (
    "dense",
    "conv",
    "lstm",
    "batch normalization",
    "dropout with a seed",
    "embedding",
    "several inputs",
    "numbers per batch",
)
# (on PyTorch Keras draws from a generator that is not the model's where a layer has no seed)
SEEDED = NOISY.replace('"rate": 0.3', '"rate": 0.3, "seed": 7')
MODELS = {
    "dense net with Adam": (1, "flowers_packed", "Adam", {"learning_rate": 0.02}),
    "moving averages of weights": (1, "flowers_packed", "Adam", {"learning_rate": 0.02, "use_ema": True}),
    "CNN with momentum": (2, "images_packed", "SGD", {"learning_rate": 0.05, "momentum": 0.9}),
    "Dropout and BatchNormalization": (3, "flowers_packed", "Adam", {"learning_rate": 0.01}),
    "Dropout with a seed": (4, "flowers_packed", "Adam", {"learning_rate": 0.01}),
}


@functools.cache
def trained_alone(whose):
    """What on_torch.py gives: {case: {"weights", "evaluated"}}."""
    done = subprocess.run(
        [sys.executable, "-B", ROOT / "tests" / "support" / "on_torch.py", whose], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@needs_torch
@pytest.mark.parametrize("case", KINDS)
def test_the_plain_kernel_trains_and_evaluates_as_keras_on_pytorch(case):
    ours, keras = trained_alone("ours")[case], trained_alone("keras")[case]
    assert ours["weights"] == keras["weights"]
    assert ours["evaluated"] == pytest.approx(keras["evaluated"], rel=1e-5)


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


def train(db, case, extra=""):
    """The final weights of one configuration (bytes)."""
    model_id, packed, optimizer, arguments = MODELS[case]
    text = ", ".join(f"{key}={value}" for key, value in arguments.items())
    selection(
        db,
        "mst",
        "arch",
        [
            (
                model_id,
                f"loss='categorical_crossentropy', optimizer='{optimizer}({text})', metrics=['accuracy']",
                f"batch_size=8{extra}",
            )
        ],
    )
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


# (with 64-bit types JAX draws other random numbers)
@pytest.mark.parametrize(
    "backend,case",
    [
        *(pytest.param("jax", case, marks=needs_jax) for case in MODELS if MODELS[case][0] < 3),
        *(pytest.param("torch", case, marks=needs_torch) for case in MODELS if MODELS[case][0] != 3),
    ],
)
def test_a_run_is_plain_keras_on_the_same_framework(db, data, on, backend, case):
    on(backend)
    ours = train(db, case)
    run_id, (model_id, packed, optimizer, arguments) = last_run(db), MODELS[case]
    assert_invariants(db, run_id)
    visits = db.run(
        "SELECT segment FROM madlib.mop_visit_order WHERE run_id = %s ORDER BY iteration, position", [run_id]
    )
    job = {
        "architecture": {1: dense(), 2: CNN, 4: SEEDED}[model_id],
        "optimizer": optimizer,
        "arguments": arguments,
        "loss": "categorical_crossentropy",
        "metrics": ["accuracy"],
        "batch_size": 8,
        "epochs": 1,
        "seed": int(np.random.SeedSequence([SEED, model_id]).generate_state(1)[0]),
        "visits": [buffers(db, packed, v["segment"]) for v in visits],
    }
    keras = base64.b64decode(replayed([job], backend=backend)[0]["plain"])
    if backend == "torch":
        assert ours == keras
    a, b = np.frombuffer(ours, "<f4"), np.frombuffer(keras, "<f4")
    assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("backend", OTHERS)
def test_frameworks_agree_where_nothing_is_random(db, data, on, backend):
    """From the same weights: those that a run on TensorFlow has trained, with which one on another begins."""
    train(db, "dense net with Adam")
    first, results = db.value("SELECT model_weights FROM models"), []
    for name in ("tensorflow", backend):
        on(name)
        db.run("UPDATE models SET model_weights = %s", [first])
        db.run(
            "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 2, FALSE, "
            "warm_start => TRUE)"
        )
        assert logged(db) == name
        results.append(np.frombuffer(final(db), "<f4"))
    assert np.abs(results[1] - results[0]).max() <= 2e-4 * np.abs(results[0]).max()
    assert np.abs(results[1] - np.frombuffer(bytes(first), "<f4")).max() > 1e-3, "it has been trained"


@needs_jax
@needs_torch
def test_a_model_goes_from_framework_to_framework(db, data, on):
    """TensorFlow, PyTorch, JAX: where nothing is random, as if TensorFlow had done it all."""
    results = []
    for path in (["tensorflow"] * 3, ["tensorflow", "torch", "jax"]):
        on(path[0])
        train(db, "dense net with Adam")
        for name in path[1:]:
            on(name)
            db.run(
                "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 1, FALSE, "
                "warm_start => TRUE)"
            )
            assert logged(db) == name
        results.append(np.frombuffer(final(db), "<f4"))
    assert np.abs(results[1] - results[0]).max() <= 1e-3 * np.abs(results[0]).max()


@pytest.mark.parametrize("backend", OTHERS)
def test_a_run_is_done_again_on_the_framework_that_it_was_done_on(db, data, on, backend):
    on(backend)
    weights = train(db, "Dropout and BatchNormalization")
    run_id = last_run(db)
    on("tensorflow")
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert logged(db) == backend
    assert final(db, "again") == weights


@pytest.mark.parametrize("backend", OTHERS)
def test_a_run_that_was_cancelled_goes_on_on_its_framework(db, data, on, backend):
    """And ends as one that was not: bit for bit, random streams included."""
    settings = f"SET pg_mop.reuse = off; SET pg_mop.keras_backend = '{backend}'"
    db.run(settings)
    selection(
        db,
        "mst",
        "arch",
        [
            (
                3,
                "loss='categorical_crossentropy', optimizer='Adam(learning_rate=0.01)', metrics=['accuracy']",
                "batch_size=1, epochs=10",
            )
        ],
    )
    call = "SELECT madlib.madlib_keras_fit_multiple_model('one_packed', '{}', 'mst', 3, FALSE)"
    db.run(call.format(f"undisturbed_{backend}"))
    client = db.another()
    client.run(f"SET pg_mop.threads = 1; SET pg_mop.kernel = plain; SET pg_mop.seed = {SEED}; {settings}")
    error = ended_early(db, client, call.format(f"resumed_{backend}"), 0)
    assert isinstance(error, psycopg2.errors.QueryCanceled)
    client.close()
    on("tensorflow")
    db.run("SELECT madlib.mop_resume(%s)", [last_run(db)])
    assert logged(db) == backend
    assert final(db, f"resumed_{backend}") == final(db, f"undisturbed_{backend}")

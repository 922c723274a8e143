"""Keras on JAX and on PyTorch: the results are those of plain Keras on the same framework, and states cross them.

More of JAX: tests/thorough/equivalence/test_frameworks.py.
"""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from support.cluster import ROOT
from support.on_frameworks import (
    MODELS,
    assert_a_cancelled_run_goes_on,
    assert_a_run_is_plain_keras,
    data,
    final,
    logged,
    on,
    train,
)
from support.workload import OTHERS, last_run, needs_jax, needs_torch

__all__ = ["data", "on"]  # fixtures
KINDS = ("dense", "conv", "lstm", "batch normalization", "dropout with a seed", "embedding", "several inputs")
KINDS += ("numbers per batch",)


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


@needs_torch
@pytest.mark.parametrize("case", [case for case in MODELS if MODELS[case][0] != 3])
def test_a_run_is_plain_keras_on_pytorch(db, data, on, case):
    assert_a_run_is_plain_keras(db, "torch", case)


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


@needs_torch
def test_a_run_that_was_cancelled_goes_on_on_its_framework(db, data, on):
    assert_a_cancelled_run_goes_on(db, "torch")

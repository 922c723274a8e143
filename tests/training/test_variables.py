"""A model's variables that are read and set together are what they are one by one."""

import json
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
import pytest

from mop_udf.kernels.on_tensorflow.variables import FEWEST, MOST_BYTES, PATIENCE, Variables
from mop_udf.training import model_cache, models
from support.workload import ADAM, layer, sequential

OF_ADAM, OF_NADAM = ADAM.format(0.01), "loss='categorical_crossentropy', optimizer='Nadam()'"


def compiled(dtype="float32", compiling=OF_ADAM):
    """A model with variables of several types: weights, seeds, moments, counters."""
    architecture = sequential(
        "mixed",
        [6],
        layer("Dense", name="one", units=5, dtype=dtype),
        layer("BatchNormalization", name="two", dtype=dtype),
        layer("Dropout", name="three", rate=0.5, dtype=dtype),
        layer("Dense", name="four", units=3, dtype=dtype),
    )
    parameters, _ = models.parse(compiling, "batch_size=4", 1)
    text = architecture if isinstance(architecture, str) else json.dumps(architecture)
    return model_cache.ModelCache(1 << 30).get(text, parameters, {}, 1)


@pytest.mark.parametrize("optimizer", [OF_ADAM, OF_NADAM])  # Nadam has a scalar of the weights' type
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_states_are_the_same_bytes_however_often_they_come_and_go(dtype, optimizer):
    model, random = compiled(dtype, optimizer), np.random.default_rng(3)
    model.start(1)
    first = b"".join(model.save())
    for _ in range(PATIENCE // (2 * len(model._variables.variables)) + 5):
        for variable in model._variables.variables:
            variable.assign((random.random(variable.shape) * 100).astype("float64"))
        state = b"".join(model.save())
        model.load(first)
        assert b"".join(model.save()) == first
        model.load(state)
        assert b"".join(model.save()) == state
        alone = [np.asarray(variable.value) for variable in model._variables.variables]
        assert all(np.array_equal(a, b) for a, b in zip(alone, model._variables.take()))
    assert model._variables._all_at_once is not None


def test_what_is_of_another_type_is_converted_as_ever():
    variables = Variables(keras.Variable(np.zeros(3, "float32")) for _ in range(FEWEST))
    for number in range(2 * PATIENCE // FEWEST):
        variables.put([np.full(3, number, "float64")] * FEWEST)
        assert all(array.dtype == "float32" and (array == number).all() for array in variables.take())


def test_large_variables_are_never_copied():
    variables = Variables(keras.Variable(np.zeros(MOST_BYTES // 16, "float32")) for _ in range(FEWEST))
    for _ in range(PATIENCE // FEWEST + 1):
        variables.put([np.ones(MOST_BYTES // 16, "float32")] * FEWEST)
        assert all((array == 1).all() for array in variables.take())
    assert variables._all_at_once is None


@pytest.mark.parametrize("kept", [True, False])
def test_models_that_are_alike_keep_their_variables_apart(tmp_path, monkeypatch, kept):
    if kept:
        monkeypatch.setenv("PG_MOP_COMPILE_CACHE", f"100:{tmp_path}")
    of = [Variables(keras.Variable(np.zeros(n + 1, "float32")) for n in range(FEWEST)) for _ in range(3)]
    for number in range(PATIENCE // FEWEST + 3):
        for own, variables in enumerate(of):
            variables.put([np.full(n + 1, 100 * number + 10 * own + n / 100, "float32") for n in range(FEWEST)])
        for own, variables in enumerate(of):
            taken = variables.take()
            assert all((array == np.float32(100 * number + 10 * own + n / 100)).all() for n, array in enumerate(taken))
    assert all(variables._all_at_once is not None for variables in of)
    assert len(list(tmp_path.glob("*.trace"))) == (2 if kept else 0)

"""Configurations that differ in their optimizer's scalars share a compiled model, and train as in plain Keras."""

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import numpy as np
import pytest

from mop_udf import parameter_names, params
from support.workload import dense, random_rows

# two configurations each, which differ in every scalar
PAIRS = {
    "SGD": ("learning_rate=0.1, momentum=0.5, weight_decay=0.01", "learning_rate=0.05, momentum=0.9, weight_decay=0.3"),
    "SGD, nesterov": ("momentum=0.5, nesterov=True", "momentum=0.9, nesterov=True"),
    "SGD, decaying": ("lr=0.1, decay=0.5", "lr=0.2, decay=0.1"),
    "RMSprop": ("rho=0.8, momentum=0.2, epsilon=0.01", "rho=0.95, momentum=0.4, epsilon=0.1"),
    "RMSprop, centered": ("rho=0.8, centered=True", "rho=0.95, centered=True"),
    "Adam": ("lr=0.1, beta_1=0.8, beta_2=0.99, epsilon=0.01", "lr=0.02, beta_1=0.95, beta_2=0.9, epsilon=1e-5"),
    "Adam, amsgrad": ("beta_1=0.8, amsgrad=True", "beta_1=0.95, amsgrad=True"),
    "AdamW": ("weight_decay=0.5, beta_2=0.99", "weight_decay=0.01, beta_2=0.9"),
    "Adadelta": ("lr=1.0, rho=0.8, epsilon=0.01", "lr=0.5, rho=0.99, epsilon=0.001"),
    "Adagrad": ("lr=0.1, epsilon=0.1", "lr=0.5, epsilon=0.001"),
    "Adamax": ("beta_1=0.8, beta_2=0.99, epsilon=0.01", "beta_1=0.95, beta_2=0.9, epsilon=0.1"),
    "Adafactor": ("lr=0.1, weight_decay=0.1", "lr=0.01, weight_decay=0.5"),
    "Nadam": ("beta_1=0.8, beta_2=0.99, epsilon=0.01", "beta_1=0.95, beta_2=0.9, epsilon=0.1"),
    "Ftrl": ("lr=0.1", "lr=0.5"),
    "Lion": ("beta_1=0.8, beta_2=0.9", "beta_1=0.95, beta_2=0.99"),
    "Lamb": ("beta_1=0.8, beta_2=0.9, epsilon=0.01", "beta_1=0.95, beta_2=0.99, epsilon=0.1"),
    "Muon": ("lr=0.1, momentum=0.8", "lr=0.01, momentum=0.95"),
}


def parsed(name, arguments):
    text = f"loss='categorical_crossentropy', optimizer='{name.split(',')[0]}({arguments})', metrics=['accuracy']"
    return params.parse_compile_params(text)


def by_keras(compile_params):
    import keras

    from mop_udf import models, optimizers

    model = models.build(models.normalise(dense()), 7)
    model.compile(
        optimizer=optimizers.make_optimizer(compile_params["optimizer"], compile_params["optimizer_args"]),
        loss=compile_params["loss"],
        jit_compile=False,
        run_eagerly=True,
    )
    x, y = random_rows(24)
    for _ in range(3):
        for i in range(0, 24, 8):
            model.train_on_batch(x[i : i + 8], y[i : i + 8])
    keras.backend.clear_session()
    return np.concatenate([w.ravel() for w in model.get_weights()])


def test_every_optimizer_has_its_pair():
    assert {name.split(",")[0] for name in PAIRS} == set(parameter_names.OPTIMIZERS)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name,kernel",
    [
        *((n, "plain") for n in PAIRS),
        *((n, k) for k in ("loop", "xla") for n in ("SGD", "SGD, decaying", "RMSprop", "Adam", "AdamW")),
    ],
)
def test_scalars_are_those_of_the_configuration(name, kernel):
    from mop_udf import model_cache

    cache, results = model_cache.ModelCache(), []
    x, y = random_rows(24)
    for arguments in (*PAIRS[name], PAIRS[name][0]):
        compile_params = parsed(name, arguments)
        compiled = cache.get(dense(), compile_params, {})
        compiled.start(7)
        compiled.set_scalars(compile_params)
        for _ in range(3):
            compiled.kernels.train([(x, y)], len(x), 8, 1, forced=kernel)
        results.append(np.concatenate([w.ravel() for w in compiled.model.get_weights()]))
    assert len(cache.models) == 1, "they share one compiled model"
    if kernel == "plain":
        assert (results[0] == results[2]).all()
    assert np.abs(results[0] - results[1]).max() > 1e-4
    for result, arguments in zip(results, PAIRS[name]):
        expected = by_keras(parsed(name, arguments))
        assert np.abs(result - expected).max() <= (3e-6 if kernel == "plain" else 2e-5) * np.abs(expected).max()


def test_numbers_of_different_signs_do_not_share():
    keys = [
        str(params.without_scalars(parsed("SGD", a)))
        for a in (
            "momentum=0",
            "momentum=0.1",
            "momentum=0.2",
            "momentum=-0.1",
            "lr=0.1",
            "nesterov=True",
            "clipnorm=1.0",
            "clipnorm=2.0",
        )
    ]
    assert keys[1] == keys[2] and len(set(keys)) == 7

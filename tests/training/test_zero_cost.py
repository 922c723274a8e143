"""Zero-cost scores, as the trainer computes them: as published."""

import json
import math
import os

import numpy as np
import pytest

from support.workload import dense, layer, sequential

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


def convolutional():
    return sequential(
        "cnn",
        [6, 6, 1],
        layer("Conv2D", name="conv", filters=3, kernel_size=3, activation="relu"),
        layer("BatchNormalization", name="norm"),
        layer("Flatten", name="flat"),
        layer("Dense", name="hidden", units=5, activation="relu"),
        layer("Dense", name="out", units=3, activation="softmax"),
    )


@pytest.mark.parametrize("text", [dense(16), convolutional()])
def test_synflow_is_the_sum_of_weights_times_gradients(text):
    import keras
    import tensorflow as tf

    from mop_udf.training import models, zero_cost

    def made():
        return models.build(models.normalise(text), 3)

    model = made()
    models.maker_of(model.outputs[0]).activation = keras.activations.linear
    trained = {id(v) for v in model.trainable_variables}
    model.set_weights([np.abs(np.asarray(v)) if id(v) in trained else np.asarray(v) for v in model.weights])
    with tf.GradientTape() as tape:
        flow = tf.reduce_sum(model(tf.ones((1, *model.input_shape[1:])), training=False))
    gradients = tape.gradient(flow, [v.value for v in model.trainable_variables])
    wanted = sum(float(tf.reduce_sum(g * v.value)) for g, v in zip(gradients, model.trainable_variables))
    assert zero_cost.synflow(made()) == pytest.approx(wanted, rel=1e-4)


def test_naswot_is_the_determinant_of_agreeing_units():
    from mop_udf.training import models, zero_cost

    model = models.build(models.normalise(dense(64)), 3)
    rows = np.random.default_rng(1).normal(size=(8, 4)).astype("f4")
    kernel, bias = model.get_layer("hidden").get_weights()
    on = rows @ kernel + bias > 0
    agree = np.array([[(a == b).sum() for b in on] for a in on], float)
    assert zero_cost.naswot(model, [rows]) == pytest.approx(np.linalg.slogdet(agree)[1]) and np.linalg.det(agree) > 1
    rows[3] = rows[2]
    assert math.isnan(zero_cost.naswot(model, [rows])), "log 0"


def test_jacob_cov_is_the_score_of_correlations_between_jacobians():
    """On other frameworks: tests/thorough/training/test_zero_cost.py."""
    from support import jacob_cov

    jacob_cov.check()


def test_a_net_that_has_no_score_or_cannot_be_built_has_none():
    from mop_udf.training import zero_cost

    linear = sequential("net", [4], layer("Dense", name="out", units=3))
    rows = [np.ones((4, 4), "f4")]
    hostile = json.dumps({"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda", "config": {}}]}})
    nets = [(1, linear), (2, hostile), (3, dense(16))]
    assert zero_cost.scores(nets, 1, "naswot", rows)[:2] == [None, None]
    made = zero_cost.scores(nets, 1, "synflow", [])
    assert made[1] is None and math.isfinite(made[0]) and made == zero_cost.scores(nets, 1, "synflow", [])

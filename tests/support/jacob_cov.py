"""Jacobian covariance (training/zero_cost.py) on this process's framework, compared with the published formula."""

import keras
import numpy as np

from mop_udf.training import models, zero_cost
from support.workload import dense, layer, sequential


def wanted(jacobian):
    values = np.linalg.eigvalsh(np.corrcoef(jacobian))
    return -np.sum(np.log(values + 1e-5) + 1 / (values + 1e-5))


def check():
    rows = np.random.default_rng(1).normal(size=(12, 4)).astype("f4")
    model = models.build(models.normalise(dense(64)), 3)
    kernel, bias, last, _ = [np.asarray(w, "f8") for w in model.get_weights()]
    jacobian = ((rows @ kernel + bias > 0) * last.sum(axis=1)) @ kernel.T  # without the softmax, which adds up to 1
    assert abs(zero_cost.jacob_cov(model, [rows]) / wanted(jacobian) - 1) < 1e-3

    # two inputs, whose gradients are parts of one Jacobian
    first, second = keras.Input([4], name="a"), keras.Input([3], name="b")
    both = keras.layers.Concatenate()([first, second])
    ends = keras.layers.Softmax()(keras.layers.Dense(2, activation="tanh")(both))
    model = keras.Model([first, second], [ends])
    more = np.random.default_rng(2).normal(size=(12, 3)).astype("f4")
    kernel, bias = [np.asarray(w, "f8") for w in model.get_weights()]
    outer = 1 - np.tanh(np.concatenate([rows, more], 1) @ kernel + bias) ** 2
    assert abs(zero_cost.jacob_cov(model, [rows, more]) / wanted(outer @ kernel.T) - 1) < 1e-3

    # the rows of an embedding are whole numbers: there is no gradient
    words = models.build(
        models.normalise(
            sequential(
                "words",
                [4],
                layer("Embedding", name="words", input_dim=9, output_dim=2),
                layer("Flatten", name="flat"),
                layer("Dense", name="out", units=2),
            )
        ),
        3,
    )
    assert np.isnan(zero_cost.jacob_cov(words, [np.ones((5, 4), "f4")]))
    # a line has the same gradient at each row: all rows correlate
    line = models.build(models.normalise(sequential("net", [4], layer("Dense", name="out", units=3))), 1)
    assert zero_cost.jacob_cov(line, [rows]) < -11 * 9e4, zero_cost.jacob_cov(line, [rows])


if __name__ == "__main__":
    check()

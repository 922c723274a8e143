"""Gradients with respect to a model's inputs, on TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def of_inputs(model: Any, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The gradient of the sum of all outputs of a Keras model with respect to each of its inputs, for rows in inference.

    `rows`: an array of float32 for each input, with the rows first. The result has arrays of the same shapes; zeros for an
    input that has no gradient (whole numbers of an embedding).
    """
    given = [tf.convert_to_tensor(one) for one in rows]
    with tf.GradientTape() as tape:
        tape.watch(given)
        made = model(given if len(given) > 1 else given[0], training=False)
        total = tf.add_n([tf.reduce_sum(one) for one in keras.tree.flatten(made)])
    found = tape.gradient(total, given, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [np.asarray(tf.convert_to_tensor(one)) for one in found]

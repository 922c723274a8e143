"""Scalars of an optimizer that change with every mini-batch: sequences per batch, and Keras' own schedules.

They are computed in the compiled step from the optimizer's count of mini-batches. The numbers of a sequence are
variables, so configurations that differ only in these numbers share one compiled model. Computations are in float64
until they meet Keras' tensors. A Keras schedule stays as Keras makes it, with constants: TensorFlow can fold constants
and then rounds differently, and the result must be Keras', bit by bit.
"""

from typing import Any

import tensorflow as tf

from mop_udf.kernels import per_batch
from mop_udf.kernels.on_tensorflow.scalars import Scalar


class TENSORS:
    """The operations of sequence_functions.PYTHON on float64 tensors."""

    cos, log, floor, maximum, where = tf.cos, tf.math.log, tf.floor, tf.maximum, tf.where

    @staticmethod
    def reached(step: Any, milestones: Any) -> Any:
        return tf.reduce_sum(tf.cast(step >= milestones, tf.float64))

    @staticmethod
    def pick(values: Any, step: Any) -> Any:
        return tf.gather(values, tf.cast(tf.minimum(step, values.shape[0] - 1.0), tf.int64))


class Bound(per_batch.Bound):
    operations = TENSORS

    @staticmethod
    def keep(number: float) -> Any:
        return tf.Variable(number, dtype=tf.float64, trainable=False)

    @staticmethod
    def read(kept: Any) -> Any:
        return kept.read_value()

    @staticmethod
    def wide(value: Any) -> Any:
        return tf.cast(value, tf.float64) if tf.is_tensor(value) else tf.convert_to_tensor(value, tf.float64)


Rate, SequencedScalar = per_batch.kinds(Bound, Scalar)


def numbers(owner: Any) -> Any:
    """The variables of an optimizer's or schedule's numbers that `make_variable` has made."""
    found = []
    for held in vars(owner).values():
        if isinstance(held, Rate | SequencedScalar):
            found += held.numbers
        elif isinstance(held, Scalar):
            found.append(held.variable)
    return found

"""Scalars of an optimizer that change with every mini-batch: sequences per batch, and Keras' own schedules.

They are computed within the compiled step from the optimizer's count of mini-batches. The numbers of a sequence are
variables, so configurations that differ in these alone share one compiled model; what is computed from them is in
float64 until it meets Keras' tensors. A schedule of Keras stays as Keras makes it, its numbers constants: TensorFlow
rounds otherwise where it may compute with constants beforehand, and the result is to be Keras', bit by bit.
"""

import keras
import tensorflow as tf

from mop_udf.kernels.on_tensorflow.scalars import Scalar


class TENSORS:
    """The operations of sequences.PYTHON on float64 tensors."""

    cos, log, floor, maximum, where = tf.cos, tf.math.log, tf.floor, tf.maximum, tf.where

    @staticmethod
    def reached(step, milestones):
        return tf.reduce_sum(tf.cast(step >= milestones, tf.float64))

    @staticmethod
    def pick(values, step):
        return tf.gather(values, tf.cast(tf.minimum(step, values.shape[0] - 1.0), tf.int64))


class _Sequence:
    """A Sequence whose numbers are variables."""

    def __init__(self, sequence):
        self.sequence = sequence
        self.numbers = [tf.Variable(number, dtype=tf.float64, trainable=False) for number in sequence.numbers()]

    def assign(self, sequence):
        """Compute another Sequence of the same structure from now on."""
        for variable, number in zip(self.numbers, sequence.numbers(), strict=True):
            variable.assign(number)

    def value(self, step):
        """The value after so many mini-batches (an integer tensor): a float64 tensor."""
        numbers = [variable.read_value() for variable in self.numbers]
        return tf.convert_to_tensor(self.sequence.bind(numbers)(TENSORS, tf.cast(step, tf.float64)), tf.float64)


class Rate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate as a Sequence: a schedule of Keras."""

    def __init__(self, sequence):
        self._sequence = _Sequence(sequence)
        self.assign = self._sequence.assign

    def __call__(self, step):
        return tf.cast(self._sequence.value(step), keras.config.floatx())

    def get_config(self):
        return {"sequence": self._sequence.sequence.text}


class SequencedScalar(Scalar):
    """Another scalar of an optimizer as a Sequence."""

    def __init__(self, sequence, optimizer):
        self._sequence = _Sequence(sequence)
        self.assign = self._sequence.assign
        super().__init__(sequence.at(0), lambda: self._sequence.value(optimizer._iterations.value))

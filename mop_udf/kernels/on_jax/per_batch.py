"""Scalars of an optimizer that change with every mini-batch, on JAX: see on_tensorflow/per_batch.py."""

import jax.numpy as jnp
import keras

from mop_udf.kernels.on_jax.scalars import Number, Scalar


class ARRAYS:
    """The operations of sequences.PYTHON on float64 arrays."""

    cos, log, floor, maximum, where = jnp.cos, jnp.log, jnp.floor, jnp.maximum, jnp.where

    @staticmethod
    def reached(step, milestones):
        return jnp.sum((step >= jnp.asarray(milestones)).astype("float64"))

    @staticmethod
    def pick(values, step):
        values = jnp.asarray(values)
        return values[jnp.minimum(step, values.shape[0] - 1.0).astype("int64")]


class _Sequence:
    """A Sequence whose numbers are arguments of compiled steps."""

    def __init__(self, sequence):
        self.sequence = sequence
        self.numbers = [Number(number) for number in sequence.numbers()]

    def assign(self, sequence):
        """Compute another Sequence of the same structure from now on."""
        for kept, number in zip(self.numbers, sequence.numbers(), strict=True):
            kept.assign(number)

    def value(self, step):
        """The value after so many mini-batches (an integer array): a float64 array."""
        bound = self.sequence.bind([jnp.asarray(number.value) for number in self.numbers])
        return jnp.asarray(bound(ARRAYS, jnp.asarray(step, "float64")), "float64")


class Rate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate as a Sequence: a schedule of Keras."""

    def __init__(self, sequence):
        self._sequence = _Sequence(sequence)
        self.assign, self.numbers = self._sequence.assign, self._sequence.numbers

    def __call__(self, step):
        return self._sequence.value(step).astype(keras.config.floatx())

    def get_config(self):
        return {"sequence": self._sequence.sequence.text}


class SequencedScalar(Scalar):
    """Another scalar of an optimizer as a Sequence."""

    def __init__(self, sequence, optimizer):
        self._sequence = _Sequence(sequence)
        self.assign, self.numbers = self._sequence.assign, self._sequence.numbers
        super().__init__(sequence.at(0), lambda: self._sequence.value(optimizer._iterations.value))

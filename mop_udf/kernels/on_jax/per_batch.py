"""Scalars of an optimizer that change with every mini-batch, on JAX: see on_tensorflow/per_batch.py."""

from typing import Any

import jax.numpy as jnp

from mop_udf.kernels import per_batch
from mop_udf.kernels.on_jax.scalars import Number, Scalar


class ARRAYS:
    """The operations of sequence_functions.PYTHON on float64 arrays."""

    cos, log, floor, maximum, where = jnp.cos, jnp.log, jnp.floor, jnp.maximum, jnp.where

    @staticmethod
    def reached(step: Any, milestones: Any) -> Any:
        return jnp.sum((step >= jnp.asarray(milestones)).astype("float64"))

    @staticmethod
    def pick(values: Any, step: Any) -> Any:
        values = jnp.asarray(values)
        return values[jnp.minimum(step, values.shape[0] - 1.0).astype("int64")]


class Bound(per_batch.Bound):
    operations, keep = ARRAYS, Number

    @staticmethod
    def read(kept: Any) -> Any:
        return jnp.asarray(kept.value)

    @staticmethod
    def wide(value: Any) -> Any:
        return jnp.asarray(value, "float64")


Rate, SequencedScalar = per_batch.kinds(Bound, Scalar)

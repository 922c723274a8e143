"""TensorFlow's Scalar: its number is a variable of TensorFlow."""

import functools
from typing import Any

import tensorflow as tf

from mop_udf.kernels import scalars
from mop_udf.kernels.on_tensorflow.variables import put


class Scalar(scalars.Scalar):
    def keep(self, value: Any) -> Any:
        self.variable = tf.Variable(value, dtype=tf.float64, trainable=False)
        self.assign = functools.partial(put, self.variable)
        return self.variable.read_value

    cast = staticmethod(tf.cast)


def _convert(scalar: Any, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    return tf.cast(scalar.compute(), dtype or tf.float32)


tf.register_tensor_conversion_function(Scalar, _convert)

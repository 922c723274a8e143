"""Batches of rows as Keras expects them, for every framework."""

import functools
import math
from typing import Any

import keras
import numpy as np

from mop_udf.data import Columns


def cached(columns: Any, key: Any, make: Any) -> Any:
    """The result of `make()`, a nest of arrays or tensors made from `columns`.

    For data.Columns it is made only once and kept under `key`, within their limit.
    """
    made = columns.made.get(key) if isinstance(columns, Columns) else None
    if made is None:
        made = make()
        if isinstance(columns, Columns):
            columns.keep(key, made, sum(map(_nbytes, keras.tree.flatten(made))))
    return made


def _nbytes(value: Any) -> Any:
    # (TensorFlow's tensors have no nbytes)
    return value.nbytes if hasattr(value, "nbytes") else value.dtype.size * math.prod(value.shape)


def array(value: Any) -> Any:
    """The array of a Keras variable, or of a tensor on any device."""
    # (convert_to_numpy would ask TensorFlow's variables for a copy, and they cannot make one)
    return np.asarray(value) if isinstance(value, keras.Variable) else keras.ops.convert_to_numpy(value)


def joined(columns: Any) -> Any:
    """Columns as Keras expects them: a single array, or a list of several."""
    return columns[0] if len(columns) == 1 else list(columns)


def split(batch: Any, inputs: Any, outputs: Any) -> Any:
    """A batch -> (x, y) as Keras expects them, or (x, y, weight of each row) with a column of sample weights.

    `inputs`, `outputs`: their numbers; the sample weights follow the outputs.
    """
    end = inputs + outputs
    return joined(batch[:inputs]), joined(batch[inputs:end]), *(weight.reshape(-1) for weight in batch[end:])


def weighted(batch: Any, inputs: Any, outputs: Any, class_weight: Any) -> Any:
    """A batch as `split` gives it. Class weights multiply the sample weights."""
    x, y, *weights = split(batch, inputs, outputs)
    if class_weight is not None:
        weights.append(class_weights(y, class_weight))
    return (x, y, functools.reduce(np.multiply, weights)) if weights else (x, y)


def class_weights(y: Any, class_weight: Any) -> Any:
    """A weight for each row of `y` (one-hot) from {class: weight}, default 1; as Keras' class_weight."""
    if isinstance(y, list):
        raise ValueError("`class_weight` is only supported for Models with a single output.")
    classes = np.argmax(y, axis=-1) if y.shape[-1] != 1 else np.rint(y[..., 0]).astype(int)
    return np.array([class_weight.get(int(c), 1) for c in classes], keras.config.floatx())

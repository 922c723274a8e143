"""A model's variables, read and set by TensorFlow's bare operations, or many by one call.

A bare operation takes 10 to 20 us, a variable's own method 40 to 80. For a small model, this is more than the training.
"""

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from mop_udf.kernels.on_tensorflow import traces

PATIENCE = 4000  # variables set one by one before the function for all is compiled, which takes as long
FEWEST = 12  # least number of variables that make the function worthwhile
MOST_BYTES = 4 << 20  # of all variables: copying more takes longer than the calls


def put(variable: Any, array: Any) -> None:
    """Set a variable of TensorFlow to an array or number of its shape and dtype."""
    # (without a dtype, tf.constant takes half the time)
    same = getattr(array, "dtype", None) == variable.dtype.as_numpy_dtype
    tf.raw_ops.AssignVariableOp(
        resource=variable.handle, value=tf.constant(array) if same else tf.constant(array, variable.dtype)
    )


def taken(variable: Any) -> Any:
    """The value of a variable of TensorFlow, possibly as a view of its memory."""
    # (called directly: for a scalar bfloat16, numpy needs an array, and a tensor does not give one otherwise)
    return np.asarray(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).__array__())


class Variables:
    """Keras variables, read and set as lists of arrays, in order."""

    def __init__(self, variables: Any) -> None:
        self.variables = list(variables)
        self.shapes = [tuple(v.shape) for v in self.variables]
        self.dtypes = [v.value.dtype.as_numpy_dtype for v in self.variables]
        self.kinds: dict[Any, list[int]] = {}  # dtype -> positions of its variables
        for position, variable in enumerate(self.variables):
            self.kinds.setdefault(variable.dtype, []).append(position)
        size = sum(v.value.dtype.size * math.prod(shape) for v, shape in zip(self.variables, self.shapes))
        self._all_at_once: tuple[Any, ...] | None = (
            None  # the functions that set and read all at once, after their compilation
        )
        self._set = 0 if len(self.variables) >= FEWEST and size <= MOST_BYTES else -math.inf

    def put(self, arrays: Any) -> None:
        """Set the variables to arrays of their shapes."""
        self._set += len(self.variables)
        if any(array.dtype != dtype for dtype, array in zip(self.dtypes, arrays)):
            for variable, array in zip(self.variables, arrays):
                variable.assign(array)
        elif self._set <= PATIENCE:
            for variable, array in zip(self.variables, arrays):
                put(variable.value, array)
        else:
            self._compiled()[0](
                [
                    tf.convert_to_tensor(np.concatenate([arrays[position].reshape(-1) for position in positions]))
                    for positions in self.kinds.values()
                ]
            )

    def take(self) -> Any:
        """The variables' values, possibly as views of their memory: valid until the next step."""
        if self._set <= PATIENCE:
            return [taken(variable.value) for variable in self.variables]
        found: list[Any] = [None] * len(self.variables)
        flats = self._compiled()[1]()
        for positions, flat in zip(self.kinds.values(), flats if isinstance(flats, list | tuple) else [flats]):
            flat, at = np.asarray(flat), 0
            for position in positions:
                end = at + math.prod(self.shapes[position])
                found[position], at = flat[at:end].reshape(self.shapes[position]), end
        return found

    def _compiled(self) -> Any:
        if self._all_at_once is None:
            flats = [
                tf.TensorSpec([sum(math.prod(self.shapes[position]) for position in positions)], kind)
                for kind, positions in self.kinds.items()
            ]
            values = [v.value for v in self.variables]
            self._all_at_once = tuple(
                traces.function(
                    functools.partial(tf.function(made, autograph=False).get_concrete_function, *of),
                    f"{made.__name__} {self.shapes} {self.dtypes}",
                    values,
                    True,
                )
                for made, of in ((self._put_all, [flats]), (self._take_all, []))
            )
        return self._all_at_once

    def _put_all(self, flats: Any) -> None:
        for positions, flat in zip(self.kinds.values(), flats):
            parts = tf.split(flat, [math.prod(self.shapes[position]) for position in positions])
            for position, part in zip(positions, parts):
                self.variables[position].value.assign(tf.reshape(part, self.shapes[position]))

    def _take_all(self) -> Any:
        return [
            tf.concat([tf.reshape(self.variables[position].value, [-1]) for position in positions], 0)
            for positions in self.kinds.values()
        ]

"""The size of a model before it is allocated. Runs in the trainer."""

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.backend.common.variables import Variable
from keras.src.optimizers.base_optimizer import BaseOptimizer

from mop_udf.kernels.framework import framework
from mop_udf.training import custom_layers

# limit of a model's weights and optimizer variables (pg_mop.max_model_mb), set from the trainer's options
limit_mb: int | None = None


class TooLarge(Exception):
    """The model is larger than the limit or this machine's memory; the text gives both sizes."""


class Unsized(Exception):
    """The model's size is unknown because Keras does not make the model; `__cause__` says why."""


def check(architecture: dict[str, Any], make_optimizer: Callable[[], Any] | None = None) -> None:
    """Raise TooLarge where a model of the architecture (dict, normalised) exceeds a limit.

    `make_optimizer` makes a new optimizer; its variables count as well. Raises Unsized where Keras refuses the
    architecture or the size is unknown: such a model must not be built.
    """
    text = json.dumps(architecture)
    variables = _variables(text)
    weights = sum(_bytes(shape, dtype) for shape, dtype, _ in variables)
    _compare(weights, 0)  # first, since an optimizer for too large weights may itself fail
    if make_optimizer is not None:
        _compare(weights, _optimizer_bytes(make_optimizer(), [v[:2] for v in variables if v[2]]))


def _compare(weights: Any, others: Any) -> None:
    text = f"the model has {weights:,} bytes of weights" + (
        f" (and {others:,} of optimizer variables)" if others else ""
    )
    if limit_mb is not None and weights + others > limit_mb << 20:
        raise TooLarge(f"{text}, more than pg_mop.max_model_mb allows ({limit_mb} MB)")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if weights + others > memory:
        raise TooLarge(f"{text}, more than the memory of this machine ({memory >> 20} MB)")


@functools.lru_cache(1000)
def _variables(text: str) -> Any:
    """(shape, dtype, trainable) of every variable of the architecture (JSON), and of arrays that building it makes.

    Raises Unsized, or TooLarge where the variables made before an error are too large.
    """
    with unallocated() as made:
        try:
            with custom_layers.scope():
                model = keras.models.model_from_json(text)
        except Exception as error:
            _compare(sum(_bytes(v.shape, v.dtype) for v in made), 0)
            raise Unsized from error
        found = [(tuple(v.shape), v.dtype, v.trainable) for v in made]
    for layer in model._flatten_layers():
        # the only layer that expands a number to its input's shape when it is built
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is not None and layer.built:
            found += [(tuple(layer._broadcast_shape), "float32", False)] * 2
    return found


def _optimizer_bytes(optimizer: Any, trainable: Any) -> Any:
    """Bytes of the variables that the new `optimizer` makes for weights: [(shape, dtype), ...]."""
    with unallocated():
        weights = [keras.Variable("zeros", shape=shape, dtype=dtype) for shape, dtype in trainable]
    found = 0

    def add(*args: Any, **kwargs: Any) -> Any:
        nonlocal found
        with unallocated() as made:
            variable = BaseOptimizer.add_variable(optimizer, *args, **kwargs)
        found += sum(_bytes(v.shape, v.dtype) for v in made)
        return variable

    # optimizers make scalars in another way, and TensorFlow's would read the weights' values
    optimizer.add_variable, optimizer._var_key = add, id
    optimizer.add_variable_from_reference = functools.partial(BaseOptimizer.add_variable_from_reference, optimizer)
    optimizer.build(weights)
    return found


def _bytes(shape: Any, dtype: Any) -> Any:
    try:
        size = np.dtype(dtype).itemsize
    except TypeError:  # e.g. bfloat16, unknown to numpy
        size = 2
    return math.prod(map(int, shape)) * size


@contextlib.contextmanager
def unallocated() -> Iterator[Any]:
    """A context that gives new variables no values: the list of these variables.

    Layers compute on shapes alone in it.
    """
    made: list[Any] = []
    make = Variable.__init__

    def initialize(self: Any, initializer: Any, shape: Any = None, dtype: Any = None, **more: Any) -> None:
        """Keras' constructor; a variable made from a value, such as the state of a recurrent layer, keeps only the
        shape.
        """
        if not callable(initializer) and not isinstance(initializer, str):
            value = keras.ops.convert_to_tensor(initializer)
            initializer, shape = "zeros", tuple(value.shape)
            dtype = dtype or keras.backend.standardize_dtype(value.dtype)
        make(self, initializer, shape, dtype, **more)

    before = global_state.get_global_attribute("uninitialized_variables")
    global_state.set_global_attribute("uninitialized_variables", made)
    Variable.__init__ = initialize
    try:
        with framework.shapes_only(), keras.StatelessScope(initialize_variables=False):
            yield made
    finally:
        Variable.__init__ = make
        global_state.set_global_attribute("uninitialized_variables", before or [])

"""JAX's Scalar: compiled steps know no variables, so they take its number as an argument."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from mop_udf.kernels import scalars


class Number:
    """A float64 number or array that a compiled step takes as an argument."""

    def __init__(self, value: Any) -> None:
        self.assign(value)

    def assign(self, value: Any) -> None:
        self.value = np.asarray(value, np.float64)


class Scalar(scalars.Scalar):
    def keep(self, value: Any) -> Any:
        self.number = Number(value)
        self.assign = self.number.assign
        return lambda: jnp.asarray(self.number.value)

    cast = staticmethod(jnp.asarray)  # type: ignore[assignment]

    def __jax_array__(self) -> Any:
        return jnp.asarray(self.compute(), "float32")


def numbers(optimizer: Any) -> Any:
    """The Numbers of an optimizer, in order: of its Scalars and of its schedule."""
    found = {}
    for owner in (optimizer, getattr(optimizer, "_learning_rate", None)):
        for value in (owner, *vars(owner).values()) if hasattr(owner, "__dict__") else ():
            for number in getattr(value, "numbers", [getattr(value, "number", None)]):
                if isinstance(number, Number):
                    found[id(number)] = number
    return list(found.values())


@contextlib.contextmanager
def given(numbers: Any, values: Any) -> Iterator[None]:
    """A context that gives the numbers other values, for a step that is being compiled."""
    before = [number.value for number in numbers]
    for number, value in zip(numbers, values):
        number.value = value
    try:
        yield
    finally:
        for number, value in zip(numbers, before):
            number.value = value

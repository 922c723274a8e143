"""Numbers of an optimizer that change without a new compilation: learning rates, momenta, decays and the like."""

import operator
from collections.abc import Callable
from typing import Any


class Scalar:
    """Replaces a Python float in a Keras optimizer; its value can be assigned later.

    Arithmetic with Python numbers gives another Scalar, with tensors a tensor. As with a Python float, all computations
    are in float64 until a tensor is involved, so results equal the float's. `if` tests its sign, which must not change.
    """

    def __init__(self, value: Any, compute: Any = None) -> None:
        """`value`: the first value; `compute`: for a Scalar computed from others, gives its float64 tensor."""
        self.first, self.compute = value, compute or self.keep(value)

    def derived(self, first: float, compute: Any) -> Any:
        """A Scalar that is computed from others."""
        made = object.__new__(type(self))
        Scalar.__init__(made, first, compute)
        return made

    def keep(self, value: Any) -> Callable[[], Any]:
        """Keep the number in a variable that compiled steps read and `assign` sets: a function that gives it as a
        tensor.
        """
        raise NotImplementedError

    @staticmethod
    def cast(value: Any, dtype: Any) -> Any:
        """A number or tensor as a tensor of a dtype."""
        raise NotImplementedError

    def _apply(self, operation: Any, other: Any, swapped: bool = False) -> Any:
        if not isinstance(other, (int, float, Scalar)):
            number = self.cast(self.compute(), getattr(other, "dtype", "float32"))
            return operation(other, number) if swapped else operation(number, other)

        def compute() -> Any:
            that = other.compute() if isinstance(other, Scalar) else self.cast(other, "float64")
            return operation(that, self.compute()) if swapped else operation(self.compute(), that)

        that = other.first if isinstance(other, Scalar) else other
        return self.derived(operation(that, self.first) if swapped else operation(self.first, that), compute)

    def __add__(self, other: Any) -> Any:
        return self._apply(operator.add, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply(operator.add, other, True)

    def __sub__(self, other: Any) -> Any:
        return self._apply(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply(operator.sub, other, True)

    def __mul__(self, other: Any) -> Any:
        return self._apply(operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply(operator.mul, other, True)

    def __truediv__(self, other: Any) -> Any:
        return self._apply(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply(operator.truediv, other, True)

    def __neg__(self) -> Any:
        return self * -1

    def __bool__(self) -> bool:
        return self.first != 0

    def __eq__(self, other: object) -> Any:
        return self._compare(operator.eq, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    __hash__ = object.__hash__

    def _compare(self, operation: Any, other: Any) -> Any:
        if other != 0:
            raise TypeError("a scalar of an optimizer can be compared with zero alone")
        return operation(self.first, 0)


def variable_maker(scalar: Any, sequenced: Any) -> Any:
    """The function `make_variable` of a framework, made from its Scalar and its SequencedScalar."""

    def make_variable(owner: Any, name: str, sequence: Any = None) -> Any:
        """Turn a number in an attribute of an optimizer or its schedule into a variable: an object with `assign`.

        `sequence`: a Sequence per mini-batch for the number, or None. A new value needs no new compilation.
        """
        made = scalar(getattr(owner, name)) if sequence is None else sequenced(sequence, owner)
        setattr(owner, name, made)
        return made

    return make_variable

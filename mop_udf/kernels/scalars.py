"""Numbers of an optimizer that may change without compiling anew: the rates, momenta and decays that people sweep."""

import operator


class Scalar:
    """Stands where a Keras optimizer keeps a Python float, and may be given another value later.

    In arithmetic with Python numbers it gives another Scalar, with tensors a tensor: everything is computed in float64
    until it meets a tensor, as Python does with a float, so that results are those of the float itself. `if` sees
    its sign, which must not change.
    """

    def __init__(self, value, compute=None):
        """`value`: the first; `compute`: gives the float64 tensor of a Scalar that was computed from another."""
        self.first, self.compute = value, compute or self.keep(value)

    def derived(self, first, compute):
        """One that is computed from others."""
        made = object.__new__(type(self))
        Scalar.__init__(made, first, compute)
        return made

    def keep(self, value):
        """Keep the number where compiled steps read it, and where `assign` sets it: what gives it as a tensor."""
        raise NotImplementedError

    @staticmethod
    def cast(value, dtype):
        """A number or tensor as a tensor of that dtype."""
        raise NotImplementedError

    def _apply(self, operation, other, swapped=False):
        if not isinstance(other, (int, float, Scalar)):
            here = self.cast(self.compute(), getattr(other, "dtype", "float32"))
            return operation(other, here) if swapped else operation(here, other)

        def compute():
            that = other.compute() if isinstance(other, Scalar) else self.cast(other, "float64")
            return operation(that, self.compute()) if swapped else operation(self.compute(), that)

        that = other.first if isinstance(other, Scalar) else other
        return self.derived(operation(that, self.first) if swapped else operation(self.first, that), compute)

    def __add__(self, other):
        return self._apply(operator.add, other)

    def __radd__(self, other):
        return self._apply(operator.add, other, True)

    def __sub__(self, other):
        return self._apply(operator.sub, other)

    def __rsub__(self, other):
        return self._apply(operator.sub, other, True)

    def __mul__(self, other):
        return self._apply(operator.mul, other)

    def __rmul__(self, other):
        return self._apply(operator.mul, other, True)

    def __truediv__(self, other):
        return self._apply(operator.truediv, other)

    def __rtruediv__(self, other):
        return self._apply(operator.truediv, other, True)

    def __neg__(self):
        return self * -1

    def __bool__(self):
        return self.first != 0

    def __eq__(self, other):
        return self._compare(operator.eq, other)

    def __gt__(self, other):
        return self._compare(operator.gt, other)

    __hash__ = object.__hash__

    def _compare(self, operation, other):
        if other != 0:
            raise TypeError("a scalar of an optimizer can be compared with zero alone")
        return operation(self.first, 0)


def variable_maker(scalar, sequenced):
    """A framework's function `make_variable`, from its Scalar and its SequencedScalar."""

    def make_variable(owner, name, sequence=None):
        """Let a number that an optimizer, or its schedule, has as an attribute change without compiling anew: what to
        assign to. `sequence`: the Sequence that an optimizer's number follows from mini-batch to mini-batch."""
        made = scalar(getattr(owner, name)) if sequence is None else sequenced(sequence, owner)
        setattr(owner, name, made)
        return made

    return make_variable

"""Scalars of an optimizer that follow a Sequence per mini-batch, for frameworks that compile steps.

The numbers of a sequence can change without a new compilation. Each framework provides its variables and operations.
"""

from typing import Any

import keras


class Bound:
    """A Sequence whose numbers are in variables that compiled steps read. A framework's subclass provides:

    - `operations`: the operations of sequence_functions.PYTHON on its tensors
    - `keep(number)`: a variable with `assign`
    - `read(kept)`: its value as a tensor
    - `wide(value)`: a float64 tensor
    """

    operations: Any
    keep: Any
    read: Any
    wide: Any

    def __init__(self, sequence: Any) -> None:
        self.sequence = sequence
        self.numbers = [self.keep(number) for number in sequence.numbers()]

    def assign(self, sequence: Any) -> None:
        """Compute another Sequence of the same structure from now on."""
        for kept, number in zip(self.numbers, sequence.numbers(), strict=True):
            kept.assign(number)

    def value(self, step: Any) -> Any:
        """The value after `step` mini-batches (an integer tensor): a float64 tensor. Runs while a step is compiled."""
        bound = self.sequence.bind([self.read(kept) for kept in self.numbers])
        return self.wide(bound(self.operations, self.wide(step)))


def kinds(bound: Any, scalar: Any) -> Any:
    """(Rate, SequencedScalar) of a framework, made from its Bound and its Scalar."""

    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        """A learning rate that follows a Sequence: a schedule of Keras."""

        def __init__(self, sequence: Any) -> None:
            self._sequence = bound(sequence)
            self.assign, self.numbers = self._sequence.assign, self._sequence.numbers

        def __call__(self, step: Any) -> Any:
            return keras.ops.cast(self._sequence.value(step), keras.config.floatx())

        def get_config(self) -> Any:
            return {"sequence": self._sequence.sequence.text}

    class SequencedScalar(scalar):
        """Another scalar of an optimizer that follows a Sequence."""

        def __init__(self, sequence: Any, optimizer: Any) -> None:
            self._sequence = bound(sequence)
            self.assign, self.numbers = self._sequence.assign, self._sequence.numbers
            super().__init__(sequence.at(0), lambda: self._sequence.value(optimizer._iterations.value))

    return Rate, SequencedScalar

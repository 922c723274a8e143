"""Numbers of an optimizer that change, on PyTorch. Nothing is compiled, so they are Python floats that are set anew.

Some of PyTorch's operations accept nothing else for a number.
"""

import weakref
from typing import Any

import keras
import numpy as np

_followers: weakref.WeakKeyDictionary[Any, dict[str, Any]] = (
    weakref.WeakKeyDictionary()
)  # optimizer -> {name: Follower}


class Number:
    """An attribute that is a number."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = weakref.ref(owner), name  # (weak: the optimizer's compiled model keeps this object)

    def assign(self, value: Any) -> None:
        setattr(self.owner(), self.name, float(value))


class Follower:
    """A number that follows a Sequence."""

    def __init__(self, sequence: Any) -> None:
        self.sequence = sequence

    def assign(self, sequence: Any) -> None:
        """Follow another Sequence of the same structure from now on."""
        self.sequence = sequence


class Rate(Follower, keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that follows a Sequence: a schedule of Keras."""

    def __call__(self, step: Any) -> Any:
        return keras.ops.convert_to_tensor(self.sequence.at(int(step)), keras.config.floatx())

    def get_config(self) -> Any:
        return {"sequence": self.sequence.text}


def make_variable(owner: Any, name: str, sequence: Any = None) -> Any:
    """See scalars.variable_maker."""
    if sequence is None:
        return Number(owner, name)
    made = _followers.setdefault(owner, {})[name] = Follower(sequence)
    return made


def follow(optimizer: Any) -> None:
    """Set an optimizer's numbers for its next mini-batch."""
    if numbers := _followers.get(optimizer):
        done = int(np.asarray(optimizer.iterations))
        for name, follower in numbers.items():
            setattr(optimizer, name, float(follower.sequence.at(done)))

"""Numbers of an optimizer that may change, on PyTorch: nothing is compiled, so they are Python's floats, set anew.

Some of PyTorch's operations take nothing else for a number.
"""

import weakref

import keras
import numpy as np

_followers = weakref.WeakKeyDictionary()  # optimizer -> its numbers that follow Sequences: {name: Follower}


class Number:
    """An attribute that is a number."""

    def __init__(self, owner, name):
        self.owner, self.name = weakref.ref(owner), name  # (the optimizer's compiled model keeps this)

    def assign(self, value):
        setattr(self.owner(), self.name, float(value))


class Follower:
    """A number that follows a Sequence."""

    def __init__(self, sequence):
        self.sequence = sequence

    def assign(self, sequence):
        """Follow another Sequence of the same structure from now on."""
        self.sequence = sequence


class Rate(Follower, keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate as a Sequence: a schedule of Keras."""

    def __call__(self, step):
        return keras.ops.convert_to_tensor(self.sequence.at(int(step)), keras.config.floatx())

    def get_config(self):
        return {"sequence": self.sequence.text}


def make_variable(owner, name, sequence=None):
    """See scalars.variers."""
    if sequence is None:
        return Number(owner, name)
    made = _followers.setdefault(owner, {})[name] = Follower(sequence)
    return made


def follow(optimizer):
    """Give an optimizer the numbers of its next mini-batch."""
    if numbers := _followers.get(optimizer):
        done = int(np.asarray(optimizer.iterations))
        for name, follower in numbers.items():
            setattr(optimizer, name, float(follower.sequence.at(done)))

"""Which dimension of a variable is divided among the devices that train a model together. Pure; standard library only.

Keras' ModelParallel asks for a layout of each variable. One rule gives all of them: of a kernel (of a dense layer, a
convolution, an embedding, ...) the largest dimension that the devices divide evenly is divided among them, and every device has
all other variables as a whole. An optimizer's variables have the shapes of the weights, so each is where its weight is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def divided_dimension(shape: Sequence[int], devices: int) -> int | None:
    """The dimension of a variable that so many devices divide among them: of equal ones, the last. None: each has it whole.

    >>> divided_dimension((64, 256), 2), divided_dimension((5, 5, 3, 32), 4), divided_dimension((30, 3), 4)
    (1, 3, None)
    >>> divided_dimension((256,), 2), divided_dimension((8, 8), 2), divided_dimension((64, 256), 1)
    (None, 1, None)
    """
    if len(shape) < 2 or devices < 2:  # (biases are small, and scalars and random states are no kernels)
        return None
    even = [axis for axis, size in enumerate(shape) if size and size % devices == 0]
    return max(even, key=lambda axis: (shape[axis], axis), default=None)


def numbers_on_a_device(shapes: Iterable[Sequence[int]], devices: int) -> int:
    """How many numbers of variables of these shapes each of so many devices holds.

    >>> numbers_on_a_device([(64, 256), (256,), (30, 3)], 4)
    4442
    """
    return sum(math.prod(shape) // (1 if divided_dimension(shape, devices) is None else devices) for shape in shapes)

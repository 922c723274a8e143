"""Model states that come from another role's run: whether they can be what they are said to be."""

from __future__ import annotations

import sys
from typing import Any

# numpy's names of the numbers that states consist of, besides the short floats
NUMBERS = frozenset(
    ("|b1", "|i1", "|u1", *(f"<{kind}" for kind in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8")))
)


def problem_of(data: Any, elements: int | None) -> str | None:
    """What is wrong with the bytes of a model state, or None: they must be one, of `elements` weights (None: any number), whose
    arrays are of numbers that a trainer can use, all of them finite.

    >>> problem_of(b"x", None)
    'its state is damaged: not a model state'
    """
    from pg_mop.backend.arrays import np, state

    try:
        groups = state.unpack(data)
    except state.StateError as error:
        return f"its state is damaged: {error}"
    except ImportError as error:  # (the package that reads a kind of numbers, which only a member's state has)
        return f"its state cannot be read here: {error}"
    short = [state.dtype(name) for name in state.SHORT_FLOATS] if sys.modules.get("ml_dtypes") else []
    for name, arrays in groups.items():
        for array in arrays:
            if array.dtype not in short and array.dtype.str not in NUMBERS:
                return f"its state has {name} of the type {array.dtype.str}"
    count = sum(array.size for array in groups["weights"])
    if elements is not None and count != elements:
        return f"its state has {count} weights, the model has {elements}"
    for name in ("weights", "optimizer"):
        for array in groups[name]:
            # (numpy knows no test for the short kinds of floats)
            if array.dtype.kind not in "biu" and not np.isfinite(np.asarray(array, np.float64)).all():
                return f"its state has {name} that are not finite"
    return None

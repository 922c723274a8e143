"""Model states that come from another role's run: whether they can be what they are said to be."""

from __future__ import annotations

from typing import Any


def problem_of(data: Any, elements: int | None) -> str | None:
    """What is wrong with the bytes of a model state, or None: they must be one, of `elements` weights (None: any number), all
    of whose numbers are finite.

    >>> problem_of(b"x", None)
    'its state is damaged: not a model state'
    """
    from pg_mop.backend.arrays import np, state

    try:
        groups = state.unpack(data)
    except state.StateError as error:
        return f"its state is damaged: {error}"
    count = sum(array.size for array in groups["weights"])
    if elements is not None and count != elements:
        return f"its state has {count} weights, the model has {elements}"
    for name in ("weights", "optimizer"):
        for array in groups[name]:
            # (numpy knows no test for the short kinds of floats)
            if array.dtype.kind not in "biu" and not np.isfinite(np.asarray(array, np.float64)).all():
                return f"its state has {name} that are not finite"
    return None

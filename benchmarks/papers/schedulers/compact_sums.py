"""Compact vector summation: an order of vectors in which every partial sum is small.

The Steinitz lemma with the constant of Grinberg and Sevastyanov ("Value of the Steinitz constant", Functional Analysis and
Its Applications 14, 1980): vectors of dimension d that sum to zero, of norm at most 1 in any norm, have an order in which
every partial sum has norm at most d.
"""

from typing import Any


def compact_order(vectors: Any) -> list[int]:
    """An order of some vectors (numpy array of n rows and d columns that sum to zero) that meets the bound of the lemma, in
    the norm that is the greatest difference of two elements, where an element 0 counts, too.

    Taking the vector that leaves the least sum nearly always meets the bound, in O(n^2 d). Where it does not, the order is
    that of the constructive proof.
    """
    import numpy as np

    vectors = np.asarray(vectors, float)
    order, worst = _nearest(vectors)
    if worst <= vectors.shape[1] * _norms(vectors).max(initial=0.0):
        return order
    return order_of_proof(vectors)


def _norms(vectors: Any) -> Any:
    """The greatest difference of two elements of each vector, or of an element and 0."""
    return vectors.max(axis=1, initial=0.0) - vectors.min(axis=1, initial=0.0)


def _nearest(vectors: Any) -> tuple[list[int], float]:
    """The order in which each vector leaves the least sum, and the greatest norm of a sum."""
    import numpy as np

    total, worst, order = np.zeros(vectors.shape[1]), 0.0, []
    left = np.arange(len(vectors))
    while len(left):
        norms = _norms(vectors[left] + total)
        best = int(norms.argmin())
        order.append(int(left[best]))
        total, worst = total + vectors[left[best]], max(worst, float(norms[best]))
        left = np.delete(left, best)
    return order, worst


def order_of_proof(vectors: Any) -> list[int]:
    """The order of the constructive proof, which meets the bound for all vectors and in every norm.

    The proof removes the vectors from the last to the first. Weights in [0, 1] say how much of each vector is left: they sum
    to (number of vectors left) - d, and the weighted vectors to zero. At a vertex of that polytope at most d + 1 weights
    lie strictly between 0 and 1, so one of them is 0: its vector comes last of those that are left. O(n^2 d^3).
    """
    import numpy as np

    vectors = np.asarray(vectors, float)
    count, dimension = vectors.shape
    columns = np.vstack([vectors.T, np.ones(count)])  # what moves of the weights must leave unchanged
    left = list(range(count))
    weights = np.full(count, (count - dimension) / count) if count > dimension else np.zeros(count)
    last: list[int] = []
    while len(left) > dimension:
        wanted = len(left) - 1 - dimension
        weights[left] *= wanted / (wanted + 1)
        while (zero := next((j for j in left if weights[j] <= 1e-9), None)) is None:
            between = [j for j in left if weights[j] < 1 - 1e-9][: dimension + 2]
            if len(between) < 2:
                zero = min(left, key=lambda j: weights[j])  # within rounding
                break
            move = np.linalg.svd(columns[:, between])[2][-1]  # these weights may move along it
            if not _move(weights, between, move):
                zero = min(left, key=lambda j: weights[j])
                break
        assert zero is not None
        weights[zero] = 0.0
        left.remove(zero)
        last.append(zero)
    return left + last[::-1]


def _move(weights: Any, numbers: list[int], move: Any) -> bool:
    """Move some weights along a direction until one of them is 0 or 1, to 0 if one of both ways leads there first.
    Returns False if nothing moves."""
    import numpy as np

    best: tuple[bool, float, float] | None = None
    for sign in (1.0, -1.0):
        with np.errstate(divide="ignore", invalid="ignore"):
            down = np.where(sign * move < -1e-12, weights[numbers] / -(sign * move), np.inf)
            up = np.where(sign * move > 1e-12, (1 - weights[numbers]) / (sign * move), np.inf)
        step = float(min(down.min(), up.min()))
        if np.isfinite(step):
            found = (bool(down.min() > up.min()), step, sign)
            best = found if best is None or found < best else best
    if best is None:
        return False
    weights[numbers] = np.clip(weights[numbers] + best[1] * best[2] * move, 0.0, 1.0)
    return True

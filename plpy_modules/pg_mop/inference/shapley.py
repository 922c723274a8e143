"""What each column adds to a model's value for one row: sampling Shapley values (Štrumbelj and Kononenko 2014). Pure.

A walk leads from a background row to the explained row: one column after the other, in a random order, takes the value of the
explained row. A column's contribution is the change of the model's value at its step, as a mean over all walks. Each order is
also walked backwards (an antithetic pair). The changes of a walk sum up to the difference of its two rows, so the mean value of
the background rows and all contributions sum up to the value of the explained row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pg_mop.backend.arrays import np

PAIRS = 256  # of walks, at least
# The least probabilities that float32 has: of several classes, and of 1 - p
LEAST, LEAST_OF_REST = 1e-37, 1e-7


class Contributions(NamedTuple):
    """`base`: the mean value of the background rows; of each column, its contribution and the standard error of it."""

    base: float
    means: np.ndarray
    errors: np.ndarray


def contributions(
    value: float,
    background: np.ndarray,
    differs: np.ndarray,
    values_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    random: np.random.Generator,
    most: int,
) -> Contributions:
    """The contributions of columns to the `value` of a row. `background`: the values of the background rows.

    `differs` [background rows, columns]: whether the two rows' values differ. `values_of(rows, taken)`: the values of hybrids,
    background rows `rows` whose columns `taken` [hybrids, columns] are those of the explained row; `most`: at once.
    """
    columns = differs.shape[1]
    background = np.where(differs.any(1), background, value)
    pairs = len(background) * -(-PAIRS // len(background))  # so each background row counts equally
    together = max(1, most // max(1, 2 * columns))
    changes = np.zeros((pairs, columns))
    for first in range(0, pairs, together):
        rows = np.arange(first, min(first + together, pairs)) % len(background)
        count = differs[rows].sum(1)
        # the place of each column in its order: those that do not differ come last, and no step is theirs
        ranks = (random.random((len(rows), columns)) + ~differs[rows]).argsort(1).argsort(1)
        for places in (ranks, count[:, None] - 1 - ranks):
            values = _values_of_walks(places, count, rows, value, background, values_of, most)
            steps = np.take_along_axis(np.diff(values), np.maximum(places, 0), 1)
            changes[first : first + len(rows)] += np.where(differs[rows], steps, 0) / 2
    return Contributions(float(background.mean()), changes.mean(0), changes.std(0, ddof=1) / np.sqrt(pairs))


def _values_of_walks(
    places: np.ndarray,
    count: np.ndarray,
    rows: np.ndarray,
    value: float,
    background: np.ndarray,
    values_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    most: int,
) -> np.ndarray:
    """The values [walks, columns + 1] after each step of walks; `count`: the steps of each walk."""
    columns = places.shape[1]
    values = np.full((len(rows), columns + 1), value)
    values[:, 0] = background[rows]
    walks, steps = np.nonzero(np.arange(columns + 1) < count[:, None])
    walks, steps = walks[steps > 0], steps[steps > 0]
    for start in range(0, len(walks), most):
        some, after = walks[start : start + most], steps[start : start + most]
        values[some, after] = values_of(rows[some], places[some] < after[:, None])
    return values


def log_odds(outputs: np.ndarray, unit: int, exclusive: bool) -> np.ndarray:
    """The log odds of a class from the probabilities [rows, units]; `exclusive`: a net's softmax has made those of a row.

    Smaller probabilities than the least count as the least.
    """
    own = outputs[:, unit]
    others, least = (np.delete(outputs, unit, 1).sum(1), LEAST) if exclusive else (1 - own, LEAST_OF_REST)
    return np.log(np.maximum(own, least)) - np.log(np.maximum(others, least))

"""Least squares with coefficients of at least 0, for a few columns. Pure Python: a backend that plans imports no numpy."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

ROUNDS = 2  # fits, each without the values that are far from the one before
FAR = 6.0  # median distances from the fit


def fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The coefficients c >= 0 with the least sum of squares of (row . c - value). At least one row.

    All subsets of columns are solved (2^n of them: at most five columns), and the best solution without a negative coefficient
    counts. Of equal ones, as with columns that are multiples of one another, the one with the first columns does. Values far
    from a first fit are left out: other work has disturbed them.

    >>> [round(c, 6) for c in fit([(1, 1), (1, 2), (1, 4)], [0.5, 0.7, 1.1])]
    [0.3, 0.2]
    >>> fit([(1, 1), (1, 2)], [2.0, 1.0])
    [1.5, 0.0]
    """
    kept = range(len(rows))
    for round_ in range(ROUNDS):
        found = _fit([rows[n] for n in kept], [values[n] for n in kept])
        away = [abs(_product(rows[n], found) - values[n]) for n in range(len(rows))]
        most = FAR * statistics.median(away)
        if round_ + 1 < ROUNDS and most > 0:
            kept = [n for n in range(len(rows)) if away[n] <= most]  # type: ignore[assignment]
    return found


def _fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    count = len(rows[0])
    squares = [[sum(row[a] * row[b] for row in rows) for b in range(count)] for a in range(count)]
    products = [sum(row[a] * value for row, value in zip(rows, values)) for a in range(count)]
    best, least = [0.0] * count, 0.0  # (the sum of squares, without that of the values)
    for size in range(1, count + 1):
        for columns in itertools.combinations(range(count), size):
            solved = _solve([[squares[a][b] for b in columns] for a in columns], [products[a] for a in columns])
            if solved is None or min(solved) < 0:
                continue
            rest = -sum(c * products[a] for c, a in zip(solved, columns))
            if rest < least - 1e-9 * abs(least):
                best, least = [0.0] * count, rest
                for c, a in zip(solved, columns):
                    best[a] = c
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """The solution of a symmetric system by elimination; None where its columns depend on one another."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda n: abs(rows[n][at]))
        if abs(rows[pivot][at]) <= 1e-9 * max(abs(matrix[at][at]), 1e-300):
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for below in range(at + 1, size):
            factor = rows[below][at] / rows[at][at]
            rows[below] = [low - factor * high for low, high in zip(rows[below], rows[at])]
    found = [0.0] * size
    for at in reversed(range(size)):
        found[at] = (rows[at][-1] - sum(rows[at][n] * found[n] for n in range(at + 1, size))) / rows[at][at]
    return found


def _product(row: Sequence[float], coefficients: Sequence[float]) -> float:
    return sum(a * c for a, c in zip(row, coefficients))

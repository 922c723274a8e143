"""Loss functions of models for numbers that a trainer trains whole: the square, or the pinball loss of a quantile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_WIDTH = 1e-6


@dataclass(frozen=True)
class NumberLoss:
    """The squared error. With `share`, the loss is `scale` times the pinball loss (Koenker and Bassett 1978), which that
    quantile minimises. The absolute error is twice the pinball loss of the median."""

    share: float | None = None
    scale: float = 1.0

    def values(self, missing: np.ndarray, width: float = 0.0) -> np.ndarray:
        """Of the truth minus the answer. `width`: the corner of the pinball loss is smoothed, as if a logistic noise of this
        scale were added (conquer; He et al. 2023), so that L-BFGS can minimise it.

        >>> NumberLoss(0.75).values(np.array([1.0, -1.0])).tolist()
        [0.75, 0.25]
        """
        if self.share is None:
            return missing**2
        corner = width * np.logaddexp(0, -missing / width) if width else np.maximum(-missing, 0)
        return np.asarray(self.scale * (self.share * missing + corner))

    def slopes(self, missing: np.ndarray, width: float = 0.0) -> np.ndarray:
        """The derivatives by the answer; without `width`, 0 where the answer is exact."""
        if self.share is None:
            return -2 * missing
        above = 1 / (1 + np.exp(np.clip(missing / width, -500, 500))) if width else np.heaviside(-missing, self.share)
        return np.asarray(self.scale * (above - self.share))

    def constant(self, values: np.ndarray, weights: np.ndarray | None = None) -> float:
        """The number that is the best answer for all values.

        >>> values, weights = np.array([5.0, 1.0, 2.0]), np.array([1.0, 1.0, 3.0])
        >>> NumberLoss(0.9).constant(values), SQUARES.constant(values, weights)
        (5.0, 2.4)
        """
        if self.share is None:
            return float(np.average(values, weights=weights))
        order = np.argsort(values, kind="stable")
        sums = np.cumsum(np.ones(len(values)) if weights is None else weights[order])
        place = np.searchsorted(sums, self.share * sums[-1])
        return float(values[order[min(int(place), len(values) - 1)]])


SQUARES = NumberLoss()

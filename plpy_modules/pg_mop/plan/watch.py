"""Early stopping: when a configuration stops by its own rule, and its best iteration. Pure Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mop_udf.params import params


def kept_state(fit_params: str | None, default: str) -> str:
    """Which state of a configuration is written, 'last' or 'best'; `default`: of the call, unless `fit_params` (valid
    text) have `keep`."""
    given = fit_params is not None and fit_params.strip() and "keep" in params.split(fit_params)
    return params.parse_fit_params(fit_params)["keep"] if given else default


class Watch:
    """Follows the metric of one configuration, iteration by iteration.

    The rules are those of Keras' EarlyStopping, with an evaluation in the place of an epoch.
    """

    def __init__(self, goal: str, stop: Mapping[str, Any] | None = None) -> None:
        """`goal`: 'min' or 'max'; `stop`: the rule as mop_udf.params.params parses it, or None for no rule."""
        self.goal, self.stop = goal, stop or {"patience": None, "min_delta": 0.0, "target": None}
        # (iteration, value); of equal values that of the smaller loss, then the earliest
        self.best: tuple[int, float] | None = None
        self._loss: float | None = None  # of the best iteration
        self._mark: float | None = None  # the value to improve on
        self._waited = 0  # evaluations since that value without an improvement

    def tell(self, iteration: int, value: float, loss: float | None = None) -> str | None:
        """Take a value of the metric, and the loss of the same evaluation. Returns the reason why the configuration stops
        now, or None: it continues."""
        smaller = loss is not None and self._loss is not None and loss < self._loss
        if self.best is None or self._is_better(value, self.best[1]) or smaller and value == self.best[1]:
            self.best, self._loss = (iteration, value), loss
        target, patience, delta = self.stop["target"], self.stop["patience"], self.stop["min_delta"]
        if target is not None and not self._is_better(target, value):
            return f"reached {value:g} at iteration {iteration} (target {target:g})"
        if self._mark is None or self._is_better(value, self._mark, delta):
            self._mark, self._waited = value, 0
        else:
            self._waited += 1
            if patience is not None and self._waited >= patience:
                return (
                    f"no better than {self._mark:g} for {self._waited} evaluation{'s' if self._waited > 1 else ''} "
                    f"at iteration {iteration} (patience {patience})"
                )
        return None

    def _is_better(self, value: float, other: float, by: float = 0.0) -> bool:
        return value < other - by if self.goal == "min" else value > other + by

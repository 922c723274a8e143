"""When a configuration need not be trained on, and which of its iterations was the best. Pure Python."""


class Watch:
    """The values of one configuration's metric, iteration by iteration.

    `goal`: 'min' or 'max'; `stop`: as mop_udf.params gives it, or None. The rules are those of Keras' EarlyStopping,
    with an evaluation in the place of an epoch.
    """

    def __init__(self, goal, stop=None):
        self.goal, self.stop = goal, stop or {"patience": None, "min_delta": 0.0, "target": None}
        self.best = None  # (iteration, value): the earliest of the best ones
        self._mark, self._waited = None, 0  # the value to be beaten, and evaluations that did not

    def told(self, iteration, value):
        """Take note of a value. Why the configuration stops now; None: it goes on."""
        if self.best is None or self._is_better(value, self.best[1]):
            self.best = iteration, value
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

    def _is_better(self, one, other, by=0.0):
        return one < other - by if self.goal == "min" else one > other + by

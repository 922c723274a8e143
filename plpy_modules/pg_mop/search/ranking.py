"""The order of configurations by their results: one rule for the winner of a run, its INFO lines, and its report."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pg_mop.search.goals import goal

Judged = tuple[str, str]  # the name of a metric, and 'min' or 'max'
LOSS: Judged = "loss", "min"


def judged_by(metrics: Iterable[str | None]) -> Judged:
    """The metric that orders configurations, if the call names none. `metrics`: the first metric of each configuration,
    None for a configuration without metrics.

    It is their metric if all have the same one and its name tells whether more of it is better, else the loss.
    """
    names = set(metrics)
    name = names.pop() if len(names) == 1 else None
    direction = goal(name) if name is not None else None
    return (name, direction) if name is not None and direction is not None else LOSS


def order(direction: str, value: float | None, loss: float | None, mst_key: int) -> tuple[bool, float, float, int]:
    """The sort key of a configuration: the best comes first, then the smaller loss, then the smaller mst_key. A value
    that is None or not a number comes last."""
    known = value is not None and not math.isnan(value)
    return (
        not known,
        0.0 if value is None or not known else -value if direction == "max" else value,
        math.inf if loss is None or math.isnan(loss) else loss,
        mst_key,
    )

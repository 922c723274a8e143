"""Numbers of a report: shortened for JSON and for people."""

import math
from typing import Any


def thin(points: list, most: int) -> list:
    """At most `most` of the points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def rounded(value: Any) -> Any:
    """A number with six digits; None for None and for a number that is not finite; other values unchanged."""
    if value is None or isinstance(value, (int, str)):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None

"""Numbers of a report: shortened for JSON and for people."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def thin(points: Sequence[T], most: int) -> list[T]:
    """At most `most` of the points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def rounded(value: Any) -> Any:
    """A number with six digits; None for None and for a number that is not finite; other values unchanged."""
    if value is None or isinstance(value, (int, str)):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def is_number(value: Any) -> bool:
    """Whether a value is a number, and no boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)

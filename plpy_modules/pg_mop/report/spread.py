"""What the configurations of a run tell together: which parameters explain differences, how results are distributed. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pg_mop.report.numbers import is_number, rounded, thin
from pg_mop.search.goals import goal

ENOUGH = 8  # configurations, for results that can be compared
BINS = 4  # classes of equal size, of a parameter with many different numbers
MOST_VALUES = 200  # of the distribution

Data = Mapping[str, Any]


def spread(configurations: Sequence[Data], varied: Sequence[str], measure: Mapping[str, str]) -> dict[str, Any]:
    """What all configurations of a run tell together.

    `configurations`: dicts with `parameters`, `last`, `iterations` and `status`; `measure`: {'series', 'goal'}. Those with the
    most iterations are compared (see `comparable`): results of fewer iterations say little about a parameter. The result has
    `of`, the number of the compared ones; `iterations`, the least number of iterations among them; `parts`, {parameter: the
    part of the differences that it explains, 0 to 1}, None where too few are compared; `values`, the results, the best first,
    at most MOST_VALUES of them, evenly spread; `goals`, {series: 'min' or 'max'} of those whose better direction is known.
    """
    series = measure["series"]
    fair = comparable(configurations, series)
    parts = None
    if len(fair) >= ENOUGH:
        parts = {}
        for name in varied:
            with_value = [c for c in fair if c["parameters"].get(name) is not None]
            parts[name] = rounded(
                explained([c["parameters"][name] for c in with_value], [c["last"][series] for c in with_value])
            )
    goals = {
        name: direction for c in configurations for name in c["last"] if (direction := goal(name.split(" ", 1)[-1]))
    }
    return {
        "of": len(fair),
        "iterations": min((c["iterations"] for c in fair), default=0),
        "parts": parts,
        "values": thin(
            sorted((rounded(c["last"][series]) for c in fair), reverse=measure["goal"] == "max"), MOST_VALUES
        ),
        "goals": {**goals, series: measure["goal"]},
    }


def comparable(configurations: Sequence[Data], series: str) -> list[Data]:
    """The configurations with a value of `series` and the most iterations: ENOUGH at least, or all where these are fewer."""
    have = [c for c in configurations if c["status"] != "failed" and _is_finite(c["last"].get(series))]
    counts = sorted((c["iterations"] for c in have), reverse=True)
    if len(counts) < ENOUGH:
        return have
    return [c for c in have if c["iterations"] >= counts[ENOUGH - 1]]


def explained(xs: Sequence[Any], ys: Sequence[float]) -> float:
    """The part of the differences in `ys` that groups of `xs` explain, 0 to 1.

    It is omega squared of an analysis of variance (W. L. Hays, Statistics, 1963). A group has one value of `xs`; if these are
    more than BINS numbers, a group is one of BINS classes of equal size, and equal numbers are in one class.
    """
    if not ys:
        return 0.0
    groups: dict[Any, list[float]] = {}
    if len(set(map(repr, xs))) > BINS and all(_is_finite(x) for x in xs):
        pairs = sorted(zip(xs, ys), key=lambda pair: pair[0])
        classes: dict[float, int] = {}
        for place, (x, y) in enumerate(pairs):
            groups.setdefault(classes.setdefault(x, place * BINS // len(pairs)), []).append(y)
    else:
        for x, y in zip(xs, ys):
            groups.setdefault(repr(x), []).append(y)
    n, k, mean = len(ys), len(groups), sum(ys) / len(ys)
    whole = sum((y - mean) ** 2 for y in ys)
    if k < 2 or n <= k or not whole or not math.isfinite(whole):
        return 0.0
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())
    within = (whole - between) / (n - k)
    return max(0.0, (between - (k - 1) * within) / (whole + within))


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)

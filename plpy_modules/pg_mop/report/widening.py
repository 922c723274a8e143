"""Wider spaces: where the best value of a parameter is at the edge of what was tried. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pg_mop.report.numbers import is_number
from pg_mop.search import grids

EDGE = 0.1  # part of a distribution at each end that is its edge
LEAST_CHOICES = 3  # of two choices, each is at an edge
BELOW_ONE = ("dropout", "momentum", "beta_1", "beta_2", "rho", "label_smoothing")  # numbers from 0 to below 1
DIGITS = 3


def beyond(name: str, value: float, choices: Sequence[float]) -> float | None:
    """The next number beyond the tried ones (ascending), if `value` is the first or the last of them; else None.

    >>> beyond("learning_rate", 0.1, [0.001, 0.01, 0.1])
    1.0
    >>> beyond("batch_size", 8, [8, 16, 32])
    4
    >>> beyond("batch_size", 16, [8, 16, 32]) is None
    True
    """
    if len(choices) < LEAST_CHOICES or value not in (choices[0], choices[-1]):
        return None
    up = value == choices[-1]
    edge, next_one = (choices[-1], choices[-2]) if up else (choices[0], choices[1])
    new = edge * edge / next_one if edge > 0 and next_one > 0 else 2 * edge - next_one
    return _fitting(name, new, value, whole=all(isinstance(v, int) for v in choices))


def _fitting(name: str, number: float, value: float, whole: bool) -> float | None:
    """A number for a parameter in short, or None where the parameter cannot have it or where it is `value` again."""
    if not math.isfinite(number) or name in BELOW_ONE and not 0 <= number < 1:
        return None
    if whole or name in grids.WHOLE:
        short: float = round(number)
        if name in grids.WHOLE and short < 1:
            return None
    else:
        short = float(f"{number:.{DIGITS}g}")
    return None if short == value else short


def wider_space(text: str, best: Mapping[str, Any]) -> tuple[list[str], str] | None:
    """(names of the parameters at an edge, the space with room beyond these edges); None where no parameter is at an edge.

    `text`: mop_search's space; `best`: the parameters of the best configuration, with learning_rate for lr.

    >>> space = "{'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.001, 0.1, 'log']}], 'batch_size': [8, 16]}"
    >>> names, wider = wider_space(space, {"optimizer": "SGD", "learning_rate": 0.09, "batch_size": 8})
    >>> names, wider == space.replace("0.1", "1.0")
    (['learning_rate'], True)
    """
    try:
        several = grids.parse_several(text, "space", ("model_id", *grids.COMPILE_KEYS, *grids.FIT_KEYS))
    except grids.GridError:
        return None
    names: dict[str, None] = {}
    for grid in several:
        blocks = [
            block
            for block in grid.get("optimizer_params_list", ())
            if isinstance(block, dict) and _has(block.get("optimizer"), best.get("optimizer"))
        ]
        for part in (grid, *blocks):
            for key, choices in part.items():
                name = "learning_rate" if key == "lr" else key
                if isinstance(choices, list) and (wider := _wider(name, choices, best.get(name))) is not None:
                    part[key], names[name] = wider, None
    if not names:
        return None
    return list(names), repr(several[0] if len(several) == 1 else several)


def _has(optimizers: Any, optimizer: Any) -> bool:
    return not isinstance(optimizers, list) or any(str(o).split("(")[0] == optimizer for o in optimizers)


def _wider(name: str, choices: list[Any], value: Any) -> list[Any] | None:
    """The choices or the distribution of a parameter with room beyond the edge at which `value` is; else None."""
    if not is_number(value):
        return None
    if grids.distribution(choices):
        low, high, kind = choices
        if kind == "log_near_one" or not low <= value <= high or low == high:
            return None
        log = kind == "log"
        place = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        if EDGE < place < 1 - EDGE:
            return None
        whole = name in grids.WHOLE
        if place <= EDGE:
            new = _fitting(name, low / _step(low, high) if log else _below(low, high), low, whole)
            return None if new is None else [new, high, kind]
        new = _fitting(name, high * _step(low, high) if log else high + (high - low) / 2, high, whole)
        return None if new is None else [low, new, kind]
    numbers = sorted({v for v in choices if is_number(v)})
    if len(numbers) < len(choices) or (new := beyond(name, value, numbers)) is None:
        return None
    return [*choices, new] if new > value else [new, *choices]


def _step(low: float, high: float) -> float:
    """By how much a logarithmic distribution grows at an end: by half of its own width, at most tenfold."""
    return min(10.0, math.sqrt(high / low))


def _below(low: float, high: float) -> float:
    """The end below a linear distribution: by half of its width, not below 0 where the distribution is not."""
    return max(0.0, low - (high - low) / 2) if low >= 0 else low - (high - low) / 2

"""The functions that compute sequences of hyper-parameters.

Each function takes the operations (Python's, or a framework's on tensors), the step, and its arguments. Standard
library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class PYTHON:
    """The operations of the functions below, on floats."""

    cos, log, maximum = math.cos, math.log, max

    @staticmethod
    def floor(value: float) -> float:
        return float(math.floor(value))

    @staticmethod
    def where(condition: bool, yes: Any, no: Any) -> Any:
        return yes if condition else no

    @staticmethod
    def reached(step: float, milestones: Iterable[float]) -> float:
        """The number of milestones that `step` has reached."""
        return float(sum(step >= m for m in milestones))

    @staticmethod
    def pick(values: Sequence[Any], step: float) -> Any:
        """The value at position `step`; beyond the end, the last value."""
        return values[min(int(step), len(values) - 1)]


def _constant(ops: Any, step: Any, value: Any) -> Any:
    return value


def _exponential(ops: Any, step: Any, value: Any, gamma: Any) -> Any:
    return value * gamma**step


def _multi_step(ops: Any, step: Any, value: Any, milestones: Any, gamma: Any) -> Any:
    return value * gamma ** ops.reached(step, milestones)


def _cyclic(
    ops: Any, step: Any, base: Any, max: Any, step_size_up: Any, step_size_down: Any, mode: str, gamma: Any
) -> Any:
    length = step_size_up + step_size_down
    cycle = ops.floor(step / length)
    position = step - cycle * length
    height = (max - base) * ops.where(
        position <= step_size_up, position / step_size_up, (length - position) / step_size_down
    )
    if mode == "triangular2":
        height = height * 0.5**cycle
    elif mode == "exp_range":
        height = height * gamma**step
    return base + height


def _cosine(ops: Any, step: Any, value: Any, period: Any, min: Any, gamma: Any) -> Any:
    if gamma is None:
        position = step / period - ops.floor(step / period)
    else:  # periods of lengths period, period * gamma, ...
        number = ops.floor(ops.log(1 + step * (gamma - 1) / period) / ops.log(gamma))
        for _ in range(2):  # rounding may have given a neighboring period
            begin = period * (gamma**number - 1) / (gamma - 1)
            number = ops.where(
                step < begin, number - 1, ops.where(step >= begin + period * gamma**number, number + 1, number)
            )
        position = (step - period * (gamma**number - 1) / (gamma - 1)) / (period * gamma**number)
    return min + (value - min) * (1 + ops.cos(math.pi * position)) / 2


def _warmup(ops: Any, step: Any, start: Any, steps: Any, then: Callable[..., Any]) -> Any:
    rising = start + (then(ops, 0.0 * step) - start) * step / steps
    return ops.where(step < steps, rising, then(ops, ops.maximum(step - steps, 0.0)))


def _pick(ops: Any, step: Any, values: Any) -> Any:
    return ops.pick(values, step)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Constant": _constant,
    "Exponential": _exponential,
    "MultiStep": _multi_step,
    "CyclicLR": _cyclic,
    "Cosine": _cosine,
    "Warmup": _warmup,
    "Values": _pick,
}

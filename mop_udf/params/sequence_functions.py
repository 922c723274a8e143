"""The functions that compute sequences of hyper-parameters.

Each function takes the operations (Python's, or a framework's on tensors), the step, and its arguments. Standard
library only.
"""

import math


class PYTHON:
    """The operations of the functions below, on floats."""

    cos, log, maximum = math.cos, math.log, max

    @staticmethod
    def floor(value):
        return float(math.floor(value))

    @staticmethod
    def where(condition, yes, no):
        return yes if condition else no

    @staticmethod
    def reached(step, milestones):
        """The number of milestones that `step` has reached."""
        return float(sum(step >= m for m in milestones))

    @staticmethod
    def pick(values, step):
        """The value at position `step`; beyond the end, the last value."""
        return values[min(int(step), len(values) - 1)]


def _constant(ops, step, value):
    return value


def _exponential(ops, step, value, gamma):
    return value * gamma**step


def _multi_step(ops, step, value, milestones, gamma):
    return value * gamma ** ops.reached(step, milestones)


def _cyclic(ops, step, base, max, step_size_up, step_size_down, mode, gamma):
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


def _cosine(ops, step, value, period, min, gamma):
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


def _warmup(ops, step, start, steps, then):
    rising = start + (then(ops, 0.0 * step) - start) * step / steps
    return ops.where(step < steps, rising, then(ops, ops.maximum(step - steps, 0.0)))


def _pick(ops, step, values):
    return ops.pick(values, step)


FUNCTIONS = {
    "Constant": _constant,
    "Exponential": _exponential,
    "MultiStep": _multi_step,
    "CyclicLR": _cyclic,
    "Cosine": _cosine,
    "Warmup": _warmup,
    "Values": _pick,
}

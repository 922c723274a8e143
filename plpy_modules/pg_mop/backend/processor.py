"""How fast a core of this server computes, for guesses about nets that nobody has measured."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

ROWS, INNER, COLUMNS = 32, 64, 128  # of a product that a numerical library computes in one thread
PRODUCTS, STEPS, TIMES = 100, 5000, 7
PRODUCT_SHARE = 1.2  # a training step of a framework, as a multiple of the speed of such a product
STEP_SECONDS = 2.7e-8  # of a step of plain Python on the machine on which the estimates' constants were found


@functools.cache
def measured() -> tuple[float, float]:
    """(floating-point operations a second of a core, seconds of other work as a multiple of those on the machine on which the
    constants of plan/estimates.py were found). Takes some milliseconds, once a session."""
    import numpy  # a session that explains nothing needs none of it

    left = numpy.ones((ROWS, INNER), "f4")
    right = numpy.ones((INNER, COLUMNS), "f4")
    product = numpy.empty((ROWS, COLUMNS), "f4")

    def multiply() -> None:
        for _ in range(PRODUCTS):
            numpy.dot(left, right, product)

    rate = PRODUCT_SHARE * 2 * ROWS * INNER * COLUMNS * PRODUCTS / _least(multiply)
    return rate, _least(_count) / STEPS / STEP_SECONDS


def _count() -> None:
    total, totals = 0, {}
    for number in range(STEPS):
        totals[number & 255] = total
        total += number


def _least(work: Callable[[], None]) -> float:
    """The least seconds of several tries: other work on the machine does not count."""
    seconds = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return max(1e-9, min(seconds))

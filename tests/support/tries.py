"""Up to three tries, of which a good one counts: for what a machine that stands still, or is too quick, may spoil."""

from collections.abc import Iterator


class Try:
    """One try. The test sets `counts` at its end; `number` counts from 0."""

    def __init__(self, number: int):
        self.number, self.counts = number, False


def tries(most: int = 3) -> Iterator[Try]:
    """Tries until one counts. Raises AssertionError if none of them does.

    >>> for once in tries():
    ...     took = [5.0, 0.3, 0.2][once.number]
    ...     once.counts = took < 1
    >>> took
    0.3
    """
    for number in range(most):
        once = Try(number)
        yield once
        if once.counts:
            return
    raise AssertionError(f"none of {most} tries counts")

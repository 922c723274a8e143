"""Rungs: the iterations after which trials are compared, and how many trials go on."""


def levels(most: int, reduction: int, least: int = 1) -> list[int]:
    """The iterations of the rungs: most / reduction**k, rounded half up, none below `least`; `most` is the last."""
    rungs = 0
    while least * reduction ** (rungs + 1) <= most:
        rungs += 1
    return [rounded(most, reduction**k) for k in range(rungs, -1, -1)]


def sizes(trials: int, reduction: int, rungs: int) -> list[int]:
    """The number of trials in each rung: floor(trials / reduction**k), at least 1."""
    return [max(1, trials // reduction**k) for k in range(rungs)]


def rounded(number: int, divisor: int) -> int:
    """number / divisor in integers, rounded half up."""
    return (2 * number + divisor) // (2 * divisor)


def ordinal(position: int) -> str:
    """1 -> '1st'."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{position}{'th' if 10 <= position % 100 <= 20 else ends.get(position % 10, 'th')}"

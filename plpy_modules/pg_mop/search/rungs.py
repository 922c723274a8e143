"""Rungs: the iterations after which trials are compared, and how many go on."""


def levels(most, reduction, least=1):
    """The iterations of the rungs, `most` the last: most / reduction**k, rounded half up, none below `least`."""
    rungs = 0
    while least * reduction ** (rungs + 1) <= most:
        rungs += 1
    return [rounded(most, reduction**k) for k in range(rungs, -1, -1)]


def sizes(trials, reduction, rungs):
    """Trials in each of so many rungs: floor(trials / reduction**k), but at least one."""
    return [max(1, trials // reduction**k) for k in range(rungs)]


def rounded(number, divisor):
    """number / divisor in integers, rounded half up."""
    return (2 * number + divisor) // (2 * divisor)


def ordinal(place):
    """1 -> '1st'."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{place}{'th' if 10 <= place % 100 <= 20 else ends.get(place % 10, 'th')}"

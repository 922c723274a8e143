"""Grid search."""

from pg_mop.search.whole import ITERATIONS, TRIALS, Whole


class Grid(Whole):
    """Every configuration of the grid, in its order."""

    name = "grid"
    sampler = "grid"
    PARAMETERS = {"iterations": ITERATIONS, "trials": TRIALS}

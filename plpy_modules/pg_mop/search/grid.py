"""Grid search."""

from pg_mop.search.fixed_budget import ITERATIONS, TRIALS, FixedBudget


class Grid(FixedBudget):
    """Every configuration of the grid, in its order."""

    name = "grid"
    sampler_name = "grid"
    PARAMETERS = {"iterations": ITERATIONS, "trials": TRIALS}

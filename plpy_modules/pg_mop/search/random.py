"""Random search (Bergstra, Bengio: "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012)."""

from pg_mop.search.fixed_budget import ITERATIONS, TRIALS, FixedBudget


class Random(FixedBudget):
    """Random configurations, each once. Configurations with final results from earlier runs are left out."""

    name = "random"
    PARAMETERS = {"iterations": ITERATIONS, "trials": TRIALS}

"""Random search (Bergstra, Bengio: "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012)."""

from pg_mop.search.whole import ITERATIONS, TRIALS, Whole


class Random(Whole):
    """Configurations at random, none twice. Those whose end is known from earlier are not drawn again."""

    name = "random"
    PARAMETERS = {"iterations": ITERATIONS, "trials": TRIALS}

"""Optuna's samplers, by default TPE (Bergstra et al., NIPS 2011)."""

from pg_mop.search.fixed_budget import ITERATIONS, PARALLEL, TRIALS, FixedBudget
from pg_mop.search.parameters import word


class Tpe(FixedBudget):
    """Configurations from a sampler that learns from each finished trial.

    Running trials count as bad ones, so that the sampler proposes different ones beside them (constant liar). A failed
    trial counts as worse than any other; a trial that a user has stopped does not count.
    """

    name = "tpe"
    PARAMETERS = {
        "iterations": ITERATIONS,
        "trials": TRIALS,
        "parallel": PARALLEL,
        "sampler": word(("tpe", "cmaes"), "tpe", "Optuna's sampler: tpe, or cmaes (numbers only)"),
    }

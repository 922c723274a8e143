"""Optuna's samplers, by default TPE (Bergstra et al., NIPS 2011)."""

from pg_mop.search.base import choice
from pg_mop.search.whole import ITERATIONS, TOGETHER, TRIALS, Whole


class Tpe(Whole):
    """Configurations that a sampler proposes, which learns from each trial that ends.

    Trials that are still training count as bad ones, so that others are proposed beside them (constant liar). A trial
    that failed counts as worse than any; one that a person stopped does not count.
    """

    name = "tpe"
    PARAMETERS = {
        "iterations": ITERATIONS,
        "trials": TRIALS,
        "parallel": TOGETHER,
        "sampler": choice(("tpe", "cmaes"), "tpe", "Optuna's sampler: tpe, or cmaes (numbers only)"),
    }

"""Every sampler in every procedure that takes it, on functions whose minima are known: tests/unit/test_samplers.py has one of
these for each."""

import pytest

from support.conformance import samplers
from support.conformance.samplers import CONDITIONAL, NUMBERS, bowl, clean, crossing, mixed, noisy, rising, two, valley

FUNCTIONS = [
    (NUMBERS, bowl, clean),
    (NUMBERS, valley, clean),
    (NUMBERS, two, clean),
    (CONDITIONAL, mixed, clean),
    (NUMBERS, bowl, rising),
    (NUMBERS, bowl, noisy),
    (CONDITIONAL, mixed, noisy),
    (NUMBERS, bowl, crossing),
]
DENSITIES = [("asha", "trials=80, iterations=9, sampler=tpe"), ("bohb", "iterations=81")]
OPTUNA = [
    ("tpe", "trials=80, iterations=2"),
    ("tpe", "trials=80, iterations=2, sampler=cmaes"),
    ("asha", "trials=80, iterations=9, sampler=cmaes"),
    ("median-stopping", "trials=80, iterations=5, parallel=8, sampler=tpe"),
    ("median-stopping", "trials=80, iterations=5, parallel=8, sampler=cmaes"),
    ("madlib-hyperopt", "trials=80, iterations=2, parallel=4"),
]


@pytest.mark.parametrize(
    "name, parameters, text, badness, shape",
    [
        pytest.param(*learner, *function, id=f"{' '.join(learner)}-{function[1].__name__}-{function[2].__name__}")
        for learner in (*DENSITIES, *OPTUNA)
        for function in (FUNCTIONS if learner in DENSITIES else FUNCTIONS[1:6])
        # (a trial's own curve that rises, ASHA and BOHB never compare with another's of another iteration; CMA-ES is for
        # numbers, in one branch)
        if not (learner in DENSITIES and function[2] is rising)
        and not ("cmaes" in learner[1] and function[0] == CONDITIONAL)
    ],
)
def test_the_last_quarter_of_the_proposals_is_clearly_better_than_chance(name, parameters, text, badness, shape):
    samplers.assert_better_than_chance(name, parameters, text, badness, shape, range(3))

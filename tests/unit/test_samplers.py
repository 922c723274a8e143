"""Samplers: what all of them promise, what they learn, and how kernel densities decide."""

import math
from random import Random
from statistics import mean

import pytest

from pg_mop.search import create
from pg_mop.search.kernel_density import KdeSampler, _coordinate, _position
from support.conformance import SamplerConformance
from support.conformance.procedures import Study
from support.conformance.samplers import (
    CONDITIONAL,
    NUMBERS,
    assert_better_than_chance,
    bowl,
    clean,
    mixed,
    noisy,
    space,
    valley,
)


class TestSamplers(SamplerConformance):
    """A new sampler is an entry of CASES in tests/support/conformance/samplers.py."""


@pytest.mark.parametrize(
    "name, parameters, text, badness, shape",
    [
        ("asha", "trials=80, iterations=9, sampler=tpe", CONDITIONAL, mixed, noisy),
        ("tpe", "trials=50, iterations=2", NUMBERS, bowl, clean),
        ("tpe", "trials=50, iterations=2, sampler=cmaes", NUMBERS, valley, clean),
    ],
)
def test_the_last_proposals_of_a_sampler_that_learns_are_better_than_chance(name, parameters, text, badness, shape):
    assert_better_than_chance(name, parameters, text, badness, shape, [1])


def test_a_search_with_densities_goes_on_with_the_same_proposals():
    def made():
        over = space(CONDITIONAL)
        procedure = create("asha", over, 3, "max", "trials=40, iterations=9, sampler=tpe")
        known = [over.configuration(over.sample(Random(i))) for i in range(12)]
        procedure.begin_with([(configuration, {1: 0.5 + i, 3: 0.3}) for i, configuration in enumerate(known)])
        return procedure

    whole = Study(made(), 1, lambda c, i: -mixed(c) - 1 / i).run()
    for cut in (0, len(whole.events) // 2, len(whole.events)):
        again = made()
        again.replay(whole.events[:cut])
        again.ask()
        for event in whole.events[cut:]:
            again.replay([event])
            again.ask()
        assert again.done
        assert {n: t.configuration for n, t in again.trials.items() if t.budget} == whole.configurations


def told(sampler, losses):
    """Points with these losses, by budget: [(lr, {budget: loss})]."""
    for trial, (lr, values) in enumerate(losses, 1):
        sampler.points[trial] = {"model_id": 0, "branch": 0, "0.optimizer": 0, "0.lr": lr, "loss": 0, "batch_size": 200}
        for budget, loss in values.items():
            sampler.tell(trial, budget, loss)


def test_the_largest_budget_with_enough_losses_has_the_say():
    sampler = KdeSampler(space(NUMBERS), 1)
    assert sampler.least == 3
    told(sampler, [(0.01, {1: 0.1 * i}) for i in range(4)])
    assert sampler.budget is None and sampler._from_model() is None
    told(sampler, [(0.01, {1: 0.1 * i}) for i in range(5)])
    assert sampler.budget == 1
    told(sampler, [(0.01, {1: 0.1 * i, 3: 0.1}) for i in range(5)])
    assert sampler.budget == 3


def test_survivors_at_a_large_budget_do_not_keep_proposals_away():
    """All that got to budget 9 have rates around 0.01, the best in their middle; the others did not."""
    sampler = KdeSampler(space(NUMBERS), 1, at_random=0)
    told(
        sampler,
        [(10 ** (-2 + 0.05 * i), {1: abs(i), 9: abs(i)}) for i in range(-6, 7)]
        + [(10 ** (-2 + side * 0.1 * i), {1: 50}) for i in range(5, 20) for side in (-1, 1)],
    )
    proposed = [math.log10(sampler.ask(100 + i)["0.lr"]) for i in range(10)]
    assert mean(abs(lr + 2) for lr in proposed) < 0.3


def test_a_failed_trial_is_a_bad_one_and_one_that_a_person_stopped_is_none():
    sampler = KdeSampler(space(NUMBERS), 1)
    told(sampler, [(0.01, {1: 0.1 * i, 3: 0.1 * i}) for i in range(6)])
    sampler.tell_lost(1, True)
    assert [key for _, key in sampler.losses_at[3]] == [2, 3, 4, 5, 6] and 1 in sampler.points
    sampler.points[7] = dict(sampler.points[1])
    sampler.tell_lost(7, False)
    assert sampler.withdrawn == {7} and sampler._from_model() is not None


def test_what_was_known_of_a_trial_and_what_it_comes_to_count_as_one():
    over = space(NUMBERS)
    sampler, point = KdeSampler(over, 1), over.sample(Random(1))
    sampler.add_result(over.configuration(point), 1, 0.5)
    sampler.resume(1, over.configuration(point))
    sampler.tell(1, 3, 0.4)
    assert sampler.losses_of == {-1: {1: 0.5, 3: 0.4}}


def test_places_and_coordinates_agree():
    random = Random(2)
    for text in (NUMBERS, CONDITIONAL):
        over = space(text)
        for _ in range(50):
            point = over.sample(random)
            for dimension in over.branch_of(point).dimensions:
                place = _position(dimension, point[dimension.name])
                if dimension.kind is not None:
                    assert 0 <= place <= 1 and _coordinate(dimension, place) == pytest.approx(point[dimension.name])

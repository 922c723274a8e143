"""Tests of every sampler of configurations (search/sampler.py), and functions whose minimum a sampler must find."""

import functools
import math
import re
from random import Random
from statistics import mean

import pytest

from pg_mop.search import SearchError, create
from pg_mop.search.grids import GridError
from pg_mop.search.kernel_density import KdeSampler
from pg_mop.search.samplers import SAMPLERS, create_sampler
from support.conformance.base import Conformance
from support.conformance.procedures import Study, of_models, several

NUMBERS = """{'model_id': [1], 'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam'],
    'lr': [0.0001, 1.0, 'log']}], 'batch_size': [1, 512, 'linear']}"""
CONDITIONAL = """{'model_id': [1, 2], 'loss': ['mse'], 'optimizer_params_list': [
    {'optimizer': ['SGD'], 'lr': [0.0001, 1.0, 'log'], 'momentum': [0.5, 0.999, 'log_near_one']},
    {'optimizer': ['Adam', 'RMSprop'], 'lr': [0.0001, 1.0, 'log']}], 'batch_size': [16, 32, 64, 128]}"""
# sampler -> a function of (space, seed) that makes it
CASES = {**{name: functools.partial(create_sampler, name) for name in SAMPLERS}, "kernel densities": KdeSampler}


class SamplerConformance(Conformance):
    """`in_order`: whose proposals no seed and no result changes, and which take no distribution."""

    cases, registered, in_order = CASES, SAMPLERS, ("grid",)

    def made(self, kind, over, seed=1):
        try:
            return self.cases[kind](over, seed)
        except SearchError as error:
            pytest.skip(f"not run: {error}")

    def proposed(self, kind, over, count, seed=1):
        """The first configurations; a result, a failure or a stop of every trial is told before the next is asked for."""
        sampler, found = self.made(kind, over, seed), []
        known = over.configuration(over.sample(Random(7)))
        sampler.add_result(known, 1, 0.5)
        sampler.add_result((9, "of another", "space"), 1, 0.0)
        for trial in range(1, count + 1):
            if (point := sampler.ask(trial)) is None:
                break
            found.append(over.configuration(point))
            assert over.configuration(over.locate(found[-1])) == found[-1]
            if found[-1] == known:
                sampler.resume(trial, known)
            if trial % 5:
                for budget in (1, 3):
                    sampler.tell(trial, budget, Random(str(found[-1])).random() + 1 / budget)
            else:
                sampler.tell_lost(trial, failed=trial % 2 == 0)
        return found

    def test_each_configuration_comes_once_until_there_is_none(self, kind):
        over = several()
        found = self.proposed(kind, over, 100)
        assert len(found) == len(set(found)) == over.size

    def test_the_same_seed_and_results_give_the_same_proposals(self, kind):
        first, again, other = (self.proposed(kind, several(), 12, seed) for seed in (1, 1, 2))
        assert first == again and (first == other) == (kind in self.in_order)

    def test_points_of_distributions_are_within_their_bounds(self, kind):
        if kind in self.in_order:
            with pytest.raises(GridError, match="is a distribution"):
                self.made(kind, space(CONDITIONAL)).ask(1)
            return
        for configuration in self.proposed(kind, space(CONDITIONAL), 20):
            lr, batch = numbers(configuration)
            assert -4 <= lr <= 0 and batch in (16, 32, 64, 128)
            assert ("momentum" in configuration[1]) == ("SGD" in configuration[1])

    def test_a_member_that_does_not_fit_together_is_not_proposed(self, kind):
        over = of_models()
        found = self.proposed(kind, over, 20)
        assert found and all(over.models.by_id[model_id].misfit is None for model_id, *_ in found)

    def test_what_was_claimed_is_not_proposed(self, kind):
        over = several()
        sampler, first = self.made(kind, over), self.proposed(kind, over, 1)[0]
        assert sampler.claim(first) and not sampler.claim(first) and not sampler.claim((None, "", ""))
        found = [over.configuration(point) for point in iter(lambda: sampler.ask(None), None)]
        assert first not in found and len(found) == over.size - 1


# --- functions ---------------------------------------------------------------------------------------


def space(text):
    return several(f"[{text}]")


def numbers(configuration):
    """The learning rate's logarithm, and the batch size."""
    return (
        math.log10(float(re.search(r"lr=([0-9.e-]+)", configuration[1])[1])),
        float(re.search(r"batch_size=(\d+)", configuration[2])[1]),
    )


def bowl(configuration):
    lr, batch = numbers(configuration)
    return (lr + 2) ** 2 + ((batch - 200) / 200) ** 2


def valley(configuration):
    """Narrow, and far from the middle."""
    lr, batch = numbers(configuration)
    return abs(lr + 1.2) * 2 + abs(batch - 40) / 100


def mixed(configuration):
    """Of numbers, choices and branches."""
    lr, batch = numbers(configuration)
    optimizer = {"Ada": 0, "RMS": 1, "SGD": 1.5}[configuration[1].partition("optimizer='")[2][:3]]
    return (lr + 2) ** 2 + abs(math.log2(batch / 64)) / 2 + (configuration[0] == 2) + optimizer


def clean(badness, configuration, iteration):
    return badness(configuration) + 1 / iteration


def noisy(badness, configuration, iteration):
    """The first iterations tell little."""
    return clean(badness, configuration, iteration) + Random(f"{configuration}{iteration}").gauss(0, 1) / iteration


def assert_better_than_chance(name, parameters, text, badness, shape, seeds):
    """The last quarter of what a procedure proposes is clearly better than what chance proposes."""
    over, random, means = space(text), Random(1), []
    chance = mean(badness(over.configuration(over.sample(random))) for _ in range(2000))
    for seed in seeds:
        try:
            procedure = create(name, space(text), seed, "min", parameters)
        except SearchError as error:
            pytest.skip(f"not run: {error}")
        found = Study(procedure, seed, lambda c, i: shape(badness, c, i)).run().configurations
        means.append(mean(badness(found[number]) for number in sorted(found)[-len(found) // 4 :]))
    assert mean(means) < 0.75 * chance

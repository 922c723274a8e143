"""Sampling Shapley values: their sum, their mean and their error, against closed forms and all subsets."""

import itertools
import math

import numpy as np
import pytest

from pg_mop.inference.shapley import PAIRS, contributions, log_odds

ROWS = 60
BACKGROUND = np.random.default_rng(0).normal(size=(ROWS, 4))
ROW = np.array([1.5, -2.0, 0.3, 0.8])


def explained(model, background=BACKGROUND, row=ROW, seed=1, most=10_000):
    """The contributions for a model of arrays [rows, columns], and the sizes of its batches."""
    sizes = []

    def values_of(rows, taken):
        sizes.append(len(rows))
        return model(np.where(taken, row, background[rows]))

    value = float(model(row[None])[0])
    found = contributions(value, model(background), background != row, values_of, np.random.default_rng(seed), most)
    assert found.base == pytest.approx(model(background).mean())
    assert found.base + found.means.sum() == pytest.approx(value, abs=1e-9)
    return found, sizes


def exact(model):
    """Shapley values by all subsets of columns."""
    columns, found = len(ROW), np.zeros(len(ROW))
    for column in range(columns):
        others = [c for c in range(columns) if c != column]
        for size in range(columns):
            weight = math.factorial(size) * math.factorial(columns - size - 1) / math.factorial(columns)
            for subset in itertools.combinations(others, size):
                before = BACKGROUND.copy()
                before[:, list(subset)] = ROW[list(subset)]
                after = before.copy()
                after[:, column] = ROW[column]
                found[column] += weight * (model(after) - model(before)).mean()
    return found


def net(x):
    weights = np.random.default_rng(5).normal(size=(4, 6)), np.random.default_rng(6).normal(size=6)
    return np.tanh(x @ weights[0]) @ weights[1] + x[:, 0] * x[:, 1]


def test_a_linear_model_has_its_closed_form():
    weights = np.array([2.0, -1.0, 0.5, 0.0])
    found, _ = explained(lambda x: x @ weights + 7)
    assert found.means == pytest.approx(weights * (ROW - BACKGROUND.mean(0)), abs=1e-9)
    assert found.errors[3] == 0


def test_other_models_have_the_values_of_all_subsets_within_the_error():
    found, _ = explained(net)
    assert (np.abs(found.means - exact(net)) < 4 * found.errors).all()
    other, _ = explained(net, seed=2)
    assert (other.means != found.means).any() and (explained(net)[0].means == found.means).all()


def test_blocks_bound_the_batches_and_change_no_mean():
    found, sizes = explained(net, most=16)
    assert max(sizes) <= 16 and sum(sizes) == 2 * -(-PAIRS // ROWS) * ROWS * 3
    assert (np.abs(found.means - exact(net)) < 4 * found.errors).all()


def test_equal_values_contribute_nothing_and_are_not_asked_for():
    same = BACKGROUND.copy()
    same[:, 2] = ROW[2]
    found, sizes = explained(net, same)
    assert found.means[2] == found.errors[2] == 0 and sum(sizes) == 2 * -(-PAIRS // ROWS) * ROWS * 2
    found, sizes = explained(net, np.repeat(ROW[None], 3, 0))
    assert not found.means.any() and not sizes


def test_log_odds_of_classes_that_exclude_each_other_and_of_others():
    shares = np.array([[0.2, 0.3, 0.5], [0, 1e-12, 1], [0, 0, 1]])
    assert log_odds(shares, 2, True) == pytest.approx([0, -np.log(1e-12), -np.log(1e-37)])
    assert log_odds(np.array([[0.9, 0.9], [1, 0]]), 0, False) == pytest.approx([np.log(9), -np.log(1e-7)])

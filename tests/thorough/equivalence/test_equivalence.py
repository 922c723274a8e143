"""As equivalence/test_equivalence.py, for every case."""

import pytest

from support.plain_keras import CASES, assert_plain_keras, make_runs


@pytest.fixture(scope="module")
def runs(db):
    return make_runs(db)


@pytest.mark.parametrize("case", CASES)
def test_the_final_weights_are_plain_keras_ones_bit_for_bit(runs, case):
    assert_plain_keras(runs, case)


def test_the_cases_differ(runs):
    weights = [ours for case in CASES for ours, _, _ in runs(case).values()]
    assert len(set(weights)) == len(weights)

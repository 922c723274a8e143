"""A run's final weights are those of plain Keras over the same mini-batches in the logged visit order."""

import pytest

from support.plain_keras import assert_plain_keras, make_runs

# (the others: thorough/equivalence/test_equivalence.py)
CASES = ["dense net with Adam", "CNN with SGD and momentum", "Dropout and BatchNormalization"]


@pytest.fixture(scope="module")
def runs(db):
    return make_runs(db)


@pytest.mark.parametrize("case", CASES)
def test_the_final_weights_are_plain_keras_ones_bit_for_bit(runs, case):
    assert_plain_keras(runs, case)

"""All cases of support/against_keras.py with every kernel of every framework."""

import functools

import pytest

from support import against_keras
from support.workload import OTHERS

results = functools.cache(against_keras.in_another_process)


@pytest.mark.parametrize("backend", ["tensorflow", *OTHERS])
@pytest.mark.parametrize("case", against_keras.CASES)
def test_training_and_evaluation_are_keras(backend, case):
    against_keras.assert_alike(results(backend)[case])

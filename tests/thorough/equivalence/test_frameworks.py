"""Keras on JAX, which compiles each net for a long time: models and a cancelled run."""

import pytest

from support.on_frameworks import MODELS, assert_a_cancelled_run_goes_on, assert_a_run_is_plain_keras, data, on
from support.workload import needs_jax

__all__ = ["data", "on"]  # fixtures
pytestmark = needs_jax


@pytest.mark.parametrize("case", [case for case in MODELS if MODELS[case][0] < 3])
def test_a_run_is_plain_keras_on_jax(db, data, on, case):
    assert_a_run_is_plain_keras(db, "jax", case)


def test_a_run_that_was_cancelled_goes_on_on_its_framework(db, data, on):
    assert_a_cancelled_run_goes_on(db, "jax")

"""Units of one model are trained as one computation on JAX: every case of support/on_jax.py."""

import pytest

from support.on_jax import CASES, assert_trained_as_by_itself, process_of_all, trainer
from support.workload import needs_jax

__all__ = ["process_of_all", "trainer"]  # fixtures
pytestmark = needs_jax


@pytest.mark.parametrize("case", CASES)
def test_each_is_trained_as_by_itself(trainer, case):
    assert_trained_as_by_itself(trainer, case)

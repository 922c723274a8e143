"""A sigmoid of one unit for two classes of any type is the same net on labels 0 and 1: on every kernel, and on JAX."""

import pytest

from support.one_unit import CONFIGURATIONS, assert_words_are_trained_on_as_numbers, data
from support.workload import needs_jax

__all__ = ["data"]  # a fixture


@pytest.mark.parametrize(
    "settings",
    [{"kernel": "loop"}, {"kernel": "xla"}, pytest.param({"keras_backend": "jax"}, marks=needs_jax)],
    ids=lambda s: next(iter(s.values())),
)
def test_words_are_trained_on_as_numbers(db, data, settings):
    assert_words_are_trained_on_as_numbers(db, CONFIGURATIONS[:2], **settings)

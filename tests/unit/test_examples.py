"""The examples in docstrings of the interfaces that people extend run, and print the results that the docstrings show."""

import doctest
import importlib

import pytest

# one module a line; a module with a new example is added to the list
MODULES = [
    "pg_mop.schedule.base",
    "pg_mop.schedule.simulator",
    "pg_mop.search.base",
    "pg_mop.search.sampler",
    "pg_mop.search.samplers",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted, f"{name} has no example"
    assert not found.failed

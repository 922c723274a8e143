"""The examples in docstrings run, and print what they say."""

import doctest
import importlib

import pytest

from support.cluster import ROOT

MODULES = sorted(
    path.relative_to(base).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for base, top in ((ROOT / "plpy_modules", "pg_mop"), (ROOT, "mop_udf"))
    for path in (base / top).rglob("*.py")
    if "\n    >>> " in path.read_text() or "\n>>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed

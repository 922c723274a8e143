"""tools/gpu_trial.sh, as far as it needs no GPU: the names of steps, the table, and what it reads of a machine."""

import importlib

import pytest

from support.cluster import ROOT
from support.golden import assert_golden


@pytest.fixture
def module(monkeypatch):
    """A function that imports a module of the kit."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "gpu_trial"))
    return importlib.import_module


def test_the_script_explains_every_step(module):
    head = (ROOT / "tools" / "gpu_trial.sh").read_text().split("set -eu")[0]
    for name in (
        *module("steps").STEPS,
        *module("steps").GROUPS,
        "FOLDER",
        "VERSION",
        "TRIAL",
        "LIMIT",
        "SHARE",
        "PYTHON",
    ):
        assert name in head, name


def test_the_table_names_the_card_and_what_failed_and_what_did_not_run(module):
    results = {
        "look": {"status": "passed", "seconds": 1.2, "said": ["Python 3.12.3"]},
        "jax": {"status": "FAILED", "seconds": 61.4, "said": ["17 passed, 1 failed", "test_x[jax]: assert a | b"]},
        "killed": {"status": "not run", "seconds": 2, "said": ["no GPU"]},
    }
    took = {
        "whole": 9.5,
        "warm-up": 3.25,
        "train": 2.0,
        "updates": 2304,
        "losses": [0.1, None, 0.3],
        "note": "kernels loop",
    }
    figures = {"cnn": {"about": "4,096 x 28 x 28 x 1", "rows": 4096, "figures": {"pg_mop on JAX, 1 segment": took}}}
    made = module("table").made
    failed = {"look": {"status": "FAILED", "seconds": 0, "said": ["MISSING: make", "Python 3.12.3"]}}
    text = made(results, {"GPU": "NVIDIA H100 80GB HBM3, 81559 MiB", "machine": ""}, figures)
    (look,) = (line for line in made(failed, {}, {}).splitlines() if line.startswith("| look"))
    assert_golden("gpu_trial", f"{text}\n\n{look}")


def test_reports_of_pytest_are_read(module):
    text = """<testsuites><testsuite><properties><property name="GPU memory" value="1, 2"/></properties>
      <testcase name="a"/><testcase name="b"><failure message="assert 1 == 2&#10;more">x</failure></testcase>
      <testcase name="c"><error message="setup">x</error></testcase>
      <testcase name="d"><skipped message="no GPU">x</skipped></testcase></testsuite></testsuites>"""
    assert module("running").read_report(text) == (
        1,
        {"b": "assert 1 == 2", "c": "setup"},
        {"d": "no GPU"},
        ["GPU memory: 1, 2"],
    )

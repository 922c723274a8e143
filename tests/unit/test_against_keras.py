"""Every argument of Keras' `compile` that pg_mop takes has the effect that it has in Keras: against_keras.py."""

import functools
import inspect
import json
import os
import re
import subprocess
import sys

import keras
import pytest

from support.cluster import ROOT
from support.workload import OTHERS

SCRIPT = ROOT / "tests" / "support" / "against_keras.py"
NAMES = re.findall(r'^    "([^"]+)": (?:Case|optimized)\(', SCRIPT.read_text(), re.MULTILINE)
ROUNDING = {"plain": 1e-6, "loop": 1e-5, "xla": 2e-4, "vmap": 2e-4}  # of weights, after a dozen mini-batches


@functools.cache
def results(backend):
    done = subprocess.run(
        [sys.executable, "-B", SCRIPT], capture_output=True, text=True, env={**os.environ, "KERAS_BACKEND": backend}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# the other frameworks compile each case anew, which takes minutes
THOROUGH = [pytest.param(*other.values, marks=[*other.marks, pytest.mark.thorough]) for other in OTHERS]


@pytest.mark.parametrize("backend", ["tensorflow", *THOROUGH])
@pytest.mark.parametrize("case", NAMES)
def test_training_and_evaluation_are_keras(backend, case):
    found = results(backend)[case]
    assert "error" not in found, found["error"]
    for kernel, largest in ROUNDING.items():
        assert kernel not in found or found[kernel] <= largest, kernel
    ours, theirs = found["scores"]
    for name, value in theirs.items():
        if name == "loss" or not name.endswith("_loss"):
            assert ours[name] == pytest.approx(value, rel=2e-5, abs=2e-6), name


@pytest.mark.parametrize("function", ["compile", "fit"])
def test_the_table_has_every_argument_of_keras(function):
    text = (ROOT / "docs/compatibility.md").read_text()
    table = text.split(f"| `{function}` | in pg_mop |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if row else "")}
    arguments = set(inspect.signature(getattr(keras.Model, function)).parameters) - {"self"}
    assert named >= arguments

"""The benchmark: contenders train the same, and differences beyond rounding are errors."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from support.cluster import ROOT
from support.workload import needs_jax, needs_torch

BENCHMARKS = ROOT / "benchmarks"
# 130 rows in batches of 25, so that the last is short
TINY = """
from workloads import Configuration, Workload, dense
TINY = Workload("tiny", 130, (5,), 3, (dense(8, 6),), tuple(
    Configuration(0, optimizer, rate, 25) for optimizer, rate in (("Adam", 0.01), ("Adam", 0.001), ("SGD", 0.03))))
"""
# a line of JSON with the figures of the contenders with the same rows in the same order
TRAIN = f"""
import json, sys
from contenders.common import Clock, in_processes, train_whole
import numpy as np
from contenders import arithmetic, scikit_learn
{TINY}
x, classes = TINY.data()
y = np.eye(TINY.classes, dtype="f4")[classes]
figures = {{}}
losses, updates = in_processes(train_whole, TINY, x, y, 2)
figures["export and loop"] = {{"losses": losses, "updates": updates}}
losses, updates = scikit_learn.train_all(TINY, x, classes, 2)
figures["scikit-learn"] = {{"losses": losses, "updates": updates}}
clock = Clock()
figures["arithmetic alone"] = arithmetic.train_all(TINY, x, y, 2, [1, 2, 3], clock)
figures["arithmetic alone"]["parts"] = clock.parts
json.dump(figures, sys.stdout)
"""
# a line of JSON with (loss, updates) by Keras and by PyTorch: of the nets above, and of one with convolutions
TORCH = f"""
import json, sys
import numpy as np
from contenders import torch_loop
from contenders.common import in_processes, train_whole
from workloads import CONVOLUTIONS
{TINY}
pictures = tuple(Configuration(net, "SGD", 0.03, 25) for net in (0, 1))
nets = tuple((*CONVOLUTIONS, *dense(units)) for units in (8, 6))
found = []
for workload in (TINY, *(Workload("pictures", 60, (12, 12, 1), 2, nets, pictures, frozen=n) for n in (0, len(CONVOLUTIONS)))):
    x, classes = workload.data()
    y = np.eye(workload.classes, dtype="f4")[classes]
    found.append([in_processes(train, workload, x, y, 2) for train in (train_whole, torch_loop.train)])
json.dump(found, sys.stdout)
"""

# likewise by JAX's loop, of the same workloads
JAX = (
    TORCH.replace("torch_loop", "jax_loop")
    .replace("frozen=n) for n in (0, len(CONVOLUTIONS))", "frozen=0) for _ in (0,)")
    .replace("jax_loop.train)", "in_jax)")
    .replace(
        "found = []",
        """
def in_jax(workload, key, x, y):
    loop = jax_loop.Loop(workload, x, y)
    loop.warm(key)
    return loop.train(key)
found = []""",
    )
)


@pytest.fixture
def module(monkeypatch):
    """A function that imports a module of the benchmark."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def tiny(module):
    names = {}
    exec(TINY, names)
    return names["TINY"]


def figures_of(script, threads):
    """What a script prints in a process of its own, since the contenders fork."""
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", script],
        cwd=BENCHMARKS,
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_contenders_train_the_same(module, tiny):
    """With another learning rate, one of them would not: the bound is narrow enough to see it."""
    figures = figures_of(TRAIN, module("contenders.common").THREADS)
    losses = module("losses")
    lines, errors = losses.compare(tiny.configurations, figures)
    assert errors == [] and any(line.startswith("scikit-learn: 3 of 3 equal") for line in lines), (lines, errors)
    assert figures["arithmetic alone"]["seconds"] > 0 and len(figures["arithmetic alone"]["twins"]) == 3
    assert {"warm-up", "first pass"} <= figures["arithmetic alone"]["parts"].keys()
    bounds, own = losses.allowed(tiny.configurations, figures), figures["export and loop"]["losses"]
    assert all(bound < 0.01 * loss for bound, loss in zip(bounds, own)), (bounds, own)
    figures["scikit-learn"]["losses"][0] = own[1]  # as with the other learning rate
    assert len(losses.compare(tiny.configurations, figures)[1]) == 1


@needs_torch
def test_the_loop_in_pytorch_trains_as_keras_does(module):
    for keras, torch in figures_of(TORCH, module("contenders.common").THREADS):
        assert torch[1] == keras[1]
        assert torch[0] == pytest.approx(keras[0], rel=1e-4)


@needs_jax
def test_the_loop_in_jax_trains_as_keras_does(module):
    for keras, jax in figures_of(JAX, module("contenders.common").THREADS):
        assert jax[1] == keras[1]
        assert jax[0] == pytest.approx(keras[0], rel=1e-4)

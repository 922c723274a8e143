"""The benchmark: contenders train the same, differences beyond rounding are errors, and what did not run is named."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys

import pytest

from support.cluster import ROOT
from support.golden import assert_golden
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


@pytest.fixture
def figures():
    """Two configurations; the twins of the second are far apart."""
    return {
        "export and loop": {"losses": [0.5, 0.02], "updates": 10},
        "scikit-learn": {"losses": [0.50001, 0.03], "updates": 10},
        "arithmetic alone": {"losses": [0.5, 0.02], "updates": 10, "twins": [[0.500001, 0.021], [0.5, 0.018]]},
    }


def compare(module, figures, workload):
    lines, errors = module("losses").compare(workload.configurations[:2], figures)
    return "\n".join([*lines, *(f"ERROR {error}" for error in errors)])


def test_the_comparison_of_losses(module, tiny, figures):
    """Differences that rounding explains; one that is allowed with Adam; another number of updates; a contender whose
    losses are not compared; and no contender that shows what rounding does."""
    texts = [compare(module, figures, tiny)]
    assert tiny.configurations[0].optimizer == "Adam"
    figures["scikit-learn"].update(losses=[0.502, 0.03])
    texts.append(compare(module, figures, tiny))
    figures["scikit-learn"].update(updates=8)
    figures["pg_mop, second client"] = {"losses": [0.55, 0.02], "updates": 11}
    texts.append(compare(module, figures, tiny))
    assert [text.count("ERROR") for text in texts] == [0, 0, 1]
    del figures["arithmetic alone"]
    assert_golden("benchmark_losses", "\n\n".join([*texts, compare(module, figures, tiny)]))


@pytest.mark.parametrize(
    "optimizer,loss",
    [
        ("SGD", 0.502),
        ("SGD", 0.498),
        ("SGD", float("nan")),
        ("SGD", float("inf")),
        ("Adam", 0.504),
        ("Adam", 0.496),
        ("Adam", float("nan")),
    ],
)
def test_a_loss_that_differs_by_more_is_an_error(module, tiny, figures, optimizer, loss):
    first, second = tiny.configurations[:2]
    figures["scikit-learn"]["losses"][0] = loss
    configurations = (dataclasses.replace(first, optimizer=optimizer), second)
    lines, errors = module("losses").compare(configurations, figures)
    assert len(errors) == 1 and errors[0].startswith(f"scikit-learn: configuration 0 ends with the loss {loss:.6g}, ")
    assert any(line.startswith("scikit-learn: 1 of 2 equal but for rounding") for line in lines)


def test_scikit_learn_says_what_it_cannot_express(module, tiny):
    workloads, refusal = module("workloads"), module("contenders.scikit_learn").refusal
    assert refusal(tiny) is None and refusal(workloads.WORKLOADS["wide-rows"]) is None
    assert refusal(workloads.WORKLOADS["cnn"]) == "scikit-learn has no layers of the kind convolution, flatten, pool"
    assert refusal(workloads.WORKLOADS["transfer"]) == "scikit-learn trains all layers of a net"
    for nets, why in (
        (((("dropout", 0.5), *workloads.dense(8)),), "scikit-learn has no layers of the kind dropout"),
        (
            ((("dense", 8, "relu"), ("dense", 8, "tanh"), ("dense", 10, "softmax")),),
            "scikit-learn has no net with the hidden activations relu, tanh",
        ),
        (
            ((("dense", 10, "sigmoid"),),),
            "scikit-learn ends a net for classes in a softmax, over three classes or more",
        ),
    ):
        assert refusal(dataclasses.replace(tiny, nets=nets)) == why
    other = (dataclasses.replace(tiny.configurations[0], optimizer="RMSprop"),)
    assert refusal(dataclasses.replace(tiny, configurations=other)) == "scikit-learn has no optimizer RMSprop"


def test_contenders_that_do_not_run_are_named_with_the_reason(module, monkeypatch):
    run, report = module("run"), module("report")
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    monkeypatch.setattr(run, "CONTENDERS", {**run.CONTENDERS, "Ray Tune": ("ray_tune", "/nowhere/python")})
    missing = {c: why for c in run.CONTENDERS if (why := run.absent(c, "cnn"))}
    assert missing == {
        "pg_mop on JAX": "not run: jax is not installed (pip install '.[jax]')",
        "pg_mop on PyTorch": "not run: torch is not installed (pip install '.[torch]')",
        "PyTorch, a plain loop": "not run: torch is not installed (pip install '.[torch]')",
        "scikit-learn": "not run: scikit-learn is not installed (pip install '.[baseline]')",
        "Ray Tune": "not run: Ray is not installed (make bench-peers)",
    }
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert run.absent("scikit-learn", "cnn").startswith("not comparable: scikit-learn has no layers of the kind conv")
    assert run.absent("scikit-learn", "wide-rows") is None and run.absent("pg_mop", "cnn") is None
    text = report.table({"figures": {}, "absent": missing})
    assert "scikit-learn: not run: scikit-learn is not installed (pip install '.[baseline]')." in text


def test_the_tables_of_times_and_of_predictions(module):
    run, report = module("run"), module("report")
    assert report.median_of(3) == "Medians of 3 runs." and report.median_of(1).startswith("A quick look: 1 run ")
    assert run._median([3, 1, 2]) == 2 and run._median([None, None]) is None
    common = {"all_seconds": [4.0], "losses": [0.5], "updates": 1, "parts": {"train": 1.0}}
    sizes = {"peak_bytes": 1 << 20, "together_bytes": 2 << 20, "written_bytes": 0}
    own = {
        "pg_mop": {**common, **sizes, "seconds": 4.0},
        "arithmetic alone": {**common, **dict.fromkeys(sizes), "seconds": 1.6, "notes": ["kernels xla"]},
    }
    text = report.table({"figures": own, "losses": ["Losses, against export and loop."]})
    row = {"workload": "cnn", "by": "guess", "low": 1.0, "high": 4.0, "memory": 600 << 20, "memory_expected": 500 << 20}
    rows = [{**row, "expected": 2.0, "actual": actual, "seconds": 0.2} for actual in (3.0, 8.0)]
    explained = report.explained_table({"rows": rows, "planning": {"planning much, seconds": 0.25}})
    assert_golden("benchmark_tables", f"{text}\n\n{explained}")


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


def test_a_share_of_a_workload_has_full_batches_in_two_segments(module):
    on_gpu = module("on_gpu")
    for name in ("dense-wide", "cnn", "vmap"):
        whole, part = on_gpu.workload_of(name, 1), on_gpu.workload_of(name, 0.1)
        assert 0.05 * whole.rows < part.rows < 0.15 * whole.rows
        assert all(part.rows % (2 * c.batch_size) == 0 for c in part.configurations)
    rates = {c.learning_rate for c in on_gpu.workload_of("vmap", 1).configurations}
    assert len(rates) == 16, "they differ in nothing else"


def test_other_updates_and_losses_that_are_not_finite_are_errors(module):
    errors_in = module("on_gpu").errors_in
    good = {"updates": 100, "losses": [0.5, 0.25]}
    assert errors_in({"a": good, "b": good}) == []
    assert errors_in({"a": good, "b": {**good, "updates": 90}}) == ["b: 90 updates, others 100"]
    bad = {**good, "losses": [float("nan"), None]}
    assert errors_in({"a": good, "b": bad}) == [
        "b: the loss of configuration 0 is nan",
        "b: the loss of configuration 1 is None",
    ]


def test_the_large_space_has_a_trillion_members_that_can_be_drawn(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spaces = importlib.import_module("spaces")
    from pg_mop.spaces import Base, ModelSpace

    architecture, mutators = spaces.large_space()
    space = ModelSpace([Base(1, architecture)], mutators)
    assert space.size > 10**12 and len({one.number for one in space.sample(20, 1).members}) == 20

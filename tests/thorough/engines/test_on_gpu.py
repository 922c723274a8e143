"""Training on a GPU, by Keras on JAX and on PyTorch: the conformance class of one server, GPU memory, a shared GPU.

`tools/gpu_trial.sh` runs these tests, with PG_MOP_GPU_TRIAL=1: then a machine without a GPU tries them on its processors,
except those about GPU memory, which are skipped by name. On such a machine, `make test-all` runs none of them.
"""

import os
import signal
import subprocess
import time

import numpy as np
import pytest

from pg_mop.backend import settings
from support.cluster import eventually
from support.engines import EngineConformance, OneServer, prepared
from support.trainers import trainers
from support.workload import ADAM, OTHERS, assert_invariants, layer, load, make_data, selection, sequential

if not settings._devices() and "PG_MOP_GPU_TRIAL" not in os.environ:
    pytest.skip(
        "tests/thorough/engines/test_on_gpu.py was NOT RUN: this machine has no GPU (tools/gpu_trial.sh)",
        allow_module_level=True,
    )

SPARE_MB = 64  # GPU memory in use may differ by so much without a reason of ours (the driver's own)
CONTEXT_MB = 100  # what a trainer takes at the least, for its CUDA context


class OneServerOn(OneServer):
    """One server with a framework, on a GPU if that framework can use one here."""

    def __init__(self, server, backend):
        self.backend, self.use_gpus = backend, settings.gpus(backend) > 0
        self.apart = []  # relative differences of results that a processor computes to the same bits
        self.tolerance, self.averaged = (1e-3, 1e-2) if self.use_gpus else (1e-5, 1e-4)
        super().__init__(server)

    def same(self, ours, other):
        if not self.use_gpus:
            return ours == other
        self.apart.append(apart(ours, other))
        return self.apart[-1] <= 1e-2

    def again(self, numbers):
        return pytest.approx(numbers, rel=1e-2, abs=1e-3) if self.use_gpus else numbers

    def as_keras(self, ours, theirs):
        if self.backend == "torch" and not self.use_gpus:
            return ours == theirs
        return apart(ours, theirs) <= (1e-2 if self.use_gpus else 1e-5)

    def close_to(self, value):
        return pytest.approx(value, rel=1e-3, abs=1e-4) if self.use_gpus else super().close_to(value)


def apart(ours, other):
    """The largest difference of two arrays of float32 (bytes), relative to the largest number."""
    a, b = np.frombuffer(ours, "<f4"), np.frombuffer(other, "<f4")
    return float(np.abs(a - b).max() / np.abs(b).max())


def memory_mb():
    """The memory in use on the first GPU, in MiB, as the driver reports it."""
    return int(
        subprocess.run(
            ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )


@pytest.fixture(scope="module", params=OTHERS)
def engine(server, request, record_testsuite_property):
    made = OneServerOn(server, request.param)
    yield from prepared(made)
    if made.apart:
        record_testsuite_property(
            f"{made.backend}: repeated training on the GPU",
            f"{sum(value == 0 for value in made.apart)} of {len(made.apart)} results equal in every bit; "
            f"largest relative difference {max(made.apart):.1g}",
        )


@pytest.fixture
def wide(engine):
    """Two segments of rows that take a while, for a net of some MB; calls of `engine` train on them."""
    db = engine.db
    make_data(db, "wide", rows=4000, segments=2, buffer_size=500)
    net = sequential(
        "wide",
        [4],
        layer("Dense", name="first", units=512, activation="relu"),
        layer("Dense", name="second", units=512, activation="relu"),
        layer("Dense", name="out", units=3, activation="softmax"),
    )
    load(db, "wide_arch", net)
    selection(
        db, "wide_mst", "wide_arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.001, 0.002, 0.003, 0.004)]
    )
    db.run("RESET pg_mop.kernel")
    yield db
    db.run("SET pg_mop.kernel = plain; SET pg_mop.segments = 3")


def kill_all_trainers():
    """Send SIGKILL to all trainers, and wait until none is left: their number."""
    alive = trainers()
    for trainer in alive:
        os.kill(trainer, signal.SIGKILL)
    assert eventually(lambda: not trainers(), 60)
    return len(alive)


class TestOnGpu(EngineConformance):
    pass


def test_two_segments_train_side_by_side_on_one_gpu(engine, wide, record_property):
    run_id = engine.fit("wide_packed", "wide_models", "wide_mst", iterations=2)
    assert_invariants(wide, run_id)
    sessions = wide.value(
        "SELECT count(DISTINCT backend_pid) FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train'", [run_id]
    )
    beside = wide.value(
        "SELECT count(*) FROM madlib.mop_unit a JOIN madlib.mop_unit b USING (run_id) WHERE run_id = %s "
        "AND a.kind = 'train' AND b.kind = 'train' AND a.backend_pid < b.backend_pid "
        "AND a.started_at < b.finished_at AND b.started_at < a.finished_at",
        [run_id],
    )
    assert sessions == 2 and beside > 0
    losses = [row["training_loss_final"] for row in wide.run("SELECT training_loss_final FROM wide_models_info")]
    assert all(loss < 0.5 for loss in losses), losses
    if engine.use_gpus:
        record_property("GPU memory with two trainers, MiB", memory_mb())
    log = wide.run(
        "SELECT gpu_utilization AS used, gpu_memory_bytes >> 20 AS mb FROM madlib.mop_unit WHERE run_id = %s AND "
        "status = 'finished'",
        [run_id],
    )
    if engine.use_gpus:
        assert all(row["used"] is not None and 0 <= row["used"] <= 1 and row["mb"] >= CONTEXT_MB for row in log), log
        record_property("mean of the GPU's utilization while a unit trains", sum(row["used"] for row in log) / len(log))
    else:
        assert {(row["used"], row["mb"]) for row in log} == {(None, None)}


def test_a_killed_trainer_leaves_its_gpu_memory_free(engine, wide, record_property):
    if not engine.use_gpus:
        pytest.skip(f"NOT RUN: {settings.BACKENDS[engine.backend]} has no GPU here, whose memory could be free again")
    kill_all_trainers()
    time.sleep(2)  # the driver frees memory a moment later
    before = memory_mb()
    engine.fit("wide_packed", "wide_models", "wide_mst", iterations=1)
    during = memory_mb()
    assert kill_all_trainers() and during >= before + CONTEXT_MB, (before, during)
    assert eventually(lambda: memory_mb() <= before + SPARE_MB, 60), (before, during, memory_mb())
    record_property(
        "GPU memory in MiB: without trainers, with two, after their SIGKILL", f"{before}, {during}, {memory_mb()}"
    )
    assert_invariants(wide, engine.fit("wide_packed", "wide_models", "wide_mst", iterations=1))

"""Data parallelism: a mini-batch divided among devices gives the update of the whole mini-batch, up to rounding."""

import os
import subprocess
import sys

import numpy as np
import pytest

from mop_udf.pool import child_process
from support.workload import needs_jax

pytestmark = needs_jax

# 1030 rows: the last mini-batch of 30 rows is divided among 2 and not among 4 devices
PROGRAM = """
import sys, keras, numpy as np
from mop_udf.kernels.framework import framework
from mop_udf.kernels.autotuner_memory import AutotunerMemory
from mop_udf.kernels.forward import Forward
from mop_udf.kernels.tuned_kernels import TunedKernels
kernel, optimizer, path = sys.argv[1:]
framework.begin(2)
keras.utils.set_random_seed(3)
layers = [keras.Input((6,)), keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(),
          keras.layers.Dropout(0.3, seed=4), keras.layers.Dense(3, activation="softmax")]
model = keras.Sequential(layers)
model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
rows = np.random.default_rng(0)
x = rows.normal(size=(1030, 6)).astype("f4")
y = np.eye(3, dtype="f4")[rows.integers(0, 3, 1030)]
kernels = TunedKernels(model, True, AutotunerMemory())
for _ in range(2):
    report = kernels.train([(x, y)], len(x), 100, 1, forced=kernel)
outputs = Forward(model).predict([x[:77]])
np.savez(path, *model.get_weights(), *(np.asarray(v.value) for v in model.optimizer.variables), *outputs,
         loss=report["loss"], devices=framework.device_count())
"""


def trained(path, devices, kernel, optimizer):
    """The weights, optimizer variables and predictions after two passes over the rows, in one process."""
    environment = {
        **os.environ,
        **child_process.environment("jax"),
        "PATH": os.environ["PATH"],
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **child_process.several_devices(devices),
    }
    command = [sys.executable, "-B", "-c", PROGRAM, kernel, optimizer, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(path))


@pytest.mark.parametrize("kernel,optimizer", [("plain", "adam"), ("loop", "sgd")])
def test_divided_mini_batches_give_the_updates_of_whole_ones(tmp_path, kernel, optimizer):
    one = trained(tmp_path / "1.npz", 1, kernel, optimizer)
    assert one.pop("devices") == 1
    for devices in (2, 4):
        several = trained(tmp_path / f"{devices}.npz", devices, kernel, optimizer)
        assert several.pop("devices") == devices and several.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_allclose(
                several[name], value, rtol=1e-4, atol=1e-6, err_msg=f"{name} on {devices} devices"
            )
        assert any((several[name] != value).any() for name, value in one.items()), "nothing was divided"

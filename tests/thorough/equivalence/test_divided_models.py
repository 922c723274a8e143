"""Model parallelism: a model whose variables are divided among devices is trained as a whole one is, up to rounding."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mop_udf.kernels.layout import divided_dimension
from mop_udf.pool import child_process
from support.workload import needs_jax

pytestmark = needs_jax
# (Adam divides by the size of a gradient, so that it enlarges the rounding of those that are small beside its epsilon)
SGD, ADAM = "SGD(lr=0.01, momentum=0.9)", "Adam(lr=0.01, epsilon=0.01)"

# Two passes over 130 rows in mini-batches of 40: a loop of whole mini-batches, and a short one. The state that a pass ends with
# is saved, and the next pass begins with it, in this process or in one with other devices.
PROGRAM = """
import json, sys, keras, numpy as np
from mop_udf.kernels.framework import framework
assert framework.begin(1) is None
from mop_udf.params import params
from mop_udf.training import compiled_model
from mop_udf.kernels.autotuner_memory import AutotunerMemory
kernel, optimizer, before, after, arrays = sys.argv[1:]
layers = [keras.Input((12,), dtype="int32"), keras.layers.Embedding(64, 8), keras.layers.Conv1D(16, 3, activation="relu"),
          keras.layers.Flatten(), keras.layers.Dense(32, activation="relu"), keras.layers.BatchNormalization(),
          keras.layers.Dropout(0.3, seed=4), keras.layers.Dense(3, activation="softmax")]
text = keras.Sequential(layers).to_json()
given = params.parse_compile_params(f"loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']")
memory = AutotunerMemory()
model = compiled_model.CompiledModel(text, given, {}, lambda architecture, part: memory, "m", seed=7, watched=True)
framework.check_room(model.variables)
if before == "none":
    model.start(7)
else:
    model.load(open(before, "rb").read())
model.set_scalars(given)
rows = np.random.default_rng(0)
x = rows.integers(0, 64, size=(130, 12)).astype("i4")
y = np.eye(3, dtype="f4")[rows.integers(0, 3, 130)]
report = model.kernels.train([(x, y)], len(x), 40, 1, forced=kernel)
compiled = model.kernels.compilations
model.kernels.train([(x, y)], len(x), 40, 1, forced=kernel)
assert model.kernels.compilations == compiled, "a second pass compiles again"
state = b"".join(model.save())
open(after, "wb").write(state)
outputs = model.forward.predict([x[:77]])
np.savez(arrays, *model.model.get_weights(), *(np.asarray(v.value) for v in model.optimizer.variables), *outputs,
         loss=report["loss"], devices=framework.device_count())
told = [[list(v.shape), list(v.value.sharding.shard_shape(v.value.shape)), len(v.value.sharding.device_set)]
        for v in (*model.model.weights, *model.optimizer.variables) if hasattr(v.value, "sharding")]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains in one process, once for equal arguments: (folder with its state, the weights, optimizer variables
    and predictions after two passes, how each variable is divided)."""
    done = {}

    def train(devices, kernel="loop", optimizer=SGD, before=None):
        key = devices, kernel, optimizer, before
        if key not in done:
            folder = tmp_path_factory.mktemp("divided")
            done[key] = folder, *in_process(folder, *key)
        return done[key]

    return train


def in_process(folder, devices, kernel, optimizer, before):
    environment = {
        **os.environ,
        **child_process.environment("jax"),
        "PATH": os.environ["PATH"],
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **child_process.among_devices(devices, None, None),
    }
    state, arrays = folder / "state", folder / "arrays.npz"
    command = [sys.executable, "-B", "-c", PROGRAM, kernel, optimizer, str(before or "none"), str(state), str(arrays)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(np.load(arrays))
    assert found.pop("devices") == devices
    return found, json.loads(done.stdout.splitlines()[-1])


def assert_close(several, one, text):
    assert several.keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(several[name], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} {text}")


@pytest.mark.parametrize("devices,kernel,optimizer", [(2, "plain", ADAM), (2, "loop", SGD), (4, "loop", SGD)])
def test_a_divided_model_is_trained_as_a_whole_one(trained, devices, kernel, optimizer):
    _, one, _ = trained(1, kernel, optimizer)
    _, several, layouts = trained(devices, kernel, optimizer)
    assert_close(several, one, f"on {devices} devices")
    for shape, part, held_by in layouts:
        axis = divided_dimension(shape, devices)
        expected = [size // devices if i == axis else size for i, size in enumerate(shape)]
        assert part == expected and held_by == devices, "the step has moved a variable"
    assert any(part != shape for shape, part, _ in layouts), "nothing was divided"


def test_a_state_goes_from_any_number_of_devices_to_any_other(trained):
    """Its bytes are those of an undivided model: parts are gathered as it is saved, and divided as it is loaded."""
    folders = {devices: trained(devices)[0] for devices in (1, 2)}
    states = {devices: (folder / "state").read_bytes() for devices, folder in folders.items()}
    assert len(states[1]) == len(states[2])
    _, whole, _ = trained(1, before=folders[1] / "state")
    for devices, before in ((2, 1), (1, 2)):
        _, mixed, _ = trained(devices, before=folders[before] / "state")
        assert_close(mixed, whole, f"from {before} devices on {devices}")
    assert any((whole[name] != value).any() for name, value in trained(1)[1].items()), (
        "the third pass has trained nothing"
    )

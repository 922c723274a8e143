"""pg_mop.backend.arrays: numpy is imported whole, whatever is raised meanwhile."""

import importlib.util
import os
import subprocess
import sys

import pytest

INTERRUPTED = """
import os, signal, threading, time

def interrupt():
    time.sleep({delay})
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # (who runs this may ignore it)
space, raised = {{}}, False
exec(open({path!r}).read().split("if TYPE_CHECKING:")[0], space)
threading.Thread(target=interrupt).start()
try:
    space["import_whole"]("numpy", True)
    time.sleep(300)
except KeyboardInterrupt:  # as Greenplum raises it at a cancel
    raised = True
import numpy as np
print(raised, np.multiply(2, 3), np.linalg.norm([3.0, 4.0]), np.random.default_rng(1).integers(1))
"""


def test_numpy_and_optuna_have_one_thread():
    for name in ("numpy", "optuna", "cmaes", "scipy.linalg"):
        ran = subprocess.run(
            [
                sys.executable,
                "-c",
                f"""
import os, sys
from pg_mop.backend import arrays
try:
    arrays.import_whole({name!r})
except ImportError:
    sys.exit()
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
""",
            ],
            capture_output=True,
            text=True,
            env={
                name: value
                for name, value in os.environ.items()
                if name not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
            },
        )
        if not ran.stdout:  # who has no Optuna has no threads of its
            assert name != "numpy" and not ran.stderr, ran.stderr
            continue
        assert ran.stdout == "1 None\n", (name, ran.stderr)


@pytest.mark.parametrize("delay", [0.02, 0.06])
def test_numpy_is_whole_when_its_import_is_interrupted(delay):
    path = importlib.util.find_spec("pg_mop.backend.arrays").origin
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(delay=delay, path=path)], capture_output=True, text=True
    )
    assert ran.stdout == "True 6 5.0 0\n", ran.stderr

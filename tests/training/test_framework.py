"""Which modules know the framework that Keras works with."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

import mop_udf
from mop_udf.pool import child_process
from support.workload import OTHERS

HOME = pathlib.Path(mop_udf.__file__).parent
# gpus.py answers the server's question what TensorFlow sees
MAY = {"gpus.py"}
FRAMEWORKS = {"tensorflow", "jax", "torch"}


def imported(path):
    """The packages that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_a_framework_is_imported_in_its_own_package_alone():
    own = HOME / "kernels"
    knowing = {
        str(path.relative_to(HOME)): found
        for path in HOME.glob("**/*.py")
        if (found := FRAMEWORKS & set(imported(path))) and path.name not in MAY
    }
    assert knowing
    for path, found in knowing.items():
        assert {f"on_{name}" for name in found} == {(HOME / path).relative_to(own).parts[0]}, path


def test_every_framework_has_the_names_that_the_kernels_use():
    """As their sources have them: a framework may not be installed here."""
    exported = {}
    for backend in FRAMEWORKS:
        names, exported[backend] = set(), None
        for node in ast.parse((HOME / "kernels" / f"on_{backend}" / "__init__.py").read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names.update(alias.asname or alias.name for alias in node.names)
            elif isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
                names |= targets
                if "__all__" in targets:
                    exported[backend] = set(ast.literal_eval(node.value))
        assert exported[backend] <= names, (backend, exported[backend] - names)
    assert exported["jax"] == exported["torch"] == exported["tensorflow"]


@pytest.mark.parametrize("backend", ["tensorflow", *OTHERS])
def test_a_trainer_imports_its_framework_and_no_other(backend):
    """Keras would import TensorFlow to set seeds and to write JSON."""
    program = (
        "import sys; from mop_udf.training import trainer; trainer.import_frameworks(); trainer.import_own(); "
        "import keras; from mop_udf.kernels.framework import framework; framework.seed(3); "
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]); keras.models.model_from_json(model.to_json()); "
        "print(*sorted({'tensorflow', 'jax', 'torch'} & sys.modules.keys()))"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-B", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert found.stdout.split() == [backend]


@pytest.mark.parametrize("backend", OTHERS)
def test_a_fork_server_has_no_threads_to_lose(backend):
    program = (
        "import os; from mop_udf.training import trainer; trainer.import_frameworks(); trainer.import_own(); "
        "print(len(os.listdir('/proc/self/task')))"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-B", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**child_process.environment(backend), "OMP_NUM_THREADS": "1"},
    )  # as it is started
    assert int(found.stdout) == 1


def test_a_seed_that_keeps_kernels_gives_the_random_numbers_of_keras_own(monkeypatch):
    import random

    import keras
    import numpy as np
    from tensorflow.python.eager import context

    from mop_udf.kernels import on_tensorflow

    def drawn():
        mine = keras.layers.Dense(3)
        mine.build((None, 2))
        own = random.random(), np.random.random(), context.internal_operation_seed()
        return *own, *map(float, keras.random.uniform((2,))), *np.ravel(mine.kernel)

    keras.utils.set_random_seed(11)
    before = drawn()
    forgotten = []
    forget = context.pywrap_tfe.TFE_ContextClearCaches
    monkeypatch.setattr(
        context.pywrap_tfe, "TFE_ContextClearCaches", lambda handle: (forgotten.append(1), forget(handle))
    )
    on_tensorflow.seed(11)
    assert drawn() == before and not forgotten
    keras.utils.set_random_seed(11)
    assert forgotten, "TensorFlow forgets its kernels in another way now"


@pytest.mark.parametrize("missing", ("module", "name", "TensorFlow's"))
def test_a_keras_without_the_private_names_sets_seeds_in_its_own_way(monkeypatch, missing):
    import random
    import sys

    import keras
    import numpy as np
    from keras.src.utils import rng_utils

    from mop_udf.kernels import on_tensorflow

    def drawn():
        return random.random(), np.random.random(), *map(float, keras.random.uniform((2,)))

    keras.utils.set_random_seed(11)
    before = drawn()
    of_its_own = []
    monkeypatch.setattr(
        keras.utils,
        "set_random_seed",
        lambda number, own=keras.utils.set_random_seed: (of_its_own.append(number), own(number)),
    )
    if missing == "module":
        monkeypatch.setitem(sys.modules, "keras.src.utils.rng_utils", None)  # (an import is an ImportError)
    elif missing == "name":
        # Keras' own function keeps the name, the module that is found lacks it
        monkeypatch.setitem(sys.modules, "keras.src.utils.rng_utils", type(sys)("keras.src.utils.rng_utils"))
    else:
        monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", None)
    tf_of_keras = rng_utils.tf
    on_tensorflow.seed(11)
    assert drawn() == before and of_its_own == [11] and rng_utils.tf is tf_of_keras

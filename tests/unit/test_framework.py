"""Which modules know the framework that Keras works with."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

import mop_udf
from mop_udf import child_process
from workload import OTHERS

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
    program = (
        "import sys; from mop_udf import trainer; trainer.import_frameworks(); trainer.import_own(); "
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
        "import os; from mop_udf import trainer; trainer.import_frameworks(); trainer.import_own(); "
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

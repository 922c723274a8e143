"""tools/gpu_trial.sh, as far as it needs no GPU: the names of steps, the table, and what it reads of a machine."""

import importlib
import subprocess
import sys
import sysconfig

import pytest

from support.cluster import ROOT
from support.golden import assert_golden


@pytest.fixture
def module(monkeypatch):
    """A function that imports a module of the kit."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "gpu_trial"))
    return importlib.import_module


def test_names_of_steps_and_groups_are_steps_in_order_each_once(module):
    parsed, groups = module("steps").parsed, module("steps").GROUPS
    assert parsed([]) == list(groups["all"]) and parsed(["all", "table"]) == [*groups["all"], "table"]
    assert parsed(["cnn", "look", "check"]) == ["look", *groups["check"], "cnn"]
    assert parsed(["bench", "cnn"]) == list(groups["bench"])
    with pytest.raises(
        ValueError, match="there is no step 'tpu': look, build, .*, table, check, bench, all, or folder"
    ):
        parsed(["build", "tpu"])


def test_a_wrong_step_ends_the_command_before_any_work(tmp_path):
    done = subprocess.run(
        [ROOT / "tools" / "gpu_trial.sh", "tpu"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "TRIAL": str(tmp_path)},
    )
    assert done.returncode == 2 and "there is no step 'tpu'" in done.stderr and not list(tmp_path.iterdir())


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


def test_versions_outside_the_ranges_of_pyproject_are_named(module):
    outside = module("machine").outside
    text = (ROOT / "pyproject.toml").read_text()
    good = {"keras": "3.15.1", "jax": "0.11.2", "torch": "2.11.0+cu130", "numpy": "2.5.2"}
    assert outside(text, good, good) == []
    assert outside(text, {**good, "keras": "4.0", "torch": "2.4.1"}, [*good, "dill"]) == [
        "keras 4.0, not >=3.10,<4",
        "torch 2.4.1, not >=2.5,<3",
        "dill is missing",
    ]


def test_the_shared_library_and_the_headers_are_those_of_the_running_python(module, tmp_path):
    class Trial:
        carried = tmp_path

    machine = module("machine")
    library = machine.shared_library(Trial)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        assert "%d.%d" % sys.version_info[:2] in library.name and library.is_file()
    own = machine.headers(Trial)
    assert own is None or (own / "Python.h").exists()


def test_headers_of_another_python_in_the_folder_do_not_count(module, tmp_path, monkeypatch):
    class Trial:
        carried = tmp_path

    machine = module("machine")
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda *_, **__: str(tmp_path / "none"))
    assert machine.headers(Trial) is None
    include = tmp_path / "include"
    include.mkdir()
    (include / "Python.h").touch()
    version = "#define PY_MINOR_VERSION        {}\n"
    (include / "patchlevel.h").write_text(version.format(sys.version_info[1]))
    assert machine.headers(Trial) == include
    (include / "patchlevel.h").write_text(version.format(sys.version_info[1] + 1))
    assert machine.headers(Trial) is None


def test_directories_that_others_may_not_pass_are_named_through_links(module, tmp_path):
    inner = tmp_path / "home" / "python" / "bin"
    inner.mkdir(parents=True)
    (inner / "python3").touch()
    (tmp_path / "venv").mkdir()
    link = tmp_path / "venv" / "python3"
    link.symlink_to("../home/python/bin/python3")
    (tmp_path / "home").chmod(0o700)
    (tmp_path / "venv").chmod(0o755)
    found = module("machine").closed_folders(link)
    assert tmp_path / "home" in found and tmp_path / "venv" not in found and inner not in found


class Asked:
    """A trial whose user may do everything; `kept`: what steps have written."""

    user = "postgres"

    def __init__(self, **kept):
        self.kept = kept

    def ask(self, *words, clean=False):
        return 0, ""

    def read(self, name, default):
        return self.kept.get(name, default)

    def write(self, name, value):
        self.kept[name] = value


@pytest.mark.parametrize(
    "frameworks,usable,missing",
    [
        ({"jax": "NVIDIA H100 80GB HBM3", "torch": "processors"}, True, []),
        (
            {"jax": "processors"},
            False,
            ["a framework that can use the GPU NVIDIA H100, 81559 MiB, 580.1: none of JAX, PyTorch sees it"],
        ),
    ],
)
def test_the_card_is_what_the_driver_names_and_a_framework_must_see_it(
    module, tmp_path, monkeypatch, frameworks, usable, missing
):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 580.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    trial, said, found = Asked(frameworks=frameworks), [], []
    module("machine").gpu(trial, said, found)
    assert found == missing and trial.kept["gpu"] is usable
    assert trial.kept["facts"]["GPU"] == "NVIDIA H100, 81559 MiB, 580.1" and said == ["NVIDIA H100, 81559 MiB, 580.1"]


def test_without_a_card_the_table_will_say_so(module, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    machine, trial, missing = module("machine"), Asked(frameworks={"jax": "processors"}), []
    monkeypatch.setattr(machine.glob, "glob", lambda pattern: [])
    machine.gpu(trial, [], missing)
    assert missing == [] and trial.kept == {
        "frameworks": {"jax": "processors"},
        "gpu": False,
        "facts": {"GPU": "no GPU: all steps on processors"},
    }

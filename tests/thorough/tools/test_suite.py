"""tools/suite.py: second tries, unsteady tests, and what a run leaves behind, on small suites without a server."""

import os
import signal
import subprocess
import sys

import pytest

from support.cluster import ROOT, eventually


@pytest.fixture
def begun(tmp_path):
    """A function: begins a suite of one file with this code. `folder` is a name in the code."""
    running = []

    def begin(code, *options):
        (tmp_path / "test_it.py").write_text(
            f"import os, pathlib, subprocess\nfolder = pathlib.Path({str(tmp_path)!r})\n{code}"
        )
        command = [sys.executable, "-B", ROOT / "tools" / "suite.py", str(tmp_path / "test_it.py"), "-q", *options]
        environment = {**os.environ, "PG_MOP_UNSTEADY": str(tmp_path / "unsteady"), "PG_MOP_SUITE_HAS_NO_SERVER": "1"}
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.stdout.close()
        process.wait()


ONCE = """
def test_fails_once():
    there = (folder / "there").exists()
    (folder / "there").touch()
    assert there
"""
# a process that has left the group, as a server has
DAEMON = """
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
(folder / "left").write_text(f"{left.pid} {os.environ['PG_MOP_SUITE']}")
"""


def nothing_is_left(folder):
    pid, home = (folder / "left").read_text().split()
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"), 20) and not os.path.exists(home)


def test_a_test_that_passes_alone_is_unsteady(begun, tmp_path):
    suite = begun(ONCE)
    text = suite.communicate()[0]
    assert suite.returncode == 0, text
    assert "unsteady: " in text and (tmp_path / "unsteady").read_text().endswith("test_it.py::test_fails_once\n")


def test_a_test_that_fails_twice_fails(begun, tmp_path):
    suite = begun(ONCE + "\ndef test_fails():\n    assert False\n")
    text = suite.communicate()[0]
    assert suite.returncode == 1, text
    assert (
        "test_fails_once" in (tmp_path / "unsteady").read_text()
        and "test_fails\n" not in (tmp_path / "unsteady").read_text()
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_suite_that_is_stopped_leaves_nothing(begun, tmp_path, number):
    suite = begun(DAEMON + "\ndef test_waits():\n    import time\n    time.sleep(600)\n")
    assert eventually(lambda: (tmp_path / "left").exists())
    suite.send_signal(number)
    assert suite.wait(60) == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    if number == signal.SIGKILL:  # the next suite finds what the killed one has left
        assert begun("def test_passes():\n    pass\n").wait(60) == 0
    nothing_is_left(tmp_path)

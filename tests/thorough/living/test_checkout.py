"""The checkout's own server, as `make start` makes it and `make psql` finds it."""

import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

from support.cluster import ROOT, programs


@pytest.fixture(scope="module")
def checkout():
    """A tree with the tools of this one, where the server has not been started: run(command) gives what it said."""
    with tempfile.TemporaryDirectory(prefix="pg_mop_", dir="/tmp") as folder:
        tree = pathlib.Path(folder)
        shutil.copytree(ROOT / "tools", tree / "tools")
        (tree / ".local").mkdir()
        (tree / ".local" / "bindir").write_text(str(programs()))

        def run(*command):
            done = subprocess.run([tree / "tools" / "server.sh", *command], capture_output=True, text=True)
            return (done.stdout + done.stderr).strip()

        run.data = tree / ".local" / "data"
        yield run
        run("stop")


def asked(checkout, sql):
    return checkout("psql", "-XAtq", "-c", sql)


def test_the_tutorials_first_statements_work_once_the_server_is_started(checkout):
    assert checkout("start") == ""
    first = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.S)
    arrays = [block for block in first if "points" in block]
    for block in [first[0], *arrays[:2]]:
        assert "ERROR" not in checkout("psql", "-X", "-v", "ON_ERROR_STOP=1", "-c", block)
    assert asked(checkout, "SELECT count(*) FROM points_packed_summary") == "1"
    assert checkout("start") == "", "once more changes nothing"
    assert asked(checkout, "SELECT count(*) FROM points_packed_summary") == "1"


def test_an_extension_of_before_is_updated_and_one_elsewhere_is_left_there(checkout):
    checkout("start")
    version = asked(checkout, "SELECT default_version FROM pg_available_extensions WHERE name = 'pg_mop'")
    asked(checkout, "DROP EXTENSION pg_mop; CREATE SCHEMA other; CREATE EXTENSION pg_mop SCHEMA other VERSION '0.3.0'")
    assert checkout("start") == ""
    assert (
        asked(checkout, "SELECT extversion, extnamespace::regnamespace FROM pg_extension WHERE extname = 'pg_mop'")
        == f"{version}|other"
    )
    # one that is newer than the checkout stays
    asked(checkout, "UPDATE pg_extension SET extversion = '99' WHERE extname = 'pg_mop'")
    assert "no update path" in (said := checkout("start")) and said.endswith("stays as it is")

"""The checkout's own server, as `make start` makes it and `make psql` finds it."""

import os
import pathlib
import re
import shutil
import signal
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


def test_a_port_that_another_server_takes_at_the_last_moment_is_left_to_it(checkout):
    """As where two checkouts start at once: both have found the same port free."""
    checkout("start")
    checkout("stop")
    local = checkout.data.parent
    wrapped, own = local / "wrapped", (local / "bindir").read_text()
    wrapped.mkdir()
    for program in pathlib.Path(own).iterdir():
        if program.name != "pg_ctl":
            (wrapped / program.name).symlink_to(program)
    # before the first start, the other server takes the port that has been found
    (local / "other.py").write_text(
        "import pathlib, socket, sys, time\n"
        "local = pathlib.Path(sys.argv[1])\n"
        'kept = socket.create_server(("127.0.0.1", int((local / "taken").read_text())))\n'
        '(local / "listens").touch()\n'
        "time.sleep(120)\n"
    )
    (wrapped / "pg_ctl").write_text(
        f"""#!/bin/sh
case "$*" in *" start "*) if ! [ -e {local}/taken ]; then
    cp {local}/port {local}/taken
    /usr/bin/python3 {local}/other.py {local} > /dev/null 2>&1 &
    echo $! > {local}/other
    while ! [ -e {local}/listens ]; do sleep 0.05; done
fi ;; esac
exec {own}/pg_ctl "$@"
"""
    )
    (wrapped / "pg_ctl").chmod(0o755)
    (local / "bindir").write_text(str(wrapped))
    try:
        assert checkout("start") == ""
        assert (local / "port").read_text() != (local / "taken").read_text()
        assert (
            asked(checkout, "SELECT 1") == "1" and asked(checkout, "SHOW port") == (local / "port").read_text().strip()
        )
    finally:
        os.kill(int((local / "other").read_text()), signal.SIGKILL)
        (local / "bindir").write_text(own)


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


def test_a_cluster_of_another_postgresql_is_refused_with_what_to_do(checkout):
    checkout("start")
    checkout("stop")
    kept = (checkout.data / "PG_VERSION").read_text()
    (checkout.data / "PG_VERSION").write_text("9\n")
    assert re.fullmatch(
        r"\.local/data is a cluster of PostgreSQL 9, and this is PostgreSQL \d\d: make start PG=9, or "
        r"make clean, which removes it",
        checkout("start"),
    )
    (checkout.data / "PG_VERSION").write_text(kept)
    assert checkout("start").endswith("stays as it is")

"""The fixture for users' own tests: a temporary server with the extension, and a new database for each test."""

import os
import pathlib
import subprocess
import sys

import pandas
import pytest

from pg_mop_client import ClientError, Selection, ServerError
from pg_mop_client.testing import MopServer, _programs, mop_server  # noqa: F401
from support.cluster import client_program, eventually, programs, run_text

OWN = """
import pandas
from pg_mop_client import Selection

ROWS = pandas.DataFrame({"a": [0.0, 1.0] * 20, "b": [1.0, 0.0] * 20, "label": ["x", "y"] * 20})

def test_one(mop_server):
    with mop_server.database() as uri, Selection(uri, progress=False, seed=1) as s:
        assert s.schema == "madlib" and s.pack(ROWS, "rows", label="label") == "rows_packed"

def test_other(mop_server):
    with mop_server.database() as uri, Selection(uri, progress=False) as s:
        assert s.query("SELECT to_regclass('rows') IS NULL AS absent").absent[0]
"""


@pytest.fixture(scope="session")
def mop_server_options():
    return {"bindir": programs(), "max_connections": 30, "pg_mop.threads": 1, "cluster_name": "it's"}


def test_each_database_has_the_extension_and_nothing_else(mop_server):  # noqa: F811
    rows = pandas.DataFrame({"a": [0.0, 1.0] * 20, "b": [1.0, 0.0] * 20, "label": ["x", "y"] * 20})
    names = []
    for _ in range(2):
        with mop_server.database() as uri, Selection(uri, progress=False, seed=1) as s:
            names.append(s.query("SELECT current_database() AS name").name[0])
            assert s.pack(rows, "rows", label="label") == "rows_packed"
            assert s.table("rows_packed_summary").num_classes[0] == [2]  # (as docs/client.md has it for three)
    with mop_server.selection(segments=2) as s:
        assert s.query("SELECT to_regclass('rows') IS NULL AS absent").absent[0]
        assert s.query("SHOW max_connections", cap=None).iloc[0, 0] == "30"
        assert s.query("SHOW cluster_name", cap=None).iloc[0, 0] == "it's"
        found = s.query("SELECT datname FROM pg_database")
        assert not set(names) & set(found.datname) and len(set(names)) == 2


def test_a_model_is_trained_on_it(mop_server):  # noqa: F811
    from support.workload import ADAM, dense

    with mop_server.database() as uri, Selection(uri, progress=False, seed=1) as s:
        s.pack(
            pandas.DataFrame({"a": [0.0, 1.0] * 20, "b": [1.0, 0.0] * 20, "label": ["x", "y"] * 20}),
            "rows",
            label="label",
        )
        s.load_keras_model("arch", dense(inputs=2, classes=2))
        s.load_model_selection_table("arch", "grid", [1], [ADAM.format(0.01)], ["batch_size=8"])
        assert s.fit_multiple("rows_packed", "models", "grid", 1).info.status == "finished"


def test_the_server_ends_with_its_files():
    with MopServer(programs(), schema="other") as server:
        pid, home = server.server_pid, server.base_dir
        with server.selection() as s:
            assert s.schema == "other" and os.path.exists(home)
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}")) and not os.path.exists(home)


def test_a_plugin_of_pytest_gives_the_fixture(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pg_mop_client.testing"]\n')
    (tmp_path / "test_own.py").write_text(OWN)
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PG_CONFIG": str(programs() / "pg_config"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("PG_CONFIG", raising=False)
    monkeypatch.setattr("pg_mop_client.testing.SYSTEM", tmp_path)
    with pytest.raises(ClientError, match="has the extension pg_mop\nHINT: sudo make install"):
        _programs()
    monkeypatch.setenv("PG_CONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(ClientError, match="nowhere' cannot be executed"):
        MopServer()
    system = pathlib.Path(client_program("initdb")).parent
    if not os.path.exists(run_text(system / "pg_config", "--sharedir") + "/extension/pg_mop.control"):
        with pytest.raises(ServerError, match="pg_mop"):
            MopServer(system)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ClientError, match="does not run as root\nHINT: Run the tests as another user"):
        MopServer(programs())

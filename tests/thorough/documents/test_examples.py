"""The example of every function that explains itself runs as it stands."""

import os
import subprocess

import pytest

from support.functions import NAMES


def psql(db, script, path):
    """Run a script statement by statement, as people do, with a search_path."""
    to = db.connection.info
    done = subprocess.run(
        ["psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-h", to.host, "-p", str(to.port), "-U", to.user, "-d", to.dbname],
        input=script,
        text=True,
        capture_output=True,
        env={**os.environ, "PGOPTIONS": f"-c search_path={path}"},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_as_it_stands(db, name):
    db.run(f"CREATE SCHEMA {name}")
    psql(db, db.value(f"SELECT madlib.{name}('example')"), name)
    db.run(f"DROP SCHEMA {name} CASCADE")


def test_the_gpu_configuration_explains_itself_and_lists_gpus(db):
    assert "'usage'" in db.value("SELECT madlib.gpu_configuration()")
    assert "output_table" in db.value("SELECT madlib.gpu_configuration('usage')")
    db.run("CREATE SCHEMA gpus; SET search_path = gpus")
    db.run(db.value("SELECT madlib.gpu_configuration('example')"))
    db.run("DROP SCHEMA gpus CASCADE; RESET search_path")
    db.run("SELECT madlib.gpu_configuration('alone'); TABLE alone")
    for number, source in enumerate((None, "tensorflow", "NVIDIA", " TensorFlow ")):
        db.run(f"SELECT * FROM madlib.gpu_configuration('gpus{number}', %s)", [source])
        rows = db.run(f"SELECT hostname, gpu_descr FROM gpus{number}")
        assert all(r["hostname"] == "localhost" and r["gpu_descr"] for r in rows)
    for call, fragment in (("'x', 'amd'", "source must be"), ("'gpus0'", "already exists"), ("NULL", "NULL/empty")):
        assert fragment in str(db.error(f"SELECT madlib.gpu_configuration({call})"))

"""The documents' SQL runs as it stands, in psql; the errors that they explain are those that come."""

import re
import subprocess

import pytest

from conftest import ROOT


@pytest.fixture(scope="module")
def psql(db):
    """psql on some SQL: (exit status, what it says)."""
    def run(sql):
        to = db.connection.info
        found = subprocess.run(["psql", "-XqvON_ERROR_STOP=1", "-h", to.host, "-p", str(to.port), "-U", "postgres",
                                "-d", to.dbname], input=sql, capture_output=True, text=True)
        return found.returncode, found.stdout + found.stderr
    return run


def blocks(name, language="sql"):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs" / name).read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def tutorial(psql):
    """What the tutorial says, a text for each block."""
    said = []
    for block in blocks("tutorial.md"):
        settings = "" if "SET pg_mop.seed" in block else "SET pg_mop.seed = 7;"
        status, text = psql(settings + block)
        assert status == 0, text
        said.append(text)
    return said


@pytest.mark.slice
def test_the_tutorial_runs_and_its_model_predicts(db, tutorial):
    held_out, right = (int(n) for n in re.search(r"^\s*(\d+) \|\s*(\d+)$", tutorial[6], re.M).groups())
    assert held_out == 600 and right > 570
    assert db.value("SELECT count(*) FROM models_info") == 8 and "rung" in tutorial[7]


def test_the_errors_are_those_that_the_document_explains(psql, tutorial):
    causes, told = blocks("errors.md"), blocks("errors.md", "text")
    assert len(causes) == len(told) > 8
    for cause, message in zip(causes, told):
        status, text = psql(cause)
        assert status == 3 and message.strip() in text, (cause, text)


def test_what_an_administrator_does_runs(psql):
    for block in blocks("administration.md"):
        status, text = psql(block)
        assert status == 0, (block, text)

"""The documents' SQL runs as it stands, in psql; the errors that they explain are those that come."""

import re
import subprocess

import pytest

from conftest import ROOT, Calling, eventually
from workload import ADAM, is_under_way, layer, selection, sequential


@pytest.fixture(scope="module")
def psql(db):
    """psql on some SQL: (exit status, what it says)."""
    def run(sql, database=None):
        to = db.connection.info
        found = subprocess.run(["psql", "-XqvON_ERROR_STOP=1", "-h", to.host, "-p", str(to.port), "-U", "postgres",
                                "-d", database or to.dbname], input=sql, capture_output=True, text=True)
        return found.returncode, found.stdout + found.stderr
    return run


def blocks(name, language="sql"):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / name).read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def tutorial(psql):
    """What the tutorial says, a text for each block."""
    said = []
    for block in blocks("docs/tutorial.md"):
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
    causes, told = blocks("docs/errors.md"), blocks("docs/errors.md", "text")
    assert len(causes) == len(told) > 8
    for cause, message in zip(causes, told):
        status, text = psql(cause)
        assert status == 3 and message.strip() in text, (cause, text)


def test_what_an_administrator_does_runs(psql):
    for block in blocks("docs/administration.md"):
        status, text = psql(block)
        assert status == 0, (block, text)


# --- README, and what is told of search, sequences, procedures and limits -------------------------------------
NET = sequential("net", [6, 6], layer("Flatten"), layer("Dense", units=8, activation="relu"),
                 layer("Dropout", rate=0.1), layer("Dense", units=3, activation="softmax"))


@pytest.fixture(scope="module")
def reader(db):
    """A session in a schema of its own, with small tables of the names that README and its like use."""
    db.run("DROP SCHEMA IF EXISTS readme CASCADE; CREATE SCHEMA readme")
    reader = db.another()
    reader.run("SET search_path = readme")
    for table, first in (("train", 1), ("val", 91)):
        reader.run(f"CREATE TABLE {table} AS SELECT i AS id, (SELECT array_agg(ARRAY[i % 3 * 40, a, i % 7, 5, 1, 0]) "
                   f"FROM generate_series(1, 6) a)::real[] AS image, (ARRAY['a', 'b', 'c'])[1 + i % 3] AS label "
                   f"FROM generate_series({first}, {first} + 89) AS i")
    yield reader
    reader.close()


def shown(psql, block, settings=""):
    """What a block says in the reader's schema; it must run."""
    status, text = psql(f"SET search_path = readme; SET pg_mop.segments = 2; SET pg_mop.seed = 7; {settings}" + block)
    assert status == 0, (block, text)
    return text


@pytest.fixture(scope="module")
def readme(psql, reader):
    """What README's example says."""
    example = next(block for block in blocks("README.md") if "<model.to_json()" in block)
    return shown(psql, example.replace("<model.to_json() of Keras 2 or 3>", NET))


def test_the_installation_in_readme_runs(db, psql):
    """In a database of its own, whose extension is another one."""
    begin, straight = (next(b for b in blocks("README.md") if b.startswith(word)) for word in ("CREATE SCHEMA",
                                                                                                "CREATE SERVER"))
    db.run("DROP DATABASE IF EXISTS of_readme")
    db.run("CREATE DATABASE of_readme")
    try:
        # (other tests have a role of that name)
        both = (begin + straight).replace("analyst", "readme_analyst")
        status, text = psql("CREATE ROLE readme_analyst LOGIN;" + both, "of_readme")
        assert status == 0, text
        status, text = psql("SET ROLE readme_analyst; SELECT count(*) FROM madlib.mop_runs", "of_readme")
        assert status == 0, text
    finally:
        db.run("DROP DATABASE of_readme WITH (FORCE)")
        db.run("DROP ROLE IF EXISTS readme_analyst")


@pytest.mark.slice
def test_the_example_in_readme_runs(reader, readme):
    assert readme.count("categorical_crossentropy") == 8
    assert reader.value("SELECT count(*) FROM predictions") == 90


def test_searches_in_readme_and_in_the_document_run(psql, reader, readme):
    for block in [next(b for b in blocks("README.md") if "mop_search" in b), blocks("docs/search.md")[0]]:
        text = shown(psql, "DROP TABLE IF EXISTS found, found_info, found_summary, found_trials;" + block)
        assert "categorical_crossentropy" in text
    _, space, wishes = blocks("docs/search.md")
    reader.run("CREATE TABLE three AS SELECT * FROM arch; CREATE TABLE three_copy AS TABLE arch; "
               "UPDATE three_copy SET model_id = 2; INSERT INTO three TABLE three_copy; "
               "UPDATE three_copy SET model_id = 3; INSERT INTO three TABLE three_copy")
    shown(psql, f"SELECT madlib.mop_search('train_packed', 'several', 'three', {space}, 'random', "
                f"'trials=4, iterations=1')")
    assert reader.value("SELECT count(*) FROM several_trials") == 4
    selection(reader, "slow", "arch", [(1, ADAM.format(0.01 * (k + 1)), "batch_size=1, epochs=9") for k in range(3)])
    other = reader.another()
    other.run("SET search_path = readme")
    calling = Calling(other, "SELECT madlib.madlib_keras_fit_multiple_model('train_packed', 'late', 'slow', 400, "
                             "FALSE)")
    try:
        assert eventually(lambda: is_under_way(reader), 60)
        run_id = reader.value("SELECT max(run_id) FROM madlib.mop_runs WHERE status = 'running'")
        shown(psql, wishes.replace("(17,", f"({run_id},"))
        assert eventually(lambda: reader.value("SELECT count(*) FROM madlib.mop_trials WHERE run_id = %s", [run_id])
                          == 4, 60)
    finally:
        reader.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
        calling.end()
        other.close()


def test_a_job_as_in_readme_runs(psql, reader, readme):
    reader.run("CREATE TABLE iris_packed AS TABLE train_packed; "
               "CREATE TABLE iris_packed_summary AS TABLE train_packed_summary")
    shown(psql, next(block for block in blocks("README.md") if "mop_submit" in block))
    job = reader.value("SELECT max(job) FROM madlib.mop_jobs")
    assert reader.value("SELECT madlib.mop_wait(%s, '3 min')", [job]) == "finished"
    assert reader.value("SELECT count(*) FROM iris_models") == 8


def test_sequences_procedures_and_limits_run_as_the_documents_have_them(psql, reader, readme):
    shown(psql, "DROP TABLE mst, mst_summary;" + "".join(blocks("docs/sequences.md")))
    assert reader.value("SELECT count(*) FROM mst") == 2
    shown(psql, "DROP TABLE models, models_info, models_summary;" + "".join(blocks("docs/reliability.md")))
    assert reader.value("SELECT min(array_length(training_loss, 1)) FROM models_info") == 1
    shown(psql, "".join(blocks("docs/security.md")) + "SELECT 'sessions: ' || sessions FROM madlib.mop_limit;"
                "DELETE FROM madlib.mop_limit")

"""The documents' SQL runs as it stands, in psql; the errors that they explain are those that come."""

import contextlib
import os
import re
import subprocess

import pytest

from support.client import Calling, Client
from support.cluster import ROOT, Cluster, eventually
from support.tries import tries
from support.workload import ADAM, is_under_way, layer, load, selection, sequential


def in_psql(sql, host, port, database, user="postgres", password=None):
    """(exit status, what psql says)."""
    found = subprocess.run(
        ["psql", "-XqvON_ERROR_STOP=1", "-h", host, "-p", str(port), "-U", user, "-d", database],
        input=sql,
        capture_output=True,
        text=True,
        env={**os.environ, **({"PGPASSWORD": password} if password else {})},
    )
    return found.returncode, found.stdout + found.stderr


@pytest.fixture(scope="module")
def psql(db):
    """psql on some SQL: (exit status, what it says)."""
    to = db.connection.info
    return lambda sql, database=None: in_psql(sql, to.host, to.port, database or to.dbname)


def in_time(psql, sql, before="SELECT 1"):
    """Run SQL that trains within a time limit in psql: (exit status, output).

    A slow machine may evaluate no trial within the limit. Then the SQL runs again after the SQL `before`.
    """
    for once in tries():
        assert psql(before)[0] == 0
        status, text = psql(sql)
        once.counts = "no trial was evaluated within the time limit" not in text
    return status, text


def blocks(name, language="sql"):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / name).read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def tutorial(psql):
    """What the tutorial says, a text for each block, which is its key."""
    said = {}
    for block in blocks("docs/tutorial.md"):
        settings = "" if "SET pg_mop.seed" in block else "SET pg_mop.seed = 7;"
        status, text = in_time(psql, settings + block)
        assert status == 0, text
        said[block] = text
    return said


def said_by(tutorial, part):
    """What the block with this part says."""
    (text,) = (text for block, text in tutorial.items() if part in block)
    return text


def test_the_tutorial_runs_and_its_model_predicts(db, tutorial):
    held_out, right = (
        int(n) for n in re.search(r"^\s*(\d+) \|\s*(\d+)$", said_by(tutorial, "AS held_out"), re.M).groups()
    )
    assert held_out == 600 and right > 570
    assert db.value("SELECT count(*) FROM models_info") == 8 and "rung" in said_by(tutorial, "mop_search(")


def test_the_tutorials_named_model_is_better_than_the_majority(db, tutorial):
    report = said_by(tutorial, "mop_train(")
    assert 'Version 1 of model "churn" predicts churned (classification).' in report and "The steps by hand:" in report
    measured = {
        row["metric"]: row["value"] for row in db.run("SELECT * FROM madlib.mop_evaluate('churn', 'churn_test')")
    }
    kept = "SELECT (kept->>'churned')::boolean::int FROM madlib.mop_predict('churn', source => 'churn_test', keep => 'churned')"
    majority = db.value(f"SELECT greatest(avg(y), 1 - avg(y)) FROM ({kept}) q(y)")
    assert measured["rows"] == db.value(f"SELECT count(*) FROM ({kept}) q") > 500
    assert measured["accuracy"] > float(majority) + 0.05 and measured["auc"] > 0.75
    assert db.value("SELECT count(*) FROM churn_answers") == 3000


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
NET = sequential(
    "net",
    [6, 6],
    layer("Flatten"),
    layer("Dense", units=8, activation="relu"),
    layer("Dropout", rate=0.1),
    layer("Dense", units=3, activation="softmax"),
)


@pytest.fixture(scope="module")
def reader(db):
    """A session in a schema of its own, with small tables of the names that the documents use."""
    db.run("DROP SCHEMA IF EXISTS readme CASCADE; CREATE SCHEMA readme")
    reader = db.another()
    reader.run("SET search_path = readme")
    for table, first in (("train", 1), ("val", 91)):
        reader.run(
            f"CREATE TABLE {table} AS SELECT i AS id, (SELECT array_agg(ARRAY[i % 3 * 40, a, i % 7, 5, 1, 0]) "
            f"FROM generate_series(1, 6) a)::real[] AS image, (ARRAY['a', 'b', 'c'])[1 + i % 3] AS label "
            f"FROM generate_series({first}, {first} + 89) AS i"
        )
    yield reader
    reader.close()


def shown(psql, block, settings=""):
    """What a block says in the reader's schema; it must run."""
    status, text = in_time(
        psql, f"SET search_path = readme; SET pg_mop.segments = 2; SET pg_mop.seed = 7; {settings}" + block
    )
    assert status == 0, (block, text)
    return text


@pytest.fixture(scope="module")
def trained(psql, reader):
    """Leaves the tables that the documents' examples name: train_packed, val_packed, arch, mst and models."""
    shown(
        psql,
        f"""SELECT madlib.training_preprocessor_dl('train', 'train_packed', 'label', 'image', NULL, 16);
        SELECT madlib.validation_preprocessor_dl('val', 'val_packed', 'label', 'image', 'train_packed');
        SELECT madlib.load_keras_model('arch', '{NET}');
        SELECT madlib.generate_model_configs('arch', 'mst', ARRAY[1], $$ {{'loss': ['categorical_crossentropy'],
            'metrics': ['accuracy'],
            'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'learning_rate': [0.001, 0.01]}}]}} $$,
            $$ {{'batch_size': [32, 128], 'epochs': [1]}} $$);
        SELECT madlib.madlib_keras_fit_multiple_model('train_packed', 'models', 'mst', 2, FALSE, 'val_packed');""",
    )


def connection():
    """How worker sessions of `analyst` connect, by docs/administration.md."""
    block = next(b for b in blocks("docs/administration.md") if b.startswith("CREATE SERVER"))
    return block.replace("tutorial_analyst", "analyst").replace("'secret'", "'...'")


def test_the_installation_in_readme_runs(db, psql):
    """In a database of its own, whose extension is another one."""
    begin, straight = next(b for b in blocks("README.md") if b.startswith("CREATE SCHEMA")), connection()
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


def test_the_two_statements_of_readme_run(psql, reader):
    reader.run(
        "CREATE TABLE employees AS SELECT i AS id, i % 70 AS tenure, (ARRAY['Sales', 'Research'])[1 + i % 2] AS department, "
        "CASE WHEN i % 70 < 20 THEN 'Yes' ELSE 'No' END AS attrition FROM generate_series(1, 300) i"
    )
    text = shown(psql, next(block for block in blocks("README.md") if "mop_train" in block))
    assert 'Version 1 of model "leaving" predicts attrition (classification).' in text and "pg_mop: log_loss" in text
    assert len(re.findall(r"^ +\d+ \| (?:Yes|No) +\| +[\d.]+$", text, re.M)) == 300


def test_searches_in_the_document_run(psql, reader, trained):
    searched, crossed, space, control_requests, sharing = blocks("docs/search.md")
    assert "categorical_crossentropy" in shown(psql, searched)
    text = shown(psql, crossed.replace("folds => 5", "folds => 2").replace("models", "crossed"))  # (two segments)
    assert len(re.findall(r"^ +\d+ \|", text, re.M)) == 8
    reader.run(
        "CREATE TABLE three AS SELECT * FROM arch; CREATE TABLE three_copy AS TABLE arch; "
        "UPDATE three_copy SET model_id = 2; INSERT INTO three TABLE three_copy; "
        "UPDATE three_copy SET model_id = 3; INSERT INTO three TABLE three_copy"
    )
    shown(
        psql,
        f"SELECT madlib.mop_search('train_packed', 'several', 'three', {space}, 'random', 'trials=4, iterations=1')",
    )
    assert reader.value("SELECT count(*) FROM several_trials") == 4
    selection(reader, "slow", "arch", [(1, ADAM.format(0.01 * (k + 1)), "batch_size=1, epochs=9") for k in range(3)])
    other = reader.another()
    other.run("SET search_path = readme")
    calling = Calling(
        other, "SELECT madlib.madlib_keras_fit_multiple_model('train_packed', 'late', 'slow', 400, FALSE)"
    )
    try:
        assert eventually(lambda: is_under_way(reader), 60)
        run_id = reader.value("SELECT max(run_id) FROM madlib.mop_runs WHERE status = 'running'")
        shown(psql, control_requests.replace("(17,", f"({run_id},"))
        assert eventually(
            lambda: reader.value("SELECT count(*) FROM madlib.mop_trials WHERE run_id = %s", [run_id]) == 4, 60
        )
    finally:
        reader.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
        calling.end()
        other.close()
    reader.run("CREATE ROLE team")
    try:
        assert re.search(r"^ *team +\|.*\| t$", shown(psql, sharing), re.M)
    finally:
        reader.run("DROP ROLE team")


def test_sequences_procedures_and_limits_run_as_the_documents_have_them(psql, reader, trained):
    shown(psql, "DROP TABLE mst, mst_summary;" + "".join(blocks("docs/sequences.md")))
    assert reader.value("SELECT count(*) FROM mst") == 2
    shown(psql, "DROP TABLE models, models_info, models_summary;" + "".join(blocks("docs/reliability.md")))
    assert reader.value("SELECT min(array_length(training_loss, 1)) FROM models_info") == 1
    shown(
        psql,
        "".join(blocks("docs/security.md")) + "SELECT 'sessions: ' || sessions FROM madlib.mop_limit;"
        "DELETE FROM madlib.mop_limit",
    )


# --- several servers, as docs/postgres_fdw.md sets them up -----------------------------------------------------------
ROWS = """
CREATE TABLE data.digits AS SELECT i AS id, i % 3 AS label, array_fill((i % 3)::real, ARRAY[6, 6]) AS pixels
FROM generate_series(1, 90) AS i"""
NEW = "CREATE TABLE data.new_digits (id bigint, pixels real[])"


def test_several_servers_run_as_the_document_has_them():
    begin, there, straight, pack, copies, _joins, predict = blocks("docs/postgres_fdw.md")
    with contextlib.ExitStack() as stack:
        here, *workers = clusters = [stack.enter_context(Cluster(max_connections=40)) for _ in range(4)]

        def run(cluster, sql, user="postgres"):
            password = {"postgres": "secret", "analyst": "..."}[user]
            status, text = in_psql(sql, "127.0.0.1", cluster.port, "mop", user, password)
            assert status == 0, (sql, text)
            return text

        for cluster in clusters:
            with contextlib.closing(Client(cluster, "postgres")) as client:
                client.run("CREATE DATABASE mop")
            cluster.passwords("secret")
            run(cluster, begin)
        extension, *server = there.splitlines(keepends=True)
        run(here, extension + connection())
        for number, worker in enumerate(workers, 1):
            run(
                here,
                "".join(server)
                .replace("w1.example.com", "127.0.0.1")
                .replace("5432", str(worker.port))
                .replace("w1", f"w{number}"),
            )
        run(here, "CREATE SCHEMA analyst AUTHORIZATION analyst")
        with contextlib.closing(Client(here, "mop", "analyst", "...")) as analyst:
            analyst.run(ROWS)
            load(analyst, "arch", NET)
            selection(analyst, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.02, 0.03)])
            run(here, pack, "analyst")
            where = (
                "SELECT string_agg(DISTINCT srvname, ' ' ORDER BY srvname) FROM pg_foreign_table "
                "JOIN pg_foreign_server s ON s.oid = ftserver"
            )
            assert analyst.value(where) == "w1 w2" and analyst.value("SELECT count(*) FROM models") == 3
            parent, of_w1 = predict[: predict.index("CREATE FOREIGN")], predict[predict.index("CREATE FOREIGN") :]
            of_w1, call = of_w1.split(";   -- and so on\n")
            for worker in workers[:2]:
                run(worker, "CREATE TABLE data.new_digits (id bigint, pixels real[])", "analyst")
            run(
                here,
                parent
                + of_w1
                + ";"
                + of_w1.replace("digits_1", "digits_2").replace("REMAINDER 0", "REMAINDER 1").replace("w1", "w2")
                + "; INSERT INTO data.new_digits SELECT id, pixels FROM data.digits",
                "analyst",
            )
            run(here, call, "analyst")
            assert analyst.value("SELECT count(*) FROM predictions JOIN data.digits USING (id)") == 90
            # the coordinator's superuser gives the servers one another; a password it does not hand on
            for number in (1, 2, 3):
                run(
                    here,
                    f"CREATE USER MAPPING FOR postgres SERVER w{number} OPTIONS (user 'postgres', password 'secret')",
                )
            assert run(here, straight).count('ALTER USER MAPPING FOR "analyst"') == 6
            analyst.run(
                "DROP FOREIGN TABLE data.new_digits_1, data.new_digits_2; "
                "SELECT madlib.mop_drop_packed('data.digits_packed'); "
                "DROP TABLE models, models_info, models_summary"
            )
            run(here, copies, "analyst")
            assert analyst.value(where) == "w1 w2 w3" and analyst.value("SELECT count(*) FROM models") == 3

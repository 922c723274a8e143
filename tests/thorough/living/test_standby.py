"""A hot standby answers: predictions and reports of named models write nothing."""

import subprocess

import pytest

from support.client import Client
from support.cluster import Cluster, client_program, eventually
from support.forged import own_run


class Standby(Cluster):
    """A streaming replica of another cluster."""

    def __init__(self, primary):
        self.primary = primary
        super().__init__()

    def initialize_database(self):
        of = self.primary
        made = subprocess.run(
            [client_program("pg_basebackup"), "-h", of.host, "-p", str(of.port), "-U", "postgres"]
            + ["-D", str(self.data), "-R", "-c", "fast"],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self.configuration.items())


@pytest.fixture(scope="module")
def primary():
    with Cluster(wal_level="replica", max_wal_senders=4) as cluster:
        client = Client(cluster, "postgres")
        client.run(
            "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; SET search_path = public, madlib"
        )
        client.run(
            "CREATE TABLE beans AS SELECT i AS id, i % 7 AS size, 'kind ' || i % 40 AS form, (i % 5 > 2)::text AS y "
            "FROM generate_series(1, 80) i; SELECT mop_pack('beans', 'beans_packed', 'y', id => 'id'); "
            "SELECT mop_architecture('beans_nets', 'beans_packed', 'linear')"
        )
        client.run(
            "SELECT madlib_keras_fit('beans_packed', 'beans_fitted', 'beans_nets', 1, $$loss='categorical_crossentropy', "
            "optimizer='Adam()'$$, 'batch_size=8', 1)"
        )
        client.run("SELECT mop_deploy('beans_model', 'beans_fitted')")
        yield client
        client.close()


@pytest.fixture(scope="module")
def standby(primary):
    with Standby(primary.server) as cluster:
        client = Client(cluster, "postgres")
        assert client.value("SELECT pg_is_in_recovery()")
        client.run("SET search_path = public, madlib")
        yield client
        client.close()


ASKED = [
    "SELECT b.id, p.* FROM (SELECT * FROM beans ORDER BY id LIMIT 5) b, mop_predict('beans_model', b) AS p",
    "SELECT * FROM mop_predict('beans_model', source => 'beans', keep => 'id')",
    "SELECT * FROM mop_predict('beans_model', source => 'SELECT form FROM beans')",
    "SELECT * FROM mop_evaluate('beans_model', 'beans')",
    "SELECT * FROM mop_confusion_matrix('beans_model', 'SELECT * FROM beans WHERE id > 9') ORDER BY 1, 2",
    "SELECT * FROM mop_importance('beans_model', 'beans')",
    "SELECT e.* FROM beans b, mop_explain_answer('beans_model', b, source => 'beans') e WHERE b.id = 7",
    "SELECT * FROM mop_drift('beans_model', 'beans')",
    "SELECT mop_model_report('beans_model', 'beans', 'json')::jsonb - 'made_at'",
    "SELECT * FROM mop_feature_info('beans_model')",
    "SELECT name, version, in_use, owner FROM mop_models",
]


@pytest.mark.parametrize("ask", ASKED)
def test_the_standby_answers_as_the_primary(primary, standby, ask):
    answers = standby.run(ask)
    assert answers and answers == primary.run(ask)


def test_the_standby_follows_the_version_in_use(primary, standby):
    primary.run("SELECT mop_deploy('beans_model', 'beans_fitted')")
    in_use = "SELECT version FROM mop_models WHERE in_use"
    assert eventually(lambda: standby.value(in_use) == 2)
    assert standby.value("SELECT count(*) FROM mop_predict('beans_model', source => 'beans', version => 1)") == 80


def test_a_role_that_may_only_ask_asks_the_standby(primary, standby):
    primary.run(
        "CREATE ROLE asker LOGIN; GRANT mop_user TO asker; GRANT SELECT ON beans TO asker; "
        "SELECT mop_share('beans_model', 'asker', what => 'answers')"
    )
    ask = "SELECT count(madlib.mop_class('beans_model', b)) FROM beans b"
    arrived = (
        "SELECT attacl IS NOT NULL FROM pg_attribute WHERE attrelid = 'beans_model'::regclass AND attname = 'tableoid'"
    )
    assert eventually(lambda: standby.value(arrived))
    asker = standby.another("asker")
    assert asker.value(ask) == 80 and asker.error("SELECT * FROM beans_model").pgcode == "42501"
    asker.close()


def test_writing_is_refused_in_words(standby):
    for call in (
        "mop_predict_into('beans_model', 'beans', 'answers')",
        "mop_pack('beans', 'beans_again', 'y')",
        "mop_use_version('beans_model', 1)",
        "mop_train('beans', 'trained', 'y')",
    ):
        error = str(standby.error(f"SELECT {call}"))
        assert "read-only transaction" in error or "recovery" in error, error


def test_no_run_of_the_primary_is_lost_on_the_standby(primary, standby):
    primary.run("SET application_name = 'pg_mop test'")
    run = own_run(primary)
    primary.run("SELECT madlib.mop_reopen_run(%s, backend) FROM madlib.mop_tokens", [run])
    running = "SELECT count(*) FROM madlib.mop_run WHERE status = 'running'"
    assert eventually(lambda: standby.value(running) == 1)
    told = "SELECT runs_running, runs_lost FROM madlib.mop_monitoring"
    assert standby.run(told) == [{"runs_running": 0, "runs_lost": 0}]
    assert primary.run(told) == [{"runs_running": 1, "runs_lost": 0}]
    primary.run("SELECT madlib.mop_close_run(%s, 2, 'failed', NULL)", [run])
    primary.run("RESET application_name; SELECT madlib.mop_drop_run(%s)", [run])

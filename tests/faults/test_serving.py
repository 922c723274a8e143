"""Serving processes: who shares them, how many there are, and what a session has of one that ends."""

import os
import pathlib
import signal

import psycopg2
import pytest

from support.client import Calling, Client
from support.cluster import eventually, fork_servers
from support.trainers import trainers

ASK = "SELECT id, madlib.mop_number('{}', h) FROM houses h WHERE id <= {} ORDER BY id"
SERVING = "SELECT pid FROM madlib.mop_trainers WHERE state = 'serving' ORDER BY pid"


@pytest.fixture(scope="module")
def db(own):
    """With the models of a text `first`, and `other`, which has other weights."""
    client = Client(own, "postgres")
    client.run(
        "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; CREATE ROLE ana LOGIN; CREATE ROLE ben LOGIN; "
        "GRANT mop_user TO ana, ben; SET pg_mop.threads = 1; "
        "CREATE TABLE houses AS SELECT i AS id, (i % 7)::float AS a, (i % 7) * 2.0 AS price, "
        "'a note about the house ' || i || ' in ' || (ARRAY['York', 'Bath'])[1 + i % 2] AS note FROM generate_series(1, 200) i"
    )
    client.run(
        "SELECT madlib.mop_train('houses', 'first', 'price', max_trials => 1, baselines => FALSE, layers => 'linear', "
        "families => 'nets', time_limit => '4 s')"
    )
    client.run(
        "CREATE TABLE other AS TABLE first; "
        "UPDATE other SET model_weights = decode(repeat('00', octet_length(model_weights)), 'hex'); "
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO ana, ben"
    )
    yield client
    client.close()


@pytest.fixture(autouse=True)
def empty(db):
    """Each test begins with an empty pool."""
    assert eventually(lambda: not db.run("SELECT 1 FROM madlib.mop_trainers WHERE state IN ('leased', 'returning')"))
    db.run("SELECT madlib.mop_end_trainers()")
    assert db.run("SELECT * FROM madlib.mop_trainers") == []


@pytest.fixture
def sessions(db):
    """Makes sessions of a role."""
    made = []

    def make(count, role="ana"):
        made.extend(new := [db.another(role) for _ in range(count)])
        for client in new:
            client.run("SET pg_mop.threads = 1")
        return new

    yield make
    for client in made:
        client.close()


def serving(db):
    return [row["pid"] for row in db.run(SERVING)]


def ask(client, model="first", rows=3):
    return [row["mop_number"] for row in client.run(ASK.format(model, rows))]


# --- who shares which -------------------------------------------------------------------------------


def test_sessions_share_processes_and_models_in_them(db, sessions):
    """Four sessions come to one process. All that come share two, whose answers are those of a trainer."""
    alone, *clients = sessions(13)
    alone.run("SET pg_mop.serving_processes = 0")
    wanted = {model: pytest.approx(ask(alone, model), rel=1e-6) for model in ("first", "other")}
    assert wanted["first"] != wanted["other"] and not serving(db) and len(trainers()) == 1
    for number, client in enumerate(clients):
        for model in ("first", "other", "first"):
            assert ask(client, model) == wanted[model]
        assert len(serving(db)) == (1 if number < 4 else 2)
    assert len(trainers()) <= 1  # (that of the first session, for as long as it keeps it)
    row = db.run("SELECT * FROM madlib.mop_trainers WHERE state = 'serving'")[0]
    assert (row["role"], row["session_pid"], row["memory_bytes"] > 50_000_000) == ("ana", None, True)
    assert eventually(
        lambda: db.run("SELECT DISTINCT nets FROM madlib.mop_trainers WHERE state = 'serving'") == [{"nets": 2}]
    )
    for client in clients:
        client.close()
    assert ask(*sessions(1)) == wanted["first"] and len(serving(db)) == 2


def test_each_role_and_each_memory_limit_has_its_own(db, sessions):
    (ana,), (ben,), (root,) = sessions(1), sessions(1, "ben"), sessions(1, "postgres")
    ask(ana)
    of_ana = serving(db)
    ask(ben)
    of_both = serving(db)
    assert len(of_ana) == 1 and len(of_both) == 2
    for role in ("ana", "ben", "ana"):  # and so has a session that changes its role
        root.run(f"SET ROLE {role}")
        ask(root)
        root.run("RESET ROLE")
    assert serving(db) == of_both
    ask(root)
    assert {row["role"] for row in db.run("SELECT role FROM madlib.mop_trainers")} == {"ana", "ben", "postgres"}
    ana.run("SET pg_mop.trainer_memory_mb = 20000")
    ask(ana)
    assert len(serving(db)) == 4


def test_a_role_that_may_not_read_a_model_any_more_is_not_served(db, sessions):
    (ana,) = sessions(1)
    ask(ana)
    db.run("REVOKE SELECT ON first FROM ana")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        ask(ana)
    db.run("GRANT SELECT ON first TO ana")


def test_they_count_among_the_trainers_of_a_role(db, sessions):
    db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES ('ana', 1)")
    try:
        clients = sessions(6)
        for client in clients:
            ask(client)
        assert len(serving(db)) == 1
        alone, waiting = clients[:2]
        alone.run("SET pg_mop.serving_processes = 0")
        ask(alone)  # a trainer takes the place of the serving process
        assert not serving(db)
        with pytest.raises(psycopg2.Error, match="as many as it may have at once"):
            ask(waiting)
        alone.close()
        assert eventually(lambda: not trainers())
        ask(waiting)
        assert len(serving(db)) == 1 and not trainers()
    finally:
        db.run("DELETE FROM madlib.mop_limit")


def test_a_session_leases_a_trainer_where_there_is_no_fork_server(db, sessions):
    (ana,) = sessions(1)
    ana.run("SET pg_mop.fork_server_idle_timeout = 0")
    assert len(ask(ana)) == 3 and not serving(db) and len(trainers()) == 1


# --- how they end -----------------------------------------------------------------------------------


def test_a_killed_process_costs_one_retry(db, sessions):
    (ana,) = sessions(1)
    wanted = ask(ana)
    (pid,) = serving(db)
    os.kill(pid, signal.SIGKILL)  # between two requests
    assert ask(ana) == pytest.approx(wanted)
    (again,) = serving(db)
    assert again != pid
    os.kill(again, signal.SIGSTOP)
    call = Calling(ana, ASK.format("first", 3))
    assert eventually(lambda: waits(db, ana))
    os.kill(again, signal.SIGKILL)  # while a session waits
    assert call.end() is None and not trainers()
    assert len(serving(db)) == 1 and ask(ana) == pytest.approx(wanted)


def test_a_stopped_process_is_replaced(db, sessions):
    (ana,) = sessions(1)
    wanted = ask(ana)
    (pid,) = serving(db)
    os.kill(pid, signal.SIGSTOP)
    assert ask(ana) == pytest.approx(wanted)
    assert pid not in serving(db) and not pathlib.Path(f"/proc/{pid}").exists() and not trainers()


def waits(db, client):
    """Whether a session is within a statement, which it stays while its process is stopped."""
    return db.value(
        "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s", [client.connection.info.backend_pid]
    )


def test_a_cancelled_session_leaves_nothing_behind(db, sessions):
    ana, other = sessions(2)
    wanted = ask(ana), ask(ana, "other")
    ask(other)
    (pid,) = serving(db)
    os.kill(pid, signal.SIGSTOP)
    call = Calling(ana, ASK.format("first", 3))
    assert eventually(lambda: waits(db, ana))
    db.run("SELECT pg_cancel_backend(%s)", [ana.connection.info.backend_pid])
    assert isinstance(call.end(), psycopg2.errors.QueryCanceled)
    os.kill(pid, signal.SIGCONT)
    assert (ask(ana, "other"), ask(other)) == (pytest.approx(wanted[1]), pytest.approx(wanted[0]))
    assert serving(db) == [pid] and not trainers()


def test_they_end_with_the_fork_server_and_by_request(own, db, sessions):
    (ana,) = sessions(1)
    ask(ana)
    (pid,) = serving(db)
    for pool in fork_servers(own):
        os.kill(pool, signal.SIGKILL)
    assert eventually(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    assert len(ask(ana)) == 3
    assert ana.value("SELECT madlib.mop_end_trainers()") == 1 and not serving(db)


def test_a_process_without_requests_is_idle_and_ends(db, sessions):
    (ana,) = sessions(1)
    ana.run("SET pg_mop.session_idle_timeout = '100ms'")
    ask(ana)
    assert eventually(lambda: not db.run("SELECT 1 FROM madlib.mop_trainers"))
    assert len(ask(ana)) == 3

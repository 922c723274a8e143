"""What `make soak` has found, caused on purpose."""

import time

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, assert_invariants, dense, holding, last_run, load, make_data, selection


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=1)
    db.run(f"ALTER DATABASE \"{db.database}\" SET pg_mop.kernel = 'plain'")
    load(db, "arch", dense())
    selection(
        db,
        "mst",
        "arch",
        [(1, ADAM.format(0.01), "batch_size=1, epochs=10"), (1, ADAM.format(0.02), "batch_size=1, epochs=10")],
    )
    db.run(
        "DROP ROLE IF EXISTS soaked; CREATE ROLE soaked LOGIN; GRANT mop_user TO soaked; CREATE SCHEMA soaked "
        "AUTHORIZATION soaked; GRANT SELECT ON ALL TABLES IN SCHEMA public TO soaked"
    )
    yield "flowers_packed"
    db.run("DROP OWNED BY soaked CASCADE; DROP ROLE soaked")


def call(output, iterations=3, mst="mst"):
    return f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{output}', '{mst}', {iterations}, FALSE)"


def in_a_unit(db, output, after=0, meanwhile=lambda: None):
    """Wait until the run of `output` has committed so many units and trains another. Until then `meanwhile` is called again and
    again."""
    assert eventually(
        lambda: (
            db.run(
                "SELECT 1 FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE r.model_output_table = %s AND "
                "u.status = 'running' AND (SELECT count(*) FROM madlib.mop_units f WHERE f.run_id = r.run_id "
                "AND f.status = 'finished') >= %s",
                [output, after],
            )
            or meanwhile()
        ),
        120,
    )


def test_a_run_whose_end_could_not_be_noted_goes_on_in_the_same_session(db, data):
    """While its role may open no session, a cancelled call cannot close its run: nobody runs it, though."""
    client = db.another("soaked")
    client.run("SET pg_mop.lock_timeout = '300s'")
    with holding(db.another()) as let_some_begin:  # (it does not end before it is cancelled)
        running = Calling(client, call("soaked.open", 2))
        in_a_unit(db, "soaked.open", 1, let_some_begin)
        run_id = last_run(db)
        db.run("ALTER ROLE soaked CONNECTION LIMIT 0")
        db.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'soaked' "
            "AND application_name = 'pg_mop catalog'"
        )
        db.run("SELECT pg_cancel_backend(%s)", [client.connection.info.backend_pid])
        assert running.end() is not None
    db.run("ALTER ROLE soaked CONNECTION LIMIT -1")
    assert db.value("SELECT status FROM madlib.mop_run WHERE run_id = %s", [run_id]) == "running"
    client.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert db.value("SELECT status FROM madlib.mop_run WHERE run_id = %s", [run_id]) == "finished"
    assert_invariants(db, run_id)
    client.close()


def test_a_resume_at_once_does_not_repeat_what_the_earlier_session_still_commits(db, data):
    """A worker session outlives its coordinator by up to half a second, in which it may commit its unit: here, after
    mop_resume has looked at the log for the first time."""

    def waits(pid):
        return db.run("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", [pid])

    client, watcher, rows, source = (db.another() for _ in range(4))
    watcher.error("SELECT madlib.mop_resume(999999)")  # its modules are loaded
    for session in (client, watcher):
        session.run("SET pg_mop.lock_timeout = '300s'")
    running = Calling(client, call("at_once", 2))
    in_a_unit(db, "at_once", after=1)
    run_id, pid = last_run(db), client.connection.info.backend_pid
    rows.run("BEGIN")
    at_work = "SELECT backend_pid FROM madlib.mop_unit WHERE run_id = %s AND status = 'running' FOR UPDATE"
    worker = eventually(lambda: rows.value(at_work, [run_id]))  # (none between two units)
    assert eventually(lambda: waits(worker)), "its unit is done but for the commit"
    locking = Calling(source, "BEGIN; LOCK TABLE flowers_packed IN ROW EXCLUSIVE MODE")
    watcher.run("SELECT pg_terminate_backend(%s)", [pid])
    while watcher.run("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]):
        pass
    resuming = Calling(watcher, f"SELECT madlib.mop_resume({run_id})")
    assert eventually(lambda: waits(watcher.connection.info.backend_pid) or resuming.error)
    rows.run("COMMIT")
    time.sleep(0.1)
    assert locking.end() is None
    source.run("COMMIT")
    assert resuming.end() is None and running.end() is not None
    assert_invariants(db, run_id)
    for session in (client, watcher, rows, source):
        session.close()


def test_the_servers_log_is_not_filled_by_every_unit(db, data, server):
    warnings = server.said().count("there is no transaction in progress")
    db.run(call("quiet", 1))
    assert server.said().count("there is no transaction in progress") == warnings


@pytest.mark.parametrize("how", ["the same call", "mop_resume"])
def test_averaging_that_had_too_little_memory_goes_on_with_more(db, data, how):
    """A memory limit is not the configuration's fault: it was marked as failed for ever, and the same call with it."""
    make_data(db, "two", segments=2)
    load(db, "wide", dense(1_500_000))  # 48 MB, with Adam's variables three times that
    client, output = db.another(), "averaged_" + how.split()[0]
    client.run("SET pg_mop.trainer_memory_mb = 256")
    sql = (
        f"SELECT madlib.madlib_keras_fit('two_packed', '{output}', 'wide', 1, $${ADAM.format(0.01)}$$, "
        f"'batch_size=10', 1)"
    )
    assert "training failed" in str(client.error(sql))
    client.run("RESET pg_mop.trainer_memory_mb")
    run_id = last_run(db)
    client.run(sql if how == "the same call" else f"SELECT madlib.mop_resume({run_id})")
    assert last_run(db) == run_id and db.value(f"SELECT count(*) FROM {output}") == 1
    client.close()


def test_the_catalog_session_may_end_while_it_opens_the_run(db, data):
    client, locker = db.another(), db.another()

    def catalog_that_waits():
        return db.value(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = "
            "'Lock' AND application_name = 'pg_mop catalog'"
        )

    locker.run("BEGIN; LOCK TABLE madlib.mop_configuration IN SHARE ROW EXCLUSIVE MODE")
    running = Calling(client, call("steady", 1))
    assert db.run("SELECT pg_terminate_backend(%s)", [eventually(catalog_that_waits)])
    time.sleep(0.2)
    locker.run("COMMIT")
    assert running.end() is None
    assert_invariants(db, last_run(db))
    for session in (client, locker):
        session.close()

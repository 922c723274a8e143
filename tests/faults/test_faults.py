"""What is killed, cancelled or taken away while a run works, and what remains: each fault is caused for real."""

import os
import signal
import threading
import time

import psycopg2
import pytest

from support.cluster import eventually
from support.trainers import of_backend, trainers
from support.tries import tries
from support.workload import ADAM, assert_invariants, dense, fit, last_run, load, make_data, selection

SLOW = "batch_size=1, epochs=30"


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=1)
    # units that last, and equal bytes whatever the clock says
    db.run(f"ALTER DATABASE \"{db.database}\" SET pg_mop.kernel = 'plain'; SET pg_mop.kernel = 'plain'")
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.01), SLOW), (1, ADAM.format(0.02), SLOW)])
    selection(db, "one", "arch", [(1, ADAM.format(0.01), SLOW)])
    selection(db, "quick", "arch", [(1, ADAM.format(0.01), "batch_size=10")])
    fit(db, "flowers_packed", "undisturbed", "mst", 1)
    return "flowers_packed"


class Background:
    """A call of fit_multiple in a thread, of one iteration; `error` is what it raised."""

    def __init__(self, client, output, packed="flowers_packed", mst="mst"):
        self.client, self.error = client, None
        self.thread = threading.Thread(target=self._run, args=(packed, output, mst))
        self.thread.start()

    def _run(self, *arguments):
        try:
            self.run_id = fit(self.client, *arguments, 1)
        except psycopg2.Error as error:
            self.error = error
        self.ended = time.monotonic()

    def join(self):
        self.thread.join(300)
        assert not self.thread.is_alive()


def in_a_unit(watcher, output, after=0):
    """Wait until the run of `output` has committed `after` units and trains another; that unit's row."""
    rows = eventually(
        lambda: watcher.run(
            "SELECT u.* FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE r.model_output_table = %s "
            "AND u.status = 'running' AND u.started_at < clock_timestamp() - interval '0.3 s' "
            "AND (SELECT count(*) FROM madlib.mop_units f WHERE f.run_id = r.run_id AND f.status = 'finished') >= %s",
            [output, after],
        ),
        120,
    )
    assert rows, "no unit was seen running"
    return rows[0]


def weights(client, table):
    return client.run(f"SELECT mst_key, model_weights::text FROM {table} ORDER BY 1")


@pytest.mark.parametrize("fault", ["the worker session terminated", "the trainer killed"])
def test_a_killed_worker_loses_no_unit(db, data, server, fault):
    watcher = db.another()
    postmaster = watcher.value("SELECT pg_postmaster_start_time()")
    output = "disturbed_" + fault.split()[1]
    call = Background(db, output)
    unit = in_a_unit(watcher, output, after=1)
    if fault == "the trainer killed":
        children = [p for p in trainers() if of_backend(p) == unit["backend_pid"]]
        assert len(children) == 1
        os.kill(children[0], signal.SIGKILL)
    else:
        watcher.run("SELECT pg_terminate_backend(%s)", [unit["backend_pid"]])
    call.join()
    assert call.error is None
    assert_invariants(db, call.run_id)
    attempts = watcher.run(
        "SELECT status, error, attempt, decision FROM madlib.mop_units WHERE run_id = %s AND mst_key = %s "
        "AND iteration = %s AND kind = 'train' ORDER BY attempt",
        [call.run_id, unit["mst_key"], unit["iteration"]],
    )
    assert [a["status"] for a in attempts] == ["failed", "finished"] and attempts[0]["error"]
    lost = "the trainer was lost" if fault == "the trainer killed" else "the worker session was lost"
    assert [a["decision"] for a in attempts] == [f"retried in 0.5 s: {lost}", None]
    # one segment: any order of the configurations is the undisturbed one
    assert weights(db, output) == weights(db, "undisturbed")
    assert watcher.value("SELECT pg_postmaster_start_time()") == postmaster, "the server never restarted"
    watcher.close()


def test_a_cancel_is_told_by_its_sqlstate(db):
    """One that arrives while an INFO is sent comes from plpy.info, as a plpy.Error."""
    client = db.another()
    client.run("SELECT madlib.training_preprocessor_dl()")  # the packages can be imported now
    client.run(
        "CREATE FUNCTION pg_temp.cancelled_at(what text) RETURNS text[] LANGUAGE plpython3u AS $$\n"
        "import os, signal\nfrom pg_mop.run.ending import outcome_of as _outcome\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "try:\n    plpy.info('told') if what == 'info' else plpy.execute('SELECT 1')\n"
        "except BaseException as error:\n    return type(error).__name__, *_outcome(error)\n$$"
    )
    for what, kind in ("info", "Error"), ("execute", "QueryCanceled"):
        assert client.value("SELECT pg_temp.cancelled_at(%s)", [what]) == [
            kind,
            "cancelled",
            "canceling statement due to user request",
        ]
    client.close()


@pytest.mark.parametrize("how", ["pg_cancel_backend", "statement_timeout"])
def test_cancel_stops_everything_within_two_seconds_and_keeps_committed_units(db, data, how):
    for once in tries():  # (the machine may stand still meanwhile)
        once.counts = seconds_of_a_stop(db, how, f"stopped_{how}_{once.number}") < 2


def seconds_of_a_stop(db, how, output):
    """The time from a cancel, or from the end of a call by a timeout, until no trainer and no session of the run is left."""
    client, watcher = db.another(), db.another()
    before, sessions = set(trainers()), session_count(watcher)
    if how == "statement_timeout":
        client.run("SET statement_timeout = '10s'")
        selection(
            client, "mst_long", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=400") for rate in (0.01, 0.02)]
        )
    call = Background(client, output, mst="mst" if how == "pg_cancel_backend" else "mst_long")
    if how == "pg_cancel_backend":
        in_a_unit(watcher, output, after=1)
        stopped = time.monotonic()
        watcher.run("SELECT pg_cancel_backend(%s)", [client.connection.info.backend_pid])
    call.join()
    assert isinstance(call.error, psycopg2.errors.QueryCanceled)
    if how == "statement_timeout":
        stopped = call.ended
    assert eventually(lambda: set(trainers()) <= before), "no trainer is left"
    assert eventually(lambda: session_count(watcher) == sessions), "no session of the run is left"
    seconds = time.monotonic() - stopped
    run = watcher.run("SELECT * FROM madlib.mop_runs WHERE model_output_table = %s", [output])[0]
    assert run["status"] == "cancelled" and run["finished_at"]
    statuses = {
        r["status"]
        for r in watcher.run("SELECT DISTINCT status FROM madlib.mop_units WHERE run_id = %s", [run["run_id"]])
    }
    assert "running" not in statuses
    if how == "pg_cancel_backend":
        kept = watcher.value(
            "SELECT count(*) FROM madlib.mop_stage_state WHERE run_id = %s AND version > 0", [run["run_id"]]
        )
        assert kept > 0 and "finished" in statuses
    assert watcher.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'stopped%'") == 0
    client.close()
    watcher.close()
    return seconds


def session_count(watcher):
    return watcher.value(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%' AND datname = current_database()"
    )


def test_a_client_that_goes_takes_its_run_along(db, data):
    client, watcher = db.another(), db.another()
    before = set(trainers())
    call = Background(client, "orphan")
    in_a_unit(watcher, "orphan")
    watcher.run("SELECT pg_terminate_backend(%s)", [client.connection.info.backend_pid])
    call.join()
    assert call.error is not None
    assert eventually(lambda: set(trainers()) <= before), "no trainer is left"
    # the next call of the same role closes what was left open
    fit(db, data, "next_one", "quick", 1)
    run = watcher.run("SELECT * FROM madlib.mop_runs WHERE model_output_table = 'orphan'")[0]
    assert run["status"] == "failed" and "ended" in run["error"]
    watcher.close()


def test_a_source_that_changes_during_the_run_is_not_trained_on_silently(db, data):
    """A role that may only read the source cannot lock it: the change is detected."""
    db.run(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN; GRANT mop_user TO reader; GRANT USAGE, CREATE ON "
        "SCHEMA public TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"
    )
    client = db.another(user="reader")
    call = Background(client, "changed")
    in_a_unit(db, "changed")
    db.run("UPDATE flowers_packed SET buffer_id = buffer_id + 0 WHERE buffer_id = 0")
    call.join()
    assert call.error is not None and "have changed since the run began" in str(call.error)
    client.close()
    db.run("DROP OWNED BY reader CASCADE; DROP ROLE reader")


def test_a_run_keeps_writers_from_its_source(db, data):
    watcher = db.another()
    call = Background(db, "locked", mst="one")
    in_a_unit(watcher, "locked")
    watcher.run("SET lock_timeout = '200ms'")
    assert isinstance(watcher.error("DELETE FROM flowers_packed"), psycopg2.errors.LockNotAvailable)
    assert watcher.value("SELECT count(*) FROM flowers_packed") > 0
    call.join()
    assert call.error is None and last_run(db) == call.run_id
    watcher.close()

"""The procedure trains as the function does, and holds nothing while it waits."""

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, dense, ended_early, is_under_way, load, make_data, selection

CALL = "CALL madlib.mop_fit_multiple_model('flowers_packed', '{}', 'mst', {}, FALSE)"
SELECT = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{}', 'mst', {}, FALSE)"
SETTINGS = "SET pg_mop.seed = 3; SET pg_mop.threads = 1; SET pg_mop.kernel = loop; SET pg_mop.scheduler = 'round-robin'"
LONG = 2000  # iterations: cancelled long before


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(lr), "batch_size=8") for lr in (0.05, 0.01)])
    db.run(SETTINGS)


def models(db, name):
    return [(r["mst_key"], bytes(r["model_weights"])) for r in db.run(f"SELECT * FROM {name} ORDER BY mst_key")]


def test_it_gives_what_the_function_gives(db, data):
    db.run(SELECT.format("by_function", 2))
    db.run(CALL.format("by_procedure", 2))
    assert models(db, "by_function") == models(db, "by_procedure") and len(models(db, "by_procedure")) == 2
    assert db.value("SELECT status FROM madlib.mop_runs ORDER BY run_id DESC LIMIT 1") == "finished"
    assert db.value("SELECT current_setting('search_path')") == '"$user", public'
    assert db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_mop locks'") == 0


def removable(watcher, seconds):
    """Whether VACUUM can remove rows that were deleted after the call began, within so many seconds."""
    watcher.run(
        "DROP TABLE IF EXISTS other; CREATE TABLE other WITH (autovacuum_enabled = off) AS "
        "SELECT generate_series(1, 100) AS i; DELETE FROM other"
    )
    watcher.connection.notices.clear()

    def removed():
        watcher.run("VACUUM (VERBOSE) other")
        return "100 removed, 0 remain, 0 are dead but not yet removable" in "".join(watcher.connection.notices)

    return eventually(removed, seconds)


@pytest.mark.parametrize("call,holds", [(CALL, False), (SELECT, True)], ids=["procedure", "function"])
def test_vacuum_of_other_tables_is_not_held_back_while_it_trains(db, data, call, holds):
    caller, watcher = db.another(), db.another()
    pid = caller.connection.info.backend_pid
    calling = Calling(caller, call.format("long", LONG))
    assert eventually(lambda: is_under_way(watcher), 60)
    assert removable(watcher, 5 if holds else 60) != holds
    seen = []

    def holds_nothing():
        seen.extend(watcher.run("SELECT backend_xmin, backend_xid FROM pg_stat_activity WHERE pid = %s", [pid]))
        return seen[-1]["backend_xmin"] is None

    assert bool(eventually(holds_nothing, 1 if holds else 60)) != holds
    assert all(s["backend_xid"] is None for s in seen)
    # nobody writes to the rows, nor trains into the same output, meanwhile
    watcher.run("SET lock_timeout = '200ms'")
    assert isinstance(watcher.error("DELETE FROM flowers_packed"), psycopg2.errors.LockNotAvailable)
    assert "another session is training into" in str(watcher.error(SELECT.format("long", 1)))
    watcher.run("SELECT pg_cancel_backend(%s)", [pid])
    assert isinstance(calling.end(), psycopg2.errors.QueryCanceled)
    assert watcher.value("SELECT status FROM madlib.mop_runs ORDER BY run_id DESC LIMIT 1") == "cancelled"
    assert watcher.value("SELECT to_regclass('long')") is None
    watcher.run("BEGIN; LOCK TABLE flowers_packed IN EXCLUSIVE MODE; ROLLBACK")
    watcher.run("SELECT madlib.mop_drop_run(max(run_id)) FROM madlib.mop_runs")
    for client in (caller, watcher):
        client.close()


def test_what_it_waits_for_can_be_given_up(db, data):
    """A lock that another holds, with a long time to wait for it."""
    holder, caller = db.another(), db.another()
    holder.run("BEGIN; LOCK TABLE flowers_packed IN ROW EXCLUSIVE MODE")
    caller.run("SET pg_mop.lock_timeout = '1h'; SET statement_timeout = '2s'")
    assert isinstance(caller.error(CALL.format("waits", 1)), psycopg2.errors.QueryCanceled)
    caller.run("SET pg_mop.lock_timeout = '1s'; SET statement_timeout = 0")
    assert "is locked by another transaction" in str(caller.error(CALL.format("waits", 1)))
    caller.run("SET pg_mop.lock_timeout = '1h'")
    calling = Calling(caller, CALL.format("waits", 1))
    assert eventually(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_mop locks'"))
    holder.run("ROLLBACK")
    assert calling.end() is None and len(models(db, "waits")) == 2
    for client in (holder, caller):
        client.close()


def test_a_lost_session_of_its_locks_is_made_good(db, data):
    caller, watcher = db.another(), db.another()
    calling = Calling(caller, CALL.format("held", LONG))
    lock = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pg_mop locks'"
    assert eventually(lambda: is_under_way(watcher), 60)
    first = watcher.value(lock)
    watcher.run("SELECT pg_terminate_backend(%s)", [first])
    assert eventually(lambda: watcher.value(lock) not in (None, first))
    watcher.run("SET lock_timeout = '200ms'")
    assert eventually(
        lambda: watcher.value(
            "SELECT count(*) FROM pg_locks WHERE mode = 'ShareLock' AND granted AND "
            "relation = 'flowers_packed'::regclass"
        )
    )
    assert isinstance(watcher.error("DELETE FROM flowers_packed"), psycopg2.errors.LockNotAvailable)
    assert "another session is training into" in str(watcher.error(SELECT.format("held", 1)))
    watcher.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
    assert isinstance(calling.end(), psycopg2.errors.QueryCanceled)
    watcher.run("SELECT madlib.mop_drop_run(max(run_id)) FROM madlib.mop_runs")
    for client in (caller, watcher):
        client.close()


def test_the_same_call_again_goes_on(db, data):
    caller = db.another()
    caller.run(SETTINGS)
    assert isinstance(ended_early(db, caller, CALL.format("again", 40), 0), psycopg2.errors.QueryCanceled)
    runs = db.value("SELECT count(*) FROM madlib.mop_runs")
    db.run(CALL.format("again", 40))
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == runs and len(models(db, "again")) == 2


def test_within_a_transaction_it_says_what_to_call_instead(db, data):
    db.run("BEGIN")
    error = db.error(CALL.format("within", 1))
    assert "cannot be called within a transaction block" in str(error)
    assert "madlib_keras_fit_multiple_model(...)" in error.diag.message_hint
    # nor from a function, which has its caller's transaction
    assert "transaction block" in str(
        db.error(
            "DO $$ BEGIN BEGIN " + CALL.format("within", 1) + "; EXCEPTION WHEN sqlstate '22000' THEN NULL; END; END $$"
        )
    )
    assert db.value("SELECT to_regclass('within')") is None


def test_bad_input_is_an_error_of_the_procedure(db, data):
    error = db.error("CALL madlib.mop_fit_multiple_model('nowhere', 'x', 'mst', 1, FALSE)")
    assert "mop_fit_multiple_model: source table 'nowhere' does not exist" in str(error)
    assert db.value("SELECT current_setting('search_path')") == '"$user", public'


def test_a_callers_search_path_means_the_same_to_the_end(db, data):
    """The path is the caller's again after every commit: our own SQL must not see it then."""
    db.run(
        "CREATE SCHEMA mine; CREATE TABLE mine.mst AS TABLE mst; "
        "CREATE TABLE mine.mst_summary AS TABLE mst_summary; "
        "CREATE FUNCTION mine.md5(bytea) RETURNS text LANGUAGE sql AS $$ SELECT 'shadow' $$; "
        "CREATE FUNCTION mine.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT NULL::timestamptz $$"
    )
    client = db.another()
    client.run("SET search_path = mine, pg_catalog, public")
    client.run(CALL.format("there", 1))
    assert len(models(client, "mine.there")) == 2
    assert client.value("SELECT end_training_time FROM mine.there_summary") is not None
    client.close()

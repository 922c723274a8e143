"""A run that was stopped goes on; a finished one is done again; sessions come and go while one runs."""

import os
import signal
import time

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.trainers import of_backend, trainers
from support.workload import (
    ADAM,
    assert_invariants,
    dense,
    ended_early,
    fit,
    holding,
    last_run,
    load,
    make_data,
    selection,
    weights,
)

START = """SELECT madlib.mop_start_trainer(
    '{"threads": 1, "keras_backend": "tensorflow", "cache_mb": 1, "idle_ms": 0}')"""


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=1)
    make_data(db, "three", segments=3)
    db.run(
        f"ALTER DATABASE \"{db.database}\" SET pg_mop.kernel = 'plain'; SET pg_mop.kernel = 'plain'; "
        f'ALTER DATABASE "{db.database}" SET pg_mop.threads = 1; SET pg_mop.threads = 1; '
        f'ALTER DATABASE "{db.database}" SET pg_mop.seed = 5'
    )
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=8"), (1, ADAM.format(0.02), "batch_size=8")])
    fit(db, "flowers_packed", "undisturbed", "mst", 3)
    return "flowers_packed"


def call(output, packed="flowers_packed", mst="mst", iterations=3):
    return f"SELECT madlib.madlib_keras_fit_multiple_model('{packed}', '{output}', '{mst}', {iterations}, FALSE)"


def finished(watcher, run_id):
    return watcher.run(
        "SELECT mst_key, iteration, kind, segment, finished_at FROM madlib.mop_units WHERE run_id = %s "
        "AND status = 'finished' ORDER BY 1, 2, 3, 4",
        [run_id],
    )


def stopped(db, output, units=2, **how):
    """The run of a call that was cancelled after so many units."""
    client = db.another()
    assert isinstance(ended_early(db, client, call(output, **how), units - 1), psycopg2.errors.QueryCanceled)
    client.close()
    return last_run(db)


def test_a_cancelled_run_goes_on_where_it_was_and_ends_with_the_undisturbed_weights(db, data):
    run_id = stopped(db, "resumed")
    before = finished(db, run_id)
    assert db.run(
        "SELECT run_id, to_go_on FROM madlib.mop_abandoned_runs WHERE run_id = %s AND state_bytes > 0", [run_id]
    ) == [{"run_id": run_id, "to_go_on": f"SELECT madlib.mop_resume({run_id});"}]
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert (
        last_run(db) == run_id
        and db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "finished"
    )
    assert_invariants(db, run_id)
    after = finished(db, run_id)
    assert len(after) > len(before) and all(unit in after for unit in before), "what was committed was not done again"
    assert weights(db, "resumed") == weights(db, "undisturbed")
    assert "is finished" in str(db.error("SELECT madlib.mop_resume(%s)", [run_id]))
    assert "is finished" in str(db.error("SELECT madlib.mop_resume(%s::bigint)", [run_id]))
    assert "there is no run 999999" in str(db.error("SELECT madlib.mop_resume(999999)"))
    assert "there is no run NULL" in str(db.error("SELECT madlib.mop_resume(NULL)"))


def test_the_same_call_again_goes_on_and_says_so(db, data):
    run_id = stopped(db, "again")
    db.connection.notices.clear()
    db.run(call("again"))
    assert any(f"going on with run {run_id} of the same call" in n for n in db.connection.notices)
    assert last_run(db) == run_id and weights(db, "again") == weights(db, "undisturbed")


@pytest.mark.parametrize(
    "change,reason",
    [
        ("SET pg_mop.resume = off", None),
        ("SET pg_mop.seed = 99", "pg_mop.seed was"),
        ("UPDATE mst_x SET fit_params = 'batch_size=2' WHERE mst_key = 1", "its configurations are others"),
        ("UPDATE flowers_packed SET buffer_id = buffer_id", "the packed rows have changed"),
    ],
)
def test_another_call_begins_anew_and_says_why(db, data, change, reason):
    db.run(
        "DROP TABLE IF EXISTS mst_x, mst_x_summary; CREATE TABLE mst_x AS TABLE mst; "
        "CREATE TABLE mst_x_summary AS TABLE mst_summary"
    )
    output = f"anew_{last_run(db)}"
    run_id = stopped(db, output, units=1, mst="mst_x")
    client = db.another()
    client.run(change)
    client.run("UPDATE mst_x SET fit_params = 'batch_size=20'") if reason is None else None
    client.run(call(output, mst="mst_x", iterations=3))
    assert last_run(db) == run_id + 1
    assert reason is None or any(
        reason in n and f"run {run_id} of the same call" in n for n in client.connection.notices
    )
    assert any("going on" in n for n in client.connection.notices) is False
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])
    client.close()


def test_a_run_does_not_go_on_with_rows_that_have_changed(db, data):
    make_data(db, "other", segments=1)
    run_id = stopped(db, "changed", packed="other_packed", units=1)
    db.run("UPDATE other_packed SET buffer_id = buffer_id")
    assert "have changed since run" in str(db.error("SELECT madlib.mop_resume(%s)", [run_id]))
    assert db.value("SELECT state_bytes > 0 FROM madlib.mop_runs WHERE run_id = %s", [run_id]), "and loses nothing"
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE %s", [f"mop_state_{run_id}_%"]) == 0


@pytest.mark.parametrize("sessions", [1, 3, 5])
def test_a_replay_gives_the_same_bytes_on_any_number_of_sessions(db, data, sessions):
    if db.value("SELECT to_regclass('original')") is None:
        selection(db, "mst4", "arch", [(1, ADAM.format(r), "batch_size=8") for r in (0.01, 0.02, 0.03, 0.04)])
        fit(db, "three_packed", "original", "mst4", 3)
    run_id = db.value("SELECT run_id FROM madlib.mop_runs WHERE model_output_table = 'original'")
    db.run(f"SET pg_mop.sessions = {sessions}")
    db.run("SELECT madlib.mop_replay(%s, %s)", [run_id, f"replay_{sessions}"])
    db.run("RESET pg_mop.sessions")
    replay = last_run(db)
    assert replay > run_id and weights(db, f"replay_{sessions}") == weights(db, "original")
    order = (
        "SELECT mst_key, iteration, position, segment FROM madlib.mop_visit_order WHERE run_id = %s ORDER BY 1, 2, 3"
    )
    assert db.run(order, [replay]) == db.run(order, [run_id])
    used = db.value("SELECT count(DISTINCT backend_pid) FROM madlib.mop_units WHERE run_id = %s", [replay])
    assert used == min(sessions, 3)
    assert_invariants(db, replay)


def test_a_replay_of_weights_that_are_gone_says_so(db, data):
    db.run("DROP TABLE IF EXISTS warm_arch")
    db.run("CREATE TABLE warm_arch AS TABLE arch")
    db.run("UPDATE warm_arch SET model_weights = (SELECT model_weights FROM undisturbed WHERE mst_key = 1)")
    selection(db, "warm_mst", "warm_arch", [(1, ADAM.format(0.01), "batch_size=20")])
    fit(db, "flowers_packed", "warm", "warm_mst", 1)
    run_id = last_run(db)
    db.run("SELECT madlib.mop_replay(%s, 'warm2')", [run_id])
    assert weights(db, "warm2") == weights(db, "warm")
    db.run("UPDATE warm_arch SET model_weights = NULL")
    assert "initial weights of mst_key 1" in str(db.error("SELECT madlib.mop_replay(%s, 'warm3')", [run_id]))
    cancelled = stopped(db, "never", units=1)
    assert "has not been trained to its end" in str(db.error("SELECT madlib.mop_replay(%s, 'warm3')", [cancelled]))
    db.run("SELECT madlib.mop_drop_run(%s)", [cancelled])


def stage_of(db, run_id, mst_key, iteration):
    return db.value(
        "SELECT stage FROM madlib.mop_request WHERE (run_id, mst_key, iteration) = (%s, %s, %s)",
        [run_id, mst_key, iteration],
    )


def test_sessions_of_the_coordinator_before_do_not_disturb_the_one_that_took_over(db, data):
    run_id = stopped(db, "taken_over", units=2)
    stale, client = db.another(), db.another()
    stage = stage_of(db, run_id, 2, 3)
    begin = (
        f"SELECT madlib.mop_begin_units({run_id}, 1, 'train', 'training', '{{{stage}}}', '{{3}}', ARRAY[%s], '{{7}}', "
        "'{{0}}')"
    )
    stale.run("BEGIN")
    stale.run(begin, [0])
    resuming = Calling(client, f"SELECT madlib.mop_resume({run_id})")
    assert eventually(
        lambda: db.value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_mop catalog' AND wait_event_type = 'Lock'"
        )
    )
    stale.run("COMMIT")
    assert resuming.end() is None
    assert weights(db, "taken_over") == weights(db, "undisturbed")
    assert db.run(
        "SELECT attempt, status FROM madlib.mop_units WHERE run_id = %s AND (mst_key, iteration, kind)"
        " = (2, 3, 'train') ORDER BY 1",
        [run_id],
    ) == [{"attempt": 7, "status": "cancelled"}, {"attempt": 8, "status": "finished"}]
    late = [
        begin.replace("{7}", "{9}") % 0,
        f"SELECT madlib.mop_take_states({run_id}, 1, '{{1}}', '{{3}}', true)",
        f"SELECT madlib.mop_take_states({run_id}, 1, '{{1}}', '{{3}}', false)",
        f"SELECT madlib.mop_fail_unit({run_id}, 1, 1, 3, 0, 'train', 'training', 9, 0, 'x')",
        f"SELECT madlib.mop_fail_configurations({run_id}, 1, '{{1}}', 'x', 'infrastructure')",
        f"SELECT madlib.mop_close_run({run_id}, 1, 'failed', 'x')",
    ]
    for sql in late:
        assert "taken over by another session" in str(stale.error(sql)), sql
    assert_invariants(db, run_id)
    client.close()
    stale.close()


def test_sessions_that_wait_while_a_run_is_taken_over_see_that_it_was(db, data):
    run_id = stopped(db, "waited_for", units=2)
    taker, stale = db.another(), [db.another(), db.another()]
    taker.run(f"BEGIN; SELECT madlib.mop_reopen_run({run_id}, backend) FROM madlib.mop_tokens")
    stage = stage_of(db, run_id, 2, 3)
    waiting = [
        Calling(
            stale[0],
            f"SELECT madlib.mop_begin_units({run_id}, 1, 'train', 'training', "
            f"'{{{stage}}}', '{{3}}', '{{0}}', '{{9}}', '{{0}}')",
        ),
        Calling(
            stale[1],
            f"SELECT madlib.mop_take_states({run_id}, 1, '{{{stage}}}', ARRAY(SELECT version FROM "
            f"madlib.mop_stage_state WHERE (run_id, stage) = ({run_id}, {stage})), true)",
        ),
    ]
    assert eventually(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == 2)
    taker.run("COMMIT")
    assert all("taken over by another session" in str(one.end()) for one in waiting)
    for client in (taker, *stale):
        client.close()
    assert eventually(lambda: db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "failed")
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert weights(db, "waited_for") == weights(db, "undisturbed")


# --- sessions that come and go ----------------------------------------------------------------------


def places(watcher, output):
    return watcher.value(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_mop run ' || (SELECT "
        "max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s)",
        [output],
    )


def test_sessions_are_added_and_removed_while_a_run_goes_on(db, data):
    selection(db, "mst6", "arch", [(1, ADAM.format(k / 100), "batch_size=8") for k in range(1, 7)])
    client = db.another()
    client.run("SET pg_mop.lock_timeout = '300s'; SET pg_mop.chain_seconds = 0")
    with holding(db.another()) as let_some_begin:  # (the run does not end before it has been seen to have 4 sessions)
        running = Calling(client, call("elastic", "three_packed", "mst6", 6))
        assert eventually(lambda: places(db, "elastic") == 3, 120)
        run_id = last_run(db)
        for count in (1, 4):
            db.run("SELECT madlib.mop_set_sessions(%s, %s)", [run_id, count])
            assert eventually(lambda n=count: places(db, "elastic") == n or let_some_begin(), 120)
    assert running.end() is None
    client.close()
    assert_invariants(db, run_id)
    assert {u["status"] for u in db.run("SELECT status FROM madlib.mop_units WHERE run_id = %s", [run_id])} == {
        "finished"
    }, "who leaves ends his unit first"
    for bad in (0, None, 5000):
        assert "worker sessions, not" in str(db.error("SELECT madlib.mop_set_sessions(%s, %s)", [run_id, bad]))
    assert "is not running" in str(db.error("SELECT madlib.mop_set_sessions(%s, 2)", [run_id]))


def test_a_limit_on_a_roles_sessions_holds_and_the_run_goes_on_with_fewer(db, data):
    db.run(
        "DROP ROLE IF EXISTS limited; CREATE ROLE limited LOGIN; GRANT mop_user TO limited; CREATE SCHEMA limited "
        "AUTHORIZATION limited; GRANT SELECT ON ALL TABLES IN SCHEMA public TO limited"
    )
    db.run("INSERT INTO madlib.mop_limit (role, sessions, threads) VALUES ('limited', 2, 1)")
    client = db.another("limited")
    client.run("SET search_path = limited, public")
    running = Calling(client, call("few", "three_packed", "mst", 1))
    assert running.end() is None
    run_id = last_run(db)
    assert_invariants(db, run_id)
    assert db.value("SELECT count(DISTINCT backend_pid) FROM madlib.mop_units WHERE run_id = %s", [run_id]) == 2
    assert any("goes on with 2 of 3 worker sessions" in n for n in client.connection.notices)
    assert isinstance(client.error("UPDATE madlib.mop_limit SET sessions = 100"), psycopg2.errors.InsufficientPrivilege)
    holders, other = [db.another("limited"), db.another("limited")], db.another("limited")
    for holder in holders:
        holder.run(START)
    assert "as many as it may have at once" in str(other.error(START))
    assert "as many as it may have at once" in str(
        other.error(
            "SELECT madlib.madlib_keras_predict('limited.few', 'flowers', 'id', 'x', 'limited.guesses', 'response', FALSE, "
            "1)"
        )
    )
    for each in (*holders, other, client):
        each.close()
    db.run("DELETE FROM madlib.mop_limit; DROP OWNED BY limited CASCADE; DROP ROLE limited")
    assert eventually(lambda: places(db, "few") == 0)


def test_a_trainer_that_cannot_be_had_is_asked_for_again(db, data):
    """A run's trainer is killed, and another call of the role has what the limit leaves: the run waits, and that is no failure
    of its units, which may be retried once."""
    db.run(
        "DROP ROLE IF EXISTS crowded; CREATE ROLE crowded LOGIN; GRANT mop_user TO crowded; CREATE SCHEMA crowded "
        "AUTHORIZATION crowded; GRANT SELECT ON ALL TABLES IN SCHEMA public TO crowded"
    )
    selection(db, "mst1", "arch", [(1, ADAM.format(0.01), "batch_size=1, epochs=60")])
    db.run("GRANT SELECT ON mst1, mst1_summary TO crowded")
    older, client = db.another("crowded"), db.another("crowded")
    older.run(START)
    client.run("SET search_path = crowded, public; SET pg_mop.unit_retries = 1")
    running = Calling(client, call("asked", mst="mst1", iterations=1))
    units = "SELECT {} FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE owner = 'crowded' AND {}"
    assert eventually(lambda: db.run(units.format("backend_pid", "u.status = 'running'")), 120)
    time.sleep(1)
    db.run("INSERT INTO madlib.mop_limit (role, sessions) VALUES ('crowded', 1)")
    backend = db.value(units.format("backend_pid", "u.status = 'running'"))
    for pid in trainers():
        if of_backend(pid) == backend:
            os.kill(pid, signal.SIGKILL)
    refused = units.format(
        "count(*)", "u.error LIKE '%%as many as it may have at once (1)%%' AND u.decision LIKE 'retried in%%'"
    )
    assert eventually(lambda: db.value(refused) >= 3, 120)
    older.close()
    assert running.end() is None
    assert db.value(units.format("max(attempt)", "u.status = 'finished' AND kind = 'train'")) >= 3
    client.close()
    db.run("DELETE FROM madlib.mop_limit; DROP OWNED BY crowded CASCADE; DROP ROLE crowded")


def test_names_are_looked_up_as_by_the_call_that_began_the_run(db, data):
    """Whatever the search_path of whoever goes on with it; new tables are where he makes tables."""
    db.run("CREATE SCHEMA results; CREATE SCHEMA elsewhere")
    client = db.another()
    client.run("SET search_path = results, public; BEGIN")
    client.run(call("there", iterations=1))
    run_id = last_run(db)
    client.run("ROLLBACK; SET search_path = elsewhere")
    client.run("SELECT madlib.mop_resume(%s)", [run_id])
    client.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    client.run("SELECT madlib.mop_more(%s, 1, 1)", [run_id])
    assert client.value("SHOW search_path") == "elsewhere"
    assert db.value("SELECT count(*) FROM results.there") == db.value("SELECT count(*) FROM elsewhere.again") == 2
    assert db.run("SELECT iteration FROM results.there_info ORDER BY mst_key") == [{"iteration": 2}, {"iteration": 1}]
    client.close()
    db.run("DROP SCHEMA results, elsewhere CASCADE")


@pytest.mark.parametrize("retries", [0, 1])
def test_a_unit_is_given_up_after_the_retries_that_are_set_and_resume_tries_it_again(db, data, retries):
    client = db.another()
    client.run(f"SET pg_mop.unit_retries = {retries}; DROP TABLE IF EXISTS given_up, given_up_info, given_up_summary")
    selection(db, "mst1", "arch", [(1, ADAM.format(0.01), "batch_size=1, epochs=20")])
    running = Calling(client, call("given_up", mst="mst1", iterations=1))
    killed = set()
    while running.thread.is_alive():
        pids = {
            r["backend_pid"]
            for r in db.run(
                "SELECT u.backend_pid FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE "
                "model_output_table = 'given_up' AND u.status = 'running' AND u.kind = 'train'"
            )
        }
        for pid in trainers():
            try:
                if pid not in killed and of_backend(pid) in pids and len(killed) < 5:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            except (OSError, ProcessLookupError):
                pass
        time.sleep(0.05)
    given_up = f"given up after {('1 attempt', '2 attempts')[retries]}"
    assert given_up in str(running.end())
    run_id = last_run(db)
    decisions = db.run("SELECT decision FROM madlib.mop_units WHERE run_id = %s ORDER BY attempt", [run_id])
    expected = [*["retried in 0.5 s"] * retries, given_up]
    assert [row["decision"] for row in decisions] == [f"{decision}: the trainer was lost" for decision in expected]
    rested = "SELECT extract(epoch FROM max(started_at) - min(finished_at)) FROM madlib.mop_units WHERE run_id = %s"
    assert not retries or db.value(rested, [run_id]) >= 0.5, "it rested before the second attempt"
    client.close()
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert db.value("SELECT max(attempt) FROM madlib.mop_units WHERE run_id = %s", [run_id]) == retries + 2
    fit(db, "flowers_packed", "not_killed", "mst1", 1)
    assert weights(db, "given_up") == weights(db, "not_killed")

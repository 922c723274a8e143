"""Chains: a worker trains configurations on one segment after the other with one command and one transaction."""

import base64
import os
import signal

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.keras_jobs import keras_job
from support.trainers import of_backend, trainers
from support.tries import tries
from support.workload import (
    ADAM,
    NAN,
    assert_invariants,
    dense,
    fit,
    is_under_way,
    last_run,
    layer,
    load,
    make_data,
    needs_jax,
    replayed,
    selection,
    sequential,
)

SEED = 5
CHAINED = "SET pg_mop.chain_seconds = 5"  # (more than the default, so that a busy machine has chains as well)
ALONE = "SET pg_mop.chain_seconds = 0"


@pytest.fixture(scope="module")
def data(db):
    db.run(f"SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1; SET pg_mop.reuse = off; {CHAINED}")
    make_data(db, rows=60, segments=2, seed=SEED)
    dropping = sequential(
        "dropping",
        [4],
        layer("Dense", name="hidden", units=8, activation="relu"),
        layer("Dropout", name="drop", rate=0.5),
        layer("Dense", name="out", units=3, activation="softmax"),
    )
    load(db, "arch", dense(), dense(width=5, name="narrow"), dropping)
    rows = [(1 + key % 2, ADAM.format(rate(key)), "batch_size=10") for key in range(1, 7)]
    selection(db, "few", "arch", rows)
    selection(db, "one", "arch", rows[:1])
    selection(db, "bad", "arch", [*rows, (1, NAN, "batch_size=10")])
    selection(
        db,
        "varied",
        "arch",
        [
            (1, ADAM.format("[0.01, 0.01, 0.001]"), "batch_size=10, shuffle=True"),
            (2, ADAM.format(0.01), "batch_size=[10, 10, 20], epochs=2"),
            (3, ADAM.format(0.02), "batch_size=20, dropout=[0.5, 0.5, 0.3, 0.2]"),
            (3, ADAM.format(0.01), "batch_size=20, dropout=[0.5, 0.4, 0.3, 0.2]"),
        ],
    )


def rate(key):
    return round(0.002 * key, 3)


def transactions(db, run_id):
    """How many training units the transactions of a run had, the largest number first (by the row of their end)."""
    return [
        row["n"]
        for row in db.run(
            "SELECT count(*) AS n FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' AND status = 'finished' "
            "GROUP BY xmin::text ORDER BY 1 DESC",
            [run_id],
        )
    ]


def weights(db, table):
    rows = db.run(f"SELECT mst_key, model_weights FROM {table} ORDER BY mst_key")
    return {row["mst_key"]: bytes(row["model_weights"]) for row in rows}


def replay(db, run_id, table="again"):
    db.run(f"DROP TABLE IF EXISTS {table}, {table}_info, {table}_summary")
    db.run("SELECT madlib.mop_replay(%s, %s)", [run_id, table])
    return last_run(db)


def test_a_chain_gives_plain_keras_weights_and_a_row_for_each_unit(db, data):
    run_id = fit(db, "flowers_packed", "models", "few", iterations=5)
    assert_invariants(db, run_id)
    assert max(transactions(db, run_id)) > 6, "more than a unit batch of all configurations"
    found = db.run(
        "SELECT version, loss, rows, kernel, train_seconds, started_at <= finished_at AS in_order FROM madlib.mop_unit "
        "WHERE run_id = %s AND kind = 'train'",
        [run_id],
    )
    assert len(found) == 6 * 5 * 2
    assert all(row["in_order"] and row["loss"] > 0 and row["rows"] == 30 and row["train_seconds"] > 0 for row in found)
    nets = dense(width=5, name="narrow"), dense()
    jobs = [
        keras_job(db, run_id, key, rate(key), [SEED, 1 + key % 2], architecture=nets[key % 2 == 0])
        for key in range(1, 7)
    ]
    ours = weights(db, "models")
    for key, job in enumerate(replayed(jobs), 1):
        assert ours[key] == base64.b64decode(job["plain"]), key


@pytest.mark.parametrize("table", ["few", "varied"])
def test_the_same_visits_give_the_same_weights_with_and_without_chains(db, data, table):
    db.run(CHAINED)
    run_id = fit(db, "flowers_packed", "models", table, iterations=6)
    assert max(transactions(db, run_id)) > 1
    mine = weights(db, "models")
    losses = (
        "SELECT mst_key, iteration, segment, loss FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' "
        "ORDER BY 1, 2, 3"
    )
    mine_losses = db.run(losses, [run_id])
    for setting in (ALONE, CHAINED):
        db.run(setting)
        again = replay(db, run_id)
        assert_invariants(db, again)
        assert weights(db, "again") == mine, setting
        assert db.run(losses, [again]) == mine_losses
        assert (max(transactions(db, again)) > len(mine)) == (setting == CHAINED)
    db.run(CHAINED)


def test_a_chain_ends_where_somebody_waits_for_the_state_or_for_a_result(db, data):
    """Evaluations after each second iteration: no transaction has units on both sides of one."""
    run_id = fit(db, "flowers_packed", "models", "one", iterations=6, frequency=2)
    assert_invariants(db, run_id)
    spans = db.run(
        "SELECT min((iteration - 1) / 2) AS first, max((iteration - 1) / 2) AS last, count(*) AS n FROM madlib.mop_unit "
        "WHERE run_id = %s AND kind = 'train' AND status = 'finished' GROUP BY xmin::text",
        [run_id],
    )
    assert all(span["first"] == span["last"] for span in spans) and max(span["n"] for span in spans) == 4


def test_the_one_to_blame_in_a_chain_is_given_up_and_no_other(db, data):
    run_id = fit(db, "flowers_packed", "rest", "bad", iterations=4)
    states = db.run(
        "SELECT status, count(*) AS n FROM madlib.mop_progress WHERE run_id = %s GROUP BY 1 ORDER BY 1", [run_id]
    )
    assert [(row["status"], row["n"]) for row in states] == [("failed", 1), ("finished", 6)]
    assert_invariants(db, run_id)


def test_folds_are_chained_over_their_own_segments(db, data):
    db.run("DROP TABLE IF EXISTS folded, folded_info, folded_summary")
    make_data(db, "meadow", rows=80, segments=4, seed=SEED)
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('meadow_packed', 'folded', 'few', 4, FALSE, folds => 4)")
    run_id = last_run(db)
    assert max(transactions(db, run_id)) > 4
    held_out = {
        row["mst_key"]: row["held_out"] or []
        for row in db.run("SELECT mst_key, held_out FROM madlib.mop_configuration WHERE run_id = %s", [run_id])
    }
    visits = db.run(
        "SELECT mst_key, iteration, array_agg(segment ORDER BY segment) AS segments FROM madlib.mop_units WHERE "
        "run_id = %s AND kind = 'train' AND status = 'finished' GROUP BY 1, 2",
        [run_id],
    )
    assert len(visits) == 4 * len(held_out)
    assert all(v["segments"] == [s for s in range(4) if s not in held_out[v["mst_key"]]] for v in visits)


def test_rows_that_a_trainer_cannot_keep_together_are_in_no_chain(db, data):
    db.run("SET pg_mop.cache_mb = 0")
    run_id = fit(db, "flowers_packed", "streamed", "one", iterations=4)
    db.run("RESET pg_mop.cache_mb")
    assert_invariants(db, run_id)
    assert set(transactions(db, run_id)) == {1}


def begun(db, output, iterations):
    """A call in another session that trains for a while, once it is under way: (its session, the call)."""
    caller = db.another()
    caller.run("SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1; SET pg_mop.reuse = off")
    db.run(f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary")
    calling = Calling(
        caller,
        f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{output}', 'few', {iterations}, FALSE)",
    )
    assert eventually(lambda: is_under_way(db, 12) or not calling.thread.is_alive())
    return caller, calling


def ended(db, output, by):
    """The error of a call that is ended `by` a function of PostgreSQL, while its chains are being trained.

    (A run that does not wait for the test may end before.)"""
    for once in tries():
        caller, calling = begun(db, output, 30)
        db.run(f"SELECT {by}(%s)", [caller.connection.info.backend_pid])
        error = calling.end()
        caller.close()
        once.counts = error is not None
    return error


def assert_resumable(db, run_id):
    """Every model is at the version of its last committed unit; the run goes on to what its replay gives."""
    versions = db.run(
        "SELECT m.version, s.iteration, (SELECT count(*) FROM madlib.mop_unit u WHERE (u.run_id, u.stage, u.kind, "
        "u.status) = (m.run_id, m.stage, 'train', 'finished')) AS done FROM madlib.mop_stage_state m JOIN "
        "madlib.mop_stage s USING (run_id, stage) WHERE m.run_id = %s",
        [run_id],
    )
    assert all(v["version"] - 2 * (v["iteration"] - 1) == v["done"] for v in versions if v["done"])
    assert any(v["done"] for v in versions)
    output = db.value("SELECT model_output_table FROM madlib.mop_runs WHERE run_id = %s", [run_id])
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert_invariants(db, run_id)
    mine = weights(db, output)
    replay(db, run_id)
    assert weights(db, "again") == mine


def test_a_cancelled_chain_is_undone_whole_and_resumed(db, data):
    assert isinstance(ended(db, "later", "pg_cancel_backend"), psycopg2.errors.QueryCanceled)
    run_id = last_run(db)
    assert max(transactions(db, run_id)) > 6
    assert_resumable(db, run_id)


def test_a_coordinator_that_dies_loses_at_most_its_chains(db, data):
    assert ended(db, "orphaned", "pg_terminate_backend") is not None
    run_id = last_run(db)
    alive = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_mop run ' || %s::text"
    assert eventually(lambda: db.value(alive, [run_id]) == 0)
    assert_resumable(db, run_id)


@pytest.mark.parametrize("fault", ["trainer", "session"])
def test_a_trainer_or_a_session_that_is_killed_in_a_chain_loses_no_unit(db, data, fault):
    for once in tries():  # (on a fast machine the run may have ended before)
        once.counts = bool(failed_by(db, fault))
    run_id = last_run(db)
    mine = weights(db, "survived")
    replay(db, run_id)
    assert weights(db, "again") == mine


def failed_by(db, fault):
    """The decisions on the units that fail because the trainer or the session of a chain is killed; the run survives."""
    caller, calling = begun(db, "survived", 30)
    run_id = last_run(db)
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pg_mop run ' || %s::text LIMIT 1"
    if fault == "trainer":
        own = {row["pid"] for row in db.run(sessions.replace(" LIMIT 1", ""), [run_id])}
        for pid in [pid for pid in trainers() if of_backend(pid) in own][:1]:
            os.kill(pid, signal.SIGKILL)
    else:
        db.run("SELECT pg_terminate_backend(%s)", [db.value(sessions, [run_id])])
    assert calling.end() is None
    caller.close()
    assert_invariants(db, run_id)
    failed = db.run("SELECT DISTINCT decision FROM madlib.mop_unit WHERE run_id = %s AND status = 'failed'", [run_id])
    assert all("retried" in row["decision"] for row in failed)
    return failed


@needs_jax
def test_a_chain_of_vmap_batches_gives_what_each_gives_by_itself(db, data):
    db.run("SET pg_mop.keras_backend = 'jax'; SET pg_mop.kernel = 'vmap'")
    try:
        run_id = fit(db, "flowers_packed", "computed", "few", iterations=5)
        assert_invariants(db, run_id)
        assert max(transactions(db, run_id)) > 6
        mine = weights(db, "computed")
        db.run(ALONE)
        replay(db, run_id)
        assert weights(db, "again") == mine
    finally:
        db.run(f"RESET pg_mop.keras_backend; SET pg_mop.kernel = 'plain'; {CHAINED}")

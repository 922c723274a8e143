"""Short training units go together: what comes of them is what comes of each alone."""

import base64

import numpy as np
import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.keras_jobs import keras_job
from support.workload import (
    ADAM,
    NAN,
    assert_invariants,
    dense,
    ended_early,
    fit,
    is_under_way,
    last_run,
    load,
    make_data,
    needs_jax,
    needs_torch,
    replayed,
    selection,
)

MANY, SEED = 16, 5


@pytest.fixture(scope="module")
def data(db):
    db.run("SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1")
    make_data(db, rows=60, segments=2, seed=SEED)
    load(db, "arch", dense())
    rows = [(1, ADAM.format(rate(key)), "batch_size=10") for key in range(1, MANY + 1)]
    selection(db, "many", "arch", rows)
    selection(db, "bad", "arch", [*rows, (1, NAN, "batch_size=10")])


def rate(key):
    return round(0.001 * key, 3)


def together(db, run_id):
    """How many units of training a session did at a time, at most."""
    return db.value(
        "SELECT max((SELECT count(*) FROM madlib.mop_unit b WHERE (b.run_id, b.kind, b.backend_pid) = (a.run_id, a.kind"
        ", a.backend_pid) AND b.started_at <= a.started_at AND b.finished_at > a.started_at)) FROM madlib.mop_unit a "
        "WHERE a.run_id = %s AND a.kind = 'train'",
        [run_id],
    )


def test_units_go_together_and_give_plain_keras_weights(db, data):
    run_id = fit(db, "flowers_packed", "models", "many", iterations=2)
    assert_invariants(db, run_id)
    assert together(db, run_id) > 1
    jobs = [keras_job(db, run_id, key, rate(key), [SEED, 1]) for key in range(1, MANY + 1, 5)]
    for key, job in zip(range(1, MANY + 1, 5), replayed(jobs)):
        ours = bytes(db.value("SELECT model_weights FROM models WHERE mst_key = %s", [key]))
        assert ours == base64.b64decode(job["plain"]), key


@pytest.fixture
def vmap(db, data):
    db.run("SET pg_mop.keras_backend = 'jax'; SET pg_mop.kernel = 'vmap'")
    yield
    db.run("RESET pg_mop.keras_backend; SET pg_mop.kernel = 'plain'")


@needs_jax
def test_units_that_are_one_computation_give_what_each_gives_by_itself(db, vmap):
    def weights(table):
        rows = db.run(f"SELECT mst_key, model_weights FROM {table} ORDER BY mst_key")
        return {row["mst_key"]: bytes(row["model_weights"]) for row in rows}

    run_id = fit(db, "flowers_packed", "computed", "many", iterations=2)
    assert_invariants(db, run_id)
    assert together(db, run_id) > 1
    used = "SELECT array_agg(DISTINCT kernel) FROM madlib.{} WHERE run_id = %s AND kernel <> 'plain'"
    for view in ("mop_units", "mop_kernel_choices"):
        assert db.value(used.format(view), [run_id]) == ["vmap"]
    mine = weights("computed")
    assert len(set(mine.values())) == MANY
    # in whatever company: that of a replay is another
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert db.value(used.format("mop_units"), [last_run(db)]) == ["vmap"]
    assert weights("again") == mine
    jobs = [keras_job(db, run_id, key, rate(key), [SEED, 1]) for key in (1, 9, MANY)]
    for key, job in zip((1, 9, MANY), replayed(jobs, backend="jax")):
        ours, keras = (np.frombuffer(text, "<f4") for text in (mine[key], base64.b64decode(job["plain"])))
        assert np.abs(ours - keras).max() <= 1e-5 * np.abs(keras).max()


@needs_jax
def test_one_to_blame_among_those_of_one_computation_is_given_up_alone(db, vmap):
    run_id = fit(db, "flowers_packed", "rest", "bad", iterations=2)
    assert db.value("SELECT count(*) FROM rest") == MANY
    assert db.run(
        "SELECT DISTINCT mst_key, error FROM madlib.mop_units WHERE run_id = %s AND status = 'failed' AND "
        "error NOT SIMILAR TO 'one unit of a (batch|chain) of %% failed \\(the loss became NaN\\): each is retried alone'",
        [run_id],
    ) == [{"mst_key": MANY + 1, "error": "the loss became NaN"}]
    decisions = db.run(
        "SELECT mst_key, decision FROM madlib.mop_units WHERE run_id = %s AND status = 'failed'", [run_id]
    )
    assert {"mst_key": MANY + 1, "decision": "given up: the configuration failed"} in decisions
    assert {row["decision"] for row in decisions} <= {
        "given up: the configuration failed",
        "retried alone: a unit of its batch failed: the configuration failed",
        "retried alone: a unit of its chain failed: the configuration failed",
    }
    assert_invariants(db, run_id)


@needs_jax
def test_a_run_of_one_computation_that_was_stopped_goes_on_to_what_its_replay_gives(db, vmap):
    db.run("DROP TABLE IF EXISTS stopped, stopped_info, stopped_summary")
    client = db.another()
    client.run("SET pg_mop.keras_backend = 'jax'; SET pg_mop.kernel = 'vmap'; SET pg_mop.threads = 1")
    call = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'stopped', 'many', 6, FALSE)"
    assert isinstance(ended_early(db, client, call, MANY - 1), psycopg2.errors.QueryCanceled)
    client.close()
    run_id = last_run(db)
    done = "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' AND status = 'finished'"
    assert MANY <= db.value(done, [run_id]) < 6 * 2 * MANY
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert_invariants(db, run_id)
    assert db.value(done, [run_id]) == 6 * 2 * MANY
    assert db.value(
        "SELECT array_agg(DISTINCT kernel) FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' AND "
        "status = 'finished'",
        [run_id],
    ) == ["vmap"]
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert db.value("SELECT count(*) FROM stopped JOIN again USING (mst_key, model_weights)") == MANY


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("torch", marks=needs_torch)])
def test_a_kernel_that_the_framework_does_not_have_is_an_error_before_any_work(db, data, backend):
    db.run(f"SET pg_mop.keras_backend = '{backend}'; SET pg_mop.kernel = 'vmap'")
    before = last_run(db)
    try:
        error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'none', 'many', 1, FALSE)")
    finally:
        db.run("RESET pg_mop.keras_backend; SET pg_mop.kernel = 'plain'")
    assert f'pg_mop.kernel is "vmap", but pg_mop.keras_backend is "{backend}"' in str(error)
    assert "SET pg_mop.keras_backend = 'jax'" in error.diag.message_hint
    assert last_run(db) == before


def test_only_the_one_to_blame_is_given_up(db, data):
    run_id = fit(db, "flowers_packed", "rest", "bad", iterations=2)
    states = db.run(
        "SELECT status, count(*) AS n FROM madlib.mop_progress WHERE run_id = %s GROUP BY 1 ORDER BY 1", [run_id]
    )
    assert [(row["status"], row["n"]) for row in states] == [("failed", 1), ("finished", MANY)]
    assert db.value("SELECT count(*) FROM rest") == MANY
    assert_invariants(db, run_id)


def test_a_cancelled_group_is_undone_whole_and_resumed(db, data):
    caller = db.another()
    caller.run("SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1")
    calling = Calling(
        caller, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'later', 'many', 200, FALSE)"
    )
    assert eventually(lambda: is_under_way(db, 4 * MANY), 60)
    db.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
    assert calling.end().pgcode == "57014"
    run_id = last_run(db)
    versions = db.run(
        "SELECT m.version, s.iteration, (SELECT count(*) FROM madlib.mop_unit u WHERE (u.run_id, u.stage, u.kind, "
        "u.status) = (m.run_id, m.stage, 'train', 'finished')) AS done FROM madlib.mop_stage_state m JOIN madlib.mop_stage s "
        "USING (run_id, stage) WHERE m.run_id = %s AND m.version > 0",
        [run_id],
    )
    assert versions and all(v["version"] - 2 * (v["iteration"] - 1) == v["done"] for v in versions if v["done"]), (
        "every model is at the version of its last committed unit"
    )
    assert any(v["done"] for v in versions)
    caller.run("SELECT madlib.mop_drop_run(%s)", [run_id])
    caller.close()

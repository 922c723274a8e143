"""The catalog's functions beside another session that writes the same: where it commits, both are content."""

import json

import pytest

from support.client import Calling
from support.cluster import eventually

RUN = {
    "function": "madlib_keras_fit_multiple_model",
    "source_table": "s",
    "model_output_table": "o",
    "seed": 7,
    "scheduler": "randomized",
    "num_iterations": 1,
    "metrics_iterations": [1],
    "configurations": 1,
    "segments": 1,
    "parameters": {},
    "sessions": 1,
}
CONFIGURATIONS = json.dumps([{"mst_key": 1, "model_id": 1, "compile_params": "c", "model_arch": "a"}])
STAGE = {
    "stage": 1,
    "parent": None,
    "iteration": 1,
    "version": 0,
    "mst_key": 1,
    "identity": "i",
    "compile_params": "c",
    "evaluated": False,
}
REQUESTS = json.dumps([{"mst_key": 1, "iteration": 1, "stage": 1}])
ASK = "SELECT madlib.mop_ask({}, 1, '{}', '{}', '{}')"


@pytest.fixture
def run_id(db):
    return db.value(
        "SELECT madlib.mop_open_run((%s::jsonb || jsonb_build_object('coordinator', backend))::json, '[]') "
        "FROM madlib.mop_tokens",
        [json.dumps(RUN)],
    )


def at_once(db, first, second):
    """`first` in a transaction, `second` in another session, which waits for that to commit; what `second` raised."""
    other = db.another()
    db.run(f"BEGIN; {first}")
    calling = Calling(other, second)
    assert eventually(
        lambda: db.value(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s", [other.connection.info.backend_pid]
        )
    )
    db.run("COMMIT")
    error = calling.end()
    other.close()
    return error


def test_what_is_asked_twice_at_once_is_there_once(db, run_id):
    ask = ASK.format(run_id, CONFIGURATIONS, "[]", "[]")
    db.run(ask)
    first, second = (
        ASK.format(run_id, "[]", json.dumps([{**STAGE, "evaluated": evaluated}]), REQUESTS)
        for evaluated in (False, True)
    )
    assert at_once(db, first, second) is None
    assert db.run("SELECT stage, evaluated FROM madlib.mop_stage WHERE run_id = %s", [run_id]) == [
        {"stage": 1, "evaluated": True}
    ]
    for table in ("mop_stage_state", "mop_request"):
        assert db.value(f"SELECT count(*) FROM madlib.{table} WHERE run_id = %s", [run_id]) == 1


def test_an_attempt_that_begins_as_it_is_given_up_has_failed(db, run_id):
    db.run(ASK.format(run_id, CONFIGURATIONS, json.dumps([STAGE]), REQUESTS))
    assert (
        at_once(
            db,
            f"SELECT madlib.mop_begin_units({run_id}, 1, 'train', 'training', '{{1}}', '{{1}}', '{{0}}', '{{1}}', '{{0}}')",
            f"SELECT madlib.mop_fail_unit({run_id}, 1, 1, 1, 0, 'train', 'training', 1, 0, 'lost')",
        )
        is None
    )
    assert db.run("SELECT status, error FROM madlib.mop_unit WHERE run_id = %s", [run_id]) == [
        {"status": "failed", "error": "lost"}
    ]


@pytest.fixture
def pair(db, run_id):
    """A run whose units of stages 1 and 2 on a segment have been begun together, and taken in a transaction."""
    stages = [{**STAGE, "stage": number, "mst_key": number, "identity": f"i{number}"} for number in (1, 2)]
    configurations = [{**json.loads(CONFIGURATIONS)[0], "mst_key": number} for number in (1, 2)]
    requests = [{"mst_key": number, "iteration": 1, "stage": number} for number in (1, 2)]
    db.run(ASK.format(run_id, *map(json.dumps, (configurations, stages, requests))))
    db.run(
        f"SELECT madlib.mop_begin_units({run_id}, 1, 'train', 'training', '{{1,2}}', '{{1,1}}', '{{0,0}}', "
        "'{1,1}', '{0,0}')"
    )
    return run_id


def finish(run_id, *units):
    results = [
        {"stage": stage, "segment": 0, "attempt": 1, "version": 1, "state_table": 1, "bytes": 1, "release": [], **more}
        for stage, more in units
    ]
    return f"SELECT madlib.mop_finish_units({run_id}, 'train', 'training', '{json.dumps(results)}')"


def test_units_that_go_together_are_finished_together_or_not_at_all(db, pair):
    db.run(f"SELECT madlib.mop_fail_unit({pair}, 1, 2, 1, 0, 'train', 'training', 1, 0, 'lost')")
    assert f"this unit of run {pair} is no longer running" in str(db.error(finish(pair, (1, {}), (2, {}))))
    assert f"stage 1 of run {pair} is not at version 0" in str(db.error(finish(pair, (1, {}), (1, {}))))
    assert f"stage 3 of run {pair} is not at version 0" in str(db.error(finish(pair, (1, {}), (3, {}))))
    assert db.run(
        "SELECT DISTINCT m.version, u.status FROM madlib.mop_stage_state m JOIN madlib.mop_unit u USING (run_id, "
        "stage) WHERE run_id = %s AND stage = 1",
        [pair],
    ) == [{"version": 0, "status": "running"}]
    measured = {"cpu_seconds": 0.5, "gpu_utilization": 0.25, "gpu_memory_bytes": 5 << 30}
    db.run(finish(pair, (1, {"loss": "nan", "metric": "-Infinity", "choice": {"kernel": "a"}, **measured})))
    assert [measured] == db.run(
        "SELECT cpu_seconds, gpu_utilization, gpu_memory_bytes FROM madlib.mop_units WHERE run_id = %s AND mst_key = 1",
        [pair],
    )
    assert (
        db.run(
            "SELECT u.version, u.status, u.loss, u.metric, u.choice, u.train_seconds, m.version AS reached FROM "
            "madlib.mop_stage_state m JOIN madlib.mop_unit u USING (run_id, stage) WHERE run_id = %s AND stage = 1 AND "
            "loss = 'NaN'",
            [pair],
        )[0].items()
        >= {
            "version": 1,
            "status": "finished",
            "metric": float("-inf"),
            "choice": {"kernel": "a"},
            "train_seconds": None,
            "reached": 1,
        }.items()
    )


def test_stages_are_taken_together_at_the_versions_that_are_asked_for(db, pair):
    take = f"SELECT stage, mst_key FROM madlib.mop_take_states({pair}, 1, %s, %s, true)"
    assert sorted((r["stage"], r["mst_key"]) for r in db.run(take, [[2, 1], [0, 0]])) == [(1, 1), (2, 2)]
    for versions in ([0, 1], [0, None], [0]):
        assert f"stage 2 of run {pair} is not at version" in str(db.error(take, [[1, 2], versions]))
    assert f"stage 7 of run {pair} is not at version 0" in str(db.error(take, [[1, 7], [0, 0]]))


def test_a_role_gets_one_number_whichever_of_its_sessions_is_first(db):
    db.run("DROP ROLE IF EXISTS newcomer; CREATE ROLE newcomer LOGIN; GRANT mop_user TO newcomer")
    newcomer = db.another("newcomer")
    assert at_once(newcomer, "SELECT madlib.mop_enroll()", "SELECT madlib.mop_enroll()") is None
    assert db.value("SELECT count(*) FROM madlib.mop_owner WHERE role = 'newcomer'") == 1
    newcomer.close()
    db.run("DELETE FROM madlib.mop_owner WHERE role = 'newcomer'; DROP ROLE newcomer")

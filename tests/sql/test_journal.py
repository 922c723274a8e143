"""The catalog's functions beside another session that writes the same: where it commits, both are content."""

import json

import pytest

from conftest import Calling, eventually

RUN = {"function": "madlib_keras_fit_multiple_model", "source_table": "s", "model_output_table": "o", "seed": 7,
       "scheduler": "randomized", "num_iterations": 1, "metrics_iterations": [1], "configurations": 1, "segments": 1,
       "parameters": {}, "sessions": 1}
CONFIGURATIONS = json.dumps([{"mst_key": 1, "model_id": 1, "compile_params": "c", "model_arch": "a"}])
STAGE = {"stage": 1, "parent": None, "iteration": 1, "version": 0, "mst_key": 1, "identity": "i", "compile_params": "c",
         "evaluated": False}
REQUESTS = json.dumps([{"mst_key": 1, "iteration": 1, "stage": 1}])
ASK = "SELECT madlib.mop_ask({}, 1, '{}', '{}', '{}')"


@pytest.fixture
def run_id(db):
    return db.value("SELECT madlib.mop_open_run((%s::jsonb || jsonb_build_object('coordinator', backend))::json, '[]') "
                    "FROM madlib.mop_tickets", [json.dumps(RUN)])


def at_once(db, first, second):
    """`first` in a transaction, `second` in another session, which waits for that to commit; what `second` raised."""
    other = db.another()
    db.run(f"BEGIN; {first}")
    calling = Calling(other, second)
    assert eventually(lambda: db.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s",
                                       [other.connection.info.backend_pid]))
    db.run("COMMIT")
    error = calling.end()
    other.close()
    return error


@pytest.mark.slice
def test_what_is_asked_twice_at_once_is_there_once(db, run_id):
    ask = ASK.format(run_id, CONFIGURATIONS, "[]", "[]")
    db.run(ask)
    first, second = (ASK.format(run_id, "[]", json.dumps([{**STAGE, "evaluated": evaluated}]), REQUESTS)
                     for evaluated in (False, True))
    assert at_once(db, first, second) is None
    assert db.run("SELECT stage, evaluated FROM madlib.mop_stage WHERE run_id = %s", [run_id]) == [
        {"stage": 1, "evaluated": True}]
    for table in ("mop_model", "mop_request"):
        assert db.value(f"SELECT count(*) FROM madlib.{table} WHERE run_id = %s", [run_id]) == 1


def test_an_attempt_that_begins_as_it_is_given_up_has_failed(db, run_id):
    db.run(ASK.format(run_id, CONFIGURATIONS, json.dumps([STAGE]), REQUESTS))
    assert at_once(
        db, f"SELECT madlib.mop_begin_units({run_id}, 1, 0, 'train', 'training', '{{1}}', '{{1}}', '{{1}}', '{{0}}')",
        f"SELECT madlib.mop_fail_unit({run_id}, 1, 1, 1, 0, 'train', 'training', 1, 0, 'lost')") is None
    assert db.run("SELECT status, error FROM madlib.mop_unit WHERE run_id = %s", [run_id]) == [
        {"status": "failed", "error": "lost"}]


def test_a_role_gets_one_number_whichever_of_its_sessions_is_first(db):
    db.run("DROP ROLE IF EXISTS newcomer; CREATE ROLE newcomer LOGIN; GRANT mop_user TO newcomer")
    newcomer = db.another("newcomer")
    assert at_once(newcomer, "SELECT madlib.mop_enroll()", "SELECT madlib.mop_enroll()") is None
    assert db.value("SELECT count(*) FROM madlib.mop_owner WHERE role = 'newcomer'") == 1
    newcomer.close()
    db.run("DELETE FROM madlib.mop_owner WHERE role = 'newcomer'; DROP ROLE newcomer")

"""EXPLAIN of mop_train and mop_retrain: the steps are made on a sample and rolled back, and the search is planned."""

import json

import psycopg2
import pytest

from support.cluster import eventually
from support.trainers import all_trainers

SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_mop%' OR application_name LIKE 'mop_train%'"
)
CALL = "SELECT madlib.mop_train('persons', 'leavers', target => 'leaves', id => 'id', time_limit => '{0}')"
ALL = ", families => 'nets, boosting, linear, mlp'"  # (else a call of few rows has no nets)


@pytest.fixture(scope="module", autouse=True)
def persons(db):
    db.run(
        "CREATE TABLE persons AS SELECT i AS id, 18 + i * 7 % 60 AS age, (ARRAY['free', 'pro', 'team'])[1 + i % 3] AS plan, "
        "CASE WHEN i % 10 > 0 THEN (i * 37 % 101)::numeric END AS score, CASE WHEN i * 7 % 60 > 30 THEN 'yes' ELSE 'no' END "
        "AS leaves FROM generate_series(1, 600) i; ALTER TABLE persons ADD PRIMARY KEY (id)"
    )
    yield
    db.run("DROP TABLE persons")


def everything(db):
    relations = db.value(
        "SELECT array_agg(relname ORDER BY relname) FROM pg_class WHERE relnamespace <> 'pg_toast'::regnamespace"
    )
    runs = db.value("SELECT count(*) FROM madlib.mop_run")
    # (PostgreSQL shows a session for a moment after its client has closed it)
    assert eventually(lambda: not db.value(SESSIONS), 60), "no session of pg_mop goes on"
    locks = db.value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'")
    return relations, runs, locks, sorted(all_trainers())


def plan(db, call):
    return json.loads(db.value("SELECT madlib.mop_explain(%s, 'json')", [call]))


def test_a_training_from_a_table_is_planned_and_leaves_nothing(db):
    db.run("SELECT madlib.mop_end_trainers()")
    assert eventually(lambda: not all_trainers())
    before = everything(db)
    call = CALL.format("30 s").replace(", time_limit", f"{ALL}, time_limit")
    found = plan(db, call)
    text = db.value("SELECT madlib.mop_explain(%s)", [call])
    assert everything(db) == before
    own, search = found["train"], found["search"]
    assert own["rows"] == sum(own["parts"].values()) == 600 and set(own["parts"]) == {"train", "valid", "test"}
    assert own["sampled_rows"] is None and own["kind"] == "classification"
    assert found["source"]["rows"] == own["parts"]["train"] and found["validation"]["rows"] == own["parts"]["valid"]
    assert all(seconds > 0 for seconds in own["steps"].values())
    assert own["seconds_low"] <= own["seconds"] <= own["seconds_high"]
    assert 0 < search["time_limit"] < 30 * 0.95, "the steps before the search take a part of the limit"
    assert text.startswith('Train model "leavers" to predict leaves (classification) on "persons"  (time=')
    assert "Not predicted: " in text and "Search: asha" in text and "simple models" in text


def test_a_call_without_nets_has_no_search_to_plan(db):
    before = everything(db)
    found = plan(db, CALL.format("30 s"))
    assert "search" not in found and 0 < found["train"]["steps"]["boosting"] < found["train"]["seconds"] <= 32
    text = db.value("SELECT madlib.mop_explain(%s)", [CALL.format("30 s")])
    assert "of boosting and other families" in text and "Search:" not in text
    call = CALL.format("30 s").replace(", time_limit", ", families => 'boosting', time_limit")
    assert "search" not in plan(db, call) and everything(db) == before


def test_the_call_that_was_explained_trains_afterwards(db):
    call = CALL.format("5 s").replace(
        ", time_limit", ", families => 'nets', ensemble => 1, baselines => FALSE, max_trials => 2, time_limit"
    )
    found = plan(db, call)
    assert found["search"]["most"]["trials"] == 2 and not found["train"]["baselines"]
    assert db.value(call).startswith('Version 1 of model "leavers"')
    before = everything(db)
    again = plan(db, "SELECT madlib.mop_retrain('leavers')")
    assert again["function"] == "mop_retrain" and again["train"]["parts"] == found["train"]["parts"]
    warm = plan(db, "SELECT madlib.mop_retrain('leavers', warm => TRUE)")
    assert len({net["model_id"] for net in warm["nets"]}) == 1 and everything(db) == before
    db.run("DROP TABLE leavers; SELECT madlib.mop_drop_checkpoints()")


def test_of_many_rows_a_sample_is_packed_and_all_are_planned(db):
    db.run(
        "CREATE TABLE crowd AS SELECT i AS id, i * 7 % 60 AS age, i * 37 % 101 AS score, CASE WHEN i = 7 THEN 'rare' WHEN "
        "i * 7 % 60 > 30 THEN 'yes' ELSE 'no' END AS leaves FROM generate_series(1, 120000) i"
    )
    call = "SELECT madlib.mop_train('crowd', 'many', target => 'leaves', id => 'id', time_limit => '60 s')"
    first = plan(db, call)
    own = first["train"]
    assert 45_000 < own["sampled_rows"] < 55_000 < own["parts"]["train"]
    assert first["source"]["rows"] == pytest.approx(own["parts"]["train"], abs=10)
    assert first["validation"]["rows"] == pytest.approx(own["parts"]["valid"], abs=10)
    assert plan(db, call)["train"]["sampled_rows"] == own["sampled_rows"], "the same sample"
    db.run("DROP TABLE crowd")


def test_folds_are_planned(db):
    found = plan(db, CALL.format("30 s").replace(", time_limit", ", folds => 3, max_trials => 2, time_limit"))
    assert found["search"]["folds"] == 3 and set(found["train"]["parts"]) == {"train", "test"}


@pytest.mark.parametrize(
    "arguments",
    [
        "'persons', 'm', target => 'nothing'",
        "'persons', 'm'",
        "'persons', 'm', target => 'leaves', time_limit => '0 s'",
        "'persons', 'm', target => 'leaves', split => 'time'",
        "'persons', 'm', target => 'id', kind => 'classification'",
        "'persons', 'persons', target => 'leaves'",
    ],
)
def test_a_training_that_would_fail_fails_with_its_own_error(db, arguments):
    before, said, call = everything(db), [], f"SELECT madlib.mop_train({arguments})"
    for sql, values in ((call, None), ("SELECT madlib.mop_explain(%s)", [call])):
        with pytest.raises(psycopg2.Error) as caught:
            db.run(sql, values)
        message = caught.value.diag.message_primary.removeprefix("plpy.Error: ")
        said.append((caught.value.pgcode, message, caught.value.diag.message_detail, caught.value.diag.message_hint))
    assert said[0] == said[1]
    assert everything(db) == before


def test_a_query_is_not_run_by_an_explanation(db):
    db.run("CREATE SEQUENCE counted")
    call = "SELECT madlib.mop_train('SELECT *, nextval(''counted'') AS n FROM persons', 'm', target => 'leaves')"
    error = db.error("SELECT madlib.mop_explain(%s)", [call])
    assert "whose source is a query cannot be explained" in str(error) and error.pgcode == "0A000"
    assert error.diag.message_hint.startswith("CREATE VIEW training_rows AS SELECT *")
    assert not db.value("SELECT is_called FROM counted")
    db.run("DROP SEQUENCE counted")


def test_steps_of_other_calls_are_refused_still(db):
    plan(db, CALL.format("30 s"))
    for call in ("mop_pack('persons', 'p', 'leaves')", "mop_split('persons', 'p')"):
        assert "cannot be explained" in str(db.error("SELECT madlib.mop_explain(%s)", [f"SELECT madlib.{call}"]))


def test_nets_of_a_training_are_measured_on_its_sample(db):
    before = everything(db)[:3]
    call = CALL.format("30 s").replace(", time_limit", f"{ALL}, time_limit")
    found = json.loads(db.value("SELECT madlib.mop_explain(%s, 'json', TRUE)", [call]))
    assert "measured" in {net["source"] for net in found["nets"]} and everything(db)[:3] == before

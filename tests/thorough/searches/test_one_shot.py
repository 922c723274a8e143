"""One-shot searches: super-nets, the scores of members by shared weights, and the members that are trained from scratch."""

import re

import pytest

from support.model_space import SETTINGS, SPACE, drop, make_space, weights
from support.workload import ended_early, last_run, needs_jax

MUTATORS = [
    {"change": "repeat", "match": "hidden", "times": [1, 2, 3]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [4, 8, 16]},
    {"change": "value", "match": "hidden*", "argument": "activation", "choices": ["relu", "tanh"]},
]
PARAMETERS = "iterations=4, candidates=20, retrain=2, retrain_iterations=2"


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_space(db, MUTATORS)


def search(db, output, parameters=PARAMETERS, space=SPACE, model_space="nets", **more):
    drop(db, output)
    del db.connection.notices[:]
    named = "".join(f", {name} => %({name})s" for name in more)
    db.run(
        f"SELECT madlib.mop_search('flowers_packed', %(output)s, NULL, %(space)s, 'one-shot', %(parameters)s, "
        f"metric => 'accuracy', model_space => %(model_space)s{named})",
        {"output": output, "space": space, "parameters": parameters, "model_space": model_space, **more},
    )
    return last_run(db)


def test_members_have_scores_by_shared_weights_and_the_best_are_trained_from_scratch(db):
    search(db, "found")
    scores = db.run("TABLE found_one_shot ORDER BY rank")
    assert len(scores) == 20 and [row["rank"] for row in scores] == list(range(1, 21))
    values = [row["one_shot_score"] for row in scores]
    assert values == sorted(values, reverse=True) and len(set(values)) > 1
    assert {row["metric"] for row in scores} == {"training_accuracy"}
    first, *own = db.run("TABLE found_trials ORDER BY mst_key")
    assert (first["status"], first["iterations"], first["metric_final"], first["metric"]) == ("super-net", 4, None, [])
    assert [(row["mst_key"], row["status"], row["iterations"]) for row in own] == [
        (2, "finished", 2),
        (3, "finished", 2),
    ]
    # the best two by score, each as a trial of its own
    assert [row["mst_key"] for row in scores] == [2, 3, *[None] * 18]
    assert [row["member"] for row in own] == [row["member"] for row in scores[:2]]
    assert [row["choices"] for row in own] == [row["choices"] for row in scores[:2]]


def test_the_super_net_is_no_model_of_the_result(db):
    run_id = search(db, "found")
    assert [row["mst_key"] for row in db.run("SELECT mst_key FROM found ORDER BY 1")] == [2, 3]
    assert [row["mst_key"] for row in db.run("SELECT mst_key FROM found_info ORDER BY 1")] == [2, 3]
    assert "PathChoice" not in db.value("SELECT string_agg(model_arch::text, '') FROM found")
    assert db.value("SELECT best_mst_key FROM found_summary") in (2, 3)
    # no metric of a super-net, or of a score, is among the metrics of the run
    metrics = "SELECT DISTINCT mst_key FROM madlib.mop_metrics WHERE run_id = %s ORDER BY 1"
    assert [row["mst_key"] for row in db.run(metrics, [run_id])] == [2, 3]


def test_a_replay_trains_the_same_super_net_and_scores_nothing_anew(db):
    run_id = search(db, "found")
    drop(db, "repeated")
    del db.connection.notices[:]
    db.run("SELECT madlib.mop_replay(%s, 'repeated')", [run_id])
    assert not any("are scored" in text for text in db.connection.notices)
    assert weights(db, "found") == weights(db, "repeated")
    for table in ("_trials", "_one_shot"):
        assert db.run(f"TABLE found{table} ORDER BY 1") == db.run(f"TABLE repeated{table} ORDER BY 1")


def test_a_later_search_takes_over_the_super_net_and_scores_its_members(db):
    db.run("SET pg_mop.reuse = on")
    try:
        search(db, "found")
        run_id = search(db, "again", PARAMETERS.replace("candidates=20", "candidates=30"))
    finally:
        db.run("RESET pg_mop.reuse")
    trained = "SELECT DISTINCT mst_key FROM madlib.mop_units WHERE run_id = %s AND kind = 'train' AND mst_key = 1"
    assert not db.run(trained, [run_id])
    assert db.value("SELECT count(*) FROM again_one_shot") == 30
    same = "SELECT count(*) FROM found_one_shot JOIN again_one_shot USING (member, one_shot_score)"
    assert db.value(same) == 20, "the same weights, the same scores"


@pytest.mark.parametrize("finished", [3, 9])
def test_a_canceled_search_goes_on_where_it_was(db, finished):
    """After 3 of its 8 units the super-net is being trained; after 9 its members have scores, and two are trained."""
    other, name = db.another(), f"goes_on_{finished}"
    other.run(SETTINGS)
    drop(db, name)
    sql = (
        f"SELECT madlib.mop_search('flowers_packed', '{name}', NULL, $s${SPACE}$s$, 'one-shot', '{PARAMETERS}', "
        "metric => 'accuracy', model_space => 'nets')"
    )
    assert ended_early(db, other, sql, finished - 1).pgcode == "57014"
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s", [name])
    del other.connection.notices[:]
    other.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert any("are scored" in text for text in other.connection.notices) == (finished < 8)
    assert db.value(f"SELECT count(*) FROM {name}_one_shot") == 20 and db.value(f"SELECT count(*) FROM {name}") == 2
    (log,) = db.run(
        "SELECT count(*) AS n FROM madlib.mop_search_log WHERE run_id = %s AND event ->> 0 = 'members'", [run_id]
    )
    assert log["n"] == 1, "the members have scores once"
    drop(db, "repeated")
    db.run("SELECT madlib.mop_replay(%s, 'repeated')", [run_id])
    for table in ("_trials", "_one_shot"):
        assert db.run(f"TABLE {name}{table} ORDER BY 1") == db.run(f"TABLE repeated{table} ORDER BY 1")
    assert weights(db, name) == weights(db, "repeated")
    other.close()


def test_a_role_that_may_have_one_trainer_has_scores_too(db):
    db.run("INSERT INTO madlib.mop_limit (sessions) VALUES (1)")
    try:
        search(db, "found", "iterations=1, candidates=5, retrain=1", space=SPACE.replace("0.01", "0.015"))
    finally:
        db.run("DELETE FROM madlib.mop_limit")
    assert db.value("SELECT count(*) FROM found_one_shot") == 5 and db.value("SELECT count(*) FROM found") == 1


def test_without_retraining_there_are_scores_alone(db):
    search(db, "found", "iterations=1, candidates=5, retrain=0", validation_table="flowers_packed")
    assert db.value("SELECT count(*) FROM found_one_shot WHERE metric = 'validation_accuracy'") == 5
    assert db.value("SELECT count(*) FROM found") == 0 and db.value("SELECT best_mst_key FROM found_summary") is None


@needs_jax
def test_on_jax_too(db):
    db.run("SET pg_mop.keras_backend = 'jax'")
    try:
        search(db, "found")
    finally:
        db.run("RESET pg_mop.keras_backend")
    assert db.value("SELECT count(*) FROM found_one_shot WHERE one_shot_score > 0.5") > 0
    assert db.value("SELECT count(*) FROM found") == 2


def test_explain_counts_the_super_net_and_the_best_members(db):
    text = db.value(
        "SELECT madlib.mop_explain(%s)",
        [
            f"SELECT madlib.mop_search('flowers_packed', 'explained', NULL, $s${SPACE}$s$, 'one-shot', '{PARAMETERS}', "
            "metric => 'accuracy', model_space => 'nets')"
        ],
    )
    assert "3 trials by one-shot" in text and "iterations=8 units=16" in text, text
    assert re.search(r"-> expected: .* scored members=20 in [\d.]+ m?s", text), text
    assert "-> a super-net: its weights are those of all 258 members of base model 1" in text, text


def test_a_super_net_is_not_trained_on(db):
    run_id = search(db, "found")
    error = db.error("SELECT madlib.mop_more(%s, 1, 2)", [run_id])
    assert "super-net" in str(error)


@pytest.mark.parametrize(
    "parameters,more,fragment",
    [
        ("candidates=0", {}, "candidates of one-shot must be an integer from 1"),
        ("sampler=tpe", {}, "'sampler' is no parameter of one-shot"),
        ("iterations='; DROP TABLE arch; --'", {}, "iterations of one-shot must be"),
        ("filter=synflow", {}, "'filter' is no parameter of one-shot"),
        (PARAMETERS, {"folds": 2}, "one-shot and folds cannot be combined"),
        (PARAMETERS, {"continue_from": 1}, "one-shot and continue_from cannot be combined"),
        (PARAMETERS, {"space": SPACE.replace("[8]", "[8, 16]")}, "several values of 'batch_size'"),
    ],
)
def test_wrong_calls(db, parameters, more, fragment):
    drop(db, "found")
    before = last_run(db)
    with pytest.raises(Exception, match=fragment):
        search(db, "found", parameters, **more)
    assert db.value("SELECT to_regclass('found') IS NULL") and last_run(db) == before

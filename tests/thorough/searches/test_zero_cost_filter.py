"""Searches with a zero-cost filter, as users call them."""

import json

import pytest

from support.client import Calling
from support.cluster import eventually
from support.model_space import SETTINGS, SPACE, drop, make_space, weights
from support.workload import holding, last_run

MUTATORS = [
    {"change": "repeat", "match": "hidden", "times": [1, 2]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [2, 4, 8, 16]},
]
ASHA = "iterations=4, trials=14, reduction=2, parallel=2, filter={}, filter_members=16"


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_space(db, MUTATORS)


def search(db, output, kind="synflow", procedure="asha", parameters=ASHA, **more):
    drop(db, output)
    del db.connection.notices[:]
    named = "".join(f", {name} => %({name})s" for name in more)
    db.run(
        f"SELECT madlib.mop_search('flowers_packed', %(output)s, NULL, %(space)s, %(procedure)s, %(parameters)s, "
        f"model_space => 'nets'{named})",
        {"output": output, "space": SPACE, "procedure": procedure, "parameters": parameters.format(kind), **more},
    )
    return last_run(db)


def scores(db, run_id):
    """{model_id: score} that the log of a run has."""
    (event,) = db.run(
        "SELECT event -> 1 AS scores FROM madlib.mop_search_log WHERE run_id = %s AND event ->> 0 = 'scores'", [run_id]
    )
    return dict(event["scores"])


@pytest.mark.parametrize("kind", ["synflow", "naswot", "jacob-cov"])
def test_untrained_members_are_scored_before_anything_is_trained(db, kind):
    run_id = search(db, "found", kind)
    found = scores(db, run_id)
    assert len(found) == 16
    if kind != "naswot":  # (the rows repeat, so that few nets tell all of them apart, or none)
        assert len({value for value in found.values() if value is not None}) > 8
    trials = db.run("SELECT model_id, status FROM found_trials ORDER BY mst_key")
    assert len(trials) == 14 and {t["model_id"] for t in trials[:8]} <= found.keys()
    assert any(f"the filter {kind} looks at 16 untrained members" in text for text in db.connection.notices)
    assert scores(db, search(db, "again", kind)) == found, "the same seed, the same scores"


def test_a_replay_computes_no_scores_and_gives_the_same_bytes(db):
    run_id = search(db, "found")
    drop(db, "repeated")
    del db.connection.notices[:]
    db.run("SELECT madlib.mop_replay(%s, 'repeated')", [run_id])
    assert not any("untrained members" in text for text in db.connection.notices)
    assert weights(db, "found") == weights(db, "repeated")
    assert db.run("TABLE found_trials ORDER BY mst_key") == db.run("TABLE repeated_trials ORDER BY mst_key")


def test_a_resumed_search_takes_the_scores_of_its_log(db):
    other, name = db.another(), "goes_on"
    other.run(SETTINGS)
    drop(db, name)
    sql = (
        f"SELECT madlib.mop_search('flowers_packed', '{name}', NULL, $s${SPACE}$s$, 'asha', '{ASHA.format('synflow')}', "
        "model_space => 'nets')"
    )
    finished = (
        "SELECT count(*) FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE r.model_output_table = "
        f"'{name}' AND u.status = 'finished'"
    )
    with holding(db.another()) as let_some_begin:
        call = Calling(other, sql)
        assert eventually(lambda: db.value(finished) > 12 or let_some_begin(), 90)
        db.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
    assert call.end().pgcode == "57014"
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s", [name])
    before = scores(db, run_id)
    del other.connection.notices[:]
    other.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert not any("untrained members" in text for text in other.connection.notices)
    assert scores(db, run_id) == before and db.value(f"SELECT count(*) FROM {name}_trials") == 14
    drop(db, "repeated")
    db.run("SELECT madlib.mop_replay(%s, 'repeated')", [run_id])
    trials = "SELECT mst_key, model_id, metric_final FROM {}_trials ORDER BY 1"
    assert db.run(trials.format(name)) == db.run(trials.format("repeated"))
    other.close()


def test_a_filter_that_ranks_the_worst_first_is_dropped_with_a_notice(db):
    """Of nets that learn nothing, the scores tell nothing: all results are equal."""
    still = SPACE.replace("[0.01]", "[1e-30]").replace("'Adam'", "'SGD'")
    parameters = "iterations=1, trials=10, filter=synflow, filter_members=12"
    drop(db, "found")
    del db.connection.notices[:]
    flat = json.dumps(
        [
            {
                "change": "insert",
                "match": "hidden",
                "choices": [None, *({"class": "Dropout", "rate": rate / 100} for rate in range(1, 14))],
            }
        ]
    )
    db.run("DROP TABLE IF EXISTS alike")
    db.run("SELECT madlib.mop_space('alike', 'arch', ARRAY[1], %s::text)", [flat])
    db.run("SET pg_mop.same_start = on")
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'found', NULL, %s, 'random', %s, model_space => 'alike')",
        [still, parameters],
    )
    (notice,) = (text for text in db.connection.notices if "was dropped after 8 trials" in text)
    assert "the filter synflow" in notice and "rank correlation" in notice
    assert db.value("SELECT count(*) FROM found_trials") == 10


def test_a_member_above_the_memory_limit_has_no_score(db):
    wide = json.dumps([{"change": "value", "match": "hidden", "argument": "units", "choices": [8, 9, 1_000_000]}])
    db.run("DROP TABLE IF EXISTS too_wide")
    db.run("SELECT madlib.mop_space('too_wide', 'arch', ARRAY[1], %s::text)", [wide])
    db.run("SET pg_mop.max_model_mb = 10")
    drop(db, "found")
    try:
        db.run(
            "SELECT madlib.mop_search('flowers_packed', 'found', NULL, %s, 'random', "
            "'iterations=1, trials=2, filter=synflow, filter_members=9', model_space => 'too_wide')",
            [SPACE],
        )
    finally:
        db.run("RESET pg_mop.max_model_mb")
    found = scores(db, last_run(db))
    assert len(found) == 3 and sum(value is None for value in found.values()) == 1


@pytest.mark.parametrize(
    "procedure,parameters,fragment",
    [
        ("asha", "filter=oracle", "filter must be one of synflow, naswot, jacob-cov, off"),
        ("asha", "filter=synflow, filter_members=0", "filter_members must be an integer from 9"),
        ("asha", "filter=synflow, sampler=grid", "a filter is for trials at random"),
        ("tpe", "filter=synflow", "a filter is for trials at random"),
        ("asha", "filter_members=20", "filter_members is for a search with a filter"),
        ("asha", "filter='; DROP TABLE arch; --'", "filter must be one of"),
        ("asha", "filter=synflow, iterations=1", "a filter ranks the members of a model space"),
    ],
)
def test_wrong_calls(db, procedure, parameters, fragment):
    drop(db, "found")
    searched = "'arch', %s, %s, %s" if "model space" in fragment else "NULL, %s, %s, %s, model_space => 'nets'"
    call = f"SELECT madlib.mop_search('flowers_packed', 'found', {searched})"
    error = db.error(call, [SPACE, procedure, parameters])
    assert fragment in str(error) and db.value("SELECT to_regclass('found') IS NULL")

"""Searches whose children begin with their parents' trained weights: what they inherit, replays, resumed runs, limits."""

import pytest

from support.model_space import SETTINGS, SPACE, drop, make_space, weights
from support.workload import ended_early, last_run, make_data

MUTATORS = [
    {"change": "repeat", "match": "hidden", "times": [1, 2, 3]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [4, 8, 12]},
    {"change": "insert", "match": "hidden", "choices": [None, {"class": "Dropout", "rate": 0.1}]},
]
EVOLUTION = "population=3, tournament=2, trials=10, iterations=2, parallel=1, inherit=on"
HEIRS = "SELECT * FROM madlib.mop_lineage WHERE run_id = %s AND inheritance IS NOT NULL ORDER BY mst_key"


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_space(db, MUTATORS)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")


def search(db, output="found", parameters=EVOLUTION, source="flowers_packed", **more):
    drop(db, output)
    validation = "flowers_val" if source == "flowers_packed" else None
    more = {"space": SPACE, "model_space": "nets", "validation_table": validation, **more}
    named = "".join(f", {name} => %({name})s" for name in more)
    db.run(
        f"SELECT madlib.mop_search(%(source)s, %(output)s, NULL, procedure => 'regularized-evolution', "
        f"procedure_params => %(parameters)s, metric => 'loss'{named})",
        {"source": source, "output": output, "parameters": parameters, **more},
    )
    return last_run(db)


def test_children_begin_where_their_parents_ended(db):
    run_id = search(db)
    heirs = db.run(HEIRS, [run_id])
    assert len(heirs) >= 5 and not db.value("SELECT count(*) FROM found_trials WHERE status <> 'finished'")
    stages = {row["stage"]: row for row in db.run("SELECT * FROM madlib.mop_stages WHERE run_id = %s", [run_id])}
    for row in heirs:
        told = row["inheritance"]
        assert told["trial"] == row["parent"] and told["iteration"] == 2
        (first,) = (s for s in stages.values() if row["mst_key"] in s["mst_keys"] and s["iteration"] == 1)
        assert row["parent"] in stages[first["parent"]]["mst_keys"] and stages[first["parent"]]["iteration"] == 2
        assert {entry["how"] for entry in told["layers"]} <= {"copied", "widened", "identity"}
        assert "copied" in row["inherited"] and ("the same function" in row["inherited"]) == told["same"]
    # with the function of its parent, a child is no worse than a fresh one after its first iteration
    assert any(row["inheritance"]["same"] for row in heirs)
    others = db.run(
        "SELECT inherited, parent FROM madlib.mop_lineage WHERE run_id = %s AND inheritance IS NULL", [run_id]
    )
    assert all(row["parent"] is None and row["inherited"] is None for row in others if row["parent"] is None)


def test_an_inherited_start_is_no_fresh_one(db):
    """The same members, with and without inheritance, share no stage but those of the first trials."""
    fresh = search(db, "fresh", EVOLUTION.replace("inherit=on", "inherit=off"))
    inherited = search(db)
    identities = "SELECT identity FROM madlib.mop_stages WHERE run_id = %s AND parent IS NULL"
    assert db.value(f"SELECT count(*) FROM ({identities} INTERSECT {identities}) s", [fresh, inherited]) == 3
    heirs = {row["mst_key"] for row in db.run(HEIRS, [inherited])}
    assert heirs and not db.run(HEIRS, [fresh])
    roots = (
        "SELECT DISTINCT unnest(mst_keys) AS key FROM madlib.mop_stages WHERE run_id = %s AND iteration = 1 AND parent "
    )
    assert {r["key"] for r in db.run(roots + "IS NOT NULL", [inherited])} == heirs


def test_a_replay_gives_the_same_bytes_and_lineage(db):
    run_id = search(db)
    drop(db, "again")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert weights(db, "found") == weights(db, "again")
    assert db.run("TABLE found_trials ORDER BY mst_key") == db.run("TABLE again_trials ORDER BY mst_key")
    lineage = (
        "SELECT mst_key, parent, changed, member, choices, inherited, inheritance FROM madlib.mop_lineage "
        "WHERE run_id = %s ORDER BY 1"
    )
    assert db.run(lineage, [run_id]) == db.run(lineage, [last_run(db)])
    assert "finished" in db.value("SELECT madlib.mop_explain_run(%s)", [run_id])
    explained = db.value("SELECT madlib.mop_explain($$SELECT madlib.mop_replay(%s, 'explained')$$)", [run_id])
    assert "Train 10 configurations" in explained


def test_the_same_search_again_takes_over_what_was_inherited(db):
    db.run("SET pg_mop.reuse = on")
    try:
        first = search(db, random_state=4)
        second = search(db, "later", random_state=4)
    finally:
        db.run("RESET pg_mop.reuse")
    stages = "SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND source_run IS "
    assert db.value(stages + "NULL", [second]) == 0 < db.value(stages + "NULL", [first])
    assert weights(db, "found") == weights(db, "later")


def test_an_heir_is_trained_on_from_its_state_alone(db):
    db.run("SET pg_mop.reuse = on")
    run_id = search(db)
    key = db.run(HEIRS, [run_id])[-1]["mst_key"]
    db.run("SET pg_mop.reuse = off")
    error = db.error("SELECT madlib.mop_more(%s, %s, 1)", [run_id, key])
    assert f"mst_key {key} began with weights of another trial" in str(error) and "SET pg_mop.reuse = on" in str(error)
    db.run("SET pg_mop.reuse = on")
    try:
        db.run("SELECT madlib.mop_more(%s, %s, 1)", [run_id, key])
    finally:
        db.run("RESET pg_mop.reuse")
    assert db.value("SELECT iteration FROM found_info WHERE mst_key = %s", [key]) == 3


def test_a_search_that_is_cancelled_between_parent_and_child_ends_as_if_nothing_had_happened(db):
    make_data(db, "one", segments=1, seed=3)  # (with one segment there is one order of visits)
    undisturbed = search(db, "undisturbed", source="one_packed")
    other, name = db.another(), "goes_on"
    other.run(SETTINGS + "; SET pg_mop.reuse = off")
    drop(db, name)
    sql = (
        f"SELECT madlib.mop_search('one_packed', '{name}', NULL, $s${SPACE}$s$, 'regularized-evolution', "
        f"'{EVOLUTION}', metric => 'loss', model_space => 'nets')"
    )
    assert ended_early(db, other, sql, 16).pgcode == "57014"
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s", [name])
    other.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert weights(db, name) == weights(db, "undisturbed")
    lineage = "SELECT mst_key, parent, inherited, inheritance FROM madlib.mop_lineage WHERE run_id = %s ORDER BY 1"
    assert db.run(lineage, [run_id]) == db.run(lineage, [undisturbed])
    drop(db, "repeated")
    db.run("SELECT madlib.mop_replay(%s, 'repeated')", [run_id])
    assert weights(db, name) == weights(db, "repeated")
    other.close()


def test_children_of_an_earlier_run_start_anew_and_say_so(db):
    first = search(db, parameters=EVOLUTION.replace("trials=10", "trials=3"))
    drop(db, "later")
    second = search(db, "later", EVOLUTION.replace("trials=10", "trials=2"), continue_from=first)
    rows = db.run(
        "SELECT parent, inherited, inheritance FROM madlib.mop_lineage WHERE run_id = %s ORDER BY mst_key", [second]
    )
    assert rows[0] == {
        "parent": None,
        "inherited": "nothing: the parent is a trial of an earlier run",
        "inheritance": None,
    }


def test_folds_inherit_from_the_same_fold(db):
    run_id = search(db, validation_table=None, folds=2)
    heirs = db.run(HEIRS, [run_id])
    assert heirs
    parents = db.run(
        "SELECT s.mst_keys, p.mst_keys AS parents FROM madlib.mop_stages s JOIN madlib.mop_stages p ON p.run_id = s.run_id "
        "AND p.stage = s.parent WHERE s.run_id = %s AND s.iteration = 1",
        [run_id],
    )
    of = {row["mst_key"]: row["parent"] for row in heirs}
    assert len(parents) == 3 * len(heirs)
    for row in parents:
        own, other = row["mst_keys"][0], row["parents"][0]
        key = own % 10_000_000
        assert other - of[key] == own - key, "a fold never learns from the rows that it is judged by"


def test_without_a_model_space_children_inherit_whole_models(db):
    space = SPACE.replace("[0.01]", "[0.001, 0.1, 'log']")
    drop(db, "found")
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'found', 'arch', %s, 'regularized-evolution', "
        "'population=2, tournament=2, trials=5, iterations=1, parallel=1, inherit=yes', metric => 'loss')",
        [space],
    )
    heirs = db.run(HEIRS, [last_run(db)])
    assert heirs and all(row["inheritance"]["same"] and row["changed"] == "lr" for row in heirs)
    tree = db.value("SELECT madlib.mop_family(%s)", [last_run(db)]).split("\n")[1:]
    above = {row["parent"] for row in heirs}
    assert {int(line.split()[0]) for line in tree if line[0].isdigit()} == above - {row["mst_key"] for row in heirs}
    assert sum(not line[0].isdigit() for line in tree) == len(heirs)

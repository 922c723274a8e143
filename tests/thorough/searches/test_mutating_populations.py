"""Population-based training whose copies have other models: what they inherit, replays, resumed runs, folds."""

import pytest

from support.client import Calling
from support.cluster import eventually
from support.model_space import SETTINGS, SPACE, drop, make_space, weights
from support.workload import holding, last_run, make_data

MUTATORS = [
    {"change": "repeat", "match": "hidden", "times": [1, 2, 3]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [4, 8, 12]},
]
RATES = SPACE.replace("[0.01]", "[0.001, 0.1, 'log']")
POPULATION = "population=4, iterations=8, interval=2, fraction=0.5, mutate=0.5"
LINEAGE = "SELECT mst_key, parent, changed, inherited, inheritance FROM madlib.mop_lineage WHERE run_id = %s ORDER BY 1"


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_space(db, MUTATORS)


def sql(output, source="flowers_packed", parameters=POPULATION, more=""):
    return (
        f"SELECT madlib.mop_search('{source}', '{output}', NULL, $s${RATES}$s$, 'population', '{parameters}', "
        f"metric => 'loss', model_space => 'nets'{more})"
    )


def search(db, output="bred", rate="0.5", **more):
    drop(db, output)
    db.run(sql(output, **more).replace("mutate=0.5", f"mutate={rate}"))
    return last_run(db)


def check_copies(db, run_id):
    """{mst_key: its row of mop_lineage} of a run's copies, once they are looked at."""
    rows = db.run("SELECT * FROM madlib.mop_lineage WHERE run_id = %s ORDER BY mst_key", [run_id])
    trials = {row["mst_key"]: row for row in rows}
    copies = {key: row for key, row in trials.items() if row["parent"] is not None}
    heirs = {key: row for key, row in copies.items() if "copied" in row["inherited"]}
    plain = {key: row for key, row in copies.items() if row["inherited"].startswith("iterations 1 to")}
    assert len(copies) == 6 == len(heirs) + len(plain)
    stages = {row["stage"]: row for row in db.run("SELECT * FROM madlib.mop_stages WHERE run_id = %s", [run_id])}
    firsts = {key: s for s in stages.values() for key in s["mst_keys"] if s["iteration"] == 1}
    for key, row in heirs.items():
        told, before, parent = row["inheritance"], stages[firsts[key]["parent"]], trials[row["parent"]]
        assert told["trial"] == row["parent"] and row["parent"] in before["mst_keys"]
        assert before["iteration"] == told["iteration"]
        row["mutated"], row["again"] = row["member"] != parent["member"], parent["inheritance"] is not None
        if row["mutated"]:
            assert row["changed"].split(", ")[0] != "lr" and row["value_before"] != row["value_after"]
        else:
            assert row["again"] and told["same"] and not told["fresh"]
    for key, row in plain.items():
        row["shares"] = firsts[key] is firsts[row["parent"]]
    # every member of the end has eight iterations behind it
    line = {}
    for key, row in trials.items():
        told = row["inheritance"] or {"trial": None, "iteration": 0}
        line[key] = told["iteration"] + line.get(told["trial"], 0)
    ends = db.run("SELECT mst_key, iteration FROM bred_info JOIN bred_trials USING (mst_key) WHERE status = 'finished'")
    assert len(ends) == 4 and {line[row["mst_key"]] + row["iteration"] for row in ends} == {8}
    return copies


def test_mutated_copies_begin_with_what_they_inherit(db):
    """The visit order of two segments has a part in which members are copied: further seeds are tried until all is seen."""
    wanted = {
        "mutated",
        "again",
        "shares",
    }  # (again: heirs of heirs; shares: what other copies begin with is trained once)
    try:
        for seed in range(3, 13):
            db.run(f"SET pg_mop.seed = {seed}")
            found = check_copies(db, search(db, rate="0.5" if seed % 2 else "0.9")).values()
            wanted -= {name for name in wanted if any(row.get(name) for row in found)}
            if not wanted:
                break
    finally:
        db.run("SET pg_mop.seed = 3")
    assert not wanted


def test_a_replay_gives_the_same_bytes_and_lineage(db):
    run_id = search(db)
    drop(db, "again")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert weights(db, "bred") == weights(db, "again")
    assert db.run("TABLE bred_trials ORDER BY mst_key") == db.run("TABLE again_trials ORDER BY mst_key")
    assert db.run(LINEAGE, [run_id]) == db.run(LINEAGE, [last_run(db)])
    assert db.value("SELECT madlib.mop_family(%s)", [run_id]).count("\n") == 10


def test_a_search_that_is_cancelled_ends_as_if_nothing_had_happened(db):
    make_data(db, "one", segments=1, seed=3)  # (with one segment there is one order of visits)
    undisturbed = search(db, "undisturbed", source="one_packed")
    name, other = "goes_on", db.another()
    other.run(SETTINGS + "; SET pg_mop.reuse = off")
    finished = (
        "SELECT count(*) FROM madlib.mop_units u JOIN madlib.mop_runs r USING (run_id) WHERE r.model_output_table = "
        f"'{name}' AND u.status = 'finished'"
    )
    drop(db, name)
    with holding(db.another()) as let_some_begin:
        call = Calling(other, sql(name, "one_packed"))
        assert eventually(lambda: db.value(finished) > 9 or let_some_begin(), 90)
        db.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
    assert call.end().pgcode == "57014"
    run_id = db.value("SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = %s", [name])
    other.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert weights(db, name) == weights(db, "undisturbed")
    assert db.run(LINEAGE, [run_id]) == db.run(LINEAGE, [undisturbed])
    drop(db, "repeated")
    db.run("SELECT madlib.mop_replay(%s, 'repeated')", [run_id])
    assert weights(db, name) == weights(db, "repeated")
    other.close()


def test_the_same_search_again_takes_over_every_stage(db):
    db.run("SET pg_mop.reuse = on")
    try:
        first = search(db, more=", random_state => 4")
        second = search(db, "later", more=", random_state => 4")
    finally:
        db.run("RESET pg_mop.reuse")
    stages = "SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND source_run IS NULL"
    assert db.value(stages, [second]) == 0 < db.value(stages, [first])
    assert weights(db, "bred") == weights(db, "later")
    assert db.run(LINEAGE, [first]) == db.run(LINEAGE, [second])


def test_folds_of_mutated_copies_inherit_from_the_same_fold(db):
    run_id = search(db, rate="1", parameters=POPULATION.replace("iterations=8", "iterations=4"), more=", folds => 2")
    heirs = {row["mst_key"]: row["parent"] for row in db.run(LINEAGE, [run_id]) if row["inheritance"]}
    parents = db.run(
        "SELECT s.mst_keys, p.mst_keys AS parents FROM madlib.mop_stages s JOIN madlib.mop_stages p ON p.run_id = s.run_id "
        "AND p.stage = s.parent WHERE s.run_id = %s AND s.iteration = 1",
        [run_id],
    )
    assert heirs and len(parents) == 3 * len(heirs)
    for row in parents:
        own = row["mst_keys"][0]
        key = own % 10_000_000
        assert heirs[key] + own - key in row["parents"], "a fold never learns from the rows that it is judged by"


def test_explain_foresees_the_units_of_mutated_copies(db):
    drop(db, "foreseen")
    text = db.value("SELECT madlib.mop_explain(%s)", [sql("foreseen")])
    run_id = search(db, "foreseen")
    units = db.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND kind = 'train'", [run_id])
    assert f" units={units} " in text, text

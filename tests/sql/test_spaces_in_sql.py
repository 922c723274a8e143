"""mop_space and its companions, and searches over a model space, as users call them."""

import json
import time

import pytest

from support.cluster import ROOT
from support.workload import HOSTILE, dense, last_run, layer, load, make_data, sequential

MUTATORS = json.dumps(
    [
        {"change": "repeat", "match": "hidden", "times": [1, 2]},
        {"change": "value", "match": "hidden*", "argument": "units", "choices": [4, 8]},
        {"change": "insert", "match": "hidden", "choices": [None, {"class": "Dropout", "rate": 0.1}]},
    ]
)
SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': "
    "['Adam'], 'lr': [0.001, 0.1, 'log']}], 'batch_size': [8, 16]}"
)
TABLES = ("", "_info", "_summary", "_trials")


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense(), dense(16, name="wide"), dense(inputs=5))
    db.run("SET pg_mop.kernel = 'plain'; SET pg_mop.seed = 3")
    make(db, "nets", MUTATORS)


def make(db, name, mutators, base=(1, 2), adapt=None, table="arch"):
    quoted = '"' + name.replace('"', '""') + '"'
    db.run(f"DROP TABLE IF EXISTS {quoted}")
    return db.value("SELECT madlib.mop_space(%s, %s, %s, %s::text, %s)", [quoted, table, list(base), mutators, adapt])


def search(db, output="found", procedure="random", parameters="iterations=1, trials=4", **more):
    names = ", ".join(output + suffix for suffix in TABLES)
    db.run(f"DROP TABLE IF EXISTS {names}")
    more = {"space": SPACE, "model_space": "nets", **more}
    named = "".join(f", {name} => %({name})s" for name in more)
    db.run(
        f"SELECT madlib.mop_search('flowers_packed', %(output)s, NULL, procedure => %(procedure)s, procedure_params => "
        f"%(parameters)s, metric => 'accuracy'{named})",
        {"output": output, "procedure": procedure, "parameters": parameters, **more},
    )
    return last_run(db)


# --- spaces -----------------------------------------------------------------------------------------------------------


def test_a_space_is_a_table_of_its_owner(db):
    assert make(db, "own", MUTATORS) == 2 * 2 * (2 + 4)
    assert db.value("SELECT madlib.mop_space_size('own')") == 24
    (row,) = db.run("SELECT base, mutators, adapt, members, made_at IS NOT NULL AS made FROM own")
    assert [one["model_id"] for one in row["base"]] == [1, 2] and row["base"][1]["model_arch"] == json.loads(
        dense(16, name="wide")
    )
    assert row["mutators"] == json.loads(MUTATORS) and row["members"] == 24 and row["made"] and row["adapt"] is None
    db.run("UPDATE arch SET model_arch = '{}' WHERE model_id = 1")
    try:
        assert db.value("SELECT madlib.mop_space_size('own')") == 24, "it has its base models itself"
    finally:
        db.run("UPDATE arch SET model_arch = %s WHERE model_id = 1", [dense()])


@pytest.mark.parametrize("kind", ["json", "jsonb", "text", "varchar"])
def test_mutators_come_as_json_or_text(db, kind):
    db.run("DROP TABLE IF EXISTS typed")
    assert db.value(f"SELECT madlib.mop_space('typed', 'arch', ARRAY[1], %s::{kind})", [MUTATORS]) == 12


def test_without_base_models_all_of_the_table_are(db):
    load(db, "two_arch", dense(), dense(12))
    db.run("DROP TABLE IF EXISTS every")
    assert db.value("SELECT madlib.mop_space('every', 'two_arch', NULL, '[]')") == 2


def test_a_sample_is_of_members_that_can_be_trained(db):
    rows = db.run("SELECT * FROM madlib.mop_space_sample('nets', 24, 5)")
    assert sorted(int(row["member"]) for row in rows) == list(range(24))
    for row in rows:
        assert row["parameters"] > 30 and row["model_id"] in (1, 2) and set(row["choices"]) >= {"times hidden"}
        names = [one["name"] for one in row["model_arch"]["config"]["layers"]]
        assert ("hidden_2" in names) == (row["choices"]["times hidden"] == 2)
        assert isinstance(row["primitives"], list)
    sample = "SELECT member FROM madlib.mop_space_sample('nets', 5, %s)"
    assert db.run(sample, [1]) == db.run(sample, [1]) != db.run(sample, [2])


def test_the_text_of_a_space_shows_its_choice_points(db):
    text = db.value("SELECT madlib.mop_space_show('nets')")
    assert text.startswith(
        "24 members of 2 base models\n24 of all 24 members looked at fit together\n\nmodel 1: 12 members"
    )
    assert "    ? times hidden: 1 | 2\n      if 2:\n        ? hidden_2.units: 4 | 8\n" in text
    assert "? after hidden: none | Dropout(rate=0.1)" in text


def test_what_does_not_fit_is_counted_and_named(db):
    both = json.dumps([{"change": "value", "match": {"class": "Dense"}, "argument": "units", "choices": [3, 4]}])
    del db.connection.notices[:]
    assert make(db, "half", both, base=(1,)) == 4
    (notice,) = (text for text in db.connection.notices if "do not fit" in text)
    assert "2 of all 4 members looked at do not fit together" in notice and "that of the base model (3)" in notice
    text = db.value("SELECT madlib.mop_space_show('half')")
    assert "2 of all 4 members" in text and "2 do not: an output has shape (4), that of the base model (3)" in text
    assert len(db.run("SELECT * FROM madlib.mop_space_sample('half', 10)")) == 2


def test_a_space_that_is_dumped_is_the_same_again(db):
    before = db.run("SELECT * FROM madlib.mop_space_sample('nets', 10, 3)")
    db.run("DROP TABLE IF EXISTS restored; CREATE TABLE restored (LIKE nets INCLUDING ALL)")
    (row,) = db.run("SELECT base::text, mutators::text, adapt FROM nets")
    db.run("INSERT INTO restored (base, mutators, adapt) VALUES (%s, %s, %s)", list(row.values()))
    assert db.run("SELECT * FROM madlib.mop_space_sample('restored', 10, 3)") == before


@pytest.mark.parametrize(
    "call,fragment",
    [
        ("mop_space('nets', 'arch', ARRAY[1], '[]')", 'output table "nets" already exists'),
        ("mop_space(NULL, 'arch', ARRAY[1], '[]')", "NULL/empty output table name"),
        ("mop_space('new', NULL, ARRAY[1], '[]')", "NULL/empty input table name"),
        ("mop_space('new', 'nobody', ARRAY[1], '[]')", "model architecture table 'nobody' does not exist"),
        ("mop_space('new', 'flowers', ARRAY[1], '[]')", "no model architecture table"),
        ("mop_space('new', 'arch', ARRAY[1, 99], '[]')", 'model_id 99 is not in "arch"'),
        ("mop_space('new', 'arch', ARRAY[1.5], '[]')", "base must be an integer, not 1.5"),
        ("mop_space('new', 'arch', ARRAY[1, NULL], '[]')", "without NULLs"),
        ("mop_space('new', 'arch', '{}', '[]')", "without NULLs"),
        ("mop_space('new', 'arch', ARRAY[1, 1], '[]')", "base model 1 is named twice"),
        ("mop_space('new', 'arch', ARRAY[1, 3], '[]')", "no common input: 1 takes (4), 3 takes (5)"),
        ("mop_space('new', 'arch', ARRAY[1], NULL::text)", "mutators must not be NULL"),
        ("mop_space('new', 'arch', ARRAY[1], 'x')", "mutators are not JSON"),
        ("mop_space('new', 'arch', ARRAY[1], '[]', 'stretch')", "adapt must be"),
        (
            """mop_space('new', 'arch', ARRAY[1], '[{"change": "remove", "match": "nobody"}]')""",
            "mutator 1 (remove) matches no layer: nobody",
        ),
        (
            """mop_space('new', 'arch', ARRAY[1],
            '[{"change": "value", "match": "out", "argument": "units", "choices": [4, 5]}]')""",
            "no member of the space fits together (2 of 2 looked at)",
        ),
        ("mop_space_size('nobody')", "model space 'nobody' does not exist"),
        ("mop_space_size('arch')", "is no model space: it has no column base"),
        ("mop_space_size(NULL)", "NULL/empty input table name"),
        ("mop_space_show('arch')", "is no model space"),
        ("mop_space_sample('nets', 0)", "n must be an integer from 1 to 100000, not 0"),
        ("mop_space_sample('nets', NULL)", "not NULL"),
        ("mop_space_sample('nets', 1.5)", "n must be an integer, not 1.5"),
        ("mop_space_sample('nets', 1, NULL)", "seed must not be NULL"),
    ],
)
def test_wrong_calls(db, call, fragment):
    error = db.error(f"SELECT madlib.{call}")
    assert fragment in str(error) and str(error).startswith(f"plpy.Error: {call.partition('(')[0]}: ")
    assert db.value("SELECT to_regclass('new') IS NULL")


@pytest.mark.parametrize(
    "change,fragment",
    [
        ("SET mutators = '[7]'", "a list of objects"),
        ("SET base = '[]'", "needs a base model"),
        ("SET base = '[{\"model_id\": 1}]'", "a list of objects with model_id"),
        ("SET base = NULL", "NULL in place of"),
        ("SET adapt = 'x'", "adapt must be"),
    ],
)
def test_a_space_that_was_changed_by_hand_is_checked_again(db, change, fragment):
    make(db, "changed", MUTATORS)
    db.run(f"UPDATE changed {change}")
    for call in ("mop_space_size('changed')", "mop_space_show('changed')", "mop_space_sample('changed')"):
        assert fragment in str(db.error(f"SELECT madlib.{call}"))
    db.run("INSERT INTO changed SELECT * FROM nets")
    assert "has several rows" in str(db.error("SELECT madlib.mop_space_size('changed')"))


def test_names_with_quotes(db):
    name = 'a "space"; DROP TABLE arch; --\''
    assert make(db, name, MUTATORS) == 24
    quoted = '"' + name.replace('"', '""') + '"'
    assert db.value("SELECT madlib.mop_space_size(%s)", [quoted]) == 24
    load(
        db,
        "quoted_arch",
        sequential("s", [4], layer("Dense", name=HOSTILE, units=4), layer("Dense", name="o", units=3)),
    )
    mutators = json.dumps(
        [{"change": "value", "match": {"class": "Dense", "position": 1}, "argument": "units", "choices": [4, 5]}]
    )
    make(db, "quoted_names", mutators, base=(1,), table="quoted_arch")
    rows = db.run("SELECT choices FROM madlib.mop_space_sample('quoted_names')")
    assert {value for row in rows for value in row["choices"].values()} == {4, 5}
    assert all(list(row["choices"]) == [f"{HOSTILE}.units"] for row in rows)


# --- searches ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_id(db):
    return search(db, parameters="iterations=2, trials=4")


def test_a_search_over_models_and_hyper_parameters(db, run_id):
    trials = db.run("SELECT * FROM found_trials ORDER BY mst_key")
    assert len(trials) == 4 and all(t["status"] == "finished" for t in trials)
    members = {row["member"]: row for row in db.run("SELECT * FROM madlib.mop_space_sample('nets', 24)")}
    models = {row["mst_key"]: row["model_arch"] for row in db.run("SELECT mst_key, model_arch FROM found")}
    for trial in trials:
        member = members[trial["member"]]
        assert trial["choices"] == member["choices"] and trial["base_model"] == member["model_id"]
        assert models[trial["mst_key"]] == member["model_arch"] and trial["parent"] is None
    lineage = db.run("SELECT mst_key, member, choices FROM madlib.mop_lineage WHERE run_id = %s ORDER BY 1", [run_id])
    assert lineage == [{name: t[name] for name in ("mst_key", "member", "choices")} for t in trials]
    assert db.value("SELECT model_space FROM found_summary") == "nets"


def test_the_winner_predicts_is_evaluated_goes_on_and_becomes_an_architecture(db, run_id):
    best = db.value("SELECT best_mst_key FROM found_summary")
    db.run("DROP TABLE IF EXISTS answers, scores, won_arch, one, one_summary")
    db.run("SELECT madlib.madlib_keras_predict('found', 'flowers', 'id', 'x', 'answers')")
    assert db.value("SELECT count(DISTINCT id) FROM answers") == 100
    db.run("SELECT madlib.madlib_keras_evaluate('found', 'flowers_val', 'scores', FALSE, %s)", [best])
    assert db.value("SELECT loss FROM scores") > 0
    before = db.value("SELECT iteration FROM found_info WHERE mst_key = %s", [best])
    db.run("SELECT madlib.mop_more(%s, %s, 2)", [run_id, best])
    assert db.value("SELECT iteration FROM found_info WHERE mst_key = %s", [best]) > before
    assert db.value("SELECT choices IS NOT NULL FROM found_trials WHERE mst_key = %s", [best])
    db.run(
        "SELECT madlib.load_keras_model('won_arch', model_arch, NULL, 'winner') FROM found JOIN found_summary "
        "ON mst_key = best_mst_key"
    )
    db.run(
        "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'won_arch', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam()'$$, 'batch_size=8', 1)"
    )
    assert db.value("SELECT count(*) FROM one") == 1


@pytest.mark.parametrize(
    "procedure,parameters",
    [
        ("asha", "iterations=2, trials=3, reduction=2"),
        ("regularized-evolution", "population=3, tournament=2, trials=5, iterations=1, parallel=2"),
    ],
)
def test_a_search_of_models_is_replayed_to_the_byte(db, procedure, parameters):
    run_id = search(db, procedure=procedure, parameters=parameters)
    db.run("DROP TABLE IF EXISTS " + ", ".join("again" + suffix for suffix in TABLES))
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    columns = "mst_key, model_arch::text, encode(model_weights, 'hex') AS weights"
    assert db.run(f"SELECT {columns} FROM found ORDER BY 1") == db.run(f"SELECT {columns} FROM again ORDER BY 1")
    assert db.run("TABLE found_trials ORDER BY mst_key") == db.run("TABLE again_trials ORDER BY mst_key")
    lineage = "SELECT mst_key, parent, changed, member, choices FROM madlib.mop_lineage WHERE run_id = %s ORDER BY 1"
    assert db.run(lineage, [run_id]) == db.run(lineage, [last_run(db)])


def test_evolution_tells_of_each_child_what_was_changed(db):
    run_id = search(
        db,
        procedure="regularized-evolution",
        parameters="population=3, tournament=2, trials=7, iterations=1, parallel=1",
    )
    rows = {r["mst_key"]: r for r in db.run("SELECT * FROM madlib.mop_lineage WHERE run_id = %s", [run_id])}
    assert len(rows) == 7 and all(rows[key]["parent"] is None for key in (1, 2, 3))
    params = {r["mst_key"]: (r["compile_params"], r["fit_params"]) for r in db.run("TABLE found_trials")}
    children = [row for row in rows.values() if row["parent"] is not None]
    assert children
    for row in children:
        parent = rows[row["parent"]]
        assert row["value_before"] != row["value_after"] and row["parent"] < row["mst_key"] and row["inherited"] is None
        if row["changed"] in row["choices"]:
            assert params[row["mst_key"]] == params[row["parent"]]
            common = row["choices"].keys() & parent["choices"].keys()
            assert [name for name in common if row["choices"][name] != parent["choices"][name]] == [row["changed"]]
    trials = {t["mst_key"]: t for t in db.run("TABLE found_trials")}
    assert {key: t["parent"] for key, t in trials.items()} == {key: row["parent"] for key, row in rows.items()}


def test_members_that_do_not_fit_are_no_trials(db):
    both = json.dumps([{"change": "value", "match": {"class": "Dense"}, "argument": "units", "choices": [3, 4]}])
    make(db, "half", both, base=(1,))
    del db.connection.notices[:]
    search(
        db,
        procedure="grid",
        parameters="iterations=1",
        model_space="half",
        space=SPACE.replace("[0.001, 0.1, 'log']", "[0.01]").replace("[8, 16]", "[8]"),
    )
    assert db.value("SELECT count(*) FROM found_trials") == 2
    assert any('members of "half" that were drawn do not fit together' in text for text in db.connection.notices)


def test_a_search_goes_on_only_with_the_space_that_it_began_with(db):
    make(db, "moves", MUTATORS)
    db.run("DROP TABLE IF EXISTS " + ", ".join("moved" + suffix for suffix in TABLES) + "; BEGIN")
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'moved', NULL, %s, 'random', 'iterations=1, trials=3', "
        "model_space => 'moves')",
        [SPACE],
    )
    run_id = last_run(db)
    db.run("ROLLBACK")
    db.run("UPDATE moves SET adapt = 'project'")
    assert f'the model space in "moves" is not the one that run {run_id} began with' in str(
        db.error("SELECT madlib.mop_resume(%s)", [run_id])
    )
    db.run("UPDATE moves SET adapt = NULL")
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert db.value("SELECT count(*) FROM moved_trials") == 3


def test_a_member_above_the_memory_limit_fails_alone(db):
    wide = json.dumps([{"change": "value", "match": "hidden", "argument": "units", "choices": [8, 1_000_000]}])
    make(db, "too_wide", wide, base=(1,))
    db.run("SET pg_mop.max_model_mb = 10")
    try:
        space = SPACE.replace("[0.001, 0.1, 'log']", "[0.01]").replace("[8, 16]", "[8]")
        search(db, procedure="grid", parameters="iterations=1", model_space="too_wide", space=space)
    finally:
        db.run("RESET pg_mop.max_model_mb")
    trials = db.run("SELECT choices, status, reason FROM found_trials ORDER BY mst_key")
    assert [(t["choices"]["hidden.units"], t["status"]) for t in trials] == [(8, "finished"), (1_000_000, "failed")]
    assert "max_model_mb" in trials[1]["reason"]


def test_reports_and_named_models_take_such_a_run(db):
    run_id = search(db, parameters="iterations=1, trials=3")
    assert "<html" in db.value("SELECT madlib.mop_report(%s)", [run_id])
    assert str(run_id) in db.value("SELECT madlib.mop_explain_run(%s)", [run_id])
    db.run("DROP TABLE IF EXISTS named_by_space")
    db.run("SELECT madlib.mop_deploy('named_by_space', 'found')")
    assert db.value("SELECT count(*) FROM named_by_space") == 1


def test_who_asks_a_search_of_10_to_the_12_members_waits_no_longer(db):
    start = time.monotonic()
    many = [
        {"change": "value", "match": "hidden", "argument": "units", "choices": list(range(1, 101))},
        *(
            {
                "change": "insert",
                "match": "hidden",
                "choices": [{"class": "Dropout", "rate": i / 100} for i in range(100)],
            },
        )
        * 5,
    ]
    assert make(db, "vast", json.dumps(many), base=(1,)) == 10**12
    search(db, parameters="iterations=1, trials=3", model_space="vast")
    assert db.value("SELECT count(*) FROM found_trials WHERE status = 'finished'") == 3
    assert time.monotonic() - start < 300


def test_a_search_is_explained_without_training(db):
    text = db.value(
        "SELECT madlib.mop_explain($$ SELECT madlib.mop_search('flowers_packed', 'explained', NULL, "
        "$space$" + SPACE + "$space$, 'random', 'iterations=1, trials=4', model_space => 'nets') $$)"
    )
    assert "trials" in text and db.value("SELECT to_regclass('explained') IS NULL")


@pytest.mark.parametrize(
    "more,fragment",
    [
        ({"model_space": "nobody"}, "model space 'nobody' does not exist"),
        ({"model_space": "arch"}, "is no model space"),
        ({"space": SPACE.replace("{", "{'model_id': [1], ", 1)}, "'model_id' is not accepted in space"),
        ({"procedure": "grid"}, "is a distribution"),
        ({"table": "arch"}, "model_arch_table and model_space cannot be combined"),
        ({"model_space": None}, "NULL/empty input table name"),
    ],
)
def test_wrong_searches(db, more, fragment):
    named = {"table": None, "procedure": "random", "space": SPACE, "model_space": "nets", **more}
    error = db.error(
        "SELECT madlib.mop_search('flowers_packed', 'never', %(table)s, %(space)s, %(procedure)s, "
        "model_space => %(model_space)s)",
        named,
    )
    assert fragment in str(error)


def test_the_tutorial_runs(db):
    text = (ROOT / "docs" / "spaces.md").read_text()
    first, second, *_ = [part.split("```")[0] for part in text.split("```sql\n")[1:]]
    db.run("DROP SCHEMA IF EXISTS tutorial CASCADE; CREATE SCHEMA tutorial; SET search_path = tutorial")
    try:
        for statement in first.split(";\n"):
            if statement.strip():
                db.run(statement.replace("%", "%%"))
        shown = text.split("```\n378")[1].split("```")[0]
        assert db.value("SELECT madlib.mop_space_show('digits')") == "378" + shown.rstrip("\n")
        assert len(db.run(second.replace("%", "%%"))) == 5
    finally:
        db.run("RESET search_path; DROP SCHEMA tutorial CASCADE")


def test_a_grid_of_which_nothing_fits_hears_a_timeout(db):
    mutators = [
        {"change": "insert", "match": "hidden", "choices": [{"class": "Conv2D", "filters": 2, "kernel_size": 1}, None]},
        *({"change": "insert", "match": "hidden", "choices": [None, {"class": "ReLU"}]} for _ in range(40)),
    ]
    make(db, "far", json.dumps(mutators), base=(1,))
    grid = SPACE.replace("[0.001, 0.1, 'log']", "[0.01]")
    begun = time.monotonic()
    db.run("SET statement_timeout = '2s'")
    try:
        with pytest.raises(Exception, match="statement timeout"):
            search(db, procedure="grid", parameters="iterations=1, trials=3", model_space="far", space=grid)
    finally:
        db.run("RESET statement_timeout")
    assert time.monotonic() - begun < 60

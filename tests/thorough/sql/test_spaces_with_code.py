"""Model spaces with custom layers: their shapes are asked of a trainer, the members are searched and predict."""

import json

import pytest

from support.custom_code import LAYER, MODEL, pickle, put, stepper, with_scale
from support.workload import dense, last_run, load, make_data

MUTATORS = [
    {"change": "value", "match": {"class": "Scale"}, "argument": "start", "choices": [0.5, 1.0]},
    {"change": "insert", "match": "hidden", "choices": [None, {"class": "Scale", "start": 2.0}]},
    {"change": "value", "match": "hidden", "argument": "units", "choices": [4, 6]},
]
SPACE = "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer': ['Adam()'], 'batch_size': [16]}"
HALF = """
import keras

class Half(keras.layers.Layer):
    def call(self, inputs):
        return inputs[..., : inputs.shape[-1] // 2]

    def compute_output_shape(self, shape):
        if shape[-1] % 2:
            raise ValueError("an odd number of channels")
        return (*shape[:-1], shape[-1] // 2)
"""


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=1)
    db.run("SET pg_mop.kernel = 'plain'; SET pg_mop.seed = 3; SET pg_mop.threads = 1; SET pg_mop.lock_timeout = '300s'")
    put(db, "Scale", pickle("Scale", LAYER))


@pytest.fixture(autouse=True)
def nets(db):
    db.run("DROP TABLE IF EXISTS madlib.other; DELETE FROM madlib.layers")
    put(db, "Scale", pickle("Scale", LAYER))
    load(db, "arch", with_scale(activation="softmax"), dense())


def make(db, name="nets", mutators=MUTATORS, base=(1,), table="layers", adapt=None):
    db.run(f"DROP TABLE IF EXISTS {name}")
    given = [name, list(base), json.dumps(mutators), adapt, table]
    return db.value("SELECT madlib.mop_space(%s, 'arch', %s, %s::text, %s, %s)", given)


def search(db, output="found", procedure="grid", parameters="iterations=1", **more):
    db.run("DROP TABLE IF EXISTS " + ", ".join(output + suffix for suffix in ("", "_info", "_summary", "_trials")))
    named = "".join(f", {name} => %({name})s" for name in more)
    db.run(
        f"SELECT madlib.mop_search('flowers_packed', %(output)s, NULL, %(space)s, %(procedure)s, %(parameters)s, "
        f"metric => 'accuracy', model_space => 'nets'{named})",
        {"output": output, "space": SPACE, "procedure": procedure, "parameters": parameters, **more},
    )
    return last_run(db)


def test_members_with_custom_layers_are_searched_and_predict(db):
    assert make(db) == 8
    row = db.run("SELECT object_table, custom_layers FROM nets")[0]
    assert row["object_table"] in ("layers", '"layers"') and list(row["custom_layers"]["digests"]) == ["Scale"]
    assert sorted({str(shape) for shape in row["custom_layers"]["told"].values()}) == ["[4]", "[6]"]
    members = db.run("SELECT member, model_arch FROM madlib.mop_space_sample('nets', 8)")
    assert len(members) == 8
    assert "Scale(start=2.0)" in db.value("SELECT madlib.mop_space_show('nets')")
    run_id = search(db)
    trials = db.run("SELECT status, choices, metric_final FROM found_trials")
    assert len(trials) == 8 and {trial["status"] for trial in trials} == {"finished"}
    assert all(trial["metric_final"] is not None for trial in trials)
    assert db.value("SELECT object_table FROM found_summary") is not None
    db.run("DROP TABLE IF EXISTS answers")
    db.run("SELECT madlib.madlib_keras_predict('found', 'flowers', 'id', 'x', 'answers', 'prob', FALSE)")
    assert db.value("SELECT count(*) FROM answers") == 3 * db.value("SELECT count(*) FROM flowers")
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary, again_trials")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [run_id])
    order = "SELECT string_agg(md5(model_weights), ',' ORDER BY mst_key) FROM {}"
    assert db.value(order.format("found")) == db.value(order.format("again"))


def test_a_custom_layer_within_another_layer_is_of_the_space(db):
    """Only a value of a mutator names it."""
    shaped = (
        LAYER + "\n    def compute_output_shape(self, shape):\n        return shape\n"
    )  # (as TimeDistributed needs it)
    db.run("UPDATE madlib.layers SET object = %s WHERE name = 'Scale'", [pickle("Scale", shaped)])
    whole = {"class_name": "Sequential", "config": {"name": "times", "layers": []}}
    whole["config"]["layers"] = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "name": "in"}},
        {"class_name": "Reshape", "config": {"name": "steps", "target_shape": [2, 2]}},
        {
            "class_name": "TimeDistributed",
            "config": {"name": "each", "layer": {"class_name": "Dense", "config": {"name": "inner", "units": 2}}},
        },
        {"class_name": "Flatten", "config": {"name": "flat"}},
        {"class_name": "Dense", "config": {"name": "out", "units": 3, "activation": "softmax"}},
    ]
    load(db, "arch", json.dumps(whole))
    choices = [{"class_name": "Scale", "config": {"name": "inner", "start": start}} for start in (1.0, 2.0)]
    assert make(db, mutators=[{"change": "value", "match": "each", "argument": "layer", "choices": choices}]) == 2
    assert list(db.value("SELECT custom_layers FROM nets")["digests"]) == ["Scale"]
    assert db.value("SELECT madlib.mop_space_size('nets')") == 2
    search(db)
    assert db.value("SELECT count(*) FROM found_trials WHERE status = 'finished'") == 2


def test_a_layer_that_puts_out_an_empty_dimension_fits_nowhere(db):
    put(db, "Half", pickle("Half", HALF))
    halves = [{"class": "Half"}] * 2
    mutators = [
        {"change": "value", "match": "hidden", "argument": "units", "choices": [6, 1]},
        {"change": "insert", "match": "hidden", "choices": [None, halves]},
    ]
    put(db, "Half", pickle("Half", HALF.replace('raise ValueError("an odd number of channels")', "pass")), "other")
    make(db, mutators=mutators, table="other", base=(2,))
    assert db.value("SELECT madlib.mop_space_size('nets')") == 4
    assert "must be from 1 to" in db.value("SELECT madlib.mop_space_show('nets')")


def test_shapes_that_layers_tell_decide_what_fits(db):
    put(db, "Half", pickle("Half", HALF))
    found = make(
        db,
        mutators=[
            {"change": "insert", "match": "hidden", "choices": [{"class": "Half"}]},
            {"change": "value", "match": "hidden", "argument": "units", "choices": [5, 6]},
        ],
    )
    assert found == 2
    shown = db.value("SELECT madlib.mop_space_show('nets')")
    assert "1 of all 2 members looked at fit together" in shown and "an odd number of channels" in shown


def test_a_population_mutates_and_inherits_custom_layers(db):
    make(db)
    search(
        db,
        procedure="regularized-evolution",
        parameters="population=4, tournament=2, trials=7, iterations=1, inherit=true",
    )
    trials = db.run("SELECT status, parent FROM found_trials")
    assert len(trials) == 7 and {trial["status"] for trial in trials} == {"finished"}
    assert any(trial["parent"] is not None for trial in trials)


def test_the_object_table_of_a_search_is_that_of_its_space(db):
    make(db)
    search(db, "named", procedure="random", parameters="iterations=1, trials=1", object_table="layers")
    assert db.value("SELECT count(*) FROM named_trials WHERE status = 'finished'") == 1
    put(db, "Scale", pickle("Scale", LAYER), "other")
    with pytest.raises(Exception, match='object_table is "other", but the model space has its custom layers from'):
        search(db, object_table="other")


def test_a_changed_or_dropped_layer_is_an_error(db):
    make(db)
    put(db, "Half", pickle("Half", HALF))
    db.run("DELETE FROM madlib.layers WHERE name = 'Scale'")
    gone = "the custom class 'Scale' of model space \"nets\" is not the one in"
    assert gone in str(db.error("SELECT madlib.mop_space_size('nets')"))
    put(db, "Scale", pickle("Scale", LAYER.replace("inputs * self.scale", "inputs + self.scale")))
    error = db.error("SELECT madlib.mop_space_size('nets')")
    assert gone in str(error) and "mop_space(...)" in error.diag.message_hint
    assert error.diag.message_detail == "It was changed after the call of mop_space."
    db.run("ALTER TABLE madlib.layers RENAME TO away")
    try:
        error = db.error("SELECT madlib.mop_space_size('nets')")
        assert 'model space "nets" needs code of an object table: object table' in str(
            error
        ) and "does not exist" in str(error)
    finally:
        db.run("ALTER TABLE madlib.away RENAME TO layers")


@pytest.mark.parametrize(
    "table,fragment",
    [
        ("absent", "object table"),
        ("public.layers", "must be in schema"),
        ("", "NULL/empty object table name"),
        ('la"yers', "invalid table name"),
        ("layers; DROP TABLE flowers", "invalid table name"),
    ],
)
def test_object_tables_that_are_none(db, table, fragment):
    assert fragment in str(
        db.error("SELECT madlib.mop_space('none', 'arch', ARRAY[1], %s::text, NULL, %s)", [json.dumps(MUTATORS), table])
    )


@pytest.mark.parametrize(
    "value,fragment",
    [
        ("[]", "cannot be read"),
        ('{"digests": {"Scale": 1}, "told": {}}', "cannot be read"),
        ('{"digests": {"Scale": "x"}, "told": {}}', "is not the one in"),
        ('{"digests": {"Scale": "x"}, "told": {"a": [0]}}', "cannot be read"),
        (r'{"digests": {"\ud800": "x"}, "told": {}}', "cannot be read"),
        (r'{"digests": {}, "told": {"x": "\ud800"}}', "cannot be read"),
    ],
)
def test_a_space_changed_by_hand_is_checked(db, value, fragment):
    make(db)
    db.run("ALTER TABLE nets ALTER custom_layers TYPE text")  # (which half of a character fits in)
    db.run("UPDATE nets SET custom_layers = %s", [value])
    error = db.error("SELECT madlib.mop_space_size('nets')")
    assert fragment in str(error) and (error.pgcode == "22023" or "cannot be read" not in fragment)


def test_what_knows_keras_layers_alone_says_so(db):
    make(db)
    with pytest.raises(Exception, match="a space with the custom layer Scale cannot be trained by one-shot"):
        search(db, procedure="one-shot", parameters="iterations=2")
    load(db, "arch", stepper())
    put(db, "Stepper", pickle("Stepper", MODEL))
    with pytest.raises(Exception, match="base model 1 cannot be used: .*Stepper"):
        make(db, "evil", mutators=[])


def test_without_the_table_its_layers_are_unknown(db):
    with pytest.raises(Exception, match="Scale"):
        make(db, "evil", table=None)
    assert make(db, "plain", mutators=[], base=(2,), table="layers") == 1, "a space that needs no code may name a table"
    assert db.run("SELECT object_table, custom_layers FROM plain")[0]["custom_layers"] is None

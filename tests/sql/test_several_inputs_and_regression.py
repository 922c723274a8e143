"""Networks with several inputs and outputs, and numbers instead of classes."""

import json

import numpy as np
import pytest

from support.workload import fit, layer, load, selection, sequential, two_in_two_out


@pytest.fixture(scope="module")
def two(db):
    db.run("SET pg_mop.segments = 3; SET pg_mop.seed = 4")
    db.run(
        "CREATE TABLE raw AS SELECT i AS id, ARRAY[i % 3, i % 2, 1]::real[] AS wide, "
        "ARRAY[i % 3, 0]::real[] AS slim, "
        "i % 3 AS kind, (ARRAY['left','right'])[1 + i % 2] AS side FROM generate_series(1, 90) AS i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('raw', 'packed', 'kind, side', 'wide, slim', 10)")
    db.run("SELECT madlib.validation_preprocessor_dl('raw', 'val', 'kind, side', 'wide, slim', 'packed')")
    load(db, "arch", two_in_two_out())
    compiled = "loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']"
    selection(
        db, "mst", "arch", [(1, compiled, "batch_size=8"), (1, compiled + ", loss_weights=[1, 0.5]", "batch_size=8")]
    )
    fit(db, "packed", "models", "mst", 6, "val")


def test_several_inputs_and_outputs_train(db, two):
    for row in db.run("SELECT * FROM models_info"):
        assert row["error"] is None
        assert row["training_metrics_final"] == pytest.approx(row["validation_metrics_final"], abs=1e-6)
        assert row["training_metrics_final"] > 0.8, "the mean accuracy of both outputs"
    summary = db.run("SELECT * FROM models_summary")[0]
    assert summary["num_classes"] == [3, 2] and summary["dependent_varname"] == ["kind", "side"]
    assert summary["kind_class_values"] == [0, 1, 2] and summary["side_class_values"] == ["left", "right"]


def test_the_loss_of_several_outputs_is_weighted(db, two):
    db.run("DROP TABLE IF EXISTS one, half")
    for table, key in (("one", 1), ("half", 2)):
        db.run("SELECT madlib.madlib_keras_evaluate('models', 'val', %s, FALSE, %s)", [table, key])
    row = db.run("SELECT o.loss, i.validation_loss_final FROM one o, models_info i WHERE mst_key = 1")[0]
    assert row["loss"] == pytest.approx(row["validation_loss_final"], rel=1e-5)


def test_predictions_of_several_outputs(db, two):
    db.run("DROP TABLE IF EXISTS predicted")
    db.run("SELECT madlib.madlib_keras_predict('models', 'raw', 'id', 'wide, slim', 'predicted', 'response', FALSE, 1)")
    right = db.run(
        "SELECT class_name, avg((class_value = CASE class_name WHEN 'kind' THEN kind::text ELSE side END)"
        "::integer) AS share, count(*) AS n FROM predicted JOIN raw USING (id) GROUP BY 1 ORDER BY 1"
    )
    assert [(r["class_name"], r["n"]) for r in right] == [("kind", 90), ("side", 90)]
    mean = db.value("SELECT training_metrics_final FROM models_info WHERE mst_key = 1")
    assert np.mean([float(r["share"]) for r in right]) == pytest.approx(mean, abs=1e-6)


def test_what_needs_a_single_output_is_a_misfit(db, two):
    selection(
        db,
        "mst2",
        "arch",
        [
            (1, "loss='categorical_crossentropy', optimizer='SGD()'", "class_weight={0: 1, 1: 2, 2: 1}"),
            (1, "loss='mse', optimizer='SGD()'", ""),
        ],
    )
    fit(db, "packed", "weighted", "mst2", 1)
    errors = [r["error"] for r in db.run("SELECT error FROM weighted_info ORDER BY mst_key")]
    assert "class_weight" in errors[0] and errors[1] is None
    db.run(
        "DROP TABLE IF EXISTS single, single_summary; "
        "SELECT madlib.training_preprocessor_dl('raw', 'single', 'kind', 'wide, slim', 10)"
    )
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('single', 'm', 'mst2', 1, FALSE)")
    assert "has 2 outputs, not 1" in str(error)


def by_name(inputs, outputs):
    """The network of two inputs and outputs that has them in dictionaries: {name: layer}."""
    made = json.loads(two_in_two_out())
    for key, ends in (("input_layers", inputs), ("output_layers", outputs)):
        made["config"][key] = {name: [end, 0, 0] for name, end in ends.items()}
    return json.dumps(made)


def test_inputs_and_outputs_of_dictionaries_are_matched_by_name(db, two, tmp_path):
    """Keras has them in the order of their sorted names, whatever the order in which they are written."""
    compiled = "loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']"
    db.run("SELECT madlib.training_preprocessor_dl('raw', 'sorted', 'kind, side', 'slim, wide', 10)")
    db.run("SELECT madlib.training_preprocessor_dl('raw', 'backwards', 'side, kind', 'slim, wide', 10)")
    load(
        db,
        "named",
        by_name({"wide": "b", "slim": "a"}, {"side": "side", "kind": "kind"}),
        by_name({"wide": "b", "slim": "a"}, {"one": "kind", "two": "side"}),
    )
    selection(db, "named_mst", "named", [(1, compiled, "batch_size=8"), (2, compiled, "batch_size=8")])
    said = "has its {} in a dictionary, which Keras reads in the order {}, and the columns are {}"
    for table, first in (
        ("packed", said.format("inputs", "slim, wide", "wide, slim")),
        ("backwards", said.format("outputs", "kind, side", "side, kind")),
    ):
        error = db.error(f"SELECT madlib.madlib_keras_fit_multiple_model('{table}', 'never', 'named_mst', 1, FALSE)")
        assert first in error.diag.message_primary
        assert "ARRAY[" in error.diag.message_hint or "keras.Model(" in error.diag.message_hint
    fit(db, "sorted", "named_models", "named_mst", 6)
    first, second = db.run("SELECT * FROM named_models_info ORDER BY mst_key")
    assert first["error"] is None and first["training_metrics_final"] > 0.8
    assert "order one, two" in second["error"]
    assert "keras.Model(model.input, [model.output[name] for name in ['one', 'two']])" in second["error"]
    db.run(
        "SELECT madlib.madlib_keras_predict('named_models', 'raw', 'id', 'slim, wide', 'told', 'response', FALSE, 1)"
    )
    right = db.run(
        "SELECT class_name, avg((class_value = CASE class_name WHEN 'kind' THEN kind::text ELSE side END)"
        "::integer) AS share FROM told JOIN raw USING (id) GROUP BY 1 ORDER BY 1"
    )
    assert np.mean([float(r["share"]) for r in right]) == pytest.approx(first["training_metrics_final"], abs=1e-6)
    # a list of the same order gives the same, and by the file the dictionary is there again
    listed = json.loads(two_in_two_out())
    listed["config"]["input_layers"] = [["a", 0, 0], ["b", 0, 0]]
    load(db, "listed", json.dumps(listed))
    selection(db, "listed_mst", "listed", [(1, compiled, "batch_size=8")])
    fit(db, "sorted", "listed_models", "listed_mst", 6)
    assert db.value(
        "SELECT n.model_weights = l.model_weights FROM named_models n, listed_models l "
        "WHERE n.mst_key = 1 AND l.mst_key = 1"
    )
    file = tmp_path / "model.keras"
    file.write_bytes(bytes(db.value("SELECT madlib.mop_export_model('named_models', 1)")))
    import keras

    model = keras.models.load_model(file)
    assert set(model.output) == {"kind", "side"} and set(model.input) == {"wide", "slim"}
    rows = db.run("SELECT * FROM raw ORDER BY id")
    given = model.predict({name: np.array([r[name] for r in rows], "f4") for name in ("wide", "slim")}, verbose=0)
    kinds = db.run("SELECT class_value FROM told WHERE class_name = 'kind' ORDER BY id")
    assert [int(r["class_value"]) for r in kinds] == given["kind"].argmax(1).tolist()
    db.run("SELECT madlib.mop_import_model('named', %s, 'again')", [file.read_bytes()])
    assert db.value("SELECT (model_arch->'config'->'output_layers')::text FROM named WHERE name = 'again'")[0] == "{"
    selection(
        db,
        "weighted_mst",
        "named",
        [
            (1, compiled + ", loss_weights={'kind': 1, 'side': 0.5}", "batch_size=8"),
            (1, compiled + ", loss_weights={'sides': 0.5}", "batch_size=8"),
        ],
    )
    selection(db, "listed_mst", "listed", [(1, compiled + ", loss_weights=[1, 0.5]", "batch_size=8")])
    fit(db, "sorted", "weighted_models", "weighted_mst", 1)
    fit(db, "sorted", "listed_models", "listed_mst", 1)
    assert db.value(
        "SELECT n.model_weights = l.model_weights FROM weighted_models n, listed_models l "
        "WHERE n.mst_key = 1 AND l.mst_key = 1"
    )
    assert "loss_weights names 'sides', the architecture's outputs are kind, side" in db.value(
        "SELECT error FROM weighted_models_info WHERE mst_key = 2"
    )
    error = db.error(
        "SELECT madlib.madlib_keras_predict('named_models', 'raw', 'id', 'wide, slim', 'no', 'response', FALSE, 1)"
    )
    assert "has its inputs in the order slim, wide, not wide, slim" in str(error)
    assert error.diag.message_hint == "independent_varname => ARRAY['slim', 'wide']"


def test_rows_whose_columns_have_another_order_are_not_taken_for_the_same(db, two):
    """Both outputs have the same classes, and both inputs one shape: nothing but the names tells."""
    db.run(
        "CREATE TABLE pairs AS SELECT i AS id, ARRAY[i % 2, 1]::real[] AS p, ARRAY[i % 3, 1]::real[] AS q, "
        "i % 2 AS r, i / 2 % 2 AS s FROM generate_series(1, 40) AS i"
    )
    for table, outputs, inputs in (("rs", "r, s", "p, q"), ("sr", "s, r", "p, q"), ("qp", "r, s", "q, p")):
        db.run(f"SELECT madlib.training_preprocessor_dl('pairs', '{table}', '{outputs}', '{inputs}', 10)")
    made = json.loads(
        two_in_two_out()
        .replace("[null, 3]", "[null, 2]")
        .replace("[null, 5]", "[null, 4]")
        .replace('"units": 3', '"units": 2')
    )
    load(db, "equal", json.dumps(made))
    selection(db, "equal_mst", "equal", [(1, "loss='categorical_crossentropy', optimizer='SGD()'", "")])
    fit(db, "rs", "equal_models", "equal_mst", 1, "rs")
    for table, said in (("sr", "dependent_varname s, r, not r, s"), ("qp", "independent_varname q, p, not p, q")):
        error = db.error(f"SELECT madlib.madlib_keras_evaluate('equal_models', '{table}', 'never', FALSE, 1)")
        assert f"it has {said}" in str(error)
        error = db.error(
            f"SELECT madlib.madlib_keras_fit_multiple_model('rs', 'never', 'equal_mst', 1, FALSE, '{table}')"
        )
        assert f"it has {said}" in str(error)


def test_a_brought_model_with_outputs_of_a_dictionary_is_refused(db, two):
    load(db, "brought", by_name({"wide": "b", "slim": "a"}, {"side": "side", "kind": "kind"}))
    db.run("UPDATE brought SET model_weights = (SELECT model_weights FROM models WHERE mst_key = 1)")
    error = db.error(
        "SELECT madlib.madlib_keras_predict_byom('brought', 1, 'raw', 'id', 'slim, wide', 'no', 'prob', "
        "FALSE, NULL, NULL, 2)"
    )
    assert "has its outputs in a dictionary, which Keras reads in the order kind, side" in str(error)
    assert "keras.Model(model.input, [model.output[name] for name in ['kind', 'side']])" in error.diag.message_hint
    error = db.error(
        "SELECT madlib.madlib_keras_predict_byom('brought', 1, 'raw', 'id', 'wide, slim', 'no', 'prob', "
        "FALSE, NULL, NULL, 2)"
    )
    assert "has its inputs in a dictionary" in str(error) and "ARRAY['slim', 'wide']" in error.diag.message_hint


# --- regression -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def houses(db):
    db.run("SET pg_mop.segments = 2; SET pg_mop.seed = 4")
    db.run(
        "CREATE TABLE houses AS SELECT i AS id, ARRAY[i % 10, i % 7]::real[] AS x, "
        "(0.25 * (i % 10) - 0.5 * (i % 7) + 0.125)::numeric AS price FROM generate_series(1, 140) AS i"
    )
    db.run(
        "SELECT madlib.training_preprocessor_dl('houses', 'houses_packed', 'price', 'x', 20, "
        "dependent_dtype := 'float32')"
    )
    db.run("SELECT madlib.validation_preprocessor_dl('houses', 'houses_val', 'price', 'x', 'houses_packed')")
    load(db, "linear", sequential("linear", [2], layer("Dense", name="out", units=1)))
    selection(
        db,
        "houses_mst",
        "linear",
        [
            (1, "loss='mse', optimizer='Adam(lr=0.1)', metrics=['mae']", "batch_size=10"),
            (1, "loss='huber', optimizer='SGD(lr=0.01)', metrics=['mape']", ""),
        ],
    )
    fit(db, "houses_packed", "houses_models", "houses_mst", 12, "houses_val")


def test_numbers_are_packed_as_float32(db, houses):
    summary = db.run("SELECT * FROM houses_packed_summary")[0]
    assert summary["dependent_dtype"] == "float32" and summary["price_class_values"] is None
    rows = db.run("SELECT x, price, price_shape FROM houses_val ORDER BY buffer_id LIMIT 1")[0]
    x = np.frombuffer(bytes(rows["x"]), "<f4").reshape(-1, 2)
    y = np.frombuffer(bytes(rows["price"]), "<f4")
    assert rows["price_shape"] == [len(y), 1]
    assert y.tolist() == [0.25 * a - 0.5 * b + 0.125 for a, b in x]


def test_predictions_are_the_numbers(db, houses):
    for kind, ranked in (("'prob'", True), ("'response'", False), ("NULL::text", True)):
        db.run("DROP TABLE IF EXISTS prices")
        db.run(f"SELECT madlib.madlib_keras_predict('houses_models', 'houses', 'id', 'x', 'prices', {kind}, FALSE, 1)")
        rows = db.run("SELECT * FROM prices JOIN houses USING (id) ORDER BY id")
        assert len(rows) == 140 and ("rank" in rows[0]) == ranked
        assert rows[0]["class_name"] == "price" and rows[0]["class_value"] is None
        error = np.mean([abs(float(r["price"]) - r["prob"]) for r in rows])
        mae = db.value("SELECT training_metrics_final FROM houses_models_info WHERE mst_key = 1")
        assert error == pytest.approx(mae, rel=1e-4)
    db.run("DROP TABLE IF EXISTS scores")
    db.run("SELECT madlib.madlib_keras_evaluate('houses_models', 'houses_val', 'scores', FALSE, 1)")
    assert db.value("SELECT metric FROM scores") == pytest.approx(mae, rel=1e-5)


PACK = "training_preprocessor_dl('{}', 'p', '{}', '{}', 20, {})"
FLOAT = "dependent_dtype => 'float32'"


@pytest.mark.parametrize(
    "call,fragment",
    [
        (PACK.format("houses", "price", "x", "dependent_dtype => 'float64'"), "'int16' or 'float32'"),
        (PACK.format("houses", "price", "x", f"num_classes => ARRAY[1], {FLOAT}"), "num_classes must be NULL"),
        (PACK.format("raw", "side", "wide", FLOAT), "neither a number"),
        (PACK.format("holes", "price", "x", FLOAT), "NULL element"),
        ("madlib_keras_predict('houses_models', 'houses', 'id', 'x', 'p', 2, FALSE, 1)", "has no classes"),
        ("madlib_keras_predict('houses_models', 'houses', 'id', 'x', 'p', 0.5::float8, FALSE, 1)", "has no classes"),
        (
            "madlib_keras_fit_multiple_model('houses_packed', 'p', 'houses_mst', 1, FALSE, 'classes')",
            "int16, not float32",
        ),
    ],
)
def test_bad_input(db, houses, call, fragment):
    db.run("DROP TABLE IF EXISTS holes, one_class, classes, classes_summary")
    db.run("CREATE TABLE holes AS SELECT id, x, CASE WHEN id = 7 THEN NULL ELSE price END AS price FROM houses")
    db.run("CREATE TABLE one_class AS SELECT id, x, 1 AS price FROM houses")
    db.run("SELECT madlib.training_preprocessor_dl('one_class', 'classes', 'price', 'x', 20)")
    assert fragment in str(db.error("SELECT madlib." + call))
    assert db.value("SELECT to_regclass('p')") is None


# --- soft labels: float32 for a loss of classes --------------------------------------------------------


@pytest.fixture(scope="module")
def soft(db):
    db.run("SET pg_mop.segments = 2; SET pg_mop.seed = 4")
    db.run(
        "CREATE TABLE soft AS SELECT i AS id, ARRAY[i % 2, 1]::real[] AS x, "
        "(CASE i % 2 WHEN 0 THEN '{0.9,0.1}' ELSE '{0.2,0.8}' END)::float8[] AS y FROM generate_series(1, 80) AS i"
    )
    db.run(
        "CREATE TABLE hard AS SELECT id, x, (CASE id % 2 WHEN 0 THEN '{1,0}' ELSE '{0,1}' END)::integer[] AS y "
        "FROM soft"
    )
    db.run("SELECT madlib.training_preprocessor_dl('soft', 'soft_packed', 'y', 'x', 20, dependent_dtype => 'float32')")
    db.run("SELECT madlib.validation_preprocessor_dl('hard', 'hard_val', 'y', 'x', 'soft_packed')")
    load(db, "two_classes", sequential("two", [2], layer("Dense", name="out", units=2, activation="softmax")))
    selection(
        db,
        "soft_mst",
        "two_classes",
        [
            (1, "loss='categorical_crossentropy', optimizer='Adam(lr=0.1)', metrics=['accuracy']", "batch_size=10"),
            (1, "loss='mse', optimizer='Adam(lr=0.1)'", "batch_size=10, class_weight={0: 1, 1: 2}"),
        ],
    )
    fit(db, "soft_packed", "soft_models", "soft_mst", 10, "hard_val")


def test_soft_labels_are_learnt_as_they_are_and_validated_on_hard_ones(db, soft):
    first, second = db.run("SELECT * FROM soft_models_info ORDER BY mst_key")
    assert first["error"] is None and second["error"] is None
    lowest = -np.mean([0.9 * np.log(0.9) + 0.1 * np.log(0.1), 0.2 * np.log(0.2) + 0.8 * np.log(0.8)])
    assert first["training_loss_final"] == pytest.approx(lowest, abs=0.02), "their entropy; of 0s and 1s it were 0"
    assert first["training_metrics_final"] == first["validation_metrics_final"] == 1
    y = np.concatenate([np.frombuffer(bytes(r["y"]), "<f4") for r in db.run("SELECT y FROM hard_val")])
    assert sorted(set(y.tolist())) == [0, 1] and len(y) == 160


def test_evaluation_of_soft_labels_equals_the_info_table(db, soft):
    db.run("DROP TABLE IF EXISTS scores")
    db.run("SELECT madlib.madlib_keras_evaluate('soft_models', 'soft_packed', 'scores', FALSE, 1)")
    row = db.run("SELECT s.loss, s.metric, i.* FROM scores s, soft_models_info i WHERE mst_key = 1")[0]
    assert row["loss"] == pytest.approx(row["training_loss_final"], rel=1e-5) and row["metric"] == 1


def test_a_model_of_soft_labels_predicts_classes_and_one_of_another_loss_numbers(db, soft):
    def predicted(key, kind):
        db.run("DROP TABLE IF EXISTS guessed")
        db.run(f"SELECT madlib.madlib_keras_predict('soft_models', 'soft', 'id', 'x', 'guessed', {kind}, FALSE, {key})")
        return db.run("SELECT * FROM guessed ORDER BY id")

    best = predicted(1, "'response'")
    assert len(best) == 80 and all(int(r["class_value"]) == r["id"] % 2 for r in best)
    assert len(predicted(1, "0.5::float8")) == 80
    assert [r["prob"] for r in best[:2]] == pytest.approx([0.8, 0.9], abs=0.1), "not 1"
    assert [r["class_value"] for r in predicted(2, "'prob'")[:4]] == ["0", "1"] * 2
    assert "has no classes" in str(
        db.error("SELECT madlib.madlib_keras_predict('soft_models', 'soft', 'id', 'x', 'p', 1, FALSE, 2)")
    )


def test_a_table_of_the_other_type_is_refused(db, soft):
    db.run(
        "DROP TABLE IF EXISTS hard_packed, hard_packed_summary; "
        "SELECT madlib.training_preprocessor_dl('hard', 'hard_packed', 'y', 'x', 20)"
    )
    for call in (
        "evaluate('soft_models', 'hard_packed', 'e', FALSE, 1)",
        "fit_multiple_model('soft_packed', 'e', 'soft_mst', 1, FALSE, 'hard_packed')",
    ):
        assert "dependent_dtype int16, not float32" in str(db.error("SELECT madlib.madlib_keras_" + call))

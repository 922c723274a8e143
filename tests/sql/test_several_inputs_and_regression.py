"""Networks with several inputs and outputs, and numbers instead of classes."""

import json

import numpy as np
import pytest

from workload import dense, fit, layer, load, make_data, selection, sequential


def node(layer_, *inbound):
    """A layer of a functional model, on the outputs of `inbound` layers (name, shape)."""
    tensors = [{"class_name": "__keras_tensor__", "config": {"shape": [None, *shape], "dtype": "float32",
                                                             "keras_history": [name, 0, 0]}}
               for name, shape in inbound]
    args = [] if not tensors else tensors if len(tensors) == 1 else [tensors]
    return {**layer_, "name": layer_["config"]["name"],
            "inbound_nodes": [{"args": args, "kwargs": {}}] if inbound else []}


def two_in_two_out():
    """The inputs listed b, a; its layers a, b: what counts is the list of inputs."""
    layers = [node(layer("InputLayer", batch_shape=[None, 2], name="a")),
              node(layer("InputLayer", batch_shape=[None, 3], name="b")),
              node(layer("Concatenate", name="both", axis=-1), ("b", [3]), ("a", [2])),
              node(layer("Dense", name="hidden", units=8, activation="relu"), ("both", [5])),
              node(layer("Dense", name="kind", units=3, activation="softmax"), ("hidden", [8])),
              node(layer("Dense", name="side", units=2, activation="softmax"), ("hidden", [8]))]
    return json.dumps({"module": "keras.src.models.functional", "class_name": "Functional", "registered_name": None,
                       "config": {"name": "two", "trainable": True, "layers": layers,
                                  "input_layers": [["b", 0, 0], ["a", 0, 0]],
                                  "output_layers": [["kind", 0, 0], ["side", 0, 0]]}})


@pytest.fixture(scope="module")
def two(db):
    db.run("SET pg_mop.segments = 3; SET pg_mop.seed = 4")
    db.run("CREATE TABLE raw AS SELECT i AS id, ARRAY[i % 3, i % 2, 1]::real[] AS wide, "
           "ARRAY[i % 3, 0]::real[] AS slim, "
           "i % 3 AS kind, (ARRAY['left','right'])[1 + i % 2] AS side FROM generate_series(1, 90) AS i")
    db.run("SELECT madlib.training_preprocessor_dl('raw', 'packed', 'kind, side', 'wide, slim', 10)")
    db.run("SELECT madlib.validation_preprocessor_dl('raw', 'val', 'kind, side', 'wide, slim', 'packed')")
    load(db, "arch", two_in_two_out())
    compiled = "loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']"
    selection(db, "mst", "arch", [(1, compiled, "batch_size=8"),
                                  (1, compiled + ", loss_weights=[1, 0.5]", "batch_size=8")])
    fit(db, "packed", "models", "mst", 6, "val")


@pytest.mark.slice
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
    right = db.run("SELECT class_name, avg((class_value = CASE class_name WHEN 'kind' THEN kind::text ELSE side END)"
                   "::integer) AS share, count(*) AS n FROM predicted JOIN raw USING (id) GROUP BY 1 ORDER BY 1")
    assert [(r["class_name"], r["n"]) for r in right] == [("kind", 90), ("side", 90)]
    mean = db.value("SELECT training_metrics_final FROM models_info WHERE mst_key = 1")
    assert np.mean([float(r["share"]) for r in right]) == pytest.approx(mean, abs=1e-6)


def test_inputs_in_the_wrong_order_are_refused(db, two):
    db.run("SELECT madlib.training_preprocessor_dl('raw', 'swapped', 'kind, side', 'slim, wide', 10)")
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('swapped', 'm', 'mst', 1, FALSE)")
    assert "input shape does not match" in str(error)


def test_what_needs_a_single_output_is_a_misfit(db, two):
    selection(db, "mst2", "arch", [(1, "loss='categorical_crossentropy', optimizer='SGD()'",
                                    "class_weight={0: 1, 1: 2, 2: 1}"), (1, "loss='mse', optimizer='SGD()'", "")])
    fit(db, "packed", "weighted", "mst2", 1)
    errors = [r["error"] for r in db.run("SELECT error FROM weighted_info ORDER BY mst_key")]
    assert "class_weight" in errors[0] and errors[1] is None
    db.run("DROP TABLE IF EXISTS single, single_summary; "
           "SELECT madlib.training_preprocessor_dl('raw', 'single', 'kind', 'wide, slim', 10)")
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('single', 'm', 'mst2', 1, FALSE)")
    assert "has 2 outputs, not 1" in str(error)


# --- regression -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def houses(db):
    db.run("SET pg_mop.segments = 2; SET pg_mop.seed = 4")
    db.run("CREATE TABLE houses AS SELECT i AS id, ARRAY[i % 10, i % 7]::real[] AS x, "
           "(0.25 * (i % 10) - 0.5 * (i % 7) + 0.125)::numeric AS price FROM generate_series(1, 140) AS i")
    db.run("SELECT madlib.training_preprocessor_dl('houses', 'houses_packed', 'price', 'x', 20, "
           "dependent_dtype := 'float32')")
    db.run("SELECT madlib.validation_preprocessor_dl('houses', 'houses_val', 'price', 'x', 'houses_packed')")
    load(db, "linear", sequential("linear", [2], layer("Dense", name="out", units=1)))
    selection(db, "houses_mst", "linear", [
        (1, "loss='mse', optimizer='Adam(lr=0.1)', metrics=['mae']", "batch_size=10"),
        (1, "loss='huber', optimizer='SGD(lr=0.01)', metrics=['mape']", "")])
    fit(db, "houses_packed", "houses_models", "houses_mst", 12, "houses_val")


def test_numbers_are_packed_as_float32(db, houses):
    summary = db.run("SELECT * FROM houses_packed_summary")[0]
    assert summary["dependent_dtype"] == "float32" and summary["price_class_values"] is None
    rows = db.run("SELECT x, price, price_shape FROM houses_val ORDER BY buffer_id LIMIT 1")[0]
    x = np.frombuffer(bytes(rows["x"]), "<f4").reshape(-1, 2)
    y = np.frombuffer(bytes(rows["price"]), "<f4")
    assert rows["price_shape"] == [len(y), 1]
    assert y.tolist() == [0.25 * a - 0.5 * b + 0.125 for a, b in x]


def test_a_linear_function_is_learnt(db, houses):
    first, second = db.run("SELECT * FROM houses_models_info ORDER BY mst_key")
    assert first["validation_loss_final"] < 0.05 and first["metrics_type"] == ["mae"]
    assert second["error"] is None and second["loss_type"] == "huber"
    assert db.value("SELECT dependent_dtype FROM houses_models_summary") == "float32"


def test_who_packs_numbers_as_classes_is_told_how_else(db, houses):
    db.run("SELECT madlib.training_preprocessor_dl('houses', 'price_classes', 'price', 'x', 20)")
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('price_classes', 'never', 'houses_mst', 1, FALSE)")
    assert "the architecture outputs 1 classes" in str(error)
    assert "dependent_dtype => 'float32'" in error.diag.message_hint


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


@pytest.mark.parametrize("call,fragment", [
    ("training_preprocessor_dl('houses', 'p', 'price', 'x', 20, dependent_dtype := 'float64')", "'int16' or 'float32'"),
    ("training_preprocessor_dl('houses', 'p', 'price', 'x', 20, num_classes := ARRAY[1], dependent_dtype := 'float32')",
     "num_classes must be NULL"),
    ("training_preprocessor_dl('raw', 'p', 'side', 'wide', 20, dependent_dtype := 'float32')", "neither a number"),
    ("training_preprocessor_dl('holes', 'p', 'price', 'x', 20, dependent_dtype := 'float32')", "NULL element"),
    ("madlib_keras_predict('houses_models', 'houses', 'id', 'x', 'p', 2, FALSE, 1)", "has no classes"),
    ("madlib_keras_predict('houses_models', 'houses', 'id', 'x', 'p', 0.5::float8, FALSE, 1)", "has no classes"),
    ("madlib_keras_fit_multiple_model('houses_packed', 'p', 'houses_mst', 1, FALSE, 'classes')",
     "dependent_dtype int16, not float32"),
])
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
    db.run("CREATE TABLE soft AS SELECT i AS id, ARRAY[i % 2, 1]::real[] AS x, "
           "(CASE i % 2 WHEN 0 THEN '{0.9,0.1}' ELSE '{0.2,0.8}' END)::float8[] AS y FROM generate_series(1, 80) AS i")
    db.run("CREATE TABLE hard AS SELECT id, x, (CASE id % 2 WHEN 0 THEN '{1,0}' ELSE '{0,1}' END)::integer[] AS y "
           "FROM soft")
    db.run("SELECT madlib.training_preprocessor_dl('soft', 'soft_packed', 'y', 'x', 20, dependent_dtype => 'float32')")
    db.run("SELECT madlib.validation_preprocessor_dl('hard', 'hard_val', 'y', 'x', 'soft_packed')")
    load(db, "two_classes", sequential("two", [2], layer("Dense", name="out", units=2, activation="softmax")))
    selection(db, "soft_mst", "two_classes", [
        (1, "loss='categorical_crossentropy', optimizer='Adam(lr=0.1)', metrics=['accuracy']", "batch_size=10"),
        (1, "loss='mse', optimizer='Adam(lr=0.1)'", "batch_size=10, class_weight={0: 1, 1: 2}")])
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
    assert "has no classes" in str(db.error("SELECT madlib.madlib_keras_predict('soft_models', 'soft', 'id', 'x', 'p', "
                                            "1, FALSE, 2)"))


def test_a_table_of_the_other_type_is_refused(db, soft):
    db.run("DROP TABLE IF EXISTS hard_packed, hard_packed_summary; "
           "SELECT madlib.training_preprocessor_dl('hard', 'hard_packed', 'y', 'x', 20)")
    for call in ("evaluate('soft_models', 'hard_packed', 'e', FALSE, 1)",
                 "fit_multiple_model('soft_packed', 'e', 'soft_mst', 1, FALSE, 'hard_packed')"):
        assert "dependent_dtype int16, not float32" in str(db.error("SELECT madlib.madlib_keras_" + call))


@pytest.mark.parametrize("column,number", [("yes", 'as "column"::integer in a view'), ("n", "as they are")])
def test_the_net_of_tutorials_for_two_classes_has_a_hint_that_works(db, column, number):
    """Dense(1, 'sigmoid') with binary_crossentropy, for integer labels and for booleans."""
    call = "SELECT madlib.madlib_keras_fit_multiple_model('{}', 'models_s', 'mst_s', 2, FALSE)"
    db.run("DROP VIEW IF EXISTS numbered, halves")
    make_data(db, segments=2)
    load(db, "sigmoid", dense().replace('"units": 3', '"units": 1').replace("softmax", "sigmoid"))
    selection(db, "mst_s", "sigmoid", [
        (1, "loss='binary_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']", "batch_size=8")])
    db.run("DROP TABLE IF EXISTS two_classes, two_classes_summary, numbers, numbers_summary, models_s, models_s_info, "
           "models_s_summary")
    db.run("CREATE VIEW halves AS SELECT id, x, id % 3 = 0 AS yes, (id % 3 = 0)::integer AS n FROM flowers")
    db.run(f"SELECT madlib.training_preprocessor_dl('halves', 'two_classes', '{column}', 'x')")
    error = db.error(call.format("two_classes"))
    hint = error.diag.message_hint
    assert "outputs 1 classes but" in str(error) and number in hint and "dependent_dtype => 'float32'" in hint
    if column == "yes":
        error = db.error("SELECT madlib.training_preprocessor_dl('halves', 'numbers', 'yes', 'x', "
                         "dependent_dtype => 'float32')")
        db.run(error.diag.message_hint.removeprefix("Give it as a number: "))
    source, label = ("numbered", "label") if column == "yes" else ("halves", "n")
    db.run(f"SELECT madlib.training_preprocessor_dl('{source}', 'numbers', '{label}', 'x', "
           "dependent_dtype => 'float32')")
    db.run("DROP TABLE IF EXISTS models_s, models_s_info, models_s_summary, halved")
    db.run(call.format("numbers"))
    db.run(f"SELECT madlib.madlib_keras_predict('models_s', '{source}', 'id', 'x', 'halved', 'prob', FALSE, 1)")
    rows = db.run("SELECT * FROM halved")
    assert all(row["class_value"] is None and 0 <= row["prob"] <= 1 for row in rows) and rows

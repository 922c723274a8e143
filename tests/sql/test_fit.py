"""madlib_keras_fit, the functions that read its tables, and madlib_keras_predict_byom."""

import pytest

from support.workload import dense, layer, load, make_data, selection, sequential

ADAM = "loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']"
FROZEN = sequential("frozen", [4], layer("Dense", name="out", units=3, activation="softmax", trainable=False))


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=3)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense(), FROZEN)


def train(db, output="one", arch="arch", model_id=1, compiled=ADAM, fit="batch_size=8", rest="2"):
    if "TRUE" not in rest:
        db.run(f"DROP TABLE IF EXISTS {output}, {output}_summary")
    db.run(
        f"SELECT madlib.madlib_keras_fit('flowers_packed', %s, %s, %s, %s, %s, {rest})",
        [output, arch, model_id, compiled, fit],
    )


def summary(db, table="one"):
    return db.run(f"SELECT * FROM {table}_summary")[0]


COLUMNS = """
source_table model dependent_varname independent_varname model_arch_table model_id compile_params fit_params
num_iterations validation_table object_table metrics_compute_frequency name description model_type model_size
start_training_time end_training_time metrics_elapsed_time madlib_version num_classes dependent_vartype
normalizing_const metrics_type loss_type training_metrics_final training_loss_final training_metrics
training_loss validation_metrics_final validation_loss_final validation_metrics validation_loss metrics_iters
y_class_values all_metrics""".split()


def test_the_summary_has_the_contracts_columns_and_contents(db, data):
    train(db, rest="3, FALSE, 'flowers_val', 2, NULL, 'a name', 'a description'")
    row = summary(db)
    assert list(row) == COLUMNS
    assert row["metrics_iters"] == [2, 3] and row["num_classes"] == [3] and row["y_class_values"] == ["a", "b", "c"]
    assert (row["compile_params"], row["fit_params"], row["model_id"]) == (ADAM, "batch_size=8", 1)
    assert row["metrics_type"] == ["accuracy"] and row["loss_type"] == "categorical_crossentropy"
    assert row["start_training_time"] < row["end_training_time"] and row["model_size"] == 67 * 4 / 1024
    for name in ("training_metrics", "training_loss", "validation_metrics", "validation_loss", "metrics_elapsed_time"):
        assert len(row[name]) == 2
    assert row["training_loss"] == pytest.approx(row["validation_loss"], rel=1e-5), "they are the same rows"
    assert row["training_loss_final"] == row["training_loss"][1] < row["training_loss"][0]
    assert (row["name"], row["description"], row["object_table"]) == ("a name", "a description", None)
    assert db.run("SELECT * FROM one")[0]["model_arch"]["class_name"] == "Sequential"


def test_without_metrics_and_validation_the_columns_are_null(db, data):
    for compiled in ("loss='mse', optimizer=Adam(epsilon=None)", "loss='mse', optimizer='SGD', metrics=[]"):
        train(db, compiled=compiled, fit=None)
        row = summary(db)
        assert row["metrics_type"] is row["training_metrics"] is row["training_metrics_final"] is None
        assert row["validation_loss"] is row["validation_metrics"] is row["validation_table"] is None
        assert len(row["training_loss"]) == 1 and row["fit_params"] == "" and row["metrics_compute_frequency"] == 2


@pytest.mark.parametrize(
    "extra,fit",
    [
        (", loss_weights=[2]", "shuffle=True"),
        (", sample_weight_mode=None", "epochs=3, initial_epoch=1"),
        (", weighted_metrics=None", "steps_per_epoch=2"),
        ("", "class_weight={0: 1, 1: 2, 2: 0.5}, verbose=1"),
    ],
)
def test_other_parameters_are_accepted(db, data, extra, fit):
    train(db, compiled=ADAM + extra, fit=fit)
    assert summary(db)["training_loss_final"] >= 0


def test_evaluate_and_predict_read_a_single_model(db, data):
    train(db)
    db.run("DROP TABLE IF EXISTS scores, guesses")
    db.run("SELECT madlib.madlib_keras_evaluate('one', 'flowers_packed', 'scores')")
    row = db.run("SELECT * FROM scores")[0]
    assert row["loss"] == pytest.approx(summary(db)["training_loss_final"], rel=1e-5)
    assert row["metric"] == pytest.approx(summary(db)["training_metrics_final"], rel=1e-5)
    db.run("SELECT madlib.madlib_keras_predict('one', 'flowers', 'id', 'x', 'guesses', 'response')")
    share = db.value("SELECT avg((class_value = y)::integer) FROM guesses JOIN flowers USING (id)")
    assert float(share) == pytest.approx(row["metric"], abs=1e-6)
    for call in (
        "madlib_keras_evaluate('one', 'flowers_packed', 'x', FALSE, 1)",
        "madlib_keras_predict('one', 'flowers', 'id', 'x', 'x', 'prob', FALSE, 1)",
    ):
        assert "single model" in str(db.error("SELECT madlib." + call))


def test_warm_start_and_transfer_learning(db, data):
    train(db, "frozen", model_id=2, rest="5, FALSE, NULL, 1")
    first = summary(db, "frozen")
    assert len(first["training_loss"]) == 5 and first["training_loss"][4] == pytest.approx(
        first["training_loss"][0], rel=1e-5
    )
    db.run("SET pg_mop.seed = 77")
    train(db, "frozen", model_id=2, rest="2, FALSE, NULL, 1, TRUE")
    again = summary(db, "frozen")
    assert again["training_loss"] == pytest.approx([first["training_loss_final"]] * 2, abs=1e-6)
    load(db, "arch_weights", FROZEN)
    db.run("UPDATE arch_weights SET model_weights = (SELECT model_weights FROM frozen)")
    train(db, "transferred", "arch_weights", rest="2, FALSE, NULL, 1")
    assert summary(db, "transferred")["training_loss"] == pytest.approx([first["training_loss_final"]] * 2, abs=1e-6)


def test_custom_functions(db, data):
    db.run("DROP TABLE IF EXISTS madlib.functions; SELECT madlib.load_top_k_accuracy_function('functions', 2)")
    train(db, compiled=ADAM.replace("accuracy", "top_2_accuracy"), rest="2, object_table := 'functions'")
    assert summary(db)["metrics_type"] == ["top_2_accuracy"] and summary(db)["object_table"] == "madlib.functions"


@pytest.mark.parametrize(
    "call,fragment",
    [
        ("(NULL, 'x', 'arch', 1, '{}', '', 1)", "NULL/empty input table name"),
        ("('flowers_packed', 'x', 'nowhere', 1, '{}', '', 1)", "does not exist"),
        ("('flowers_packed', 'x', 'arch', NULL, '{}', '', 1)", "invalid model architecture ID"),
        ("('flowers_packed', 'x', 'arch', 9, '{}', '', 1)", "no model arch found"),
        ("('flowers_packed', 'x', 'arch', 1, NULL, '', 1)", "compile parameters are empty"),
        ("('flowers_packed', 'x', 'arch', 1, '{}', '', 1, TRUE)", "no GPU"),
        ("('flowers_packed', 'x', 'arch', 1, '{}', '', 1, FALSE, NULL, NULL, TRUE)", "warm start continues from"),
        ("('flowers_packed', 'flowers', 'arch', 1, '{}', '', 1)", "already exists"),
        ("('flowers_packed', 'x', 'arch', 1, $$loss='mine', optimizer='SGD'$$, '', 1)", "object table missing"),
        ("('flowers_packed', 'x', 'wide', 1, '{}', '', 1)", "input shape does not match"),
    ],
)
def test_bad_input_has_clear_errors_and_leaves_nothing(db, data, call, fragment):
    load(db, "wide", dense(inputs=5), dense(classes=5))
    before = db.value("SELECT count(*) FROM pg_class")
    assert fragment in str(db.error("SELECT madlib.madlib_keras_fit" + call.format(ADAM.replace("'", "''"))))
    assert db.value("SELECT count(*) FROM pg_class") == before


# --- bring your own model ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(db, data):
    """The model table `one`, and the architecture table `own` with its weights."""
    train(db)
    load(db, "own", dense())
    db.run("UPDATE own SET model_weights = (SELECT model_weights FROM one)")


@pytest.fixture
def own(db, trained):
    db.run("DROP TABLE IF EXISTS mine, theirs")


def test_a_model_of_ones_own_predicts_as_the_trained_one(db, own):
    db.run("SELECT madlib.madlib_keras_predict('one', 'flowers', 'id', 'x', 'theirs', 'response')")
    db.run(
        "SELECT madlib.madlib_keras_predict_byom('own', 1, 'flowers', 'id', 'x', 'mine', 'response', FALSE, "
        "ARRAY[['a', 'b', 'c']], 1.0)"
    )
    assert db.value("SELECT count(*) FROM mine JOIN theirs USING (id, class_value, prob)") == 100


def test_defaults_of_byom(db, own):
    db.run("SELECT madlib.madlib_keras_predict_byom('own', 1, 'flowers', 'id', 'x', 'mine')")
    rows = db.run(
        "SELECT id, sum(prob) AS p, array_agg(DISTINCT class_value ORDER BY class_value) AS c, "
        "min(class_name) AS n, array_agg(rank ORDER BY rank) AS r FROM mine GROUP BY id"
    )
    assert len(rows) == 100
    assert all(abs(r["p"] - 1) < 1e-6 and r["c"] == ["0", "1", "2"] and r["r"] == [1, 2, 3] for r in rows)
    assert rows[0]["n"] == "dependent_var"
    for kind in ("2", "0.2::float8"):
        db.run(
            "DROP TABLE mine; SELECT madlib.madlib_keras_predict_byom('own', 1, 'flowers', 'id', 'x', 'mine', "
            f"{kind}, FALSE, ARRAY['a', 'b', 'c'], 2.0, 1)"
        )
        assert db.value("SELECT count(*) FROM mine WHERE class_value IN ('a', 'b', 'c')") > 0


@pytest.mark.parametrize(
    "arguments,fragment",
    [
        ("'own', NULL, 'flowers', 'id', 'x', 'mine'", "model_id must not be NULL"),
        ("'own', 7, 'flowers', 'id', 'x', 'mine'", "model_id 7 is not in"),
        ("'arch', 1, 'flowers', 'id', 'x', 'mine'", "must not be NULL"),
        ("'own', 1, 'flowers', 'id', 'nope', 'mine'", "invalid independent_varname"),
        ("'own', 1, 'flowers', 'id', 'x', 'mine', 'best'", "pred_type"),
        ("'own', 1, 'flowers', 'id', 'x', 'mine', 'prob', FALSE, ARRAY['a', 'b']", "class_values has"),
        ("'own', 1, 'flowers', 'id', 'x', 'mine', 'prob', FALSE, NULL, NULL, 0", "dependent_count"),
        ("'own', 1, 'flowers', 'id', 'x', 'flowers'", "already exists"),
    ],
)
def test_bad_input_to_byom(db, own, arguments, fragment):
    assert fragment in str(db.error(f"SELECT madlib.madlib_keras_predict_byom({arguments})"))
    assert db.value("SELECT to_regclass('mine')") is None


def test_a_table_of_several_models_is_no_single_one(db, data):
    selection(db, "mst", "arch", [(1, ADAM, "")])
    db.run("DROP TABLE IF EXISTS many, many_info, many_summary")
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'many', 'mst', 1, FALSE)")
    assert "several models" in str(
        db.error(
            "SELECT madlib.madlib_keras_fit('flowers_packed', 'many', 'arch', 1, %s, '', 1, FALSE, NULL, NULL, TRUE)",
            [ADAM],
        )
    )

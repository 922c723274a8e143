"""Apache MADlib's documented examples for Greenplum, as they stand there: the calls of its chapters on preprocessing,
model selection and AutoML for deep learning, with the iris data set, in one session."""

import pytest
from sklearn.datasets import load_iris

from support import greenplum

greenplum.needed("tests/thorough/engines/test_madlib_examples.py")

# two nets as Keras 2.1 wrote them
FIRST = """
{"class_name": "Dense", "config": {"kernel_initializer": {"class_name": "VarianceScaling", "config":
{"distribution": "uniform", "scale": 1.0, "seed": null, "mode": "fan_avg"}}, "name": "dense_1", "kernel_constraint":
null, "bias_regularizer": null, "bias_constraint": null, "dtype": "float32", "activation": "relu", "trainable":
true, "kernel_regularizer": null, "bias_initializer": {"class_name": "Zeros", "config": {}}, "units": 10,
"batch_input_shape": [null, 4], "use_bias": true, "activity_regularizer": null}}"""
MORE = """
{"class_name": "Dense", "config": {"kernel_initializer": {"class_name": "VarianceScaling", "config":
{"distribution": "uniform", "scale": 1.0, "seed": null, "mode": "fan_avg"}}, "name": "dense_2", "kernel_constraint":
null, "bias_regularizer": null, "bias_constraint": null, "activation": "relu", "trainable": true,
"kernel_regularizer": null, "bias_initializer": {"class_name": "Zeros", "config": {}}, "units": 10, "use_bias":
true, "activity_regularizer": null}}"""
LAST = """
{"class_name": "Dense", "config": {"kernel_initializer": {"class_name": "VarianceScaling", "config":
{"distribution": "uniform", "scale": 1.0, "seed": null, "mode": "fan_avg"}}, "name": "dense_3", "kernel_constraint":
null, "bias_regularizer": null, "bias_constraint": null, "activation": "softmax", "trainable": true,
"kernel_regularizer": null, "bias_initializer": {"class_name": "Zeros", "config": {}}, "units": 3, "use_bias": true,
"activity_regularizer": null}}"""
ARCHITECTURES = [
    '{"class_name": "Sequential", "keras_version": "2.1.6", "config": [%s], "backend": "tensorflow"}'
    % ", ".join(layers)
    for layers in ((FIRST, MORE, LAST), (FIRST, MORE, MORE.replace("dense_2", "dense_4"), LAST))
]


@pytest.fixture(scope="module")
def db():
    made = greenplum.Database("pg_mop_examples")
    client = made.db
    client.run("SET client_min_messages = warning; SET search_path = public")
    client.run("CREATE TABLE iris_data (id serial, attributes numeric[], class_text varchar)")
    iris = load_iris()
    for row, kind in zip(iris.data.tolist(), iris.target):
        client.run(
            "INSERT INTO iris_data (attributes, class_text) VALUES (%s::numeric[], %s)",
            [row, f"Iris-{iris.target_names[kind]}"],
        )
    # (train_test_split is MADlib's, and not ours)
    client.run(
        "CREATE TABLE iris_train AS SELECT * FROM iris_data WHERE id % 5 <> 0; "
        "CREATE TABLE iris_test AS SELECT * FROM iris_data WHERE id % 5 = 0"
    )
    yield client
    made.close()


@pytest.fixture(scope="module")
def selection(db):
    """Packed tables, architectures and a model selection table."""
    db.run("SELECT madlib.training_preprocessor_dl('iris_train', 'iris_train_packed', 'class_text', 'attributes')")
    db.run(
        "SELECT madlib.validation_preprocessor_dl('iris_test', 'iris_test_packed', 'class_text', 'attributes', "
        "'iris_train_packed')"
    )
    for number, text in enumerate(ARCHITECTURES, 1):
        db.run(
            "SELECT madlib.load_keras_model('model_arch_library', %s, NULL, %s, 'A simple model')",
            [text, f"MLP with {number} hidden layers"],
        )
    db.run("""SELECT madlib.load_model_selection_table('model_arch_library', 'mst_table', ARRAY[1, 2],
        ARRAY[$$loss='categorical_crossentropy',optimizer='Adam(lr=0.1)',metrics=['accuracy']$$,
              $$loss='categorical_crossentropy',optimizer='Adam(lr=0.01)',metrics=['accuracy']$$,
              $$loss='categorical_crossentropy',optimizer='Adam(lr=0.001)',metrics=['accuracy']$$],
        ARRAY[$$batch_size=4,epochs=1$$, $$batch_size=8,epochs=1$$])""")
    return db


@pytest.fixture(scope="module")
def models(selection):
    """Trained, with validation and warm start."""
    db = selection
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_multi_model', 'mst_table', 4, "
        "FALSE, 'iris_test_packed', 3, FALSE, 'Sophie L.', 'Model selection for iris dataset')"
    )
    return db


def test_rows_are_packed_where_the_rules_say(selection):
    db = selection
    assert db.run(
        "SELECT source_table, output_table, dependent_varname, independent_varname, class_text_class_values, "
        "distribution_rules FROM iris_train_packed_summary"
    ) == [
        {
            "source_table": "iris_train",
            "output_table": "iris_train_packed",
            "dependent_varname": ["class_text"],
            "independent_varname": ["attributes"],
            "class_text_class_values": ["Iris-setosa", "Iris-versicolor", "Iris-virginica"],
            "distribution_rules": "all_segments",
        }
    ]
    db.run("SELECT * FROM madlib.gpu_configuration('host_gpu_mapping_tf')")
    assert db.run("SELECT hostname, gpu_descr FROM host_gpu_mapping_tf ORDER BY hostname, gpu_descr") == []
    db.run("CREATE TABLE segments_to_use (dbid integer, hostname text)")
    db.run(
        "INSERT INTO segments_to_use SELECT dbid, hostname FROM gp_segment_configuration WHERE role = 'p' AND "
        "content IN (0, 1)"
    )
    db.run(
        "SELECT madlib.training_preprocessor_dl('iris_train', 'iris_train_some', 'class_text', 'attributes', 10, "
        "1.0, NULL, 'segments_to_use')"
    )
    assert db.value("SELECT array_agg(DISTINCT gp_segment_id ORDER BY gp_segment_id) FROM iris_train_some") == [0, 1]


def test_a_selection_table_has_every_combination(selection):
    db = selection
    assert db.value("SELECT count(*) FROM mst_table") == 12
    db.run("""SELECT madlib.generate_model_configs('model_arch_library', 'mst_generated', ARRAY[1, 2],
        $$ {'loss': ['categorical_crossentropy'],
            'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.01, 0.1]}], 'metrics': ['accuracy']} $$,
        $$ {'batch_size': [4, 8], 'epochs': [1]} $$, 'grid')""")
    parameters = "SELECT model_id, replace(compile_params, ' ', '') AS c, fit_params FROM %s ORDER BY 1, 2, 3"
    assert len(db.run(parameters % "mst_generated")) == len(db.run(parameters % "mst_table")) == 12
    assert db.run("SELECT * FROM mst_generated_summary") == db.run("SELECT * FROM mst_table_summary")
    db.run("""SELECT madlib.generate_model_configs('model_arch_library', 'mst_random', ARRAY[1, 2],
        $$ {'loss': ['categorical_crossentropy'],
            'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.9, 0.95, 'log'],
                                       'beta_1': [0.8, 0.99, 'linear']}],
            'metrics': ['accuracy']} $$, $$ {'batch_size': [8], 'epochs': [1]} $$, 'random', 3, 19)""")
    assert db.value("SELECT count(*) FROM mst_random") == 3


def test_many_models_are_trained_and_ranked(models):
    db = models
    assert db.run(
        "SELECT source_table, validation_table, model, model_info, num_iterations, metrics_iters, name, "
        "warm_start FROM iris_multi_model_summary"
    ) == [
        {
            "source_table": "iris_train_packed",
            "validation_table": "iris_test_packed",
            "model": "iris_multi_model",
            "model_info": "iris_multi_model_info",
            "num_iterations": 4,
            "metrics_iters": [3, 4],
            "name": "Sophie L.",
            "warm_start": False,
        }
    ]
    rows = db.run(
        "SELECT mst_key, metrics_type, validation_metrics, validation_loss FROM iris_multi_model_info "
        "ORDER BY training_metrics_final DESC, training_loss_final"
    )
    assert len(rows) == 12 and all(row["metrics_type"] == ["accuracy"] for row in rows)
    assert all(len(row["validation_metrics"]) == len(row["validation_loss"]) == 2 for row in rows)
    assert db.value("SELECT max(validation_metrics_final) FROM iris_multi_model_info") > 0.8


def test_a_model_is_evaluated_and_predicts(models):
    db = models
    best = db.value("SELECT mst_key FROM iris_multi_model_info ORDER BY validation_loss_final LIMIT 1")
    db.run(
        "SELECT madlib.madlib_keras_evaluate('iris_multi_model', 'iris_test_packed', 'iris_validate', NULL, %s)", [best]
    )
    found = db.run("SELECT loss, metric, metrics_type FROM iris_validate")[0]
    own = db.run(
        "SELECT validation_loss_final AS loss, validation_metrics_final AS metric FROM iris_multi_model_info "
        "WHERE mst_key = %s",
        [best],
    )[0]
    assert found == {
        "loss": pytest.approx(own["loss"], rel=1e-5),
        "metric": pytest.approx(own["metric"]),
        "metrics_type": ["accuracy"],
    }
    db.run(
        "SELECT madlib.madlib_keras_predict('iris_multi_model', 'iris_test', 'id', 'attributes', 'iris_predict', "
        "'prob', NULL, %s)",
        [best],
    )
    right = db.value(
        "SELECT count(*)::float8 / 30 FROM iris_predict JOIN iris_test USING (id) "
        "WHERE class_value = class_text AND rank = 1"
    )
    assert right == pytest.approx(own["metric"])
    assert db.value("SELECT count(*) FROM iris_predict") == 90


def test_training_goes_on_from_what_is_there(models):
    db = models
    before = {r["mst_key"]: r["training_loss_final"] for r in db.run("SELECT * FROM iris_multi_model_info")}
    db.run(
        "SELECT madlib.madlib_keras_fit_multiple_model('iris_train_packed', 'iris_multi_model', 'mst_table', 3, "
        "FALSE, 'iris_test_packed', 1, TRUE, 'Sophie L.', 'Simple MLP for iris dataset')"
    )
    after = {r["mst_key"]: r["training_loss_final"] for r in db.run("SELECT * FROM iris_multi_model_info")}
    assert sum(after.values()) < sum(before.values()) and after.keys() == before.keys()
    assert db.run("SELECT warm_start, metrics_iters FROM iris_multi_model_summary") == [
        {"warm_start": True, "metrics_iters": [1, 2, 3]}
    ]


@pytest.mark.parametrize(
    "method, parameters, tried",
    [("hyperband", "R=6, eta=3, skip_last=0", 5), ("hyperopt", "num_configs=3, num_iterations=2, algorithm=rand", 3)],
)
def test_automl_finds_one(selection, method, parameters, tried):
    db, out = selection, f"automl_{method}"
    db.run(f"""SELECT madlib.madlib_keras_automl('iris_train_packed', '{out}', 'model_arch_library', '{out}_mst',
        ARRAY[1, 2], $$ {{'loss': ['categorical_crossentropy'], 'optimizer_params_list': [
            {{'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.1, 'log']}}], 'metrics': ['accuracy']}} $$,
        $$ {{'batch_size': [4, 8], 'epochs': [1]}} $$, '{method}', '{parameters}', 5, NULL, FALSE,
        'iris_test_packed', 1)""")
    best = db.value(f"SELECT mst_key FROM {out}_info ORDER BY validation_loss_final LIMIT 1")
    assert db.value(f"SELECT count(*) FROM {out}_info") == tried
    assert db.value(f"SELECT array_agg(mst_key) FROM {out}_mst") == [best]
    assert db.value(f"SELECT count(*) FROM {out} WHERE model_weights IS NOT NULL") == tried
    assert db.value(f"SELECT automl_method FROM {out}_summary") == method

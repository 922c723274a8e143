"""Calls as drivers make them: numbers and JSON of whatever type, texts without one, by place or by name."""

import re

import psycopg2
import pytest

from support.workload import ADAM, dense, fit, last_run, load, make_data, selection

NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


@pytest.fixture(scope="module")
def data(db):
    prepare(db)


def prepare(db):
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    db.run(
        "CREATE TABLE cells AS SELECT i AS id, i % 7 AS size, 'kind ' || i % 3 AS form, (i % 5 > 2)::text AS y "
        "FROM generate_series(1, 60) i; ALTER TABLE cells ADD PRIMARY KEY (id); "
        "SELECT madlib.mop_pack('cells', 'cells_packed', 'y'); "
        "SELECT madlib.mop_architecture('cells_nets', 'cells_packed', 'linear')"
    )
    db.run(
        "SELECT madlib.madlib_keras_fit('cells_packed', 'cells_model', 'cells_nets', 1, "
        "$$loss='categorical_crossentropy', optimizer='Adam()'$$, 'batch_size=8', 1)"
    )
    db.run("SELECT madlib.mop_space('space_of_one', 'arch', ARRAY[1], '[]')")
    for _ in range(2):
        db.run("SELECT madlib.mop_deploy('cells_named', 'cells_model')")
    fit(db, "flowers_packed", "models", "mst", 1)


CALLS = """
training_preprocessor_dl('flowers', 'd_packed', 'y', 'x', {10}, {2}, ARRAY[{3}])
validation_preprocessor_dl('flowers', 'd_val', 'y', 'x', 'flowers_packed', {10})
load_model_selection_table('arch', 'd_mst', ARRAY[{1}], ARRAY[$$loss='mse', optimizer='SGD()'$$],
    ARRAY['batch_size=8'])
generate_model_configs('arch', 'd_mst2', ARRAY[{1}], $${{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer':
    ['SGD'], 'lr': [0.1, 1.0, 'log']}}]}}$$, $${{'batch_size': [8]}}$$, 'random', {2}, {42})
madlib_keras_fit_multiple_model('flowers_packed', 'd_models', 'mst', {2}, FALSE, NULL, {1})
madlib_keras_fit_multiple_model('flowers_packed', 'd_folds', 'mst', {1}, FALSE, folds => {2})
madlib_keras_fit('flowers_packed', 'd_model', 'arch', {1}, $$loss='mse', optimizer='SGD()'$$, 'batch_size=8', {2},
    FALSE, NULL, {1})
mop_search('flowers_packed', 'd_found', 'arch', $${{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer':
    ['SGD'], 'lr': [0.1, 1.0, 'log']}}], 'batch_size': [8]}}$$, 'random', 'iterations=1, trials=2', max_trials =>
    {2}, random_state => {7}, folds => {2})
mop_search('flowers_packed', 'd_more', 'arch', $${{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer':
    ['SGD'], 'lr': [0.1, 1.0, 'log']}}], 'batch_size': [8]}}$$, 'random', 'iterations=1, trials=3', continue_from =>
    (SELECT max(run_id) FROM madlib.mop_runs)::{type})
mop_space('d_space', 'arch', ARRAY[{1}], '[]')
mop_space_sample('space_of_one', {10}, {7})
madlib_keras_automl('flowers_packed', 'd_best', 'arch', 'd_mst3', ARRAY[{1}], $${{'loss': ['mse'],
    'optimizer_params_list': [{{'optimizer': ['SGD'], 'lr': [0.1]}}]}}$$, $${{'batch_size': [8], 'epochs': [1]}}$$,
    'hyperband', 'R=2, eta=2, skip_last=0', {3})
hyperband_schedule('d_schedule', {9}, {3}, {0})
madlib_keras_evaluate('models', 'flowers_val', 'd_scores', FALSE, {1})
madlib_keras_predict('models', 'flowers', 'id', 'x', 'd_one', {2}, FALSE, {1})
madlib_keras_predict('models', 'flowers', 'id', 'x', 'd_two', 'prob', FALSE, {1})
madlib_keras_predict('models', 'flowers', 'id', 'x', 'd_three', mst_key => {1})
madlib_keras_predict_byom('arch_w', {1}, 'flowers', 'id', 'x', 'd_four', {2}, FALSE, NULL, {1}, {1})
mop_export_model('models', {1})
mop_export_parts('models', {1})
mop_more({run}, {1}, {1})
mop_report({run}, 'json', ARRAY[{1}])
mop_configuration_report({run}, {1})
mop_note({run}, 'x', ARRAY['y'])
mop_explain_run({run})
mop_family({run})
mop_replay({run}, 'd_again')
mop_set_sessions({run}, {1})
mop_set_priority({run}, {1})
mop_add_server({run}, 'w1')
mop_stop_trial({run}, {1})
mop_add_trial({run}, {1}, 'x', 'y', {1})
mop_resume({run})
mop_drop_states({run})
mop_drop_checkpoints({run})
mop_drop_run({run})
mop_cancel({0})
mop_wait({0}, '1 s')
delete_keras_model('arch_d', {1})
load_top_k_accuracy_function('d_objects', {3})
delete_custom_function('d_objects', {1})
top_k_categorical_acc_pickled({2}, 'top')
mop_split('cells', 'd_cells', 0.2, 0.2, 'random', seed => {1})
mop_pack('cells', 'd_cells_packed', 'y', max_categories => {9}, buffer_size => {20})
mop_train('cells', 'd_trained', 'y', max_trials => {2}, time_limit => '15 s', layers => 'linear', baselines => FALSE)
mop_deploy('d_named', 'models', {1})
mop_ensemble(NULL, 'cells_packed', 'd_ensemble', {2}, trained_on => 'cells_packed', time_limit => '2 s')
mop_predict('cells_named', source => 'cells', version => {1})
mop_predict('cells_named', c, {1}) FROM cells c WHERE id = 1
mop_class('cells_named', c, {1}) FROM cells c WHERE id = 1
mop_probability('cells_named', c, 'true', {1}) FROM cells c WHERE id = 1
mop_number('cells_named', c, {1}) FROM cells c WHERE id = 1
mop_predict_into('cells_named', 'cells', 'd_answers', NULL, {1})
mop_evaluate('cells_named', 'cells', {1})
mop_compare('cells_named', {1}, {2}, 'cells')
mop_confusion_matrix('cells_named', 'cells', {1})
mop_class_report('cells_named', 'cells', {1})
mop_roc_curve('cells_named', 'cells', NULL, {1})
mop_regression_report('cells_named', 'cells', {1})
mop_calibration('cells_named', 'cells', NULL, {1})
mop_importance('cells_named', 'cells', {1}, {3})
mop_explain_answer('cells_named', c, NULL, 'cells', {1}, {3}) FROM cells c WHERE id = 1
mop_feature_info('cells_named', {1})
mop_drift('cells_named', 'cells', {1})
mop_model_report('cells_named', 'cells', 'json', {1})
mop_baselines('cells_named', 'cells', 'cells', {1})
mop_use_version('cells_named', {1})
"""
CALLS = [" ".join(call.split()) for call in re.split(r"\n(?=\w)", CALLS.strip())]  # (each on one line, or more)
# the errors of calls that say what they were given, which shows that the function was found
SAID = ("is finished", "there is no job 0", "is not running", "predicts classes")


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_function_takes_numbers_of_every_type(db, data, kind):
    db.run("SELECT madlib.mop_drop_checkpoints()")
    db.run(
        "DROP SCHEMA IF EXISTS drivers CASCADE; DROP TABLE IF EXISTS madlib.d_objects; CREATE SCHEMA drivers; "
        "SET search_path = drivers, madlib"
    )
    prepare(db)
    db.run(
        "CREATE TABLE arch_d AS SELECT * FROM arch; CREATE TABLE arch_w AS SELECT a.model_id, a.model_arch, "
        "m.model_weights, a.name, a.description, a.__internal_madlib_id__ FROM arch a, models m"
    )
    run_id = last_run(db)
    for line in CALLS:
        values = [f"{n}::{kind}" for n in range(43)]
        call = "SELECT madlib." + line.format(*values, run=f"{run_id}::{kind}", type=kind)
        try:
            db.run(call)
        except psycopg2.Error as error:
            assert any(text in str(error) for text in SAID), f"{call}: {error}"
    assert db.value("SELECT count(*) FROM d_one") == 2 * db.value("SELECT count(*) FROM flowers"), "the two best"
    db.run("SET search_path = public, madlib")


@pytest.mark.parametrize("given,rows", [("'2'", 2), ("'1'", 1), ("'0.999'", 0), ("'0'", 3), ("'2'::text", 2)])
def test_a_number_without_a_type_chooses_classes_as_a_number_does(db, data, given, rows):
    db.run("DROP TABLE IF EXISTS untyped")
    db.run(f"SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'untyped', {given}, FALSE, 1)")
    assert db.value("SELECT count(*) FROM untyped") == rows * db.value("SELECT count(*) FROM flowers")


def test_all_functions_with_numbers_are_tried(db):
    """Those for users, as the server lists them; others take numbers of our own calls alone."""
    taking = {
        row["name"]
        for row in db.run(
            "SELECT f.name FROM madlib.mop_functions() f JOIN pg_proc p ON p.proname = f.name AND p.pronamespace = "
            "'madlib'::regnamespace WHERE pg_get_function_arguments(p.oid) ~ "
            "'double precision|integer|bigint|real|numeric'"
        )
    }
    tried = {line.split("(")[0] for line in CALLS}
    assert taking - tried == {"mop_fit_multiple_model"}, "which has the arguments of the function"
    assert tried - taking == {"top_k_categorical_acc_pickled"}, "which MADlib's own functions call"


FIT = "madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', {}, FALSE)"


@pytest.mark.parametrize(
    "call,text",
    [
        (FIT.format(2.5), "num_iterations must be an integer, not 2.5"),
        (FIT.format("'NaN'::float8"), "num_iterations must be an integer, not nan"),
        ("training_preprocessor_dl('flowers', 'never', 'y', 'x', 1e10)", "buffer_size is out of range: 10000000000"),
        (
            "load_model_selection_table('arch', 'never', ARRAY[1.5], ARRAY['x'], ARRAY['y'])",
            "model_id_list must be an int",
        ),
        ("madlib_keras_predict('models', 'flowers', 'id', 'x', 'never', 2.5, FALSE, 1)", "pred_type must be in [0, 1)"),
        ("mop_drop_run(1.5)", "run_id must be an integer, not 1.5"),
        ("mop_resume(1e300)", "run_id is out of range"),
        ("mop_stop_trial(1, 0.5)", "mst_key must be an integer, not 0.5"),
        ("mop_wait(0.5)", "job must be an integer, not 0.5"),
    ],
)
def test_a_number_that_is_no_integer_is_refused(db, data, call, text):
    assert text in str(db.error(f"SELECT madlib.{call}"))


@pytest.mark.parametrize("kind", ["json", "jsonb", "text", "varchar", None])
@pytest.mark.parametrize("named", [False, True])
def test_architectures_come_as_json_or_text(db, data, kind, named):
    literal = f"$json${dense()}$json$" + (f"::{kind}" if kind else "")
    db.run("DROP TABLE IF EXISTS nets")
    db.run(
        f"SELECT madlib.load_keras_model(keras_model_arch_table => 'nets', model_arch => {literal}, name => 'n')"
        if named
        else f"SELECT madlib.load_keras_model('nets', {literal})"
    )
    selection(db, "mst_j", "nets", [(1, ADAM.format(0.05), "batch_size=8")])
    db.run("DROP TABLE IF EXISTS of_json, of_json_info, of_json_summary")
    fit(db, "flowers_packed", "of_json", "mst_j", 1)


def test_every_column_of_a_view_can_be_grouped_by(db, data):
    """BI tools do that with all of them. Of the tables those alone that are MADlib's are json."""
    columns = db.run(
        "SELECT r.oid::regclass::text AS relation, a.attname AS name FROM pg_class r JOIN pg_attribute a ON "
        "a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE r.relkind = 'v' AND "
        "has_table_privilege('mop_user', r.oid, 'SELECT') AND r.relnamespace = "
        "'madlib'::regnamespace AND r.relname <> 'mop_arrivals' OR r.oid IN ('models'::regclass, "
        "'models_info'::regclass, 'models_summary'::regclass, 'flowers_packed_summary'::regclass)"
    )
    refused = []
    for column in columns:
        try:
            db.run('SELECT count(*) FROM (SELECT DISTINCT "{name}" FROM {relation}) q'.format(**column))
        except psycopg2.errors.UndefinedFunction:  # as of json, which has no equality
            refused.append((column["relation"], column["name"]))
    assert refused == [("models", "model_arch")]

"""The functions' help: a call without argument, with 'usage' (or 'help', '?'), or with 'example'.

The usage comes from PostgreSQL's catalog, so it always matches the installed version.
"""

from __future__ import annotations

import re
from typing import Any

from pg_mop.backend import settings
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import ALL_INTEGERS, sql_function
from pg_mop.backend.quoting import written

# function -> (description, SQL of its example, what runs before the example: a key of BEFORE)
FUNCTIONS = {
    "training_preprocessor_dl": (
        "Packs training rows into buffers, shuffled, one partition for each segment.",
        """
SELECT {schema}.training_preprocessor_dl('flowers', 'packed', 'kind', 'petals', 50, 1.0);
SELECT __dist_key__ AS segment, buffer_id, petals_shape, kind_shape FROM packed ORDER BY buffer_id;
SELECT kind_class_values, buffer_size, num_classes FROM packed_summary;
""",
        False,
    ),
    "validation_preprocessor_dl": (
        "Packs validation rows into buffers, encoded and scaled like a training table.",
        """
SELECT {schema}.validation_preprocessor_dl('flowers', 'packed', 'kind', 'petals', 'flowers_packed');
SELECT __dist_key__ AS segment, buffer_id, petals_shape, kind_shape FROM packed ORDER BY buffer_id;
""",
        False,
    ),
    "load_keras_model": (
        "Appends an architecture (the JSON of Keras' Model.to_json()) to a table.",
        """
SELECT {schema}.load_keras_model('architectures', (SELECT model_arch FROM flower_arch), NULL, 'net', 'a copy');
SELECT model_id, name, description FROM architectures;
""",
        False,
    ),
    "delete_keras_model": (
        "Deletes an architecture; an empty table is dropped.",
        """
SELECT {schema}.delete_keras_model('flower_arch', 1);
""",
        False,
    ),
    "load_custom_function": (
        "Stores a loss or metric: a Python function (y_true, y_pred) pickled by dill. For superusers.",
        """
SELECT {schema}.load_custom_function('flower_functions', {schema}.top_k_categorical_acc_pickled(2, 'top_2'), 'top_2');
SELECT id, name, description FROM {schema}.flower_functions;
SELECT {schema}.delete_custom_function('flower_functions', 1);
""",
        False,
    ),
    "delete_custom_function": (
        "Deletes a custom loss or metric by id or name; an empty table is dropped. For superusers.",
        """
SELECT {schema}.load_top_k_accuracy_function('flower_functions', 2);
SELECT {schema}.delete_custom_function('flower_functions', 'top_2_accuracy'::text);
""",
        False,
    ),
    "load_top_k_accuracy_function": (
        "Stores the metric top_<k>_accuracy. For superusers.",
        """
SELECT {schema}.load_top_k_accuracy_function('flower_functions', 2);
SELECT id, name, description FROM {schema}.flower_functions;
SELECT {schema}.delete_custom_function('flower_functions', 'top_2_accuracy'::text);
""",
        False,
    ),
    "load_model_selection_table": (
        "Creates a model selection table with all combinations of ids, compile and fit parameters.",
        """
SELECT {schema}.load_model_selection_table('flower_arch', 'selection', ARRAY[1],
    ARRAY[$$loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']$$,
          $$loss='categorical_crossentropy', optimizer='SGD(lr=0.1)', metrics=['accuracy']$$],
    ARRAY['batch_size=8, epochs=1', 'batch_size=16, epochs=1']);
SELECT * FROM selection ORDER BY mst_key;
""",
        False,
    ),
    "generate_model_configs": (
        "Creates a model selection table, or adds to one, from a grid of parameters or a random sample of it.",
        """
SELECT {schema}.generate_model_configs('flower_arch', 'selection', ARRAY[1],
    $${{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
       'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'learning_rate': [0.001, 0.1, 'log']}}]}}$$,
    $${{'batch_size': [8, 16], 'epochs': [1]}}$$, 'random', 5, 42);
SELECT * FROM selection ORDER BY mst_key;
""",
        False,
    ),
    "madlib_keras_fit_multiple_model": (
        "Trains many neural-network configurations at once without moving the data (model hopper parallelism).",
        """
-- watch it from another session: SELECT * FROM {schema}.mop_progress;
SELECT {schema}.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'flower_mst', 5, FALSE);
SELECT mst_key, compile_params, training_metrics_final, training_loss_final
FROM models_info ORDER BY training_loss_final NULLS LAST;
SELECT best_mst_key FROM models_summary;
SELECT {schema}.madlib_keras_predict('models', 'flowers', 'id', 'petals', 'predictions', 'response');
SELECT * FROM predictions ORDER BY id LIMIT 5;
""",
        False,
    ),
    "mop_fit_multiple_model": (
        "Is madlib_keras_fit_multiple_model as a procedure: training does not hold back VACUUM of other tables.",
        """
CALL {schema}.mop_fit_multiple_model('flowers_packed', 'models', 'flower_mst', 5, FALSE);
SELECT mst_key, compile_params, training_metrics_final, training_loss_final
FROM models_info ORDER BY training_loss_final NULLS LAST;
""",
        False,
    ),
    "mop_search": (
        "Searches a space of configurations: a procedure proposes some, continues the good ones, and stops the rest.",
        """
-- watch it from another session: SELECT * FROM {schema}.mop_trials;
SELECT {schema}.mop_search('flowers_packed', 'found', 'flower_arch',
    $${{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [8, 16, 32],
       'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}},
                                 {{'optimizer': ['SGD'], 'lr': [0.01, 0.5, 'log'], 'momentum': [0.5, 0.9]}}]}}$$,
    'asha', 'trials=8, iterations=4, reduction=2', metric => 'accuracy');
SELECT mst_key, compile_params, fit_params, status, iterations, metric_best, reason FROM found_trials
ORDER BY metric_best DESC NULLS LAST;
SELECT procedure, metric, best_mst_key FROM found_summary;
""",
        False,
    ),
    "mop_space": (
        "Makes a table with a model space: base models of an architecture table, and mutators (JSON) that change them; returns "
        "the number of its members.",
        """
SELECT {schema}.mop_space('flower_space', 'flower_arch', ARRAY[1], $$[
    {{"change": "repeat", "match": "hidden", "times": [1, 2, 3]}},
    {{"change": "value", "match": "hidden*", "argument": "units", "choices": [8, 16, 32]}},
    {{"change": "insert", "match": "hidden*", "choices": [null, {{"class": "Dropout", "rate": 0.2}}], "together": true}}]$$);
SELECT {schema}.mop_space_show('flower_space');
SELECT member, choices, parameters FROM {schema}.mop_space_sample('flower_space', 3, seed => 1);
SELECT {schema}.mop_search('flowers_packed', 'found', NULL,
    $${{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [8],
       'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}}]}}$$,
    'regularized-evolution', 'population=4, tournament=2, trials=8, iterations=2', model_space => 'flower_space');
SELECT mst_key, parent, changed, choices, metric_final FROM found_trials ORDER BY metric_final;
-- all members as one net with shared weights; the best ones by these are trained from scratch
SELECT {schema}.mop_search('flowers_packed', 'shared', NULL,
    $${{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [8],
       'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.01]}}]}}$$,
    'one-shot', 'iterations=4, candidates=20, retrain=2, retrain_iterations=2', model_space => 'flower_space');
SELECT rank, choices, one_shot_score, mst_key FROM shared_one_shot ORDER BY rank LIMIT 3;
-- the winner's architecture, as a row of the architecture table
SELECT {schema}.load_keras_model('flower_arch', model_arch, NULL, 'winner')
FROM found JOIN found_summary ON mst_key = best_mst_key;
""",
        False,
    ),
    "madlib_keras_automl": (
        "Searches grids of parameters for the configuration with the least loss, by hyperband or hyperopt, as in MADlib.",
        """
SELECT {schema}.madlib_keras_automl('flowers_packed', 'found', 'flower_arch', 'best', ARRAY[1],
    $${{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
       'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.1, 'log']}}]}}$$,
    $${{'batch_size': [8, 16], 'epochs': [1]}}$$, 'hyperband', 'R=3, eta=3, skip_last=0', 42);
SELECT mst_key, s, i, metrics_iters, training_loss_final FROM found_info ORDER BY training_loss_final NULLS LAST;
SELECT * FROM best;
""",
        False,
    ),
    "hyperband_schedule": (
        "Writes the schedule of madlib_keras_automl's hyperband to a table: configurations n_i and iterations r_i of "
        "round i in bracket s.",
        """
SELECT {schema}.hyperband_schedule('schedule', 81, 3, 0);
SELECT * FROM schedule ORDER BY s DESC, i;
""",
        False,
    ),
    "mop_stop_trial": (
        "Stops a configuration of a running run, from another session, after its current iteration.",
        """
-- during a run, in another session: stop configurations that are far behind
SELECT {schema}.mop_stop_trial(run_id, mst_key) FROM {schema}.mop_progress
WHERE status IN ('running', 'waiting') AND iteration >= 3 AND last_loss > 2;
""",
        False,
    ),
    "mop_add_trial": (
        "Adds a configuration to a running run, from another session.",
        """
-- during a run, in another session
SELECT {schema}.mop_add_trial(run_id, 1,
    $$loss='categorical_crossentropy', optimizer='Adam(lr=0.02)', metrics=['accuracy']$$, 'batch_size=16', 3)
FROM {schema}.mop_runs WHERE status = 'running';
""",
        False,
    ),
    "mop_more": (
        "Trains a configuration of a finished run for more iterations, and updates the run's output tables.",
        """
SELECT mst_key, iteration, training_loss_final FROM flower_models_info ORDER BY training_loss_final;
SELECT {schema}.mop_more((SELECT max(run_id) FROM {schema}.mop_runs), 1, 2);
SELECT mst_key, iteration, training_loss_final FROM flower_models_info ORDER BY training_loss_final;
""",
        True,
    ),
    "madlib_keras_fit": (
        "Trains one model on all segments at once, averaging the weights, or on one segment after the other "
        "(SET pg_mop.fit_strategy = 'sequential').",
        """
SELECT {schema}.madlib_keras_fit('flowers_packed', 'model', 'flower_arch', 1,
    $$loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']$$, 'batch_size=8', 5);
SELECT metrics_iters, training_metrics_final, training_loss_final FROM model_summary;
""",
        False,
    ),
    "madlib_keras_evaluate": (
        "Computes the loss and metrics of a trained model on a packed table, or on raw rows: a table, a view or a query.",
        """
SELECT {schema}.madlib_keras_evaluate('flower_models', 'flowers_packed', 'scores', FALSE, 1);
SELECT * FROM scores;
-- raw rows with the columns of training
SELECT {schema}.madlib_keras_evaluate('flower_models', 'SELECT * FROM flowers WHERE id > 100', 'more_scores', FALSE, 1);
""",
        True,
    ),
    "madlib_keras_predict": (
        "Predicts rows of a raw table with a trained model.",
        """
SELECT {schema}.madlib_keras_predict('flower_models', 'flowers', 'id', 'petals', 'predictions', 'prob', FALSE, 1);
SELECT * FROM predictions ORDER BY id, rank LIMIT 6;
""",
        True,
    ),
    "madlib_keras_predict_byom": (
        "Predicts rows of a raw table with your own architecture and weights.",
        """
SELECT {schema}.load_keras_model('own', m.model_arch, m.model_weights) FROM flower_models m WHERE mst_key = 1;
SELECT {schema}.madlib_keras_predict_byom('own', 1, 'flowers', 'id', 'petals', 'predictions', 'response', FALSE,
    ARRAY['iris', 'rose', 'tulip']);
SELECT * FROM predictions ORDER BY id LIMIT 5;
""",
        True,
    ),
    "mop_export_model": (
        "Returns a trained model as the bytes of a .keras file: the best of several if mst_key is NULL. Of a named model, "
        "mst_key is the version (NULL: the one in use), and the file takes the columns of the table (docs/tables.md).",
        """
SELECT length({schema}.mop_export_model('flower_models', 1));
-- into a file:
-- psql -Atc "SELECT encode({schema}.mop_export_model('flower_models', 1), 'hex')" | xxd -r -p > model.keras
""",
        True,
    ),
    "mop_export_parts": (
        "Returns the same file as mop_export_model in parts of 8 MB: a file may be larger than the 1 GB of one value.",
        """
SELECT part, length(data) FROM {schema}.mop_export_parts('flower_models', 1);
""",
        True,
    ),
    "mop_import_model": (
        "Appends the architecture and weights of a .keras file (bytes) to an architecture table; returns the model_id.",
        """
SELECT {schema}.mop_import_model('own', {schema}.mop_export_model('flower_models', 1), 'imported');
SELECT model_id, name, length(model_weights) FROM own;
""",
        True,
    ),
    "gpu_configuration": (
        "Writes a table (hostname, gpu_descr) of the server's GPUs, as TensorFlow or NVIDIA's driver report them.",
        """
SELECT {schema}.gpu_configuration('gpus');
SELECT * FROM gpus;
""",
        False,
    ),
    "mop_train": (
        "Trains a model for a table's target, makes it version 1 of a named model, and returns a report.",
        """
SELECT {schema}.mop_train('customers', 'churn', target => 'churned', id => 'id', time_limit => '20 s', max_trials => 2);
SELECT c.id, p.prediction, p.probability FROM customers c, {schema}.mop_predict('churn', c) AS p ORDER BY c.id LIMIT 5;
""",
        "table",
    ),
    "mop_pack": (
        "Packs a table, view or query with ordinary columns into buffers, with a transform fitted on its rows.",
        """
SELECT {schema}.mop_pack('customers', 'packed', target => 'churned', id => 'id',
    transform => '{{"spent": "log", "plan": {{"kind": "embedding"}}}}');
SELECT column_name, feature, elements, null_share FROM {schema}.mop_feature_info('packed');
""",
        "table",
    ),
    "mop_split": (
        "Splits a table, view or query into views for training, validation and test.",
        """
SELECT * FROM {schema}.mop_split('customers', 'part', valid => 0.2, test => 0.2, method => 'stratified', by => 'churned');
SELECT count(*) FROM part_train;
""",
        "table",
    ),
    "mop_architecture": (
        "Appends nets that fit a packed table to an architecture table; returns their model_ids.",
        """
SELECT {schema}.mop_pack('customers', 'packed', target => 'churned', id => 'id');
SELECT {schema}.mop_architecture('nets', 'packed', 'linear, small, 64x32');
SELECT model_id, name FROM nets;
""",
        "table",
    ),
    "mop_deploy": (
        "Makes a trained model a version of a named model; returns the version.",
        """
SELECT {schema}.mop_pack('customers', 'packed', target => 'churned', id => 'id');
SELECT {schema}.mop_architecture('nets', 'packed', 'small');
SELECT {schema}.madlib_keras_fit('packed', 'fitted', 'nets', 1,
    $$loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']$$, 'batch_size=32', 3);
SELECT {schema}.mop_deploy('churn', 'fitted', description => 'trained by hand');
SELECT version, in_use, description FROM churn;
""",
        "table",
    ),
    "mop_ensemble": (
        "Makes the best mean of several trained models, and of boosted trees, a version of a named model; returns the version.",
        """
SELECT {schema}.mop_pack('SELECT * FROM customers WHERE id % 4 > 0', 'packed', target => 'churned', id => 'id');
SELECT {schema}.mop_pack('SELECT * FROM customers WHERE id % 4 = 0', 'checked', fitted_on => 'packed');
SELECT {schema}.mop_architecture('nets', 'packed', 'linear, small');
COMMIT;  -- worker sessions see committed data only
SELECT {schema}.mop_search('packed', 'found', 'nets', $$ {{'loss': ['categorical_crossentropy'],
    'optimizer_params_list': [{{'optimizer': ['Adam'], 'lr': [0.003, 0.03, 'log']}}], 'batch_size': [16]}} $$,
    procedure_params => 'iterations=3', validation_table => 'checked', max_trials => 4);
SELECT {schema}.mop_ensemble('found', 'checked', 'churn');
SELECT version, details->'ensemble'->'value' AS log_loss FROM churn;
""",
        "table",
    ),
    "mop_use_version": (
        "Puts a version of a named model into use.",
        """
SELECT {schema}.mop_use_version('churn', 1);
""",
        "model",
    ),
    "mop_share": (
        "Lets a role ask a named model (what => 'answers'), or read it with its weights, or neither (what => 'nothing').",
        """
SELECT {schema}.mop_share('churn', 'mop_user', what => 'answers');   -- members of mop_user ask, and see nothing of the model
SELECT {schema}.mop_share('churn', 'mop_user', what => 'model');     -- they also read its table
SELECT {schema}.mop_share('churn', 'mop_user', what => 'nothing');   -- neither
""",
        "model",
    ),
    "mop_predict": (
        "Predicts with a named model: for a row of FROM, or for a table, view or query.",
        """
-- for rows of FROM
SELECT c.id, p.* FROM customers c, {schema}.mop_predict('churn', c) AS p ORDER BY c.id LIMIT 3;
-- for a table, a view or a query
SELECT * FROM {schema}.mop_predict('churn', source => 'SELECT * FROM customers WHERE age > 50', keep => 'id') LIMIT 3;
""",
        "model",
    ),
    "mop_probability": (
        "Returns the probability of a class for a row of FROM, for WHERE and ORDER BY.",
        """
SELECT c.id, {schema}.mop_probability('churn', c, 'true') AS risk FROM customers c ORDER BY risk DESC, c.id LIMIT 3;
""",
        "model",
    ),
    "mop_class": (
        "Returns the class for a row of FROM, for WHERE and GROUP BY.",
        """
SELECT {schema}.mop_class('churn', c) AS class, count(*) FROM customers c GROUP BY 1 ORDER BY 1;
""",
        "model",
    ),
    "mop_number": (
        "Returns the number for a row of FROM, of a model whose target is a number.",
        """
-- of a model of prices: SELECT h.id, {schema}.mop_number('price', h) FROM houses h ORDER BY 2 DESC LIMIT 3;
SELECT name, kind FROM {schema}.mop_models WHERE kind = 'regression';
""",
        "model",
    ),
    "mop_predict_into": (
        "Writes a named model's predictions for a table, view or query into a new table; returns the rows.",
        """
SELECT {schema}.mop_predict_into('churn', 'customers', 'answers', keep => 'id, plan');
SELECT * FROM answers ORDER BY id LIMIT 3;
""",
        "model",
    ),
    "mop_evaluate": (
        "Measures a named model on rows whose target is known.",
        """
SELECT * FROM {schema}.mop_evaluate('churn', 'churn_test');
""",
        "model",
    ),
    "mop_confusion_matrix": (
        "Counts the rows of each class by predicted class.",
        """
SELECT * FROM {schema}.mop_confusion_matrix('churn', 'churn_test');
""",
        "model",
    ),
    "mop_class_report": (
        "Returns precision, recall, F1 and support of each class.",
        """
SELECT * FROM {schema}.mop_class_report('churn', 'churn_test');
""",
        "model",
    ),
    "mop_regression_report": (
        "Returns the errors of a model of numbers in ten bands of the target.",
        """
SELECT {schema}.mop_train('customers', 'age_of', target => 'age', id => 'id', kind => 'regression', max_trials => 2);
SELECT * FROM {schema}.mop_regression_report('age_of', 'age_of_test');
""",
        "table",
    ),
    "mop_roc_curve": (
        "Returns the ROC curve of a class, by default of the second class.",
        """
SELECT * FROM {schema}.mop_roc_curve('churn', 'churn_test', label => 'yes');
""",
        "model",
    ),
    "mop_calibration": (
        "Compares the predicted probability of a class with its share of the rows, in ten bins.",
        """
SELECT * FROM {schema}.mop_calibration('churn', 'churn_test', label => 'yes');
""",
        "model",
    ),
    "mop_importance": (
        "Permutes each column in turn, and returns how much accuracy or R2 drops.",
        """
SELECT * FROM {schema}.mop_importance('churn', 'churn_test');
""",
        "model",
    ),
    "mop_explain_answer": (
        "Returns what each column of a row adds to a named model's answer: to the log odds of a class, or to the number.",
        """
SELECT e.* FROM customers c, {schema}.mop_explain_answer('churn', c) AS e WHERE c.id = 7;
""",
        "model",
    ),
    "mop_drift": (
        "Compares rows with the training rows of a named model or of a packed table, column by column.",
        """
SELECT * FROM {schema}.mop_drift('churn', 'SELECT id, age + 30 AS age, plan, spent, since FROM customers');
""",
        "model",
    ),
    "mop_compare": (
        "Measures two versions of a named model on the same rows.",
        """
SELECT {schema}.mop_retrain('churn', time_limit => '5 s', automatic => false);
SELECT * FROM {schema}.mop_compare('churn', 1, 2, 'churn_test');
""",
        "model",
    ),
    "mop_baselines": (
        "Trains simple models on the same rows as a named model, and measures them.",
        """
SELECT * FROM {schema}.mop_baselines('churn', 'churn_train', 'churn_test');
""",
        "model",
    ),
}

# functions for runs without their own help; docs/reference.md has the same texts
OF_RUNS = {
    "mop_resume": "Continues a run that was cancelled, failed or rolled back.",
    "mop_replay": "Repeats a finished run by its log (decisions and visit order), into new tables.",
    "mop_explain": "Returns the plan and the expected time of a call that trains, as text or 'json', without training: "
    "SELECT mop_explain($$ SELECT ... $$);",
    "mop_explain_run": "Returns the expected and the actual time of a run, as text or 'json'.",
    "mop_report": "Returns a report of a run as one HTML file, its data as 'json' ('table': without pictures), or its "
    "'summary' as JSON: state, best, failures by cause, what next; of all configurations, or of some.",
    "mop_submit": "Starts a job, which runs SQL in a separate session without a client; returns the job's number at once.",
    "mop_cancel": "Cancels a job.",
    "mop_wait": "Waits for the end of a job, or for a timeout; returns the job's status.",
    "mop_set_sessions": "Changes the number of worker sessions of a running run.",
    "mop_add_server": "Lets a server join a running run: segments are copied there while units go on, then it trains on them "
    "(docs/postgres_fdw.md).",
    "mop_set_priority": "Changes the priority of a running run (docs/administration.md).",
    "mop_end_trainers": "Ends the idle trainers and the serving processes of the caller's roles, to free their memory; returns "
    "their number.",
    "mop_share_training": "Shares what the role's runs train from now on with the members of a group that have said the same, "
    "where both may read all rows of the packed tables; NULL ends that (docs/search.md, Roles that share).",
    "mop_drop_run": "Deletes a run: its log and its model states.",
    "mop_drop_states": "Drops the model states of a run that will not be resumed, and keeps its log.",
    "mop_drop_packed": "Drops a packed table with its tables on other servers.",
    "mop_connect_servers": "Lets servers reach one another, to transfer states directly (superusers).",
    "mop_drop_checkpoints": "Drops the checkpoints of a run, or without an argument all of the role's.",
    "mop_trim_audit": "Deletes the rows of mop_audit before a time, and returns their number (superusers).",
    "mop_settings": "Lists the settings pg_mop.* with their present values; reports a wrong setting as an error.",
    "mop_functions": "Lists these functions with their purpose and arguments.",
    "mop_retrain": "Trains a named model again, as its last version was trained, and returns a report. Name source for a "
    "copied or restored model, and for one that another role has trained.",
    "mop_model_report": "Returns a report of a named model as one HTML file, or its data as 'json'; with measures and pictures "
    "of the rows of a source.",
    "mop_configuration_report": "Measures the model of one configuration of a run on the run's packed rows, as JSON: confusion "
    "matrix and curves, or predictions by truth, and the importance of the inputs; `notes` tells where mop_more has trained "
    "the model on, or the rows have been written since. It writes nothing.",
    "mop_note": "Writes a note and tags of a run, for people: NULL leaves what is there, an empty text or array removes it "
    "(mop_notes).",
    "mop_space_size": "Returns the exact number of members of a model space.",
    "mop_space_sample": "Returns random members of a model space that fit together: number, choices, architecture, parameters, "
    "and the primitives that make it from its base model.",
    "mop_space_show": "Returns a model space as text or 'json': the layers of its base models with their choice points, and "
    "what does not fit.",
    "mop_family": "Returns the family tree of a search as text: each trial below the one that it was made from, with its "
    "measure, what was changed and what it inherited.",
    "mop_feature_info": "Describes how each column of a packed table or a named model is packed.",
}
# functions that train: a call is a run, and takes long
TRAINS = {
    "madlib_keras_fit_multiple_model",
    "mop_fit_multiple_model",
    "madlib_keras_fit",
    "mop_search",
    "madlib_keras_automl",
    "mop_more",
    "mop_resume",
    "mop_replay",
}

DATA = """\
-- 150 flowers of three kinds (made up), packed into segments; an architecture; four configurations of it
BEGIN;
CREATE TABLE flowers AS
SELECT i AS id, ARRAY[1 + i % 3 + random() / 2, 3 - i % 3 + random() / 2, random(), random()]::real[] AS petals,
       ('{{rose,tulip,iris}}'::text[])[1 + i % 3] AS kind
FROM generate_series(1, 150) AS i;
SELECT {schema}.training_preprocessor_dl('flowers', 'flowers_packed', 'kind', 'petals');
SELECT {schema}.load_keras_model('flower_arch', '{{"class_name": "Sequential", "config": {{"name": "net", "layers": [
    {{"class_name": "Dense", "config": {{"name": "hidden", "units": 16, "activation": "relu",
                                       "batch_input_shape": [null, 4]}}}},
    {{"class_name": "Dense", "config": {{"name": "out", "units": 3, "activation": "softmax"}}}}]}}}}');
SELECT {schema}.generate_model_configs('flower_arch', 'flower_mst', ARRAY[1],
    $${{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
       'optimizer_params_list': [{{'optimizer': ['Adam', 'SGD'], 'learning_rate': [0.01, 0.1]}}]}}$$,
    $${{'batch_size': [16], 'epochs': [1]}}$$, 'grid');
COMMIT;  -- worker sessions see committed data only
"""
TABLE = """\
-- 300 customers (made up)
CREATE TABLE customers AS
SELECT i AS id, 18 + i * 7 % 60 AS age, ('{{basic,plus,pro}}'::text[])[1 + i % 3] AS plan,
       CASE WHEN i % 9 > 0 THEN (i * 13 % 500)::numeric END AS spent, date '2024-01-01' + i AS since,
       CASE WHEN i * 7 % 60 > 30 AND i % 3 = 0 THEN 'yes' ELSE 'no' END AS churned
FROM generate_series(1, 300) AS i;
ALTER TABLE customers ADD PRIMARY KEY (id);
"""
MODEL = """\
SELECT {schema}.mop_train('customers', 'churn', target => 'churned', id => 'id', time_limit => '20 s', max_trials => 2);
"""
TRAINED = """\
SELECT {schema}.madlib_keras_fit_multiple_model('flowers_packed', 'flower_models', 'flower_mst', 3, FALSE);
"""
BEFORE = {False: DATA, True: DATA + TRAINED, "table": TABLE, "model": TABLE + MODEL}

# the meanings of arguments whose names do not suffice
ARGUMENTS = {
    "automl_method": "'hyperband' or 'hyperopt'",
    "automl_params": "R, eta, skip_last of hyperband; num_configs, num_iterations, algorithm of hyperopt",
    "buffer_size": "requested number of rows in a buffer; NULL: as many as fit",
    "class_values": "classes in the order of the model's outputs; NULL: '0', '1', ...",
    "command": "SQL, such as a call of these functions",
    "compile_params": "as for Keras' compile: loss='...', optimizer='Adam(lr=0.01)', metrics=['...']",
    "compile_params_grid": "a Python dictionary of lists: loss, metrics, optimizer_params_list, ...",
    "compile_params_list": "strings as for Keras' compile",
    "continue_from": "run_id of an earlier run: the procedure starts with its results",
    "dependent_dtype": "'int16': classes, one-hot; 'float32': numbers as they are, for regression or soft labels",
    "dependent_varname": "label column, or a comma-separated list: one for each output of the model",
    "distribution_rules": "ignored on PostgreSQL: the setting pg_mop.segments sets the number of segments",
    "ensemble": "at most so many models answer together, by a mean that the validation rows choose; 1: the best alone",
    "families": "'nets, boosting, linear, mlp' (the default where LightGBM is installed), or some of them",
    "eta": "one in so many configurations continues after each round",
    "folds": "at least 2: cross-validation, segments are folds (docs/search.md); NULL: none",
    "format": "of a report 'html' or 'json'; mop_explain, mop_explain_run, mop_space_show: 'text' or 'json'",
    "fit_params": "as for Keras' fit: batch_size=32, epochs=1, class_weight={...}, stop={...}, keep='best'",
    "fit_params_grid": "a Python dictionary of lists: batch_size, epochs, ...",
    "fit_params_list": "strings as for Keras' fit",
    "grouped_by": "rows with the same value of this column are packed into one segment, so that no fold parts them",
    "id_col": "column that identifies a row",
    "independent_varname": "numeric array column, or a comma-separated list: one for each input of the model",
    "iterations": "mop_more: how many more; mop_add_trial: how many, NULL: the run's limit for the others",
    "k": "the true class must be among the k most probable",
    "keras_model_arch_table": "created if it does not exist",
    "adapt": "'project': a Dense layer or 1x1 convolution before merges of different shapes; NULL: they do not fit",
    "base": "model_ids of the base models; NULL: all of the table",
    "members": "at most so many models, chosen one by one on the validation rows (Caruana et al. 2004)",
    "max_trials": "maximum number of configurations",
    "measure": "time a few mini-batches of each net, in a trial that is rolled back",
    "metric": "'loss', or one of the configurations' metrics: 'accuracy', 'training_loss', 'mine max'",
    "metrics_compute_frequency": "after every so many iterations; NULL: after the last only",
    "model": "a named model; mop_import_model: the bytes of a .keras file; madlib_keras_fit: the table to create, with "
    "<name>_summary",
    "model_arch": "JSON of Keras 2 or 3",
    "balanced": "all classes count alike; NULL: as in the training of the nets",
    "mop_ensemble.metric": "the measure in which the mean is best, as of mop_train",
    "mop_ensemble.time_limit": "of training the families; NULL: 10 s",
    "mop_ensemble.folds": "true: the rows of trained_on choose, too, each by models that are trained without its "
    "fold; for at most 5,000 rows, and where model_table is NULL",
    "mop_train.metric": "what judges: log_loss, auc, average_precision, accuracy, f1, balanced_accuracy or brier; of numbers "
    "rmse, mae, rmsle or quantile:0.9; NULL: log_loss or rmse",
    "mop_train.name": "of the model to create",
    "mop_train.target": "the column to predict",
    "mop_train.id": "columns that tell the rows apart; not trained on",
    "mop_train.exclude": "columns that are not trained on",
    "mop_train.kind": "'classification' or 'regression'; NULL: by the target's type and values",
    "mop_train.transform": 'JSON: how columns are packed, {"column": "log"} (docs/tables.md)',
    "mop_train.weight": "a column with the weight of each row, or 'balanced'",
    "mop_train.split": "'random', 'stratified', 'group', 'time' or 'column': how the rows are divided into parts",
    "mop_train.by": "the column of the groups, times or parts",
    "mop_train.valid": "share of the rows that choose the model; with 0, folds of the training part choose",
    "mop_train.test": "share of the rows that measure it",
    "mop_train.layers": "nets to try: 'linear, small, medium, 128x64'; NULL: several that fit the rows",
    "mop_train.time_limit": "of the whole call; of large tables, as many rows are used as fit",
    "mop_train.baselines": "train simple models, too, for comparison",
    "mop_train.keep": "keep the views and tables of the steps",
    "model_id": "id of an architecture",
    "model_id_list": "ids of architectures",
    "model_output_table": "table to create, with <name>_info and <name>_summary; with <name>_parts for very large models",
    "model_selection_table": "from generate_model_configs or load_model_selection_table",
    "model_weights": "bytes of float32, in the order of get_weights(); or what a model table has where they are in parts",
    "model_space": "table of mop_space, in place of model_arch_table: the search chooses among its members, too",
    "mst_key": "number of a configuration of a run, or of a model in a table of several; NULL: of the best model",
    "mutators": "JSON: a list of objects that match layers and change them (docs/spaces.md)",
    "normalizing_const": "divides the independent elements",
    "num_classes": "one-hot width for each output; NULL: as many as the data have",
    "num_configs": "random search: number of configurations",
    "num_iterations": "visits of every configuration to every segment",
    "object": "dill.dumps of a function, or of a class of losses, layers or models",
    "object_table": "custom losses, metrics, layers and models, in this schema",
    "pred_type": "'prob', 'response', a number of best classes, or a minimum probability",
    "procedure": "'asha', 'grid', 'random', 'hyperband', ...: docs/search.md lists all",
    "procedure_params": "name = value, ...: docs/search.md",
    "r": "iterations of the configurations that reach the end",
    "random_state": "seed of the random draws",
    "run_id": "SELECT run_id, status FROM mop_runs",
    "schedule_table": "table to create",
    "search_type": "'grid' or 'random'",
    "server": "a foreign server of postgres_fdw",
    "skip_last": "rounds to leave out at the end of every bracket",
    "source": "rows: a table, a view or a query; gpu_configuration: 'tensorflow' or 'nvidia'",
    "source_table": "preprocessors: a table with a row for each example; training: a packed table",
    "space": "mop_search: Python dictionary of lists (loss, metrics, optimizer_params_list, batch_size, ..., model_id), or "
    "several; mop_space: the table to create",
    "test_table": "evaluate: a packed table, or a table, a view or a query with raw rows; "
    "predict: a table with a row for each example",
    "time_limit": "no iteration starts after this time; those that have begun are finished",
    "refit": "false: the chosen models are not trained again with the validation rows (of a split by time: with all rows)",
    "trained_on": "a packed training table, on whose rows models of other families are trained, too, for time_limit",
    "training_preprocessor_table": "packed table of training_preprocessor_dl",
    "use_caching": "accepted, without effect; rows always stay in memory while they fit",
    "warm_start": "continue from the tables of an earlier call, and replace them",
}


@sql_function
def answer(db: Database, name: str, message: str | None) -> str:
    """The help of function `name` for `message`: None, 'usage', 'example', ..."""
    word = (message or "").strip().lower()
    about, example, before = FUNCTIONS[name]
    schema = written(db.schema)
    if word in ("usage", "help", "?"):
        return f"{about}\n\n{_usage(db, name, schema)}"
    if word in ("example", "examples"):
        return (BEFORE[before] + example).format(schema=schema)
    if word and name.startswith("mop_"):
        raise MopError(f"{name} takes more than one argument", hint=f"SELECT {schema}.{name}('usage');")
    if word:
        return f"no such option {message!r}: try 'usage' or 'example'"
    return (
        f"{about}\nFor the arguments:             SELECT {schema}.{name}('usage');\n"
        f"For a script that runs as is:  SELECT {schema}.{name}('example');\n"
    )


@sql_function
def mop_functions(db: Database) -> list[tuple[Any, ...]]:
    """(name, trains, description, usage) of every function for users, ordered by name."""
    schema = written(db.schema)
    signatures = {
        row["proname"]
        for row in db.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)",
            ["text"],
            [db.schema],
        )
    }
    return [
        (name, name in TRAINS, about, _usage(db, name, schema))
        for name, about in sorted({**{name: said[0] for name, said in FUNCTIONS.items()}, **OF_RUNS}.items())
        if name in signatures
    ]


@sql_function
def mop_settings(db: Database) -> list[tuple[Any, ...]]:
    """(name, value, default, permitted values) of every setting; a value or default of None is determined when used.

    Raises MopError for a bad value or an unknown name.
    """
    texts = settings.given(db)
    settings.parsed(texts)
    return [
        (f"pg_mop.{name}", texts.get(name) or default, default, parser.texts)
        for name, (parser, default) in settings.KNOWN.items()
    ]


def _usage(db: Database, name: str, schema: str) -> str:
    """The function's arguments with their types and defaults; of an overloaded function, the types of all forms."""
    rows = db.execute(
        # row_to_json: pg_proc has no column prokind before PostgreSQL 11
        "SELECT row_to_json(p) ->> 'prokind' AS prokind, proretset, pg_get_function_arguments(oid) AS arguments "
        "FROM pg_proc p WHERE proname = $1 AND "
        "pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2) AND proargnames IS DISTINCT FROM ARRAY['message'] "
        "ORDER BY oid",
        ["text", "text"],
        [name, db.schema],
    )
    verb = "CALL" if rows[0]["prokind"] == "p" else "SELECT * FROM" if rows[0]["proretset"] else "SELECT"
    forms = [[a for a in row["arguments"].split(", ") if a and not a.startswith("OUT ")] for row in rows]
    forms = [form for form in forms if len(form) == max(map(len, forms))]
    lines = []
    for position in range(len(forms[0])):
        names, kinds = {}, {}  # of all forms, in order
        for form in forms:
            text = form[position].removeprefix("IN ").replace("character varying", "varchar").replace(" DEFAULT ", ", ")
            name_, kind = re.sub(r"::(varchar|text)", "", text).split(" ", 1)
            if name_ in ALL_INTEGERS:
                kind = kind.replace("double precision", "integer")  # of any numeric type, see as_integer
            names[name_] = kinds[kind] = True
        argument = " or ".join(names) + ("," if position < len(forms[0]) - 1 else "")
        about = ARGUMENTS.get(f"{name}.{name_}", ARGUMENTS.get(name_))
        said = f": {about}" if about else ""
        lines.append(f"    {argument:<29} -- {' or '.join(kinds)}{said}")
    usage = f"{verb} {schema}.{name}(" + "".join("\n" + line for line in lines) + ("\n);\n" if lines else ");\n")
    if name in TRAINS and name not in OF_RUNS and name != "mop_more":
        if verb == "SELECT" and "multiple" in name:
            usage += (
                f"\nFor hours: CALL {schema}.mop_fit_multiple_model(...), with the same arguments, does not hold "
                f"back VACUUM.\n"
            )
        usage += (
            f"\nWatch:     {schema}.mop_runs, mop_progress, mop_trials, mop_stages, mop_units, "
            f"mop_visit_order (from another session)\n"
            f"Settings:  (SET name = value) {', '.join(f'pg_mop.{n}' for n in settings.KNOWN)}\n"
        )
    return usage

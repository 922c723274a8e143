-- A search over a space of models: 100 members over handwritten digits, by an evolution whose children inherit their parents'
-- trained weights, and the family tree. `make demo-space` runs this file; you can run it piece by piece in `make psql`.

\set ON_ERROR_STOP on
\set QUIET on
\pset pager off
\pset footer off
SET client_min_messages = warning;

\echo
\echo '=== The extension, in a schema of our choice'
DROP EXTENSION IF EXISTS pg_mop CASCADE;  -- the demo begins afresh, with the extension of this very checkout
CREATE SCHEMA IF NOT EXISTS madlib;
CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA madlib CASCADE;
DROP TABLE IF EXISTS digits CASCADE;
DROP TABLE IF EXISTS digits_train_packed, digits_train_packed_summary, digits_val_packed, digits_val_packed_summary,
    digit_nets, digit_space, digits_family, digits_family_info, digits_family_summary, digits_family_trials;
SET pg_mop.seed = 42;             -- all chance comes from here
SET pg_mop.segments = 2;

\echo
\echo '=== 1. Data: 1,797 handwritten digits, 8x8 pixels; every fifth row is held out'
CREATE TABLE digits (id integer PRIMARY KEY, image real[] NOT NULL, label integer NOT NULL);
\copy digits FROM PROGRAM 'demo/digits.sh' CSV
CREATE VIEW digits_train AS SELECT * FROM digits WHERE id % 5 <> 0;
CREATE VIEW digits_val   AS SELECT * FROM digits WHERE id % 5 = 0;
SELECT madlib.training_preprocessor_dl('digits_train', 'digits_train_packed', 'label', 'image', NULL, 16);
SELECT madlib.validation_preprocessor_dl('digits_val', 'digits_val_packed', 'label', 'image', 'digits_train_packed');

\echo
\echo '=== 2. Base models: a small dense net and a small convolutional one'
SELECT madlib.load_keras_model('digit_nets', $${"class_name": "Sequential", "config": {"name": "dense", "layers": [
    {"class_name": "Flatten", "config": {"name": "flat", "batch_input_shape": [null, 8, 8]}},
    {"class_name": "Dense", "config": {"name": "hidden", "units": 16, "activation": "relu"}},
    {"class_name": "Dense", "config": {"name": "out", "units": 10, "activation": "softmax"}}]}}$$, NULL, 'dense');
SELECT madlib.load_keras_model('digit_nets', $${"class_name": "Sequential", "config": {"name": "cnn", "layers": [
    {"class_name": "Reshape", "config": {"name": "pixels", "target_shape": [8, 8, 1], "batch_input_shape": [null, 8, 8]}},
    {"class_name": "Conv2D", "config": {"name": "conv", "filters": 4, "kernel_size": 3, "padding": "same",
                                        "activation": "relu"}},
    {"class_name": "MaxPooling2D", "config": {"name": "pool"}},
    {"class_name": "Flatten", "config": {"name": "flat"}},
    {"class_name": "Dense", "config": {"name": "hidden", "units": 16, "activation": "relu"}},
    {"class_name": "Dense", "config": {"name": "out", "units": 10, "activation": "softmax"}}]}}$$, NULL, 'cnn');

\echo
\echo '=== 3. The space: what may be changed'
SELECT madlib.mop_space('digit_space', 'digit_nets', ARRAY[1, 2], $$[
    {"change": "value", "base": [2], "match": "conv", "argument": "filters", "choices": [4, 8, 16]},
    {"change": "repeat", "base": [2], "match": "conv", "times": [1, 2]},
    {"change": "repeat", "match": "hidden", "times": [1, 2, 3]},
    {"change": "value", "match": "hidden*", "argument": "units", "choices": [16, 32, 64]},
    {"change": "insert", "match": "flat", "choices": [null, {"class": "Dropout", "rate": 0.1}]}]$$) AS members;
SELECT madlib.mop_space_show('digit_space') AS the_space;

\echo
\echo '=== 4. 100 members by regularized evolution: each child begins with the trained weights of its parent'
SELECT madlib.mop_search('digits_train_packed', 'digits_family', NULL, $$ {
    'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [32],
    'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.003]}]} $$,
    'regularized-evolution', 'population=16, tournament=4, trials=100, iterations=2, inherit=on',
    metric => 'accuracy', validation_table => 'digits_val_packed', model_space => 'digit_space');

SELECT max(run_id) AS run FROM madlib.mop_runs \gset
\echo
\echo '=== 5. The best members'
SELECT mst_key, base_model, parent, changed, choices, round(metric_final::numeric, 4) AS accuracy
FROM digits_family_trials ORDER BY metric_final DESC LIMIT 5;

\echo
\echo '=== 6. What they inherited'
SELECT mst_key, parent, inherited FROM madlib.mop_lineage JOIN digits_family_trials USING (mst_key, parent)
WHERE run_id = :run ORDER BY metric_final DESC LIMIT 5;

\echo
\echo '=== 7. The family tree'
\pset format unaligned
\pset tuples_only on
SELECT madlib.mop_family(:run);

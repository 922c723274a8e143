-- pg_mop's main job, from an ordinary table to a leaderboard of trained models. `make demo` runs this file on the
-- embedded server; you can run it piece by piece in `make psql`.

\set ON_ERROR_STOP on
\set QUIET on
\pset pager off
\pset footer off
SET client_min_messages = warning;

\echo
\echo '=== The extension, in a schema of our choice'
\if :{?keep} \else
DROP EXTENSION IF EXISTS pg_mop CASCADE;  -- the demo begins afresh, with the extension of this very checkout
\endif
CREATE SCHEMA IF NOT EXISTS madlib;
CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA madlib CASCADE;
DROP TABLE IF EXISTS digits CASCADE;
DROP TABLE IF EXISTS digits_train_packed, digits_train_packed_summary,
    digits_val_packed, digits_val_packed_summary, model_arch_library, digits_mst, digits_mst_summary,
    digits_models, digits_models_info, digits_models_summary, digits_predictions,
    digits_found, digits_found_info, digits_found_summary, digits_found_trials;
SET pg_mop.seed = 42;         -- all chance comes from here
\if :{?segments} \else \set segments 2 \endif
SET pg_mop.segments = :segments;  -- default: the GPUs, else the cores

\echo
\echo '=== 1. Data: 1,797 handwritten digits, 8x8 pixels of 0 to 16, in an ordinary table'
CREATE TABLE digits (id integer PRIMARY KEY, image real[] NOT NULL, label integer NOT NULL);
\copy digits FROM PROGRAM 'demo/digits.sh' CSV
-- every fifth row is held out
CREATE VIEW digits_train AS SELECT * FROM digits WHERE id % 5 <> 0;
CREATE VIEW digits_val   AS SELECT * FROM digits WHERE id % 5 = 0;
SELECT (SELECT count(*) FROM digits_train) AS training_rows, (SELECT count(*) FROM digits_val) AS validation_rows;

\echo
\echo '=== 2. Packed for training: shuffled, scaled, one-hot encoded, one partition per segment'
SELECT madlib.training_preprocessor_dl('digits_train', 'digits_train_packed', 'label', 'image', NULL, 16);
SELECT madlib.validation_preprocessor_dl('digits_val', 'digits_val_packed', 'label', 'image', 'digits_train_packed');
SELECT __dist_key__ AS segment, buffer_id, image_shape, label_shape, length(image) AS image_bytes
FROM digits_train_packed ORDER BY buffer_id;

\echo
\echo '=== 3. Two architectures: the JSON that Keras writes with model.to_json()'
SELECT madlib.load_keras_model('model_arch_library', $json${"module": "keras", "class_name": "Sequential", "config": {"name": "dense", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "layers": [{"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_shape": [null, 8, 8], "dtype": "float32", "sparse": false, "ragged": false, "name": "input_layer", "optional": false}, "registered_name": null}, {"module": "keras.layers", "class_name": "Flatten", "config": {"name": "flatten", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "data_format": "channels_last"}, "registered_name": null, "build_config": {"input_shape": [null, 8, 8]}}, {"module": "keras.layers", "class_name": "Dense", "config": {"name": "dense", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "units": 64, "activation": "relu", "use_bias": true, "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null, "input_axes": null, "output_axes": null}, "registered_name": null}, "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": null}, "kernel_regularizer": null, "bias_regularizer": null, "kernel_constraint": null, "bias_constraint": null, "quantization_config": null}, "registered_name": null, "build_config": {"input_shape": [null, 64]}}, {"module": "keras.layers", "class_name": "Dense", "config": {"name": "dense_1", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "units": 64, "activation": "relu", "use_bias": true, "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null, "input_axes": null, "output_axes": null}, "registered_name": null}, "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": null}, "kernel_regularizer": null, "bias_regularizer": null, "kernel_constraint": null, "bias_constraint": null, "quantization_config": null}, "registered_name": null, "build_config": {"input_shape": [null, 64]}}, {"module": "keras.layers", "class_name": "Dense", "config": {"name": "dense_2", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "units": 10, "activation": "softmax", "use_bias": true, "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null, "input_axes": null, "output_axes": null}, "registered_name": null}, "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": null}, "kernel_regularizer": null, "bias_regularizer": null, "kernel_constraint": null, "bias_constraint": null, "quantization_config": null}, "registered_name": null, "build_config": {"input_shape": [null, 64]}}], "build_input_shape": [null, 8, 8]}, "registered_name": null, "build_config": {"input_shape": [null, 8, 8]}}$json$, NULL::bytea, 'dense', '64-64-10');
SELECT madlib.load_keras_model('model_arch_library', $json${"module": "keras", "class_name": "Sequential", "config": {"name": "cnn", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "layers": [{"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_shape": [null, 8, 8], "dtype": "float32", "sparse": false, "ragged": false, "name": "input_layer_1", "optional": false}, "registered_name": null}, {"module": "keras.layers", "class_name": "Reshape", "config": {"name": "reshape", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "target_shape": [8, 8, 1]}, "registered_name": null}, {"module": "keras.layers", "class_name": "Conv2D", "config": {"name": "conv2d", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "filters": 16, "kernel_size": [3, 3], "strides": [1, 1], "padding": "valid", "data_format": "channels_last", "dilation_rate": [1, 1], "groups": 1, "activation": "relu", "use_bias": true, "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null, "input_axes": null, "output_axes": null}, "registered_name": null}, "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": null}, "kernel_regularizer": null, "bias_regularizer": null, "activity_regularizer": null, "kernel_constraint": null, "bias_constraint": null}, "registered_name": null, "build_config": {"input_shape": [null, 8, 8, 1]}}, {"module": "keras.layers", "class_name": "Conv2D", "config": {"name": "conv2d_1", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "filters": 32, "kernel_size": [3, 3], "strides": [1, 1], "padding": "valid", "data_format": "channels_last", "dilation_rate": [1, 1], "groups": 1, "activation": "relu", "use_bias": true, "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null, "input_axes": null, "output_axes": null}, "registered_name": null}, "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": null}, "kernel_regularizer": null, "bias_regularizer": null, "activity_regularizer": null, "kernel_constraint": null, "bias_constraint": null}, "registered_name": null, "build_config": {"input_shape": [null, 6, 6, 16]}}, {"module": "keras.layers", "class_name": "MaxPooling2D", "config": {"name": "max_pooling2d", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "pool_size": [2, 2], "padding": "valid", "strides": [2, 2], "data_format": "channels_last"}, "registered_name": null}, {"module": "keras.layers", "class_name": "Flatten", "config": {"name": "flatten_1", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "data_format": "channels_last"}, "registered_name": null, "build_config": {"input_shape": [null, 2, 2, 32]}}, {"module": "keras.layers", "class_name": "Dropout", "config": {"name": "dropout", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "rate": 0.25, "seed": null, "noise_shape": null}, "registered_name": null}, {"module": "keras.layers", "class_name": "Dense", "config": {"name": "dense_3", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "units": 64, "activation": "relu", "use_bias": true, "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null, "input_axes": null, "output_axes": null}, "registered_name": null}, "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": null}, "kernel_regularizer": null, "bias_regularizer": null, "kernel_constraint": null, "bias_constraint": null, "quantization_config": null}, "registered_name": null, "build_config": {"input_shape": [null, 128]}}, {"module": "keras.layers", "class_name": "Dense", "config": {"name": "dense_4", "trainable": true, "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}, "units": 10, "activation": "softmax", "use_bias": true, "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null, "input_axes": null, "output_axes": null}, "registered_name": null}, "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}, "registered_name": null}, "kernel_regularizer": null, "bias_regularizer": null, "kernel_constraint": null, "bias_constraint": null, "quantization_config": null}, "registered_name": null, "build_config": {"input_shape": [null, 64]}}], "build_input_shape": [null, 8, 8]}, "registered_name": null, "build_config": {"input_shape": [null, 8, 8]}}$json$, NULL::bytea, 'cnn', 'two convolutions');
SELECT model_id, name, description, length(model_arch::text) AS json_bytes FROM model_arch_library ORDER BY model_id;

\echo
\echo '=== 4. 16 configurations: 2 architectures x 4 learning rates x 2 batch sizes'
SELECT madlib.generate_model_configs('model_arch_library', 'digits_mst', ARRAY[1, 2],
    $$ {'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
        'optimizer_params_list': [{'optimizer': ['Adam'], 'learning_rate': [0.0003, 0.001, 0.003, 0.01]}]} $$,
    $$ {'batch_size': [16, 64], 'epochs': [1]} $$, 'grid');
SELECT * FROM digits_mst ORDER BY mst_key LIMIT 4;

\echo
\echo '=== 5. Train them all where the data is (models hop between segments). From another session: TABLE madlib.mop_progress;'
SELECT madlib.madlib_keras_fit_multiple_model('digits_train_packed', 'digits_models', 'digits_mst', 12, FALSE,
    'digits_val_packed', 4, FALSE, 'digits', 'the demo');

\echo
\echo '=== 6. The leaderboard'
SELECT rank() OVER (ORDER BY i.validation_metrics_final DESC NULLS LAST, i.validation_loss_final) AS rank, i.mst_key, a.name,
       substring(i.compile_params FROM 'learning_rate=([0-9.e-]+)') AS learning_rate,
       substring(i.fit_params FROM 'batch_size=([0-9]+)') AS batch_size,
       round(i.validation_metrics_final::numeric, 4) AS validation_accuracy,
       round(i.validation_loss_final::numeric, 4) AS validation_loss,
       round(i.training_metrics_final::numeric, 4) AS training_accuracy
FROM digits_models_info i JOIN model_arch_library a USING (model_id)
ORDER BY 1;

SELECT mst_key AS winner FROM digits_models_info
ORDER BY validation_metrics_final DESC NULLS LAST, validation_loss_final LIMIT 1 \gset
SELECT max(run_id) AS run FROM madlib.mop_runs \gset

\echo
\echo '=== The order in which the winner visited the segments, and what its visits cost'
SELECT v.iteration, v.position, v.segment, u.kernel, u.rows, round(u.loss::numeric, 4) AS loss,
       round(1000 * u.read_seconds) AS read_ms, round(1000 * u.train_seconds) AS train_ms,
       round(1000 * u.write_seconds) AS write_ms
FROM madlib.mop_visit_order v
JOIN madlib.mop_units u USING (run_id, mst_key, iteration, segment)
WHERE run_id = :run AND mst_key = :winner AND u.kind = 'train' AND u.status = 'finished'
ORDER BY 1, 2;

\echo
\echo '=== What the winner says of held-out rows, beside the true labels'
SELECT madlib.madlib_keras_predict('digits_models', 'digits_val', 'id', 'image', 'digits_predictions', 'response',
    FALSE, :winner);
SELECT p.id, d.label AS true_label, p.class_value AS predicted, round(p.prob::numeric, 4) AS probability
FROM digits_predictions p JOIN digits_val d USING (id) ORDER BY id LIMIT 10;
SELECT count(*) AS held_out, sum((p.class_value = d.label::text)::integer) AS right,
       round(avg((p.class_value = d.label::text)::integer), 4) AS accuracy
FROM digits_predictions p JOIN digits_val d USING (id);

\echo
\echo '=== Where the time of the run went (seconds, all worker sessions together)'
SELECT r.segments AS sessions, round(extract(epoch FROM r.finished_at - r.started_at)::numeric, 2) AS run_seconds,
       round(sum(u.train_seconds) FILTER (WHERE kind = 'train')::numeric, 2) AS training,
       round(sum(u.train_seconds) FILTER (WHERE kind = 'evaluate')::numeric, 2) AS evaluating,
       round(sum(u.read_seconds + u.write_seconds)::numeric, 2) AS hops_and_start_up,
       round((r.segments * extract(epoch FROM max(u.finished_at) - min(u.started_at))
              - sum(u.read_seconds + u.train_seconds + u.write_seconds))::numeric, 2) AS between_and_idle
FROM madlib.mop_runs r JOIN madlib.mop_units u USING (run_id) WHERE run_id = :run AND NOT shared GROUP BY r.run_id, 1, 2,
    r.finished_at, r.started_at, r.segments;

\echo
\echo '=== 7. Search instead: nine configurations begin, the best three train on; a procedure decides which'
SELECT madlib.mop_search('digits_train_packed', 'digits_found', 'model_arch_library',
    $$ {'model_id': [1], 'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [16, 64],
        'optimizer_params_list': [{'optimizer': ['Adam'], 'learning_rate': [0.0001, 0.03, 'log']}]} $$,
    'successive-halving', 'trials=9, iterations=9, skip=1', metric => 'accuracy', validation_table => 'digits_val_packed',
    name => 'digits');
SELECT mst_key, substring(compile_params FROM 'learning_rate=([0-9.e-]{1,8})') AS learning_rate,
       substring(fit_params FROM 'batch_size=([0-9]+)') AS batch_size, iterations,
       metric::numeric(5, 4)[] AS validation_accuracy, reason
FROM digits_found_trials ORDER BY metric_best DESC, mst_key;

-- Evaluation and prediction with trained models (docs/contract/fit_evaluate_predict.md).

-- Users evaluate a trained model on a packed table with this.
CREATE FUNCTION @extschema@.madlib_keras_evaluate(
    model_table varchar,
    test_table varchar,
    output_table varchar,
    use_gpus boolean DEFAULT FALSE,
    mst_key double precision DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.evaluate.madlib_keras_evaluate(plpy, *args) $$;

-- Users predict with a trained model on a table of raw rows with this; pred_type may be a word or a number.
CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT FALSE,
    mst_key double precision DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.predict.madlib_keras_predict(plpy, *args) $$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT FALSE,
    mst_key double precision DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.predict.madlib_keras_predict(plpy, *args) $$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT FALSE,
    mst_key double precision DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.predict.madlib_keras_predict(plpy, *args) $$;

-- Users predict with a model of an architecture table with this; pred_type may be a word or a number.
CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id double precision,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count double precision DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.predict.madlib_keras_predict_byom(plpy, *args) $$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id double precision,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count double precision DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.predict.madlib_keras_predict_byom(plpy, *args) $$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id double precision,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count double precision DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.predict.madlib_keras_predict_byom(plpy, *args) $$;

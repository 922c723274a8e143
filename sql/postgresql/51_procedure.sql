-- madlib_keras_fit_multiple_model as a procedure: it holds neither a snapshot nor a transaction while units run.
CREATE PROCEDURE @extschema@.mop_fit_multiple_model(
    source_table varchar,
    model_output_table varchar,
    model_selection_table varchar,
    num_iterations double precision,
    use_gpus boolean,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency double precision DEFAULT NULL,
    warm_start boolean DEFAULT FALSE,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    use_caching boolean DEFAULT FALSE,
    folds double precision DEFAULT NULL
) LANGUAGE plpython3u AS $$ #python pg_mop.api.madlib.fit_multiple.mop_fit_multiple_model(plpy, *args) $$;

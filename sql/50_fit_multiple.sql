-- Training of all configurations of a model-selection table (docs/contract/fit_multiple.md).

-- Users train all configurations of a model-selection table with this, in the caller's transaction.
CREATE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
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
) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.fit_multiple.madlib_keras_fit_multiple_model(plpy, *args) $$;

-- Training of one model (docs/contract/fit_evaluate_predict.md, section 1).

-- Users train one model with this.
CREATE FUNCTION @extschema@.madlib_keras_fit(
    source_table varchar,
    model varchar,
    model_arch_table varchar,
    model_id double precision,
    compile_params varchar,
    fit_params varchar,
    num_iterations double precision,
    use_gpus boolean DEFAULT FALSE,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency double precision DEFAULT NULL,
    warm_start boolean DEFAULT NULL,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    object_table varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.fit.madlib_keras_fit(plpy, *args) $$;

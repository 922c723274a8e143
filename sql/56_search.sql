-- Searches: procedures that add and stop trials while they train, and their control by users.

-- Users search a space of configurations with this: a procedure adds, continues and stops trials.
CREATE FUNCTION @extschema@.mop_search(
    source_table varchar,
    model_output_table varchar,
    model_arch_table varchar,
    space varchar,
    procedure varchar DEFAULT 'asha',
    procedure_params varchar DEFAULT NULL,
    metric varchar DEFAULT NULL,
    validation_table varchar DEFAULT NULL,
    time_limit interval DEFAULT NULL,
    max_trials double precision DEFAULT NULL,
    continue_from double precision DEFAULT NULL,
    random_state double precision DEFAULT NULL,
    use_gpus boolean DEFAULT FALSE,
    object_table varchar DEFAULT NULL,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    folds double precision DEFAULT NULL,
    model_space varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.search.mop_search(plpy, *args) $$;

-- Users search a grid of configurations with MADlib's methods, hyperband or hyperopt.
CREATE FUNCTION @extschema@.madlib_keras_automl(
    source_table varchar,
    model_output_table varchar,
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list double precision[],
    compile_params_grid varchar,
    fit_params_grid varchar,
    automl_method varchar DEFAULT 'hyperband',
    automl_params varchar DEFAULT NULL,
    random_state double precision DEFAULT NULL,
    object_table varchar DEFAULT NULL,
    use_gpus boolean DEFAULT FALSE,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency double precision DEFAULT NULL,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    use_caching boolean DEFAULT FALSE
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.automl.madlib_keras_automl(plpy, *args) $$;

-- Users write the schedule of a hyperband search into a table with this.
CREATE FUNCTION @extschema@.hyperband_schedule(
    schedule_table varchar,
    r double precision,
    eta double precision DEFAULT 3,
    skip_last double precision DEFAULT 0
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.automl.hyperband_schedule(plpy, *args) $$;

-- Users control a running run from another session. Its coordinator reads control requests twice a second.

-- Users stop a configuration of a running run with this.
CREATE FUNCTION @extschema@.mop_stop_trial(run_id double precision, mst_key double precision) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_add_control_request(@extschema@.mop_integer('run_id', $1), pg_catalog.json_build_object(
        'stop', @extschema@.mop_integer('mst_key', $2), 'by', current_user))
$$;

-- Users add a configuration to a running run with this.
CREATE FUNCTION @extschema@.mop_add_trial(run_id double precision, model_id double precision, compile_params varchar,
    fit_params varchar, iterations double precision DEFAULT NULL) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_add_control_request(@extschema@.mop_integer('run_id', $1), pg_catalog.json_build_object(
        'add', pg_catalog.json_build_array(@extschema@.mop_integer('model_id', $2), $3, $4),
        'iterations', @extschema@.mop_integer('iterations', $5), 'by', current_user))
$$;

-- Users train one configuration of an ended run for more iterations with this.
CREATE FUNCTION @extschema@.mop_more(run_id double precision, mst_key double precision, iterations double precision)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.more.mop_more(plpy, *args) $$;

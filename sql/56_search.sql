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
    max_trials integer DEFAULT NULL,
    continue_from bigint DEFAULT NULL,
    random_state integer DEFAULT NULL,
    use_gpus boolean DEFAULT FALSE,
    object_table varchar DEFAULT NULL,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import search
search.mop_search(plpy, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_automl(
    source_table varchar,
    model_output_table varchar,
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list integer[],
    compile_params_grid varchar,
    fit_params_grid varchar,
    automl_method varchar DEFAULT 'hyperband',
    automl_params varchar DEFAULT NULL,
    random_state integer DEFAULT NULL,
    object_table varchar DEFAULT NULL,
    use_gpus boolean DEFAULT FALSE,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    use_caching boolean DEFAULT FALSE
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import automl
automl.madlib_keras_automl(plpy, *args)
$$;

CREATE FUNCTION @extschema@.hyperband_schedule(
    schedule_table varchar,
    r integer,
    eta integer DEFAULT 3,
    skip_last integer DEFAULT 0
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import automl
automl.hyperband_schedule(plpy, *args)
$$;

-- What people may do to a run that goes on, from another session. Its coordinator looks twice a second.

CREATE FUNCTION @extschema@.mop_stop_trial(run_id bigint, mst_key integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_add_wish($1, pg_catalog.json_build_object('stop', $2, 'by', current_user))
$$;

CREATE FUNCTION @extschema@.mop_add_trial(run_id bigint, model_id integer, compile_params varchar, fit_params varchar,
    iterations integer DEFAULT NULL) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_add_wish($1, pg_catalog.json_build_object(
        'add', pg_catalog.json_build_array($2, $3, $4), 'iterations', $5, 'by', current_user))
$$;

CREATE FUNCTION @extschema@.mop_more(run_id bigint, mst_key integer, iterations integer)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import more
more.mop_more(plpy, *args)
$$;

-- Model-selection tables: users list configurations, or generate them from grids.

-- Users load all combinations of the listed models and parameters into a model-selection table with this.
CREATE FUNCTION @extschema@.load_model_selection_table(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list double precision[],
    compile_params_list varchar[],
    fit_params_list varchar[],
    object_table varchar DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.configurations.load_model_selection_table(plpy, *args) $$;

-- Users load a grid of configurations, or a random sample of it, into a model-selection table with this.
CREATE FUNCTION @extschema@.generate_model_configs(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list double precision[],
    compile_params_grid varchar,
    fit_params_grid varchar,
    search_type varchar DEFAULT 'grid',
    num_configs double precision DEFAULT NULL,
    random_state double precision DEFAULT NULL,
    object_table varchar DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.configurations.generate_model_configs(plpy, *args) $$;

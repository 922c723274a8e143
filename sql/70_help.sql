-- Help: every function for users explains itself with f(), f('usage') and f('example').

DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['training_preprocessor_dl', 'validation_preprocessor_dl', 'load_keras_model',
        'delete_keras_model', 'load_custom_function', 'delete_custom_function', 'load_top_k_accuracy_function',
        'load_model_selection_table', 'generate_model_configs', 'madlib_keras_fit_multiple_model',
        'mop_fit_multiple_model', 'mop_search', 'madlib_keras_automl', 'hyperband_schedule', 'mop_stop_trial',
        'mop_add_trial', 'mop_more', 'madlib_keras_fit', 'madlib_keras_evaluate', 'madlib_keras_predict',
        'madlib_keras_predict_byom', 'mop_export_model', 'mop_export_parts', 'mop_import_model', 'mop_train',
        'mop_pack', 'mop_split', 'mop_architecture', 'mop_deploy', 'mop_ensemble', 'mop_use_version', 'mop_share',
        'mop_predict', 'mop_probability', 'mop_class', 'mop_number', 'mop_predict_into', 'mop_evaluate', 'mop_confusion_matrix', 'mop_class_report', 'mop_regression_report',
        'mop_roc_curve', 'mop_calibration', 'mop_importance', 'mop_explain_answer', 'mop_drift', 'mop_compare', 'mop_baselines', 'mop_space']
    LOOP
        -- (Greenplum has no procedures)
        CONTINUE WHEN NOT EXISTS (
            SELECT 1 FROM pg_catalog.pg_proc p WHERE p.proname = name AND p.pronamespace = (SELECT o.relnamespace
                FROM pg_catalog.pg_class o WHERE o.oid = '@extschema@.mop_run'::pg_catalog.regclass));
        EXECUTE pg_catalog.format($create$
CREATE FUNCTION %s.%I(message varchar DEFAULT '')
RETURNS varchar LANGUAGE plpython3u VOLATILE AS $body$
#python
from pg_mop.api.common import help
return help.answer(plpy, '%s', message)
$body$
$create$, '@extschema@', name, name);
    END LOOP;
END
$do$;

-- Returns purpose and usage of every function, for the reference and the docstrings of the client's methods.
CREATE FUNCTION @extschema@.mop_functions(OUT name text, OUT trains boolean, OUT about text, OUT usage text)
RETURNS SETOF record LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.common.help.mop_functions(plpy) $$;

-- Returns the current values of the settings.
CREATE FUNCTION @extschema@.mop_settings(OUT name text, OUT value text, OUT "default" text, OUT takes text)
RETURNS SETOF record LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.common.help.mop_settings(plpy) $$;

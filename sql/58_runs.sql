-- Runs continue, or repeat the training of an earlier run by its log.

-- Users continue a run that failed or was cancelled with this.
CREATE FUNCTION @extschema@.mop_resume(run_id double precision) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.runs.mop_resume(plpy, *args) $$;

-- Users train a run again by its logged decisions and in its logged visit order with this, into other output tables.
CREATE FUNCTION @extschema@.mop_replay(run_id double precision, output_table varchar) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.runs.mop_replay(plpy, *args) $$;

-- Users and the live page measure the model of one configuration on the run's packed rows with this. It writes nothing.
CREATE FUNCTION @extschema@.mop_configuration_report(run_id double precision, mst_key double precision) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.configuration_report.mop_configuration_report(plpy, *args) $$;

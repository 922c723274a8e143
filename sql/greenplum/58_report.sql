-- The report of a run: the twin of postgresql/58_report.sql, without the setting jit.
CREATE FUNCTION @extschema@.mop_report(run_id double precision, format text DEFAULT 'html',
    mst_keys double precision[] DEFAULT NULL) RETURNS text
LANGUAGE plpython3u STABLE SET work_mem = '64MB' AS $$ #python pg_mop.api.runs.report.mop_report(plpy, *args) $$;

-- The report of a run, or of some of its configurations: one HTML file, or the data of its pictures as JSON.
-- (STABLE: all of its queries see one snapshot, also while the run goes on.)
CREATE FUNCTION @extschema@.mop_report(run_id double precision, format text DEFAULT 'html',
    mst_keys double precision[] DEFAULT NULL) RETURNS text
LANGUAGE plpython3u STABLE SET work_mem = '64MB' SET jit = off AS $$ #python pg_mop.api.runs.report.mop_report(plpy, *args) $$;

-- EXPLAIN for calls that train: what they would do and take, and what runs have taken.

-- Users see with this what a call would do and take. The call makes all its checks, and nothing else;
-- with `measure`, a few mini-batches of each net are timed in a trial that is rolled back, for 5 seconds at most.
CREATE FUNCTION @extschema@.mop_explain(command text, format text DEFAULT 'text', measure boolean DEFAULT FALSE)
RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.common.explain.mop_explain(plpy, *args) $$;

-- Users see with this what a run was expected to take, and what it took: of a run that goes on, or has ended.
-- (STABLE: all of its queries see one snapshot, also while the run goes on.)
CREATE FUNCTION @extschema@.mop_explain_run(run_id double precision, format text DEFAULT 'text') RETURNS text
LANGUAGE plpython3u STABLE AS $$ #python pg_mop.api.runs.explain_run.mop_explain_run(plpy, *args) $$;

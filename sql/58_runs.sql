CREATE FUNCTION @extschema@.mop_resume(run_id bigint) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import runs
runs.mop_resume(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_replay(run_id bigint, output_table varchar) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import runs
runs.mop_replay(plpy, *args)
$$;

-- what can be seen of a run: one HTML file, or the data of its pictures as JSON
CREATE FUNCTION @extschema@.mop_report(run_id bigint, format text DEFAULT 'html')
RETURNS text LANGUAGE plpython3u VOLATILE SET work_mem = '64MB' SET jit = off AS $$
#python
from pg_mop.api import report
return report.mop_report(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_resume(run_id double precision) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import runs
runs.mop_resume(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_replay(run_id double precision, output_table varchar) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import runs
runs.mop_replay(plpy, *args)
$$;

-- Runs continue, or repeat the training of an earlier run in its visit order.

-- Users continue a run that failed or was cancelled with this.
CREATE FUNCTION @extschema@.mop_resume(run_id double precision) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import runs
runs.mop_resume(plpy, *args)
$$;

-- Users train a run again in its logged visit order with this, into another output table.
CREATE FUNCTION @extschema@.mop_replay(run_id double precision, output_table varchar) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import runs
runs.mop_replay(plpy, *args)
$$;

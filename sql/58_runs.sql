-- Runs continue, or repeat the training of an earlier run by its log.

-- Users continue a run that failed or was cancelled with this.
CREATE FUNCTION @extschema@.mop_resume(run_id double precision) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import runs
runs.mop_resume(plpy, *args)
$$;

-- Users train a run again by its logged decisions and in its logged visit order with this, into other output tables.
CREATE FUNCTION @extschema@.mop_replay(run_id double precision, output_table varchar) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import runs
runs.mop_replay(plpy, *args)
$$;

-- Users simulate a run, or units of given seconds, with other schedulers and numbers of sessions with this.
-- (STABLE: all of its queries see one snapshot, also while the run goes on.)
CREATE FUNCTION @extschema@.mop_simulate(
    run_id double precision DEFAULT NULL,
    unit_seconds double precision[] DEFAULT NULL,
    segment_count double precision DEFAULT NULL,
    num_iterations double precision DEFAULT NULL,
    session_counts double precision[] DEFAULT NULL,
    schedulers text[] DEFAULT NULL,
    divided_share double precision DEFAULT NULL
) RETURNS TABLE(scheduler text, sessions integer, makespan double precision, lower_bound double precision,
    utilization double precision) LANGUAGE plpython3u STABLE AS $$
#python
from pg_mop.api.runs import simulate
return simulate.mop_simulate(plpy, *args)
$$;

-- Users and the live page measure the model of one configuration on the run's packed rows with this. It writes nothing.
CREATE FUNCTION @extschema@.mop_configuration_report(run_id double precision, mst_key double precision) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.tables import configuration_report
return configuration_report.mop_configuration_report(plpy, *args)
$$;

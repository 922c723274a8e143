-- Where the catalog's rows are: a run's on one segment, what all runs need on each. What a role may read are the views
-- of 14_own_rows.sql.

DO $$
DECLARE
    ours record;
BEGIN
    FOR ours IN
        SELECT c.oid::pg_catalog.regclass AS name, EXISTS (
            SELECT 1 FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'run_id') AS of_runs
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_depend d
             ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e'
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        WHERE c.relkind = 'r' AND c.relname <> 'mop_control_request' -- by its key, which is not of the run
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s SET DISTRIBUTED %s', ours.name,
                                  CASE WHEN ours.of_runs THEN 'BY (run_id)' ELSE 'REPLICATED' END);
    END LOOP;
END
$$;
-- no trigger looks for the role of a row of limits: its name counts
ALTER TABLE @extschema@.mop_limit ALTER who SET DEFAULT 0;

DO LANGUAGE plpython3u $$
import os
plan = plpy.prepare("""INSERT INTO @extschema@.mop_secret VALUES ($1)""", ["bytea"])
plpy.execute(plan, [os.urandom(32)])
$$;

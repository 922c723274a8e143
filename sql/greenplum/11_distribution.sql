-- Distribution of the catalog: all rows of a run on one segment, tables without run_id on every segment. Roles read the
-- views of 14_own_rows.sql.

DO $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT c.oid::pg_catalog.regclass AS name, EXISTS (
            SELECT 1 FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'run_id') AS of_runs
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_depend d
             ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e'
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        WHERE c.relkind = 'r' AND c.relname <> 'mop_control_request' -- its primary key lacks run_id
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s SET DISTRIBUTED %s', member.name,
                                  CASE WHEN member.of_runs THEN 'BY (run_id)' ELSE 'REPLICATED' END);
    END LOOP;
END
$$;
-- without a trigger that finds the role, the name in a row of mop_limit counts
ALTER TABLE @extschema@.mop_limit ALTER who SET DEFAULT 0;

DO LANGUAGE plpython3u $$
import os
plan = plpy.prepare("""INSERT INTO @extschema@.mop_secret VALUES ($1)""", ["bytea"])
plpy.execute(plan, [os.urandom(32)])
$$;

-- (PostgreSQL reserves role names that begin with pg_.) GRANT mop_user TO analyst; is all that a user needs besides rights on his own tables.
GRANT USAGE ON SCHEMA @extschema@ TO mop_user;

DO $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT p.oid::pg_catalog.regprocedure AS name, p.prorettype IN ('pg_catalog.trigger'::pg_catalog.regtype,
               'pg_catalog.event_trigger'::pg_catalog.regtype) AS is_trigger
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        JOIN pg_catalog.pg_proc p ON p.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e'
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', member.name);
        IF NOT member.is_trigger THEN -- whoever may execute one may make it a trigger of his own table
            EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO mop_user', member.name);
        END IF;
    END LOOP;
END
$$;

GRANT SELECT ON @extschema@.mop_runs, @extschema@.mop_progress, @extschema@.mop_units, @extschema@.mop_visit_order,
    @extschema@.mop_kernel_choices, @extschema@.mop_abandoned_runs, @extschema@.mop_metrics
    TO mop_user;
-- row security shows a role its own; nobody but the extension's owner writes
GRANT SELECT ON @extschema@.mop_run, @extschema@.mop_configuration, @extschema@.mop_segment, @extschema@.mop_unit,
    @extschema@.mop_model, @extschema@.mop_generation, @extschema@.mop_metric TO mop_user;

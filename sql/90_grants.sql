-- (PostgreSQL reserves role names that begin with pg_.) GRANT mop_user TO analyst; is all that a user needs besides rights on his own tables.
GRANT USAGE ON SCHEMA @extschema@ TO mop_user;

DO $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT p.oid::pg_catalog.regprocedure AS name, p.prorettype IN ('pg_catalog.trigger'::pg_catalog.regtype,
               'pg_catalog.event_trigger'::pg_catalog.regtype) AS is_trigger,
               p.proname IN ('mop_caller', 'mop_own', 'mop_backend', 'mop_reservation') AS is_internal
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        JOIN pg_catalog.pg_proc p ON p.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e'
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', member.name);
        -- whoever may execute a trigger's function may make it a trigger of his own table
        IF NOT member.is_trigger AND NOT member.is_internal THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO mop_user', member.name);
        END IF;
    END LOOP;
END
$$;

GRANT SELECT ON @extschema@.mop_runs, @extschema@.mop_progress, @extschema@.mop_units, @extschema@.mop_visit_order,
    @extschema@.mop_watch,
    @extschema@.mop_kernel_choices, @extschema@.mop_abandoned_runs, @extschema@.mop_metrics,
    @extschema@.mop_metrics_wide, @extschema@.mop_tickets, @extschema@.mop_stages, @extschema@.mop_trials,
    @extschema@.mop_checkpoints, @extschema@.mop_departures, @extschema@.mop_jobs TO mop_user;
GRANT INSERT ON @extschema@.mop_arrivals TO mop_user;
-- row security shows a role its own; nobody but the extension's owner writes
GRANT SELECT ON @extschema@.mop_run, @extschema@.mop_configuration, @extschema@.mop_segment, @extschema@.mop_unit,
    @extschema@.mop_model, @extschema@.mop_generation, @extschema@.mop_metric, @extschema@.mop_owner,
    @extschema@.mop_stage, @extschema@.mop_request, @extschema@.mop_search_log, @extschema@.mop_checkpoint,
    @extschema@.mop_wish, @extschema@.mop_guest, @extschema@.mop_copy TO mop_user;

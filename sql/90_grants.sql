-- Rights: members of mop_user may use the extension. GRANT mop_user TO analyst; gives a user everything except rights
-- on tables. (PostgreSQL reserves role names that begin with pg_.)

GRANT USAGE ON SCHEMA @extschema@ TO mop_user;

-- The default privileges of the installing role must not reach these relations. A role with write access could use the
-- owner's rights by a trigger, and a role with read access could read all model states.
SELECT @extschema@.mop_take_rights(c.oid::pg_catalog.regclass)
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
JOIN pg_catalog.pg_class c ON c.oid = d.objid
WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
AND d.deptype = 'e' AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S');

DO $$
DECLARE
    member record;
    -- (the word is as new as procedures, of PostgreSQL 11)
    kind text := CASE WHEN pg_catalog.current_setting('server_version_num')::integer >= 110000 THEN 'ROUTINE'
                      ELSE 'FUNCTION' END;
BEGIN
    FOR member IN
        SELECT p.oid::pg_catalog.regprocedure AS name, p.prorettype IN ('pg_catalog.trigger'::pg_catalog.regtype,
               'pg_catalog.event_trigger'::pg_catalog.regtype) AS is_trigger,
               p.proname ~ '^mop_lock_.*_(shared|exclusive)$' OR p.proname IN ('mop_caller', 'mop_owner_of', 'mop_own',
                   'mop_backend', 'mop_reservation', 'mop_output_namespace', 'mop_lock_number', 'mop_forget_outputs', 'mop_make_state_table',
                   'mop_copy_state', 'mop_delete_state_tables', 'mop_delete_run', 'mop_tables_of_runs',
                   'mop_at_objects', 'mop_at_host', 'mop_the_secret', 'mop_token_role', 'mop_standing', 'mop_know',
                   'mop_count_rows', 'mop_position', 'mop_take_rights', 'mop_count', 'mop_count_whole',
                   'mop_sum_up_counts', 'mop_audit_act', 'mop_turn_order', 'mop_group_of', 'mop_may_read_all',
                   'mop_bare', 'mop_digest_of_rows', 'mop_alias', 'mop_givers', 'mop_may_give', 'mop_reveal',
                   'mop_note_taken', 'mop_stages_from_weights', 'mop_may_want') AS is_internal,
               (SELECT pg_catalog.string_agg(DISTINCT
                           pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)), ', ')
                FROM pg_catalog.aclexplode(p.proacl) a WHERE a.grantee NOT IN (0, p.proowner)) AS others
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        JOIN pg_catalog.pg_proc p ON p.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e'
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM PUBLIC', kind, member.name);
        IF member.others IS NOT NULL AND (member.is_trigger OR member.is_internal) THEN
            EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s CASCADE', kind, member.name, member.others);
        END IF;
        -- (a role with EXECUTE on a trigger function could attach it to its own table)
        IF NOT member.is_trigger AND NOT member.is_internal THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON %s %s TO mop_user', kind, member.name);
        END IF;
    END LOOP;
END
$$;

GRANT SELECT ON @extschema@.mop_runs, @extschema@.mop_notes, @extschema@.mop_units, @extschema@.mop_hops, @extschema@.mop_visit_order,
    @extschema@.mop_kernel_choices, @extschema@.mop_unit_costs, @extschema@.mop_abandoned_runs, @extschema@.mop_metrics,
    @extschema@.mop_metrics_wide, @extschema@.mop_tokens, @extschema@.mop_stages, @extschema@.mop_checkpoints,
    @extschema@.mop_lineage, @extschema@.mop_progress, @extschema@.mop_run_progress, @extschema@.mop_trials,
    @extschema@.mop_models, @extschema@.mop_family_trials, @extschema@.mop_trainings, @extschema@.mop_my_limits,
    @extschema@.mop_trainers TO mop_user;

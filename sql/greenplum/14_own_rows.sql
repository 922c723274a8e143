-- Views of a role's own rows, in place of row security: only the extension's owner may read the tables. Each table has
-- a view, such as mop_own_run for mop_run.

-- The owner number of the current role.
CREATE VIEW @extschema@.mop_own_owner WITH (security_barrier) AS
SELECT o.* FROM @extschema@.mop_owner o WHERE o.who = (SELECT @extschema@.mop_role(current_user));
GRANT SELECT ON @extschema@.mop_own_owner TO mop_user;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['run', 'configuration', 'segment', 'unit', 'stage_state', 'state_table', 'metric',
        'stage', 'request', 'search_log', 'checkpoint', 'control_request', 'hop', 'remote_run', 'copy',
        'taken_unit']
    LOOP
        EXECUTE pg_catalog.replace($view$
            CREATE VIEW @extschema@.mop_own_% WITH (security_barrier) AS
            SELECT t.* FROM @extschema@.mop_% t WHERE t.run_id IN (
                SELECT r.run_id FROM @extschema@.mop_run r JOIN @extschema@.mop_owner o USING (owner)
                WHERE o.who = (SELECT @extschema@.mop_role(current_user)))$view$, '%', name);
        EXECUTE 'GRANT SELECT ON @extschema@.mop_own_' || name || ' TO mop_user';
    END LOOP;
END
$$;

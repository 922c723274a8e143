-- The audit log: superusers and members of pg_monitor or pg_read_all_settings see all of it, others the acts of the roles that
-- they may act as.
CREATE VIEW @extschema@.mop_audit WITH (security_barrier) AS
SELECT l.noted_at, l.act, l.run AS run_id, coalesce(a.rolname, 'unknown (' || l.role || ')')::name AS role, l.login,
       l.details::jsonb AS details
FROM @extschema@.mop_audit_log l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who
WHERE pg_has_role('pg_monitor', 'USAGE') OR pg_has_role('pg_read_all_settings', 'USAGE') OR pg_has_role(
    l.who, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END);

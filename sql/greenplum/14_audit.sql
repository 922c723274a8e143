-- The audit log: the twin of postgresql/14_audit.sql. Changes of mop_limit are not in it, for there are no row triggers.
CREATE VIEW @extschema@.mop_audit WITH (security_barrier) AS
SELECT l.noted_at, l.act, l.run AS run_id, coalesce(a.rolname, 'unknown (' || l.role || ')')::name AS role, l.login,
       l.details::jsonb AS details
FROM @extschema@.mop_audit_log l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who
WHERE pg_has_role(l.who, 'MEMBER');

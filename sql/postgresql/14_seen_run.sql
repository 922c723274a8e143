-- The runs that a role may see, for the views of 14_views.sql: with their true status, and whether their coordinator
-- lives.
--
-- A role sees the runs of every role that it may act as: it inherits that role's rights, or may SET ROLE to it. Before
-- PostgreSQL 16 all members could; since then the creator of a role is a member that may do neither. (Roles that may
-- read all tables may read this view, too. New columns of mop_run come last in this view.)
CREATE VIEW @extschema@.mop_seen_run WITH (security_barrier) AS
SELECT @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS now,
       @extschema@.mop_status('running', r.coordinator_pid, r.coordinator_start, 'failed') = 'running' AS alive, r.*
FROM @extschema@.mop_run r
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(
    o.who, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END));

-- The runs that a role may see, for the views of 14_views.sql, with their true status, and whether the session
-- that is said to run them lives.
-- Those of a role are for who may act as it: has its rights, or may SET ROLE to it. Before PostgreSQL 16 that was who is a
-- member; since then who has made a role is a member who may do neither.
-- (who may read all tables may read it, too. A later version's columns of mop_run come at its end.)
CREATE VIEW @extschema@.mop_seen_run WITH (security_barrier) AS
SELECT @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS now,
       @extschema@.mop_status('running', r.coordinator_pid, r.coordinator_start, 'failed') = 'running' AS alive, r.*
FROM @extschema@.mop_run r
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(
    o.who, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END));

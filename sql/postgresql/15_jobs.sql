-- The jobs that a role may see (59_jobs.sql), with their true status.
CREATE VIEW @extschema@.mop_jobs WITH (security_barrier) AS
SELECT j.job, (SELECT coalesce(a.rolname, 'unknown (' || o.role || ')')::name FROM @extschema@.mop_owner o
               LEFT JOIN pg_catalog.pg_roles a ON a.oid = o.who WHERE o.owner = j.owner) AS owner,
       t.status, j.command, j.submitted_at, j.finished_at,
       ARRAY(SELECT r.run_id FROM @extschema@.mop_run r WHERE r.coordinator_pid = j.session_pid
             AND r.coordinator_start = j.session_start AND @extschema@.mop_trains(r.function)
             UNION SELECT unnest(j.runs) ORDER BY 1) AS runs,
       CASE WHEN t.status = j.status THEN j.error
            ELSE 'the session that ran it has ended, and whether the command was finished was not noted' END AS error,
       j.messages, j.session_pid
FROM @extschema@.mop_job j CROSS JOIN LATERAL (
    SELECT @extschema@.mop_status(j.status, j.session_pid, j.session_start, 'failed') AS status) t
WHERE j.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(
    o.who, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END));

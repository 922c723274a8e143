-- The jobs that a role may see: the twin of postgresql/15_jobs.sql, with joins in place of correlated subqueries.
CREATE VIEW @extschema@.mop_jobs WITH (security_barrier) AS
SELECT j.job, coalesce(a.rolname, 'unknown (' || o.role || ')')::name AS owner, j.now AS status, j.command,
       j.submitted_at, j.finished_at, j.runs || coalesce(m.runs, '{}') AS runs,
       CASE WHEN j.now = j.status THEN j.error
            ELSE 'the session that ran it has ended, and whether the command was finished was not noted' END AS error,
       j.messages, j.session_pid
FROM (
    SELECT CASE WHEN t.status = 'running' AND s.session IS NULL THEN 'failed' ELSE t.status END AS now, t.*
    FROM @extschema@.mop_job t LEFT JOIN @extschema@.mop_sessions() AS s(session)
         ON s.session = md5(t.session_pid || ' ' || (extract(epoch FROM t.session_start) * 1000000)::bigint)) j
JOIN @extschema@.mop_owner o USING (owner) LEFT JOIN pg_catalog.pg_roles a ON a.oid = o.who
LEFT JOIN (
    SELECT r.coordinator_pid, r.coordinator_start, array_agg(r.run_id ORDER BY r.run_id) AS runs
    FROM @extschema@.mop_run r WHERE @extschema@.mop_trains(r.function) GROUP BY 1, 2) m
    ON m.coordinator_pid = j.session_pid AND m.coordinator_start = j.session_start
WHERE pg_has_role(o.who, 'MEMBER');

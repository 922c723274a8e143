-- Numbers for monitoring: the twin of postgresql/17_monitoring.sql. There are no turns, and nobody but superusers sees the
-- numbers of roles that he may not act as. Worker sessions and idle ones are not told apart.
CREATE VIEW @extschema@.mop_monitoring WITH (security_barrier) AS
SELECT o.role, coalesce(sum(r.running), 0)::bigint AS runs_running, 0::bigint AS runs_waiting,
       coalesce(sum(r.lost), 0)::bigint AS runs_lost, 0::double precision AS longest_wait_seconds, 0::bigint AS cores,
       coalesce(sum(r.sessions), 0)::bigint AS worker_sessions, NULL::bigint AS worker_sessions_busy,
       coalesce(sum(p.leased), 0)::bigint AS trainers_leased, coalesce(sum(p.idle), 0)::bigint AS trainers_idle,
       coalesce(sum(p.memory_bytes), 0)::bigint AS trainer_memory_bytes,
       coalesce(sum(p.rows_bytes), 0)::bigint AS trainer_rows_bytes,
       least(coalesce(sum(r.bytes), 0), 9e18)::bigint AS state_bytes,
       coalesce(sum(c.runs_finished), 0)::bigint AS runs_finished_total,
       coalesce(sum(c.runs_failed), 0)::bigint AS runs_failed_total,
       coalesce(sum(c.runs_cancelled), 0)::bigint AS runs_cancelled_total,
       least(coalesce(sum(c.units_finished), 0), 9e18)::bigint AS units_finished_total,
       least(coalesce(sum(c.units_failed), 0), 9e18)::bigint AS units_failed_total,
       least(coalesce(sum(c.units_retried), 0), 9e18)::bigint AS units_retried_total, 0::double precision AS core_seconds_total,
       least(coalesce(sum(c.sent_bytes), 0), 9e18)::bigint AS sent_bytes_total
FROM (
    SELECT n.owner, n.who::oid AS who, coalesce(a.rolname, '(dropped)') AS role
    FROM @extschema@.mop_owner n LEFT JOIN pg_catalog.pg_roles a ON a.oid = n.who
    WHERE pg_has_role(n.who, 'MEMBER')) o
LEFT JOIN (
    SELECT m.owner, sum(CASE WHEN m.now = 'running' THEN 1 ELSE 0 END) AS running,
           sum(CASE WHEN m.status = 'running' AND NOT m.alive THEN 1 ELSE 0 END) AS lost,
           sum(CASE WHEN m.now = 'running' THEN m.sessions END) AS sessions, sum(b.state_bytes) AS bytes
    FROM @extschema@.mop_seen_run m JOIN @extschema@.mop_runs b USING (run_id)
    WHERE m.function NOT IN ('remote_run', 'madlib_keras_evaluate', 'madlib_keras_predict', 'madlib_keras_predict_byom')
    GROUP BY m.owner) r ON r.owner = o.owner
LEFT JOIN (
    SELECT q.role, sum(CASE WHEN q.state = 'leased' THEN 1 ELSE 0 END) AS leased,
           sum(CASE WHEN q.state <> 'leased' THEN 1 ELSE 0 END) AS idle, sum(q.memory_bytes) AS memory_bytes,
           sum(q.rows_bytes) AS rows_bytes
    FROM @extschema@.mop_pool() AS q JOIN pg_catalog.pg_database d ON d.oid = q.database
    WHERE d.datname = current_database() GROUP BY q.role) p ON p.role = o.who
LEFT JOIN (
    SELECT e.owner, sum(e.runs_finished) AS runs_finished, sum(e.runs_failed) AS runs_failed,
           sum(e.runs_cancelled) AS runs_cancelled, sum(e.units_finished) AS units_finished,
           sum(e.units_failed) AS units_failed, sum(e.units_retried) AS units_retried, sum(e.sent_bytes) AS sent_bytes
    FROM (
        SELECT n.owner, n.runs_finished, n.runs_failed, n.runs_cancelled, n.units_finished, n.units_failed, n.units_retried,
               n.sent_bytes FROM @extschema@.mop_past_count n
        UNION ALL
        SELECT n.owner, CASE WHEN n.outcome = 'finished' THEN 1 ELSE 0 END, CASE WHEN n.outcome = 'failed' THEN 1 ELSE 0 END,
               CASE WHEN n.outcome = 'cancelled' THEN 1 ELSE 0 END, n.units_finished, n.units_failed, n.units_retried,
               n.sent_bytes FROM @extschema@.mop_run_count n) e
    GROUP BY e.owner) c ON c.owner = o.owner
GROUP BY o.role;

-- Numbers for monitoring: a row for each role that has used pg_mop in this database. Members of pg_monitor see all roles,
-- others those that they may act as. It shows no name but roles' names. Columns *_total are counters, which never fall; those
-- of a running run's units are about a second old. On a standby no run is in progress or lost: the sessions of the runs are
-- on the primary server.
CREATE VIEW @extschema@.mop_monitoring WITH (security_barrier) AS
SELECT o.role, coalesce(sum(r.running), 0)::bigint AS runs_running, coalesce(sum(r.waiting), 0)::bigint AS runs_waiting,
       coalesce(sum(r.lost), 0)::bigint AS runs_lost,
       coalesce(max(r.wait_seconds), 0)::double precision AS longest_wait_seconds,
       coalesce(sum(r.cores), 0)::bigint AS cores, coalesce(sum(w.sessions), 0)::bigint AS worker_sessions,
       coalesce(sum(w.busy), 0)::bigint AS worker_sessions_busy, coalesce(sum(p.leased), 0)::bigint AS trainers_leased,
       coalesce(sum(p.idle), 0)::bigint AS trainers_idle, coalesce(sum(p.memory_bytes), 0)::bigint AS trainer_memory_bytes,
       coalesce(sum(p.rows_bytes), 0)::bigint AS trainer_rows_bytes,
       least(coalesce(sum(s.bytes), 0), 9e18)::bigint AS state_bytes,
       coalesce(sum(c.runs_finished), 0)::bigint AS runs_finished_total,
       coalesce(sum(c.runs_failed), 0)::bigint AS runs_failed_total,
       coalesce(sum(c.runs_cancelled), 0)::bigint AS runs_cancelled_total,
       least(coalesce(sum(c.units_finished), 0), 9e18)::bigint AS units_finished_total,
       least(coalesce(sum(c.units_failed), 0), 9e18)::bigint AS units_failed_total,
       least(coalesce(sum(c.units_retried), 0), 9e18)::bigint AS units_retried_total,
       coalesce(sum(c.core_seconds), 0)::double precision AS core_seconds_total,
       least(coalesce(sum(c.sent_bytes), 0), 9e18)::bigint AS sent_bytes_total
FROM (
    SELECT n.owner, n.who::oid AS who, coalesce(a.rolname, '(dropped)') AS role
    FROM @extschema@.mop_owner n LEFT JOIN pg_catalog.pg_roles a ON a.oid = n.who
    WHERE pg_has_role('pg_monitor', 'USAGE') OR pg_has_role(
        n.who, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)) o
LEFT JOIN (
    SELECT g.owner, count(*) FILTER (WHERE g.alive AND t.waits_since IS NULL) AS running,
           count(*) FILTER (WHERE g.alive AND t.waits_since IS NOT NULL) AS waiting,
           count(*) FILTER (WHERE NOT g.alive) AS lost,
           max(extract(epoch FROM clock_timestamp() - t.waits_since)) FILTER (WHERE g.alive) AS wait_seconds,
           sum(t.cores) FILTER (WHERE g.alive) AS cores
    FROM (SELECT m.run_id, m.owner,
                 @extschema@.mop_status('running', m.coordinator_pid, m.coordinator_start, 'failed') = 'running' AS alive
          FROM @extschema@.mop_run m WHERE m.status = 'running' AND @extschema@.mop_trains(m.function)
          AND m.function <> 'remote_run' AND NOT pg_is_in_recovery()) g
    LEFT JOIN @extschema@.mop_turn t USING (run_id) GROUP BY g.owner) r
    ON r.owner = o.owner
LEFT JOIN (
    -- a session names its run. (Workers of runs of other servers name a run of that server: their login counts.)
    SELECT coalesce(n.owner, l.owner) AS owner, count(*) AS sessions, count(*) FILTER (WHERE a.state = 'active') AS busy
    FROM pg_catalog.pg_stat_activity a
    LEFT JOIN (SELECT m.run_id, h.owner, h.who FROM @extschema@.mop_run m JOIN @extschema@.mop_owner h USING (owner)) n
         ON n.run_id = substring(a.application_name FROM '^pg_mop run ([0-9]{1,18})')::bigint
         AND pg_has_role(a.usesysid, n.who, 'MEMBER') -- (everybody may take the name of a run)
    LEFT JOIN @extschema@.mop_owner l ON l.who = a.usesysid
    WHERE a.application_name LIKE 'pg\_mop run %' AND a.datname = current_database() GROUP BY 1) w ON w.owner = o.owner
LEFT JOIN (
    SELECT q.role, count(*) FILTER (WHERE q.state = 'leased') AS leased, count(*) FILTER (WHERE q.state <> 'leased') AS idle,
           sum(q.memory_bytes) AS memory_bytes, sum(q.rows_bytes) AS rows_bytes
    FROM @extschema@.mop_pool() AS q
    WHERE q.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
    GROUP BY q.role) p ON p.role = o.who
LEFT JOIN (
    -- (not the size of the state tables, which would wait for a transaction that drops one)
    SELECT m.owner, sum(k.bytes) AS bytes
    FROM @extschema@.mop_stage_state k JOIN @extschema@.mop_run m USING (run_id)
    WHERE k.state_table IS NOT NULL AND k.run_id IN (SELECT g.run_id FROM @extschema@.mop_state_table g)
    GROUP BY m.owner) s ON s.owner = o.owner
LEFT JOIN (
    SELECT e.owner, sum(e.runs_finished) AS runs_finished, sum(e.runs_failed) AS runs_failed,
           sum(e.runs_cancelled) AS runs_cancelled, sum(e.units_finished) AS units_finished,
           sum(e.units_failed) AS units_failed, sum(e.units_retried) AS units_retried, sum(e.core_seconds) AS core_seconds,
           sum(e.sent_bytes) AS sent_bytes
    FROM (
        SELECT n.* FROM @extschema@.mop_past_count n
        UNION ALL
        SELECT n.owner, (n.outcome = 'finished')::integer, (n.outcome = 'failed')::integer, (n.outcome = 'cancelled')::integer,
               n.units_finished, n.units_failed, n.units_retried, n.sent_bytes, 0 FROM @extschema@.mop_run_count n
        UNION ALL
        SELECT t.owner, 0, 0, 0, 0, 0, 0, 0, t.used FROM @extschema@.mop_turn t) e
    GROUP BY e.owner) c ON c.owner = o.owner
GROUP BY o.role;

-- The runs that compete for the cores of this server now: their coordinators live and have asked within ten seconds. Only
-- functions of the extension's owner read it.
CREATE VIEW @extschema@.mop_competing WITH (security_barrier) AS
SELECT t.* FROM @extschema@.mop_turn t JOIN @extschema@.mop_run r USING (run_id)
WHERE r.status = 'running' AND t.charged_at > clock_timestamp() - interval '10 seconds'
AND EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = r.coordinator_pid AND a.backend_start = r.coordinator_start);

-- The runs that train on this server now, with the cores that they have. `ahead`: the runs of all roles before it that a
-- waiting run waits for. `turn_at` and `ends_at`: when it is expected to have cores and to end, by its prediction.
CREATE VIEW @extschema@.mop_queue WITH (security_barrier) AS
SELECT r.run_id, (SELECT a.rolname FROM @extschema@.mop_owner o JOIN pg_roles a ON a.oid = o.who WHERE o.owner = r.owner)
           AS owner, CASE WHEN t.waits_since IS NULL THEN 'runs' ELSE 'waits' END AS state, t.priority, t.share, t.cores,
       t.wanted, t.used AS core_seconds, t.waits_since,
       CASE WHEN t.waits_since IS NOT NULL THEN @extschema@.mop_runs_with_cores() END AS ahead,
       o.turn_at, o.ends_at, t.deadline
FROM @extschema@.mop_turn t JOIN @extschema@.mop_seen_run r USING (run_id)
CROSS JOIN LATERAL @extschema@.mop_turn_outlook(r.run_id) AS o
WHERE r.alive AND r.status = 'running';

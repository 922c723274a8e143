-- mop_watch, as in postgresql/15_progress.sql; the sums of all shown runs are computed at once.
CREATE VIEW @extschema@.mop_watch WITH (security_barrier) AS
SELECT s.run_id, left(format('run %s: %s/%s units, %s%%, %s, %s failed, %s, %s', s.run_id, coalesce(p.done, 0),
           coalesce(p.total, 0), coalesce(floor(100 * p.done / nullif(p.total, 0)), 0),
           CASE WHEN s.now <> 'running' THEN s.now || ' in ' || to_char(p.elapsed, 'FMHH24:MI:SS')
                ELSE coalesce(to_char(p.remaining, 'FMHH24:MI:SS'), '?') || ' left, ' || coalesce(w.busy, 0) || ' busy'
                END,
           coalesce(f.failed, 0),
           coalesce('best ' || b.mst_key || ': ' || b.what || ' ' || round(b.loss::numeric, 4), 'no loss yet'),
           regexp_replace(s.function, '^madlib_keras_|_model$', '', 'g')), 100) AS line
FROM (
    SELECT r.run_id, r.function, r.now, bool_or(r.now = 'running') OVER () AS any_runs, max(r.run_id) OVER () AS last
    FROM @extschema@.mop_seen_run r WHERE r.function <> 'remote_run' AND @extschema@.mop_trains(r.function)) s
LEFT JOIN (
    SELECT g.run_id, sum(g.units_done) AS done,
           sum(g.units_total) AS total,
           max(g.seconds_elapsed) * interval '1 second' AS elapsed,
           -- (a role may say that its run takes longer than an interval can)
           CASE WHEN max(g.seconds_left) < 1e9 THEN max(g.seconds_left) * interval '1 second' END AS remaining
    FROM @extschema@.mop_progress g GROUP BY g.run_id) p USING (run_id)
LEFT JOIN (
    SELECT c.run_id, count(*) AS failed FROM @extschema@.mop_configuration c WHERE c.error IS NOT NULL
    GROUP BY c.run_id) f USING (run_id)
LEFT JOIN (
    SELECT o.run_id, count(*) AS busy FROM (
        SELECT DISTINCT u.run_id, u.backend_pid, u.segment FROM @extschema@.mop_unit u WHERE u.status = 'running') o
    GROUP BY o.run_id) w USING (run_id)
LEFT JOIN (
    SELECT x.run_id, x.what, x.loss, x.mst_key,
           row_number() OVER (PARTITION BY x.run_id ORDER BY x.rank, x.loss, x.mst_key) AS position
    FROM (
        SELECT 1 AS rank, 'val. loss'::text AS what, m.loss, q.mst_key, q.run_id
        FROM @extschema@.mop_metric m JOIN @extschema@.mop_request q USING (run_id, stage)
        WHERE m.dataset = 'validation'
        UNION ALL
        SELECT 2, 'loss', m.loss, q.mst_key, q.run_id
        FROM @extschema@.mop_metric m JOIN @extschema@.mop_request q USING (run_id, stage)
        WHERE m.dataset = 'training'
        UNION ALL
        SELECT 3, 'unit loss', u.loss, q.mst_key, q.run_id
        FROM @extschema@.mop_unit u JOIN @extschema@.mop_request q USING (run_id, stage)
        WHERE u.kind = 'train' AND u.status = 'finished' AND u.loss < 'Infinity') x) b
    ON b.run_id = s.run_id AND b.position = 1
WHERE s.now = 'running' OR NOT s.any_runs AND s.run_id = s.last;

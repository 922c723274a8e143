-- Views of the progress of runs: the twin of postgresql/15_progress.sql, which says more about each. Greenplum supports
-- neither references to a query two levels above nor aggregates in LATERAL, so these views sum up all runs.

-- Progress, with one row for each configuration.
CREATE VIEW @extschema@.mop_progress WITH (security_barrier) AS
SELECT r.run_id, coalesce(w.units_done, 0)::bigint AS units_done,
       coalesce(CASE WHEN w.error IS NULL THEN w.units_total ELSE w.units_done END, 0)::bigint AS units_total,
       extract(epoch FROM coalesce(r.finished_at, CASE WHEN r.now = 'running' THEN clock_timestamp() ELSE w.last END,
           r.started_at) - r.started_at)::double precision AS seconds_elapsed,
       CASE WHEN r.now <> 'running' THEN 0
            WHEN coalesce(w.run_done, 0) = 0
                THEN nullif(greatest(r.expected_seconds - extract(epoch FROM clock_timestamp() - r.started_at), 0), 0)
            ELSE extract(epoch FROM clock_timestamp() - r.started_at) * w.run_left / w.run_done
       END::double precision AS seconds_left,
       w.mst_key, w.iteration, w.last_loss,
       CASE WHEN w.error IS NOT NULL THEN 'failed'
            WHEN r.now = 'running' AND w.units_running > 0 THEN 'running'
            WHEN w.reason IS NOT NULL THEN 'stopped'
            WHEN w.units_done = w.units_total THEN 'finished'
            WHEN r.now <> 'running' THEN r.now
            ELSE 'waiting' END AS status
FROM @extschema@.mop_seen_run r JOIN (
    SELECT a.run_id, a.mst_key, a.error, a.reason, sum(a.done) AS units_done, sum(a.running) AS units_running,
           sum(a.total) AS units_total,
           max(a.iteration) FILTER (WHERE a.done > 0 OR a.running > 0 OR a.taken) AS iteration,
           (max(ARRAY[a.iteration, a.last_loss]) FILTER (WHERE a.last_loss IS NOT NULL))[2] AS last_loss,
           max(a.run_done) AS run_done, max(a.last) AS last,
           sum(sum(a.total - a.done) FILTER (WHERE a.is_first)) OVER (PARTITION BY a.run_id) AS run_left
    FROM (
        SELECT c.run_id, c.mst_key, c.error, c.reason, t.iteration, t.source_run IS NOT NULL AS taken,
               coalesce(u.done, 0) AS done, coalesce(u.running, 0) AS running, u.last_loss,
               CASE WHEN t.stage IS NOT NULL
                    THEN CASE WHEN t.source_run IS NOT NULL THEN 0 WHEN d.averaging THEN 1 ELSE d.training END
                       + CASE WHEN t.evaluated AND (t.source_run IS NULL OR u.evaluations > 0 OR m.stage IS NULL)
                              THEN d.both_datasets ELSE 0 END END AS total,
               c.error IS NULL AND q.mst_key = min(q.mst_key) FILTER (WHERE c.error IS NULL)
                   OVER (PARTITION BY t.run_id, t.stage) AS is_first,
               coalesce(o.run_done, 0) AS run_done, o.last
        FROM @extschema@.mop_configuration c
        JOIN (SELECT r.run_id, r.function = 'madlib_keras_fit'
                     AND coalesce(r.parameters #>> '{settings,fit_strategy}' = 'averaging', false) AS averaging,
                     g.training, g.both_datasets
              FROM @extschema@.mop_run r JOIN (
                  SELECT g.run_id, count(*) FILTER (WHERE g.dataset = 'training') AS training, count(*) AS both_datasets
                  FROM @extschema@.mop_segment g GROUP BY g.run_id) g USING (run_id)) d USING (run_id)
        LEFT JOIN @extschema@.mop_request q ON q.run_id = c.run_id AND q.mst_key = c.mst_key
        LEFT JOIN @extschema@.mop_stage t ON t.run_id = q.run_id AND t.stage = q.stage
        LEFT JOIN (
            SELECT v.run_id, v.stage, count(*) FILTER (WHERE v.status = 'finished') AS done,
                   count(*) FILTER (WHERE v.status = 'running') AS running,
                   count(*) FILTER (WHERE v.kind <> 'train') AS evaluations,
                   (max(ARRAY[v.version, v.loss]) FILTER (WHERE v.kind = 'train' AND v.status = 'finished'))[2]
                       AS last_loss
            FROM @extschema@.mop_unit v GROUP BY v.run_id, v.stage) u ON u.run_id = t.run_id AND u.stage = t.stage
        LEFT JOIN (SELECT DISTINCT m.run_id, m.stage FROM @extschema@.mop_metric m) m
            ON m.run_id = t.run_id AND m.stage = t.stage
        LEFT JOIN (
            SELECT v.run_id, count(*) FILTER (WHERE v.status = 'finished') AS run_done,
                   max(greatest(v.started_at, v.finished_at)) AS last
            FROM @extschema@.mop_unit v GROUP BY v.run_id) o ON o.run_id = c.run_id) a
    GROUP BY a.run_id, a.mst_key, a.error, a.reason) w USING (run_id);

-- Progress of runs, one row each. (Here a unit that configurations share counts for each of them.)
CREATE VIEW @extschema@.mop_run_progress WITH (security_barrier) AS
SELECT r.run_id, r.now AS status, p.units_done, p.units_total, p.seconds_elapsed, p.seconds_left
FROM @extschema@.mop_seen_run r JOIN (
    SELECT g.run_id, sum(g.units_done)::bigint AS units_done, sum(g.units_total)::bigint AS units_total,
           max(g.seconds_elapsed) AS seconds_elapsed, max(g.seconds_left) AS seconds_left
    FROM @extschema@.mop_progress g GROUP BY g.run_id) p USING (run_id);

-- Trials: the status and metrics of each configuration. (There are no folds on Greenplum yet.)
CREATE VIEW @extschema@.mop_trials WITH (security_barrier) AS
SELECT c.run_id, c.mst_key, c.model_id, c.compile_params, c.fit_params,
       p.status, coalesce(q.iterations, 0) AS iterations, q.path, m.iterations AS metrics_iterations, m.training_loss,
       m.training_metric, m.validation_loss, m.validation_metric, coalesce(c.error, c.reason) AS reason,
       c.fold, c.fold_of, c.kept_by
FROM @extschema@.mop_configuration c JOIN @extschema@.mop_progress p USING (run_id, mst_key)
LEFT JOIN (
    SELECT q.run_id, q.mst_key, count(*) AS iterations, array_agg(q.stage ORDER BY q.iteration) AS path
    FROM @extschema@.mop_request q GROUP BY q.run_id, q.mst_key) q USING (run_id, mst_key)
LEFT JOIN (
    SELECT q.run_id, q.mst_key, array_agg(q.iteration ORDER BY q.iteration) AS iterations,
           array_agg(t.loss ORDER BY q.iteration) AS training_loss,
           array_agg(t.metric ORDER BY q.iteration) AS training_metric,
           array_agg(v.loss ORDER BY q.iteration) FILTER (WHERE v.loss IS NOT NULL) AS validation_loss,
           array_agg(v.metric ORDER BY q.iteration) FILTER (WHERE v.loss IS NOT NULL) AS validation_metric
    FROM @extschema@.mop_request q
    JOIN @extschema@.mop_metric t ON t.run_id = q.run_id AND t.stage = q.stage AND t.dataset = 'training'
    LEFT JOIN @extschema@.mop_metric v ON v.run_id = q.run_id AND v.stage = q.stage AND v.dataset = 'validation'
    GROUP BY q.run_id, q.mst_key) m USING (run_id, mst_key);

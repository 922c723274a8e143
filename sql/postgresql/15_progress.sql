-- Views of the progress of runs. Their sums over other tables cover only the queried runs.

-- Progress, with one row for each configuration; the seconds are those of the whole run. A unit that configurations
-- share counts for each of them; a failed configuration has no units left.
CREATE VIEW @extschema@.mop_progress WITH (security_barrier) AS
SELECT r.run_id, coalesce(w.units_done, 0)::bigint AS units_done,
       coalesce(CASE WHEN w.error IS NULL THEN w.units_total ELSE w.units_done END, 0)::bigint AS units_total,
       -- (a run with a lost coordinator ended with its last unit)
       extract(epoch FROM coalesce(r.finished_at, CASE WHEN s.status = 'running' THEN clock_timestamp() ELSE d.last END,
           r.started_at) - r.started_at)::double precision AS seconds_elapsed,
       CASE WHEN s.status <> 'running' THEN 0
            WHEN coalesce(w.run_done, 0) = 0
                THEN nullif(greatest(r.expected_seconds - extract(epoch FROM clock_timestamp() - r.started_at), 0), 0)
            ELSE extract(epoch FROM clock_timestamp() - r.started_at) * w.run_left / w.run_done
       END::double precision AS seconds_left,
       w.mst_key, w.iteration, w.last_loss,
       CASE WHEN w.error IS NOT NULL THEN 'failed'
            WHEN s.status = 'running' AND w.units_running > 0 THEN 'running'
            WHEN w.reason IS NOT NULL THEN 'stopped'
            WHEN w.units_done = w.units_total THEN 'finished'
            WHEN s.status <> 'running' THEN s.status
            ELSE 'waiting' END AS status
FROM @extschema@.mop_seen_run r
     CROSS JOIN LATERAL @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS s(status)
     CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.dataset = 'training') AS training, count(*) AS both_datasets,
           r.function = 'madlib_keras_fit'
           AND coalesce(r.parameters #>> '{settings,fit_strategy}' = 'averaging', false) AS averaging,
           CASE WHEN r.finished_at IS NULL AND s.status <> 'running' THEN (
               SELECT max(greatest(u.started_at, u.finished_at)) FROM @extschema@.mop_unit u WHERE u.run_id = r.run_id)
               END AS last
    FROM @extschema@.mop_segment g WHERE g.run_id = r.run_id) d
     CROSS JOIN LATERAL (
    SELECT a.mst_key, a.error, a.reason, sum(a.done) AS units_done, sum(a.running) AS units_running,
           sum(a.total) AS units_total,
           max(a.iteration) FILTER (WHERE a.done > 0 OR a.running > 0 OR a.taken) AS iteration,
           (max(ARRAY[a.iteration, a.last_loss]) FILTER (WHERE a.last_loss IS NOT NULL))[2] AS last_loss,
           max(a.run_done) AS run_done, sum(sum(a.total - a.done) FILTER (WHERE a.is_first)) OVER () AS run_left
    FROM (
        SELECT c.mst_key, c.error, c.reason, t.iteration, t.source_run IS NOT NULL AS taken, u.done, u.running,
               u.last_loss,
               -- a replica trains on one segment; a stage of an earlier run needs units only for missing metrics; a new
               -- run may have no stages yet
               CASE WHEN t.stage IS NOT NULL
                    THEN CASE WHEN t.source_run IS NOT NULL THEN 0 WHEN d.averaging THEN 1
                              ELSE d.training - coalesce(cardinality(c.held_out), 0) END
                       + CASE WHEN t.evaluated AND (t.source_run IS NULL OR u.evaluations > 0 OR NOT EXISTS (
                                  SELECT 1 FROM @extschema@.mop_metric m
                                  WHERE m.run_id = r.run_id AND m.stage = t.stage))
                              THEN coalesce(cardinality(c.held_out), d.both_datasets) ELSE 0 END END AS total,
               -- a shared stage counts once in the run's rest, and not for failed configurations
               c.error IS NULL AND q.mst_key = min(q.mst_key) FILTER (WHERE c.error IS NULL)
                   OVER (PARTITION BY t.stage) AS is_first,
               (SELECT count(*) FROM @extschema@.mop_unit v WHERE v.run_id = r.run_id AND v.status = 'finished')
                   AS run_done
        FROM @extschema@.mop_configuration c
        LEFT JOIN (@extschema@.mop_request q JOIN @extschema@.mop_stage t
                   ON (t.run_id, t.stage) = (r.run_id, q.stage) AND q.run_id = r.run_id) ON q.mst_key = c.mst_key
        CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE v.status = 'finished') AS done,
                   count(*) FILTER (WHERE v.status = 'running') AS running,
                   count(*) FILTER (WHERE v.kind <> 'train') AS evaluations,
                   (max(ARRAY[v.version, v.loss]) FILTER (WHERE v.kind = 'train' AND v.status = 'finished'))[2]
                       AS last_loss
            FROM @extschema@.mop_unit v WHERE v.run_id = r.run_id AND v.stage = t.stage) u
        WHERE c.run_id = r.run_id) a
    GROUP BY a.mst_key, a.error, a.reason) w;

-- Progress of runs, one row each: much cheaper than the sum of the rows above, for those who look often. A unit counts once,
-- also where configurations share it. Of a run in progress it is the row in which its coordinator counts, about a second old;
-- of the others, plain sums over the run's stages and units, since the planner underestimates how many a new run has.
CREATE VIEW @extschema@.mop_run_progress WITH (security_barrier) AS
SELECT r.run_id, r.now AS status, w.units_done, (w.units_done + w.units_left)::bigint AS units_total,
       extract(epoch FROM coalesce(r.finished_at, CASE WHEN r.now = 'running' THEN clock_timestamp() ELSE w.last END,
           r.started_at) - r.started_at)::double precision AS seconds_elapsed,
       CASE WHEN r.now <> 'running' THEN 0
            WHEN w.units_done = 0
                THEN nullif(greatest(r.expected_seconds - extract(epoch FROM clock_timestamp() - r.started_at), 0), 0)
            ELSE extract(epoch FROM clock_timestamp() - r.started_at) * w.units_left / w.units_done
       END::double precision AS seconds_left
FROM @extschema@.mop_seen_run r
LEFT JOIN @extschema@.mop_run_count n ON n.run_id = r.run_id AND n.fencing_token = r.fencing_token
    AND n.units_left IS NOT NULL AND r.now = 'running'
CROSS JOIN LATERAL (
    SELECT n.units_done, n.units_left, NULL::timestamptz AS last WHERE n.units_left IS NOT NULL
    UNION ALL
    SELECT d.units_done, l.units_left, d.last
    FROM (
        SELECT r.function = 'madlib_keras_fit'
               AND coalesce(r.parameters #>> '{settings,fit_strategy}' = 'averaging', false) AS averaging,
               g.training, g.both_datasets, u.units_done, u.last
        FROM (
            SELECT count(*) FILTER (WHERE e.dataset = 'training') AS training, count(*) AS both_datasets
            FROM @extschema@.mop_segment e WHERE e.run_id = r.run_id) g
        CROSS JOIN (
            SELECT count(*) FILTER (WHERE e.status = 'finished') AS units_done,
                   max(greatest(e.started_at, e.finished_at)) AS last
            FROM @extschema@.mop_unit e WHERE e.run_id = r.run_id) u) d
    CROSS JOIN LATERAL (
        SELECT greatest(0, coalesce(sum(
                   CASE WHEN s.wanted THEN
                       CASE WHEN s.taken THEN 0 WHEN d.averaging THEN 1 ELSE d.training - s.held_out END
                       + CASE WHEN s.evaluated THEN CASE WHEN s.held_out > 0 THEN s.held_out ELSE d.both_datasets END
                              ELSE 0 END
                   END), 0)
               - d.units_done + coalesce(sum(CASE WHEN NOT s.wanted THEN (
                   SELECT count(*) FROM @extschema@.mop_unit v
                   WHERE v.run_id = r.run_id AND v.stage = s.stage AND v.status = 'finished') END), 0)) AS units_left
        FROM (
            SELECT t.stage, t.source_run IS NOT NULL AS taken,
                   -- (a stage of an earlier run needs units only for missing metrics)
                   t.evaluated AND CASE WHEN t.source_run IS NULL THEN true ELSE EXISTS (
                       SELECT 1 FROM @extschema@.mop_unit v
                       WHERE v.run_id = r.run_id AND v.stage = t.stage AND v.kind <> 'train') OR NOT EXISTS (
                       SELECT 1 FROM @extschema@.mop_metric m WHERE m.run_id = r.run_id AND m.stage = t.stage) END
                       AS evaluated,
                   coalesce(cardinality(c.held_out), 0) AS held_out,
                   -- a configuration needs it that has not failed
                   CASE WHEN c.error IS NULL AND EXISTS (
                            SELECT 1 FROM @extschema@.mop_request q
                            WHERE q.run_id = r.run_id AND q.mst_key = c.mst_key AND q.iteration = t.iteration
                            AND q.stage = t.stage) THEN true
                        ELSE EXISTS (
                            SELECT 1 FROM @extschema@.mop_request q JOIN @extschema@.mop_configuration f
                            ON f.run_id = r.run_id AND f.mst_key = q.mst_key AND f.error IS NULL
                            WHERE q.run_id = r.run_id AND q.stage = t.stage) END AS wanted
            FROM @extschema@.mop_stage t
            JOIN @extschema@.mop_configuration c ON c.run_id = r.run_id AND c.mst_key = t.mst_key
            WHERE t.run_id = r.run_id) s) l
    WHERE n.units_left IS NULL) w;

-- For \watch: a line of at most 100 characters for each training run, or for the last run if none is running. The best
-- configuration is that of the page (report/configurations.py): by the metric that the call names, else by the common first
-- metric, if its name tells whether more of it is better (search/goals.py), else by the loss; then by the loss. It counts the
-- means over folds if there are folds, else the validation rows if they exist, else the training rows; of each
-- configuration the last evaluation, or the evaluation of its best state, if it keeps its best state. Before the first
-- evaluation, the least loss of a training unit is the best. (The function comes last, where long lines are cut.)
CREATE VIEW @extschema@.mop_watch WITH (security_barrier) AS
SELECT s.run_id, left(format('run %s: %s/%s units, %s%%, %s, %s failed, %s, %s', s.run_id, p.done, p.total,
           coalesce(floor(100 * p.done / nullif(p.total, 0)), CASE WHEN s.status = 'finished' THEN 100 ELSE 0 END),
           CASE WHEN s.status <> 'running' THEN s.status || ' in ' || to_char(p.elapsed, 'FMHH24:MI:SS')
                ELSE coalesce(to_char(p.remaining, 'FMHH24:MI:SS'), '?') || ' left, ' || w.busy || ' busy' END,
           p.failed,
           coalesce('best ' || b.mst_key || ': ' || b.what || ' ' || CASE WHEN abs(b.value) < 'Infinity'
               THEN round(b.value::numeric, 4)::text ELSE b.value::text END, 'no loss yet'),
           regexp_replace(s.function, '^madlib_keras_|_model$', '', 'g')), 100) AS line
FROM (
    SELECT r.run_id, r.function, t.status, bool_or(t.status = 'running') OVER () AS any_runs,
           max(r.run_id) OVER () AS last, r.function IN ('mop_search', 'madlib_keras_automl') AS by_loss,
           n.named[1] AS named_dataset, n.named[2] AS named, n.named[3] AS named_goal, p.less, p.more
    FROM @extschema@.mop_seen_run r CROSS JOIN LATERAL (
        SELECT @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS status) t
    CROSS JOIN LATERAL (
        SELECT (SELECT m FROM regexp_matches(trim(r.parameters #>> '{arguments,metric}'),
                    '^(?:(training|validation)_)?(\w+)(?:\s+(max|min))?$') AS m) AS named) n
    CROSS JOIN (SELECT 'loss|error|crossentropy|^(mae|mse|mape|msle|ce|bce|kld?)$|divergence|hinge|poisson|'
                       'cosh|false_|false(positives|negatives)'::text AS less,
                       'acc|auc|precision|recall|f1|f_beta|fbeta|score|true_|true(positives|negatives)|cosine|'
                       'correlation|concordance|top_?k|top_\d'::text AS more) p
    WHERE r.function <> 'remote_run' AND @extschema@.mop_trains(r.function)) s
CROSS JOIN LATERAL (
    SELECT coalesce(sum(g.units_done), 0) AS done,
           coalesce(sum(g.units_total), 0) AS total,
           -- (the configurations of a lost coordinator have not failed)
           (SELECT count(*) FROM @extschema@.mop_configuration c
            WHERE c.run_id = s.run_id AND c.error IS NOT NULL) AS failed,
           max(g.seconds_elapsed) * interval '1 second' AS elapsed,
           -- (a role may say that its run takes longer than an interval can)
           CASE WHEN max(g.seconds_left) < 1e9 THEN max(g.seconds_left) * interval '1 second' END AS remaining
    FROM @extschema@.mop_progress g WHERE g.run_id = s.run_id) p
CROSS JOIN LATERAL (
    SELECT count(DISTINCT (u.backend_pid, u.started_at)) AS busy FROM @extschema@.mop_unit u
    WHERE u.run_id = s.run_id AND u.status = 'running') w
LEFT JOIN LATERAL (
    SELECT k.mst_key, k.value, k.prefix || k.name AS what FROM (
        SELECT DISTINCT ON (v.rank, v.mst_key) v.*,
               CASE WHEN v.goal = 'max' THEN -v.value ELSE v.value END AS least
        FROM (
            SELECT j.rank, j.prefix, j.mst_key, j.iteration, j.loss, j.keeps, j.kept, j.kept_loss, j.name, j.asks,
                   CASE WHEN j.asks THEN j.asked WHEN j.name = 'loss' THEN j.loss ELSE j.metric END AS value,
                   CASE WHEN j.asks AND s.named_goal IS NOT NULL THEN s.named_goal
                        WHEN j.name ~* s.less THEN 'min'
                        WHEN j.name ~* s.more THEN 'max'
                        ELSE 'min' END AS goal
            FROM (
                SELECT g.*, CASE WHEN g.asks THEN s.named
                                 WHEN NOT s.by_loss AND g.first_name = g.last_name AND NOT g.some_lack
                                      AND (g.first_name ~* s.less OR g.first_name ~* s.more)
                                 THEN g.first_name ELSE 'loss' END AS name
                FROM (
                    SELECT e.*, e.rank < 3 AND bool_or(e.asked IS NOT NULL) OVER w AS asks,
                           min(e.metric_name) OVER w AS first_name, max(e.metric_name) OVER w AS last_name,
                           bool_or(e.metric_name IS NULL) OVER w AS some_lack
                    FROM (
                        SELECT 0 AS rank, 'held-out ' AS prefix, c.fold_of AS mst_key, q.iteration, avg(m.loss) AS loss,
                               avg(m.metric) AS metric, min(n.metric_name) AS metric_name, avg(n.asked) AS asked,
                               false AS keeps, -- (searches with folds keep the last state)
                               NULL::double precision AS kept, NULL::double precision AS kept_loss
                        FROM @extschema@.mop_metric m JOIN @extschema@.mop_request q USING (run_id, stage)
                        JOIN @extschema@.mop_configuration c ON (c.run_id, c.mst_key) = (q.run_id, q.mst_key)
                        CROSS JOIN LATERAL (
                            SELECT (SELECT x FROM json_object_keys(m.metrics) AS x LIMIT 1) AS metric_name,
                                   CASE WHEN s.named = 'loss' THEN m.loss
                                        ELSE (m.metrics ->> s.named)::double precision END AS asked) n
                        WHERE m.run_id = s.run_id AND c.fold IS NOT NULL AND c.error IS NULL
                        GROUP BY c.fold_of, q.iteration
                        HAVING count(*) = (SELECT count(*) FROM @extschema@.mop_configuration d
                                           WHERE d.run_id = s.run_id AND d.fold_of = c.fold_of)
                        UNION ALL
                        SELECT CASE m.dataset WHEN 'validation' THEN 1 ELSE 2 END,
                               CASE m.dataset WHEN 'validation' THEN 'val. ' ELSE '' END, q.mst_key, q.iteration, m.loss,
                               m.metric, n.metric_name, n.asked, k.kept_by IS NOT NULL,
                               CASE split_part(k.kept_by, ' ', 3) WHEN 'max' THEN -1 ELSE 1 END
                                   * CASE WHEN split_part(k.kept_by, ' ', 2) = 'loss' THEN b.loss
                                          WHEN json_typeof(b.metrics -> split_part(k.kept_by, ' ', 2)) = 'number'
                                          THEN (b.metrics ->> split_part(k.kept_by, ' ', 2))::double precision END,
                               b.loss
                        FROM @extschema@.mop_metric m JOIN @extschema@.mop_request q USING (run_id, stage)
                        JOIN @extschema@.mop_configuration k
                            ON k.run_id = s.run_id AND k.mst_key = q.mst_key AND k.error IS NULL
                        LEFT JOIN @extschema@.mop_metric b
                            ON (b.run_id, b.stage, b.dataset) = (m.run_id, m.stage, split_part(k.kept_by, ' ', 1))
                        CROSS JOIN LATERAL (
                            SELECT (SELECT x FROM json_object_keys(m.metrics) AS x LIMIT 1) AS metric_name,
                                   CASE WHEN s.named = 'loss' THEN m.loss
                                        ELSE (m.metrics ->> s.named)::double precision END AS asked) n
                        WHERE m.run_id = s.run_id AND (m.dataset = 'validation' OR k.fold IS NULL)
                        UNION ALL
                        SELECT 3, 'unit ', q.mst_key, 0, u.loss, NULL, NULL, NULL, true, u.loss, u.loss
                        FROM @extschema@.mop_unit u JOIN @extschema@.mop_request q USING (run_id, stage)
                        WHERE u.run_id = s.run_id AND u.kind = 'train' AND u.status = 'finished'
                          AND u.loss < 'Infinity') e
                    WINDOW w AS (PARTITION BY e.rank)) g) j) v
        ORDER BY v.rank, v.mst_key,
                 CASE WHEN v.keeps THEN v.kept END, CASE WHEN v.keeps THEN v.kept_loss END,
                 CASE WHEN v.keeps AND v.kept IS NOT NULL THEN v.iteration ELSE -v.iteration END) k
    ORDER BY k.rank > 0,
             (k.asks AND k.rank < 3 AND k.rank = CASE s.named_dataset WHEN 'validation' THEN 1 WHEN 'training' THEN 2 END)
                 IS NOT TRUE,
             k.rank, k.value IS NULL OR k.value = 'NaN', k.least, nullif(k.loss, 'NaN') NULLS LAST, k.mst_key
    LIMIT 1) b ON true
WHERE s.status = 'running' OR NOT s.any_runs AND s.run_id = s.last;

-- Trials: the status and metrics of each configuration, and of each fold of one (`fold` of the configuration `fold_of`). The
-- training metrics of a fold are those of its held-out segments.
CREATE VIEW @extschema@.mop_trials WITH (security_barrier) AS
SELECT c.run_id, c.mst_key, c.model_id, c.compile_params, c.fit_params,
       p.status, q.iterations, q.path, m.iterations AS metrics_iterations, m.training_loss, m.training_metric,
       m.validation_loss, m.validation_metric, coalesce(c.error, c.reason) AS reason, c.fold, c.fold_of,
       c.kept_by
FROM @extschema@.mop_configuration c JOIN @extschema@.mop_seen_run r USING (run_id)
JOIN @extschema@.mop_progress p USING (run_id, mst_key)
CROSS JOIN LATERAL (
    SELECT count(*) AS iterations, array_agg(q.stage ORDER BY q.iteration) AS path
    FROM @extschema@.mop_request q WHERE q.run_id = c.run_id AND q.mst_key = c.mst_key) q
CROSS JOIN LATERAL (
    SELECT array_agg(q.iteration ORDER BY q.iteration) AS iterations,
           array_agg(t.loss ORDER BY q.iteration) AS training_loss,
           array_agg(t.metric ORDER BY q.iteration) AS training_metric,
           array_agg(v.loss ORDER BY q.iteration) FILTER (WHERE v.loss IS NOT NULL) AS validation_loss,
           array_agg(v.metric ORDER BY q.iteration) FILTER (WHERE v.loss IS NOT NULL) AS validation_metric
    FROM @extschema@.mop_request q
    JOIN @extschema@.mop_metric t ON (t.run_id, t.stage, t.dataset) = (q.run_id, q.stage, 'training')
    LEFT JOIN @extschema@.mop_metric v ON (v.run_id, v.stage, v.dataset) = (q.run_id, q.stage, 'validation')
    WHERE q.run_id = c.run_id AND q.mst_key = c.mst_key) m;

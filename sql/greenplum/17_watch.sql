-- mop_watch, as in postgresql/15_progress.sql; the sums of all shown runs are computed at once.
CREATE VIEW @extschema@.mop_watch WITH (security_barrier) AS
SELECT s.run_id, left(format('run %s: %s/%s units, %s%%, %s, %s failed, %s, %s', s.run_id, coalesce(p.done, 0),
           coalesce(p.total, 0), coalesce(floor(100 * p.done / nullif(p.total, 0)), 0),
           CASE WHEN s.now <> 'running' THEN s.now || ' in ' || to_char(p.elapsed, 'FMHH24:MI:SS')
                ELSE coalesce(to_char(p.remaining, 'FMHH24:MI:SS'), '?') || ' left, ' || coalesce(w.busy, 0) || ' busy'
                END,
           coalesce(f.failed, 0),
           coalesce('best ' || b.mst_key || ': ' || b.what || ' ' || CASE WHEN abs(b.value) < 'Infinity'
               THEN round(b.value::numeric, 4)::text ELSE b.value::text END, 'no loss yet'),
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
    SELECT k.run_id, k.mst_key, k.value, k.prefix || k.name AS what,
           row_number() OVER (PARTITION BY k.run_id ORDER BY (k.asks AND k.dataset = k.named_dataset) IS NOT TRUE, k.rank,
               k.value IS NULL OR k.value = 'NaN', CASE WHEN k.goal = 'max' THEN -k.value ELSE k.value END,
               nullif(k.loss, 'NaN') NULLS LAST, k.mst_key) AS position
    FROM (
        SELECT v.*, row_number() OVER (PARTITION BY v.run_id, v.rank, v.mst_key ORDER BY
                   CASE WHEN v.keeps THEN v.kept END, CASE WHEN v.keeps THEN v.kept_loss END,
                   CASE WHEN v.keeps AND v.kept IS NOT NULL THEN v.iteration ELSE -v.iteration END) AS place
        FROM (
            SELECT j.*, CASE WHEN j.asks THEN j.asked WHEN j.name = 'loss' THEN j.loss ELSE j.metric END AS value,
                   CASE WHEN j.asks AND j.named_goal IS NOT NULL THEN j.named_goal
                        WHEN j.name ~* j.less THEN 'min'
                        WHEN j.name ~* j.more THEN 'max'
                        ELSE 'min' END AS goal
            FROM (
                SELECT g.*, CASE WHEN g.asks THEN g.named
                                 WHEN NOT g.by_loss AND g.first_name = g.last_name AND NOT g.some_lack
                                      AND (g.first_name ~* g.less OR g.first_name ~* g.more)
                                 THEN g.first_name ELSE 'loss' END AS name
                FROM (
                    SELECT e.*, e.rank < 3 AND bool_or(e.asked IS NOT NULL) OVER w AS asks,
                           min(e.metric_name) OVER w AS first_name, max(e.metric_name) OVER w AS last_name,
                           bool_or(e.metric_name IS NULL) OVER w AS some_lack
                    FROM (
                        SELECT u.rank, u.dataset, u.prefix, u.mst_key, u.iteration, u.loss, u.metric, t.*,
                               (SELECT x FROM json_object_keys(u.metrics) AS x LIMIT 1) AS metric_name,
                               CASE WHEN t.named = 'loss' THEN u.loss
                                    ELSE (u.metrics ->> t.named)::double precision END AS asked,
                               u.keeps,
                               CASE WHEN u.rank = 3 THEN u.loss
                                    ELSE CASE split_part(u.kept_by, ' ', 3) WHEN 'max' THEN -1 ELSE 1 END
                                        * CASE WHEN split_part(u.kept_by, ' ', 2) = 'loss' THEN b.loss
                                               WHEN json_typeof(b.metrics -> split_part(u.kept_by, ' ', 2)) = 'number'
                                               THEN (b.metrics ->> split_part(u.kept_by, ' ', 2))::double precision END
                                    END AS kept,
                               coalesce(b.loss, u.loss) AS kept_loss
                        FROM (
                            SELECT m.run_id, CASE m.dataset WHEN 'validation' THEN 1 ELSE 2 END AS rank, m.dataset,
                                   CASE m.dataset WHEN 'validation' THEN 'val. ' ELSE '' END AS prefix, q.mst_key,
                                   q.iteration, m.loss, m.metric, m.metrics, m.stage, c.kept_by IS NOT NULL AS keeps,
                                   c.kept_by
                            FROM @extschema@.mop_metric m JOIN @extschema@.mop_request q USING (run_id, stage)
                            JOIN @extschema@.mop_configuration c
                                ON c.run_id = q.run_id AND c.mst_key = q.mst_key AND c.error IS NULL
                            UNION ALL
                            SELECT u.run_id, 3, 'unit', 'unit ', q.mst_key, 0, u.loss, NULL, NULL, u.stage, true, NULL
                            FROM @extschema@.mop_unit u JOIN @extschema@.mop_request q USING (run_id, stage)
                            WHERE u.kind = 'train' AND u.status = 'finished' AND u.loss < 'Infinity') u
                        JOIN (
                            SELECT r.run_id, r.function IN ('mop_search', 'madlib_keras_automl') AS by_loss,
                                   substring(trim(r.parameters #>> '{arguments,metric}')
                                       FROM '^(?:(?:training|validation)_)?(\w+)(?:\s+(?:max|min))?$') AS named,
                                   substring(trim(r.parameters #>> '{arguments,metric}')
                                       FROM '^(training|validation)_') AS named_dataset,
                                   substring(trim(r.parameters #>> '{arguments,metric}') FROM '\s(max|min)$')
                                       AS named_goal,
                                   'loss|error|crossentropy|^(mae|mse|mape|msle|ce|bce|kld?)$|divergence|hinge|poisson|'
                                   'cosh|false_|false(positives|negatives)'::text AS less,
                                   'acc|auc|precision|recall|f1|f_beta|fbeta|score|true_|true(positives|negatives)|cosine|'
                                   'correlation|concordance|top_?k|top_\d'::text AS more
                            FROM @extschema@.mop_seen_run r OFFSET 0) t USING (run_id)
                        LEFT JOIN @extschema@.mop_metric b ON b.run_id = u.run_id AND b.stage = u.stage
                            AND b.dataset = split_part(u.kept_by, ' ', 1)) e
                    WINDOW w AS (PARTITION BY e.run_id, e.rank)) g) j) v) k
    WHERE k.place = 1) b ON b.run_id = s.run_id AND b.position = 1
WHERE s.now = 'running' OR NOT s.any_runs AND s.run_id = s.last;

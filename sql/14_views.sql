-- What people read of the catalog.

-- A role sees its own runs and those of the roles it is a member of; a superuser also those of roles that are gone:
-- WHERE owner IN (SELECT ... pg_has_role(...)), in each of these views.

-- what a run's or unit's status is in truth: nobody can note it when the calling session is killed
CREATE FUNCTION @extschema@.mop_status(status text, coordinator_pid integer, coordinator_start timestamptz, gone text)
RETURNS text LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN $1 = 'running' AND NOT EXISTS (
                    SELECT 1 FROM pg_stat_activity a WHERE a.pid = $2
                    -- (a role by itself sees since when its own sessions live, not others' that have the pid now)
                    AND a.backend_start = $3) THEN $4 ELSE $1 END
$$;

CREATE VIEW @extschema@.mop_runs WITH (security_barrier) AS
SELECT run_id, (SELECT coalesce(a.rolname, 'unknown (' || o.role || ')')::name FROM @extschema@.mop_owner o
                LEFT JOIN pg_roles a ON a.oid = o.who WHERE o.owner = r.owner) AS owner,
       @extschema@.mop_status(status, coordinator_pid, coordinator_start, 'failed') AS status, function,
       source_table, model_output_table, seed, scheduler, num_iterations,
       -- of a search, those that it has come to
       CASE WHEN configurations > 0 THEN configurations ELSE (
           SELECT count(*)::integer FROM @extschema@.mop_configuration c WHERE c.run_id = r.run_id) END
           AS configurations, segments, started_at,
       finished_at, error, validation_table,
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM @extschema@.mop_generation g
        JOIN pg_class c ON c.relnamespace = '@extschema@'::regnamespace
        AND c.relname = 'mop_state_' || g.run_id || '_' || g.generation WHERE g.run_id = r.run_id) AS state_bytes,
       -- stages that configurations ask for, to those that are trained for them
       (SELECT count(*)::double precision / nullif(count(DISTINCT q.stage) FILTER (WHERE s.source_run IS NULL), 0)
        FROM @extschema@.mop_request q JOIN @extschema@.mop_stage s USING (run_id, stage)
        WHERE q.run_id = r.run_id) AS merge_rate
FROM @extschema@.mop_run r
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- what holds disk although nobody works on it, and the commands that end that
CREATE VIEW @extschema@.mop_abandoned_runs WITH (security_barrier) AS
SELECT run_id, owner, status, model_output_table, finished_at, state_bytes,
       CASE WHEN NOT written.yes AND r.function <> 'guest' THEN 'SELECT @extschema@.mop_resume(' || run_id || ');' END
           AS to_go_on,
       'SELECT @extschema@.mop_drop_' || CASE WHEN written.yes THEN 'states(' ELSE 'run(' END || run_id || ');'
           AS to_drop
FROM @extschema@.mop_runs r CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = r.run_id) AS yes
) AS written
WHERE state_bytes > 0 AND status <> 'running' AND NOT (written.yes AND EXISTS (
    SELECT 1 FROM @extschema@.mop_checkpoint c WHERE c.run_id = r.run_id)
    -- (of a role that is gone nobody keeps them in bounds)
    AND EXISTS (SELECT 1 FROM pg_catalog.pg_roles a WHERE a.rolname = r.owner));

-- A row for each configuration that a unit is of. Where several share it, the others' rows are marked: WHERE NOT shared
-- lists every unit once.
CREATE VIEW @extschema@.mop_units WITH (security_barrier) AS
SELECT u.run_id, q.mst_key, u.iteration, u.segment, u.kind, u.attempt,
       CASE WHEN u.status <> 'running' THEN u.status
            ELSE @extschema@.mop_status(u.status, r.coordinator_pid, r.coordinator_start, 'cancelled') END AS status,
       u.backend_pid, u.kernel, u.rows,
       u.loss, u.queued_at, u.started_at, u.finished_at, u.read_seconds, u.train_seconds, u.write_seconds, u.error,
       u.dataset, u.metric, u.compilations, u.stage, q.mst_key <> s.mst_key AS shared
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id) JOIN @extschema@.mop_stage s USING (run_id, stage)
JOIN @extschema@.mop_request q USING (run_id, stage)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- which kernel trained a unit, and the times by which it was chosen (seconds; of a batch, and to compile)
CREATE VIEW @extschema@.mop_kernel_choices WITH (security_barrier) AS
SELECT u.run_id, s.mst_key, u.iteration, u.segment, u.kernel, u.compilations,
       (u.choice -> 'batch_seconds' ->> 'plain')::double precision AS plain_seconds,
       (u.choice -> 'batch_seconds' ->> 'loop')::double precision AS loop_seconds,
       (u.choice -> 'batch_seconds' ->> 'xla')::double precision AS xla_seconds,
       (u.choice -> 'compile_seconds' ->> 'plain')::double precision AS plain_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'loop')::double precision AS loop_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'xla')::double precision AS xla_compile_seconds,
       u.choice ->> 'forced' AS forced, u.choice -> 'refused' AS refused, u.choice -> 'prefix' AS prefix
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id) JOIN @extschema@.mop_stage s USING (run_id, stage)
WHERE u.kind = 'train' AND u.status = 'finished'
AND r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- a row for the loss and for each metric of each evaluation
CREATE VIEW @extschema@.mop_metrics WITH (security_barrier) AS
SELECT m.run_id, q.mst_key, q.iteration, m.dataset, v.name, v.value
FROM @extschema@.mop_metric m JOIN @extschema@.mop_run r USING (run_id)
JOIN @extschema@.mop_request q USING (run_id, stage) CROSS JOIN LATERAL (
    SELECT 'loss' AS name, m.loss AS value
    UNION ALL SELECT e.key, e.value::double precision FROM json_each_text(m.metrics) AS e) AS v
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- the same, a row for each evaluation: its loss, its first metric, all metrics of both datasets
CREATE VIEW @extschema@.mop_metrics_wide WITH (security_barrier) AS
SELECT q.run_id, q.mst_key, q.iteration, (SELECT k FROM json_object_keys(t.metrics) AS k LIMIT 1) AS metric,
       t.loss AS training_loss, t.metric AS training_metric, v.loss AS validation_loss, v.metric AS validation_metric,
       t.metrics AS training_metrics, v.metrics AS validation_metrics,
       greatest(t.noted_at, v.noted_at) AS evaluated_at,
       extract(epoch FROM greatest(t.noted_at, v.noted_at) - r.started_at)::double precision AS seconds
FROM @extschema@.mop_request q JOIN @extschema@.mop_run r USING (run_id)
JOIN @extschema@.mop_metric t ON (t.run_id, t.stage, t.dataset) = (q.run_id, q.stage, 'training')
LEFT JOIN @extschema@.mop_metric v ON (v.run_id, v.stage, v.dataset) = (q.run_id, q.stage, 'validation')
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- (of a stage that an earlier run has trained, the order in which that did)
CREATE VIEW @extschema@.mop_visit_order WITH (security_barrier) AS
SELECT s.run_id, q.mst_key, s.iteration,
       (row_number() OVER (PARTITION BY s.run_id, q.mst_key, s.iteration ORDER BY s.version))::integer AS position,
       s.segment, q.mst_key <> s.mst_key AS shared
FROM (
    SELECT s.run_id, s.stage, s.mst_key, s.iteration, u.version, u.segment
    FROM @extschema@.mop_stage s JOIN @extschema@.mop_unit u USING (run_id, stage)
    WHERE s.source_run IS NULL AND u.kind = 'train' AND u.status = 'finished'
    UNION ALL
    SELECT s.run_id, s.stage, s.mst_key, s.iteration, u.version, u.segment
    FROM @extschema@.mop_stage s JOIN @extschema@.mop_unit u
         ON (u.run_id, u.stage) = (s.source_run, s.source_stage)
    WHERE u.kind = 'train' AND u.status = 'finished') s
JOIN @extschema@.mop_run r USING (run_id) JOIN @extschema@.mop_request q USING (run_id, stage)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- the search plan: each stage once
CREATE VIEW @extschema@.mop_stages WITH (security_barrier) AS
SELECT s.run_id, s.stage, s.parent, s.iteration, s.compile_params, s.fit_params,
       ARRAY(SELECT q.mst_key FROM @extschema@.mop_request q WHERE q.run_id = s.run_id AND q.stage = s.stage ORDER BY 1)
           AS mst_keys,
       (SELECT count(*) FROM @extschema@.mop_unit u WHERE u.run_id = s.run_id AND u.stage = s.stage
        AND u.status = 'finished') AS units_done,
       CASE WHEN m.generation IS NOT NULL THEN m.bytes END AS state_bytes, s.identity, s.source_run, s.source_stage
FROM @extschema@.mop_stage s JOIN @extschema@.mop_run r USING (run_id)
LEFT JOIN @extschema@.mop_model m USING (run_id, stage)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- states that later runs may go on from; mop_drop_checkpoints drops them
CREATE VIEW @extschema@.mop_checkpoints WITH (security_barrier) AS
SELECT c.run_id, c.stage, s.iteration,
       ARRAY(SELECT q.mst_key FROM @extschema@.mop_request q WHERE q.run_id = c.run_id AND q.stage = c.stage ORDER BY 1)
           AS mst_keys,
       m.bytes, c.seconds, c.used_at, s.identity
FROM @extschema@.mop_checkpoint c JOIN @extschema@.mop_run r USING (run_id)
JOIN @extschema@.mop_stage s USING (run_id, stage) JOIN @extschema@.mop_model m USING (run_id, stage)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- One row for each configuration; the seconds are the whole run's. A unit that configurations share is done for each.
-- Of the runs that are asked for alone: nothing is summed up over the others.
CREATE VIEW @extschema@.mop_progress WITH (security_barrier) AS
SELECT r.run_id, coalesce(w.units_done, 0)::bigint AS units_done, coalesce(w.units_total, 0)::bigint AS units_total,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::double precision
           AS seconds_elapsed,
       CASE WHEN s.status <> 'running' THEN 0
            WHEN coalesce(w.run_done, 0) = 0 THEN NULL
            ELSE extract(epoch FROM clock_timestamp() - r.started_at) * w.run_left / w.run_done
       END::double precision AS seconds_left,
       w.mst_key, w.iteration, w.last_loss,
       CASE WHEN w.error IS NOT NULL THEN 'failed'
            WHEN w.units_done = w.units_total THEN 'finished'
            WHEN s.status <> 'running' THEN s.status
            WHEN w.units_running > 0 THEN 'running'
            ELSE 'waiting' END AS status
FROM @extschema@.mop_run r
     CROSS JOIN LATERAL @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS s(status)
     CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.dataset = 'training') AS training, count(*) AS both_datasets,
           r.function = 'madlib_keras_fit'
           AND coalesce(r.parameters #>> '{settings,fit_strategy}' = 'averaging', false) AS averaging
    FROM @extschema@.mop_segment g WHERE g.run_id = r.run_id) d
     CROSS JOIN LATERAL (
    SELECT a.mst_key, a.error, sum(a.done) AS units_done, sum(a.running) AS units_running, sum(a.total) AS units_total,
           max(a.iteration) FILTER (WHERE a.done > 0 OR a.running > 0) AS iteration,
           (max(ARRAY[a.iteration, a.last_loss]) FILTER (WHERE a.last_loss IS NOT NULL))[2] AS last_loss,
           max(a.run_done) AS run_done, sum(sum(a.total - a.done) FILTER (WHERE a.is_first)) OVER () AS run_left
    FROM (
        SELECT c.mst_key, c.error, t.iteration, u.done, u.running, u.last_loss,
               -- a replica has a segment of its own; (nothing may have been asked for yet)
               CASE WHEN t.stage IS NOT NULL THEN CASE WHEN d.averaging THEN 1 ELSE d.training END
                   + CASE WHEN t.evaluated THEN d.both_datasets ELSE 0 END END AS total,
               -- what several wait for is waited for once, and not for those that have failed
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
                   (max(ARRAY[v.version, v.loss]) FILTER (WHERE v.kind = 'train' AND v.status = 'finished'))[2]
                       AS last_loss
            FROM @extschema@.mop_unit v WHERE v.run_id = r.run_id AND v.stage = t.stage) u
        WHERE c.run_id = r.run_id) a
    GROUP BY a.mst_key, a.error) w
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- For \watch: a line of about 100 characters for each run that trains, or for the last one. A configuration that has
-- failed has no units left. The best is that of the least loss so far: of evaluations of the validation rows if there
-- are some, else of the training rows; before the first evaluation, of training units. (The function comes last: of a line
-- that is too long it is cut off.)
CREATE VIEW @extschema@.mop_watch WITH (security_barrier) AS
SELECT s.run_id, left(format('run %s: %s/%s units, %s%%, %s, %s failed, %s, %s', s.run_id, p.done, p.total,
           coalesce(floor(100 * p.done / nullif(p.total, 0)), 0),
           CASE WHEN s.status <> 'running' THEN s.status || ' in ' || to_char(p.elapsed, 'FMHH24:MI:SS')
                ELSE coalesce(to_char(p.remaining, 'FMHH24:MI:SS'), '?') || ' left, ' || w.busy || ' busy' END,
           p.failed, coalesce('best ' || b.mst_key || ': ' || b.what || ' ' || round(b.loss::numeric, 4), 'no loss yet'),
           regexp_replace(s.function, '^madlib_keras_|_model$', '', 'g')), 100) AS line
FROM (
    SELECT r.run_id, r.function, t.status, bool_or(t.status = 'running') OVER () AS any_runs,
           max(r.run_id) OVER () AS last
    FROM @extschema@.mop_run r CROSS JOIN LATERAL (
        SELECT @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS status) t
    WHERE r.function <> 'guest' AND @extschema@.mop_trains(r.function)
    AND r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'))) s
CROSS JOIN LATERAL (
    SELECT coalesce(sum(g.units_done), 0) AS done,
           coalesce(sum(CASE WHEN g.status = 'failed' THEN g.units_done ELSE g.units_total END), 0) AS total,
           count(*) FILTER (WHERE g.status = 'failed') AS failed,
           max(g.seconds_elapsed) * interval '1 second' AS elapsed,
           max(g.seconds_left) * interval '1 second' AS remaining
    FROM @extschema@.mop_progress g WHERE g.run_id = s.run_id) p
CROSS JOIN LATERAL (
    SELECT count(DISTINCT (u.backend_pid, u.segment)) AS busy FROM @extschema@.mop_unit u
    WHERE u.run_id = s.run_id AND u.status = 'running') w
LEFT JOIN LATERAL (
    SELECT x.what, x.loss, x.mst_key FROM (
        SELECT 1 AS rank, 'val. loss' AS what, m.loss, q.mst_key
        FROM @extschema@.mop_metric m JOIN @extschema@.mop_request q USING (run_id, stage)
        WHERE m.run_id = s.run_id AND m.dataset = 'validation'
        UNION ALL
        SELECT 2, 'loss', m.loss, q.mst_key
        FROM @extschema@.mop_metric m JOIN @extschema@.mop_request q USING (run_id, stage)
        WHERE m.run_id = s.run_id AND m.dataset = 'training'
        UNION ALL
        SELECT 3, 'unit loss', u.loss, q.mst_key
        FROM @extschema@.mop_unit u JOIN @extschema@.mop_request q USING (run_id, stage)
        WHERE u.run_id = s.run_id AND u.kind = 'train' AND u.status = 'finished' AND u.loss < 'Infinity') x
    ORDER BY x.rank, x.loss, x.mst_key LIMIT 1) b ON true
WHERE s.status = 'running' OR NOT s.any_runs AND s.run_id = s.last;

-- what became of each configuration
CREATE VIEW @extschema@.mop_trials WITH (security_barrier) AS
SELECT c.run_id, c.mst_key, c.model_id, c.compile_params, c.fit_params,
       CASE WHEN p.status IN ('failed', 'running', 'cancelled') OR c.reason IS NULL THEN p.status ELSE 'stopped' END
           AS status,
       q.iterations, q.path, m.iterations AS metrics_iterations, m.training_loss, m.training_metric,
       m.validation_loss, m.validation_metric, coalesce(c.error, c.reason) AS reason
FROM @extschema@.mop_configuration c JOIN @extschema@.mop_run r USING (run_id)
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
    WHERE q.run_id = c.run_id AND q.mst_key = c.mst_key) m
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- Views of the catalog for users. Each role sees its own runs and those of the roles that it may act as; superusers
-- also see runs of dropped roles (mop_seen_run).

-- Runs, with their true status.
CREATE VIEW @extschema@.mop_runs WITH (security_barrier) AS
SELECT run_id, (SELECT coalesce(a.rolname, 'unknown (' || o.role || ')')::name FROM @extschema@.mop_owner o
                LEFT JOIN pg_roles a ON a.oid = o.who WHERE o.owner = r.owner) AS owner,
       now AS status, function,
       source_table, model_output_table, seed, scheduler, num_iterations,
       -- a search adds configurations while it runs
       CASE WHEN configurations > 0 THEN configurations ELSE (
           SELECT count(*)::integer FROM @extschema@.mop_configuration c WHERE c.run_id = r.run_id) END
           AS configurations, segments, started_at,
       finished_at,
       CASE WHEN r.now = r.status THEN error  -- (housekeeping will record the same error)
            ELSE 'the session that ran it has ended; mop_resume goes on with it' END AS error, validation_table,
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM @extschema@.mop_state_table g
        JOIN pg_class c ON c.relnamespace = (
            SELECT o.relnamespace FROM pg_class o WHERE o.oid = '@extschema@.mop_run'::regclass)
        AND c.relname = 'mop_state_' || g.run_id || '_' || g.state_table WHERE g.run_id = r.run_id) AS state_bytes,
       -- stages that configurations request, divided by stages that this run trains
       (SELECT count(*)::double precision / nullif(count(DISTINCT q.stage) FILTER (WHERE s.source_run IS NULL), 0)
        FROM @extschema@.mop_request q JOIN @extschema@.mop_stage s USING (run_id, stage)
        WHERE q.run_id = r.run_id) AS merge_rate,
       prediction::jsonb AS prediction, -- what the planner expected at its start
       sessions
FROM @extschema@.mop_seen_run r;

-- Notes and tags of the runs that a role sees.
CREATE VIEW @extschema@.mop_notes WITH (security_barrier) AS
SELECT n.run_id, n.note, n.tags, n.noted_at FROM @extschema@.mop_run_note n JOIN @extschema@.mop_seen_run r USING (run_id);

-- Runs that are not running but occupy disk space, with the commands that continue or drop them.
CREATE VIEW @extschema@.mop_abandoned_runs WITH (security_barrier) AS
SELECT r.run_id, owner, status, model_output_table, finished_at, state_bytes,
       CASE WHEN w.run_id IS NULL AND r.function <> 'remote_run'
                 AND EXISTS (SELECT 1 FROM pg_catalog.pg_roles a WHERE a.rolname = r.owner)
            THEN 'SELECT @extschema@.mop_resume(' || r.run_id || ');' END AS to_go_on,
       'SELECT @extschema@.mop_drop_' || CASE WHEN w.run_id IS NULL THEN 'run(' ELSE 'states(' END || r.run_id || ');'
           AS to_drop
FROM @extschema@.mop_runs r LEFT JOIN @extschema@.mop_output w ON w.run_id = r.run_id
WHERE state_bytes > 0 AND status <> 'running' AND NOT (w.run_id IS NOT NULL AND EXISTS (
    SELECT 1 FROM @extschema@.mop_checkpoint c WHERE c.run_id = r.run_id)
    -- (no call of a dropped role evicts its checkpoints)
    AND EXISTS (SELECT 1 FROM pg_catalog.pg_roles a WHERE a.rolname = r.owner));

-- Units, with a row for each configuration that shares the unit. All but one of these rows are marked: WHERE NOT shared
-- lists every unit once. `decision` tells why the unit of a failed attempt was tried again, or not.
CREATE VIEW @extschema@.mop_units WITH (security_barrier) AS
SELECT u.run_id, q.mst_key, u.iteration, u.segment, u.kind, u.attempt,
       CASE WHEN u.status <> 'running' THEN u.status
            WHEN r.alive THEN u.status ELSE 'cancelled' END AS status,
       u.backend_pid, u.kernel, u.rows,
       u.loss, u.queued_at, u.started_at, u.finished_at, u.read_seconds, u.train_seconds, u.write_seconds, u.error,
       u.dataset, u.metric, u.compilations, u.stage, q.mst_key <> s.mst_key AS shared,
       u.decision, u.cpu_seconds, u.server, u.threads, u.gpu_utilization, u.gpu_memory_bytes,
       (u.choice ->> 'devices')::integer AS devices
FROM @extschema@.mop_unit u JOIN @extschema@.mop_seen_run r USING (run_id)
JOIN @extschema@.mop_stage s USING (run_id, stage)
JOIN @extschema@.mop_request q USING (run_id, stage);

-- Model states that went from one server to another; NULL for this server. `way` tells whether a state came directly, or
-- passed through the coordinator's server.
CREATE VIEW @extschema@.mop_hops WITH (security_barrier) AS
SELECT h.run_id, s.mst_key, s.iteration, h.stage, h.version, nullif(h.source, '') AS source, nullif(h.target, '') AS target,
       h.way, h.bytes, h.seconds, h.noted_at
FROM @extschema@.mop_hop h JOIN @extschema@.mop_seen_run r USING (run_id) JOIN @extschema@.mop_stage s USING (run_id, stage);

-- Training units with their kernel and the measured times that selected it (seconds: of a mini-batch, and to compile).
CREATE VIEW @extschema@.mop_kernel_choices WITH (security_barrier) AS
SELECT u.run_id, s.mst_key, u.iteration, u.segment, u.kernel, u.compilations,
       (u.choice -> 'batch_seconds' ->> 'plain')::double precision AS plain_seconds,
       (u.choice -> 'batch_seconds' ->> 'loop')::double precision AS loop_seconds,
       (u.choice -> 'batch_seconds' ->> 'xla')::double precision AS xla_seconds,
       (u.choice -> 'compile_seconds' ->> 'plain')::double precision AS plain_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'loop')::double precision AS loop_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'xla')::double precision AS xla_compile_seconds,
       u.choice ->> 'forced' AS forced, (u.choice -> 'refused')::jsonb AS refused,
       (u.choice -> 'prefix')::jsonb AS prefix,
       (u.choice -> 'batch_seconds' ->> 'vmap')::double precision AS vmap_seconds,
       (u.choice -> 'compile_seconds' ->> 'vmap')::double precision AS vmap_compile_seconds
FROM @extschema@.mop_unit u JOIN @extschema@.mop_seen_run r USING (run_id)
JOIN @extschema@.mop_stage s USING (run_id, stage)
WHERE u.kind = 'train' AND u.status = 'finished';

-- Seconds of a mini-batch, and of the compilation of a kernel, as the role's last runs measured them. `batch_seconds`: the
-- least of each run; `unit_seconds`: in its typical unit, with all that the trainer does for a unit; `units`: how many units
-- of the last run used the kernel.
CREATE VIEW @extschema@.mop_unit_costs WITH (security_barrier) AS
SELECT c.architecture, c.optimizer, c.loss, c.batch_size, c.shape, c.part, c.kernel, c.device, c.version,
       (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY s.seconds) FROM unnest(c.batch_seconds) AS s(seconds))
           AS batch_seconds,
       (SELECT max(s.seconds) FROM unnest(c.compile_seconds) AS s(seconds)) AS compile_seconds,
       array_length(c.batch_seconds, 1) AS runs, c.noted_at, c.net, c.place,
       (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY s.seconds) FROM unnest(c.unit_seconds[1:3]) AS s(seconds))
           AS unit_seconds, c.units, c.memory_bytes
FROM @extschema@.mop_cost c JOIN @extschema@.mop_owner o USING (owner)
WHERE o.who = (SELECT @extschema@.mop_role(current_user));

-- Evaluations, with a row for the loss and a row for each metric.
CREATE VIEW @extschema@.mop_metrics WITH (security_barrier) AS
SELECT m.run_id, q.mst_key, q.iteration, m.dataset, v.name, v.value
FROM @extschema@.mop_metric m JOIN @extschema@.mop_seen_run r USING (run_id)
JOIN @extschema@.mop_request q USING (run_id, stage) CROSS JOIN LATERAL (
    SELECT 'loss' AS name, m.loss AS value
    UNION ALL SELECT e.key, e.value::double precision FROM json_each_text(m.metrics) AS e) AS v;

-- Evaluations, one row each: the loss, the first metric, and all metrics of both datasets.
CREATE VIEW @extschema@.mop_metrics_wide WITH (security_barrier) AS
SELECT q.run_id, q.mst_key, q.iteration, (SELECT k FROM json_object_keys(t.metrics) AS k LIMIT 1) AS metric,
       t.loss AS training_loss, t.metric AS training_metric, v.loss AS validation_loss, v.metric AS validation_metric,
       t.metrics::jsonb AS training_metrics, v.metrics::jsonb AS validation_metrics,
       greatest(t.noted_at, v.noted_at) AS evaluated_at,
       extract(epoch FROM greatest(t.noted_at, v.noted_at) - r.started_at)::double precision AS seconds
FROM @extschema@.mop_request q JOIN @extschema@.mop_seen_run r USING (run_id)
JOIN @extschema@.mop_metric t ON (t.run_id, t.stage, t.dataset) = (q.run_id, q.stage, 'training')
LEFT JOIN @extschema@.mop_metric v ON (v.run_id, v.stage, v.dataset) = (q.run_id, q.stage, 'validation');

-- The visit order. (A stage that an earlier run trained has the order of that run.)
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
    WHERE u.kind = 'train' AND u.status = 'finished'
    UNION ALL
    SELECT s.run_id, s.stage, s.mst_key, s.iteration, u.version, u.segment
    FROM @extschema@.mop_stage s JOIN @extschema@.mop_taken_unit u ON (u.run_id, u.stage) = (s.source_run, s.source_stage)) s
JOIN @extschema@.mop_seen_run r USING (run_id) JOIN @extschema@.mop_request q USING (run_id, stage);

-- The search plan: each stage once.
CREATE VIEW @extschema@.mop_stages WITH (security_barrier) AS
SELECT s.run_id, s.stage, s.parent, s.iteration, s.compile_params, s.fit_params,
       ARRAY(SELECT q.mst_key FROM @extschema@.mop_request q WHERE q.run_id = s.run_id AND q.stage = s.stage ORDER BY 1)
           AS mst_keys,
       (SELECT count(*) FROM @extschema@.mop_unit u WHERE u.run_id = s.run_id AND u.stage = s.stage
        AND u.status = 'finished') AS units_done,
       CASE WHEN m.state_table IS NOT NULL THEN m.bytes END AS state_bytes, s.identity, s.source_run, s.source_stage
FROM @extschema@.mop_stage s JOIN @extschema@.mop_seen_run r USING (run_id)
LEFT JOIN @extschema@.mop_stage_state m USING (run_id, stage);

-- The lineage of trials: the member of a model space that each trains, the trial that it was made from, and what was changed.
CREATE VIEW @extschema@.mop_lineage WITH (security_barrier) AS
SELECT c.run_id, c.mst_key, (c.member ->> 'parent')::integer AS parent, c.member ->> 'changed' AS changed,
       c.member ->> 'before' AS value_before, c.member ->> 'after' AS value_after, c.member ->> 'inherited' AS inherited,
       (c.member ->> 'base')::integer AS base_model, (c.member ->> 'member')::numeric AS member,
       (c.member -> 'choices')::jsonb AS choices, (c.member -> 'primitives')::jsonb AS primitives,
       (c.member -> 'inherits')::jsonb AS inheritance
FROM @extschema@.mop_configuration c JOIN @extschema@.mop_seen_run r USING (run_id)
WHERE c.member IS NOT NULL AND c.fold IS NULL;

-- Checkpoints: states for later runs of the role; mop_drop_checkpoints drops them.
CREATE VIEW @extschema@.mop_checkpoints WITH (security_barrier) AS
SELECT c.run_id, c.stage, s.iteration,
       ARRAY(SELECT q.mst_key FROM @extschema@.mop_request q WHERE q.run_id = c.run_id AND q.stage = c.stage ORDER BY 1)
           AS mst_keys,
       m.bytes, c.seconds, c.used_at, s.identity
FROM @extschema@.mop_checkpoint c JOIN @extschema@.mop_seen_run r USING (run_id)
JOIN @extschema@.mop_stage s USING (run_id, stage) JOIN @extschema@.mop_stage_state m USING (run_id, stage);

-- The limits of the caller's role (table mop_limit), which sessions apply before they start a trainer. NULL: no limit.
CREATE VIEW @extschema@.mop_my_limits WITH (security_barrier) AS
SELECT current_user::name AS role, l.sessions, l.threads, l.trainer_memory_mb, l.max_model_mb, l.max_seconds, l.max_disk_mb,
       l.max_priority, l.share, l.device_share
FROM @extschema@.mop_limits() AS l;

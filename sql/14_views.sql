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
       source_table, model_output_table, seed, scheduler, num_iterations, configurations, segments, started_at,
       finished_at, error, validation_table,
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM @extschema@.mop_generation g
        JOIN pg_class c ON c.relnamespace = '@extschema@'::regnamespace
        AND c.relname = 'mop_state_' || g.run_id || '_' || g.generation WHERE g.run_id = r.run_id) AS state_bytes
FROM @extschema@.mop_run r
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- what holds disk although nobody works on it, and the commands that end that
CREATE VIEW @extschema@.mop_abandoned_runs WITH (security_barrier) AS
SELECT run_id, owner, status, model_output_table, finished_at, state_bytes,
       CASE WHEN NOT written.yes THEN 'SELECT @extschema@.mop_resume(' || run_id || ');' END AS to_go_on,
       'SELECT @extschema@.mop_drop_' || CASE WHEN written.yes THEN 'states(' ELSE 'run(' END || run_id || ');'
           AS to_drop
FROM @extschema@.mop_runs r CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = r.run_id) AS yes
) AS written
WHERE state_bytes > 0 AND status <> 'running';

CREATE VIEW @extschema@.mop_units WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration, u.segment, u.kind, u.attempt,
       CASE WHEN u.status <> 'running' THEN u.status
            ELSE @extschema@.mop_status(u.status, r.coordinator_pid, r.coordinator_start, 'cancelled') END AS status,
       u.backend_pid, u.kernel, u.rows,
       u.loss, u.queued_at, u.started_at, u.finished_at, u.read_seconds, u.train_seconds, u.write_seconds, u.error,
       u.dataset, u.metric, u.compilations
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- which kernel trained a unit, and the times by which it was chosen (seconds; of a batch, and to compile)
CREATE VIEW @extschema@.mop_kernel_choices WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration, u.segment, u.kernel, u.compilations,
       (u.choice -> 'batch_seconds' ->> 'plain')::double precision AS plain_seconds,
       (u.choice -> 'batch_seconds' ->> 'loop')::double precision AS loop_seconds,
       (u.choice -> 'batch_seconds' ->> 'xla')::double precision AS xla_seconds,
       (u.choice -> 'compile_seconds' ->> 'plain')::double precision AS plain_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'loop')::double precision AS loop_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'xla')::double precision AS xla_compile_seconds,
       u.choice ->> 'forced' AS forced, u.choice -> 'refused' AS refused
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE u.kind = 'train' AND u.status = 'finished'
AND r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- a row for the loss and for each metric of each evaluation
CREATE VIEW @extschema@.mop_metrics WITH (security_barrier) AS
SELECT m.run_id, m.mst_key, m.iteration, m.dataset, v.name, v.value
FROM @extschema@.mop_metric m JOIN @extschema@.mop_run r USING (run_id) CROSS JOIN LATERAL (
    SELECT 'loss' AS name, m.loss AS value
    UNION ALL SELECT e.key, e.value::double precision FROM json_each_text(m.metrics) AS e) AS v
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

CREATE VIEW @extschema@.mop_visit_order WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration,
       (row_number() OVER (PARTITION BY u.run_id, u.mst_key, u.iteration ORDER BY u.version))::integer AS position,
       u.segment
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE u.kind = 'train' AND u.status = 'finished'
AND r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- one row for each configuration; the seconds are the whole run's
CREATE VIEW @extschema@.mop_progress WITH (security_barrier) AS
WITH work AS (
    SELECT c.run_id, c.mst_key, c.error,
           r.num_iterations * (SELECT count(*) FROM @extschema@.mop_segment s
                               WHERE s.run_id = c.run_id AND s.dataset = 'training')
           + cardinality(r.metrics_iterations) * (SELECT count(*) FROM @extschema@.mop_segment s
                                                  WHERE s.run_id = c.run_id) AS units_total,
           u.units_done, u.units_running, u.iteration, u.last_loss
    FROM @extschema@.mop_configuration c
    JOIN @extschema@.mop_run r USING (run_id)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE status = 'finished') AS units_done,
               count(*) FILTER (WHERE status = 'running') AS units_running,
               max(iteration) AS iteration,
               (array_agg(loss ORDER BY version DESC)
                FILTER (WHERE kind = 'train' AND status = 'finished'))[1] AS last_loss
        FROM @extschema@.mop_unit WHERE run_id = c.run_id AND mst_key = c.mst_key) u
), whole AS (
    SELECT run_id, sum(units_done) AS done,
           sum(CASE WHEN error IS NULL THEN units_total - units_done ELSE 0 END) AS left
    FROM work GROUP BY run_id
)
SELECT w.run_id, w.units_done, w.units_total,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::double precision
           AS seconds_elapsed,
       CASE WHEN s.status <> 'running' THEN 0
            WHEN whole.done = 0 THEN NULL
            ELSE extract(epoch FROM clock_timestamp() - r.started_at) * whole.left / whole.done
       END::double precision AS seconds_left,
       w.mst_key, w.iteration, w.last_loss,
       CASE WHEN w.error IS NOT NULL THEN 'failed'
            WHEN w.units_done = w.units_total THEN 'finished'
            WHEN s.status <> 'running' THEN s.status
            WHEN w.units_running > 0 THEN 'running'
            ELSE 'waiting' END AS status
FROM work w JOIN whole USING (run_id) JOIN @extschema@.mop_run r USING (run_id)
     CROSS JOIN LATERAL @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS s(status)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

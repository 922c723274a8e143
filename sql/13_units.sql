-- Units: how sessions record failures and results. A unit begins with mop_begin_units and mop_take_states, which are in
-- the directories postgresql and greenplum.

-- The coordinator records that an attempt failed, and the decision about it (`reason`); it inserts the attempt's row if
-- the lost session did not.
CREATE FUNCTION @extschema@.mop_fail_unit(run bigint, run_fencing_token integer, stage integer, iteration integer,
    segment integer, kind text, dataset text, attempt integer, queued_at double precision, message text,
    reason text DEFAULT NULL, token text DEFAULT @extschema@.mop_token())
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    IF NOT EXISTS (SELECT 1 FROM @extschema@.mop_unit u
                   WHERE (u.run_id, u.stage, u.segment, u.kind, u.dataset, u.attempt) = ($1, $3, $5, $6, $7, $8)) THEN
        BEGIN
            INSERT INTO @extschema@.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status,
                queued_at)
            VALUES ($1, $3, $4, $5, $6, $7, $8, 'running', to_timestamp($9));
        EXCEPTION WHEN unique_violation THEN
            NULL;  -- the lost session has committed it meanwhile
        END;
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'failed', finished_at = clock_timestamp(), error = message,
        decision = reason
    WHERE (u.run_id, u.stage, u.segment, u.kind, u.dataset, u.attempt) = ($1, $3, $5, $6, $7, $8)
    AND u.status <> 'finished';
END
$$;

-- A worker session records the results of the units of a command: trained or evaluated together on a segment, or one after
-- the other in a chain. It raises an error if the run was taken over. Training has written the last state of each stage into
-- a state table, unless only the next stage of the chain read it: the stages move on by as many versions as they have units,
-- and the states of the stages in `release` are no longer needed. `began` and `ended` are seconds before now (of a chain).
CREATE FUNCTION @extschema@.mop_finish_units(run bigint, of_kind text, of_dataset text, results json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now_ended timestamptz := clock_timestamp();
    done record;  -- an array for each field of `results`
    moved record;  -- the same of the stages
    changed bigint;
    late integer;
    released integer[];
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    -- (Arrays, not a join with `results`: a join would visit all segments of Greenplum. On PostgreSQL it would read all
    -- units of a new run, since the planner expects a row or two.)
    SELECT array_agg(r.stage) AS stage, array_agg(r.segment) AS segment,
        array_agg(r.stage::bigint << 32 | r.segment) AS unit, array_agg(r.attempt) AS attempt,
        array_agg(r.version) AS version, array_agg(r.kernel) AS kernel,
        array_agg(r.rows) AS rows, array_agg(r.loss) AS loss, array_agg(r.metric) AS metric,
        array_agg(r.read_seconds) AS read_seconds, array_agg(r.train_seconds) AS train_seconds,
        array_agg(r.write_seconds) AS write_seconds, array_agg(r.cpu_seconds) AS cpu_seconds,
        array_agg(r.threads) AS threads, array_agg(r.gpu_utilization) AS gpu_utilization,
        array_agg(r.gpu_memory_bytes) AS gpu_memory_bytes,
        array_agg(r.compilations) AS compilations,
        array_agg(r.choice) AS choice, array_agg(now_ended - r.began * interval '1 second') AS began,
        array_agg(now_ended - coalesce(r.ended, 0) * interval '1 second') AS ended INTO done
    FROM json_to_recordset(results) AS r(stage integer, segment integer, attempt integer, version integer, kernel text,
        rows bigint, loss double precision, metric double precision, read_seconds double precision,
        train_seconds double precision, write_seconds double precision, cpu_seconds double precision,
        threads integer, gpu_utilization double precision, gpu_memory_bytes bigint,
        compilations integer, choice json, began double precision, ended double precision);
    IF of_kind = 'train' THEN
        SELECT array_agg(g.stage) AS stage, array_agg(g.before) AS before, array_agg(g.version) AS version,
            array_agg(g.segment) AS segment, array_agg(g.state_table) AS state_table, array_agg(g.bytes) AS bytes INTO moved
        FROM (SELECT r.stage, CASE WHEN max(r.version) - min(r.version) + 1 = count(*) THEN min(r.version) - 1 END AS before,
                     max(r.version) AS version, max(r.made_on) AS segment,
                     max(r.state_table) AS state_table, max(r.bytes) AS bytes
              FROM json_to_recordset(results) AS r(stage integer, made_on integer, version integer, state_table integer,
                  bytes bigint) GROUP BY r.stage) AS g;
        UPDATE @extschema@.mop_stage_state m SET
            version = moved.version[@extschema@.mop_position(m.stage, moved.stage)],
            made_on = moved.segment[@extschema@.mop_position(m.stage, moved.stage)],
            state_table = moved.state_table[@extschema@.mop_position(m.stage, moved.stage)],
            bytes = moved.bytes[@extschema@.mop_position(m.stage, moved.stage)]
        WHERE m.run_id = run AND m.stage = ANY (moved.stage)
        AND m.version = moved.before[@extschema@.mop_position(m.stage, moved.stage)];
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed <> array_length(moved.stage, 1) THEN
            late := (SELECT n FROM generate_subscripts(moved.stage, 1) AS n
                     WHERE moved.before[n] IS NULL OR NOT EXISTS (
                         SELECT 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = moved.stage[n]
                         AND m.version = moved.version[n] AND m.made_on = moved.segment[n])
                     ORDER BY 1 LIMIT 1);
            RAISE EXCEPTION 'stage % of run % is not at version %', moved.stage[coalesce(late, 1)], run,
                coalesce(moved.before[coalesce(late, 1)], moved.version[coalesce(late, 1)] - 1) USING ERRCODE = '55000';
        END IF;
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'finished',
        started_at = greatest(u.started_at, done.began[@extschema@.mop_position(u.stage::bigint << 32 | u.segment,
            done.unit)]),
        finished_at = greatest(u.started_at, done.ended[@extschema@.mop_position(u.stage::bigint << 32 | u.segment,
            done.unit)]),
        version = done.version[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        kernel = done.kernel[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        rows = done.rows[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        loss = done.loss[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        metric = done.metric[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        read_seconds = done.read_seconds[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        train_seconds = done.train_seconds[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        write_seconds = done.write_seconds[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        cpu_seconds = done.cpu_seconds[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        threads = done.threads[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        gpu_utilization = done.gpu_utilization[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        gpu_memory_bytes = done.gpu_memory_bytes[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        compilations = done.compilations[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)],
        choice = done.choice[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)]
    WHERE (u.run_id, u.kind, u.dataset) = (run, of_kind, of_dataset) AND u.stage = ANY (done.stage)
    AND u.attempt = done.attempt[@extschema@.mop_position(u.stage::bigint << 32 | u.segment, done.unit)]
    AND u.status = 'running';
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> array_length(done.stage, 1) THEN
        RAISE EXCEPTION 'this unit of run % is no longer running', run USING ERRCODE = '55000';
    END IF;
    IF of_kind = 'train' THEN
        released := ARRAY(SELECT e.value::integer FROM json_array_elements(results) AS r,
                                 json_array_elements_text(r.value -> 'release') AS e);
        IF released <> '{}' THEN
            UPDATE @extschema@.mop_stage_state m SET state_table = NULL WHERE m.run_id = run
            AND m.stage = ANY (released);
        END IF;
    END IF;
END
$$;

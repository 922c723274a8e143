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

-- A worker session records the results of the units that it trained or evaluated together on a segment; it raises an
-- error if the run was taken over. A training unit has written its new state into a state table: its stage moves on to
-- the next version, and the states of the stages in `release` are no longer needed.
CREATE FUNCTION @extschema@.mop_finish_units(run bigint, of_segment integer, of_kind text, of_dataset text,
    results json, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended timestamptz := clock_timestamp();
    done record;  -- an array for each field of `results`
    changed bigint;
    late integer;
    released integer[];
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    -- (Arrays, not a join with `results`: a join would visit all segments of Greenplum. On PostgreSQL it would read all
    -- units of a new run, since the planner expects a row or two.)
    SELECT array_agg(r.stage) AS stage, array_agg(r.attempt) AS attempt, array_agg(r.version) AS version,
        array_agg(r.state_table) AS state_table, array_agg(r.bytes) AS bytes, array_agg(r.kernel) AS kernel,
        array_agg(r.rows) AS rows, array_agg(r.loss) AS loss, array_agg(r.metric) AS metric,
        array_agg(r.read_seconds) AS read_seconds, array_agg(r.train_seconds) AS train_seconds,
        array_agg(r.write_seconds) AS write_seconds, array_agg(r.compilations) AS compilations,
        array_agg(r.choice) AS choice INTO done
    FROM json_to_recordset(results) AS r(stage integer, attempt integer, version integer, state_table integer,
        bytes bigint, kernel text, rows bigint, loss double precision, metric double precision,
        read_seconds double precision, train_seconds double precision, write_seconds double precision,
        compilations integer, choice json);
    IF of_kind = 'train' THEN
        UPDATE @extschema@.mop_stage_state m SET version = m.version + 1, made_on = of_segment,
            state_table = done.state_table[@extschema@.mop_position(m.stage, done.stage)],
            bytes = done.bytes[@extschema@.mop_position(m.stage, done.stage)]
        WHERE m.run_id = run AND m.stage = ANY (done.stage)
        AND m.version = done.version[@extschema@.mop_position(m.stage, done.stage)] - 1;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed <> array_length(done.stage, 1) THEN
            late := (SELECT n FROM generate_subscripts(done.stage, 1) AS n
                     WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run
                         AND m.stage = done.stage[n] AND m.version = done.version[n] AND m.made_on = of_segment)
                     ORDER BY 1 LIMIT 1);
            RAISE EXCEPTION 'stage % of run % is not at version %', done.stage[coalesce(late, 1)], run,
                done.version[coalesce(late, 1)] - 1 USING ERRCODE = '55000';
        END IF;
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'finished', finished_at = ended,
        version = done.version[@extschema@.mop_position(u.stage, done.stage)],
        kernel = done.kernel[@extschema@.mop_position(u.stage, done.stage)],
        rows = done.rows[@extschema@.mop_position(u.stage, done.stage)],
        loss = done.loss[@extschema@.mop_position(u.stage, done.stage)],
        metric = done.metric[@extschema@.mop_position(u.stage, done.stage)],
        read_seconds = done.read_seconds[@extschema@.mop_position(u.stage, done.stage)],
        train_seconds = done.train_seconds[@extschema@.mop_position(u.stage, done.stage)],
        write_seconds = done.write_seconds[@extschema@.mop_position(u.stage, done.stage)],
        compilations = done.compilations[@extschema@.mop_position(u.stage, done.stage)],
        choice = done.choice[@extschema@.mop_position(u.stage, done.stage)]
    WHERE (u.run_id, u.segment, u.kind, u.dataset) = ($1, $2, $3, $4) AND u.stage = ANY (done.stage)
    AND u.attempt = done.attempt[@extschema@.mop_position(u.stage, done.stage)] AND u.status = 'running';
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

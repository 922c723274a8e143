-- Units begin: their rows, their stages' locks and parameters.

-- A coordinator or worker session records units as running: a unit, a unit batch, or a chain. Element i of each array
-- belongs to unit i. `on_server`: the other server that does them, in a session of its own.
CREATE FUNCTION @extschema@.mop_begin_units(run bigint, run_fencing_token integer, of_kind text, of_dataset text,
    stages integer[], iterations integer[], segments integer[], attempts integer[], queued double precision[],
    on_server name DEFAULT NULL, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    -- a crash of the server ends these units anyway, so nobody waits for the disk
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO @extschema@.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, backend_pid,
        queued_at, started_at, server)
    SELECT run, u.stage, u.iteration, u.segment, of_kind, of_dataset, u.attempt, 'running',
        CASE WHEN on_server IS NULL THEN pg_backend_pid() END, to_timestamp(u.queued), now(), on_server
    FROM unnest(stages, iterations, segments, attempts, queued) AS u(stage, iteration, segment, attempt, queued);
END
$$;

-- A worker session reads the parameters of its units' stages, and the state tables of those stages that have a state of
-- their own at `versions`. To train, it locks the stages until the transaction ends; they must be at these versions.
CREATE FUNCTION @extschema@.mop_take_states(run bigint, run_fencing_token integer, stages integer[], versions integer[],
    to_train boolean, token text DEFAULT @extschema@.mop_token())
RETURNS TABLE (stage integer, model_id integer, mst_key integer, compile_params text, fit_params text, model_arch text,
    version integer, state_table integer, bytes bigint, made_on integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    late integer;
    taken integer;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    IF to_train THEN
        -- in the order of mop_lock_stages_exclusive
        FOR late IN SELECT e.stage FROM unnest(stages) AS e(stage) ORDER BY 1 LOOP
            PERFORM @extschema@.mop_lock_stage_exclusive(run, late);
        END LOOP;
    END IF;
    -- After the locks: the run may have been taken over while this session waited for them. (Stages are listed, not
    -- joined: for a new run the planner expects a row or two, and a join would read all its stages.)
    RETURN QUERY
        SELECT s.stage, c.model_id, c.mst_key, s.compile_params, s.fit_params, c.model_arch, m.version,
               CASE WHEN m.version = versions[array_position(stages, s.stage)] THEN m.state_table END, m.bytes,
               m.made_on
        FROM @extschema@.mop_run r JOIN @extschema@.mop_stage s USING (run_id)
        JOIN @extschema@.mop_stage_state m USING (run_id, stage)
        JOIN @extschema@.mop_configuration c USING (run_id, mst_key)
        WHERE r.run_id = run AND s.stage = ANY (stages) AND (r.fencing_token = run_fencing_token) IS NOT FALSE
        AND (NOT to_train OR m.version IS NOT DISTINCT FROM versions[array_position(stages, s.stage)]);
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken > 0 AND taken = cardinality(stages) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = run AND r.fencing_token <> run_fencing_token) THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
    late := (SELECT n FROM generate_subscripts(stages, 1) AS n
             WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = stages[n]
                               AND (NOT to_train OR m.version IS NOT DISTINCT FROM versions[n])) ORDER BY 1 LIMIT 1);
    RAISE EXCEPTION 'stage % of run % is not at version %', stages[late], run, versions[late] USING ERRCODE = '55000';
END
$$;

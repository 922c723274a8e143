-- Units begin: the twin of postgresql/13_units.sql.

-- A coordinator or worker session records units as running; element i of each array belongs to unit i.
CREATE FUNCTION @extschema@.mop_begin_units(run bigint, run_fencing_token integer, of_kind text, of_dataset text,
    stages integer[], iterations integer[], segments integer[], attempts integer[], queued double precision[],
    on_server name DEFAULT NULL, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    backend integer := pg_backend_pid();
    started timestamptz := now();
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    -- (one by one, with the run as a literal: INSERT and COMMIT visit one segment. A SET of synchronous_commit would
    -- visit all.)
    FOR i IN 1 .. coalesce(array_length(stages, 1), 0) LOOP
        EXECUTE format('INSERT INTO %s.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, '
                       'backend_pid, queued_at, started_at) VALUES (%L, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)',
                       '@extschema@', run)
            USING stages[i], iterations[i], segments[i], of_kind, of_dataset, attempts[i], 'running'::text, backend,
                  to_timestamp(queued[i]), started;
    END LOOP;
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
    at integer;
    left_over integer[] := stages;
    reached integer;
    found integer[];
    models integer[];
    keys integer[];
    reached_versions integer[];
    state_tables integer[];
    sizes bigint[];
    segments integer[];
    compiled text[];
    fitted text[];
    architectures text[];
BEGIN
    -- (this process need not look up again whether the run is the caller's: 12_tokens.sql)
    IF @extschema@.mop_standing('@extschema@.mop_secret'::regclass, run, token, pg_backend_pid(),
                                timestamptz_send(now())) = 0 THEN
        PERFORM @extschema@.mop_own(run, token);
    END IF;
    IF to_train THEN
        -- in the order of mop_lock_stages_exclusive
        FOR at IN SELECT e.stage FROM unnest(stages) AS e (stage) ORDER BY 1 LOOP
            PERFORM @extschema@.mop_lock_stage_exclusive(run, at);
        END LOOP;
    END IF;
    -- After the locks: the run may have been taken over while this session waited for them. (One query, since each one
    -- visits a segment; and no loop over its rows, since Greenplum would start processes for that.)
    SELECT max(r.fencing_token), array_agg(s.stage), array_agg(m.version), array_agg(m.state_table), array_agg(m.bytes),
           array_agg(m.made_on), array_agg(c.model_id), array_agg(c.mst_key), array_agg(s.compile_params),
           array_agg(s.fit_params), array_agg(c.model_arch)
    INTO reached, found, reached_versions, state_tables, sizes, segments, models, keys, compiled, fitted, architectures
    FROM @extschema@.mop_run r JOIN @extschema@.mop_stage s USING (run_id)
    JOIN @extschema@.mop_stage_state m USING (run_id, stage)
    JOIN @extschema@.mop_configuration c USING (run_id, mst_key)
    WHERE r.run_id = run AND s.stage = ANY (stages);
    IF reached <> run_fencing_token THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
    FOR i IN 1 .. coalesce(array_length(found, 1), 0) LOOP
        at := (SELECT n FROM generate_subscripts(stages, 1) AS n WHERE stages[n] = found[i]);
        CONTINUE WHEN to_train AND reached_versions[i] IS DISTINCT FROM versions[at];
        left_over := array_remove(left_over, found[i]);
        stage := found[i];
        model_id := models[i];
        mst_key := keys[i];
        compile_params := compiled[i];
        fit_params := fitted[i];
        model_arch := architectures[i];
        version := reached_versions[i];
        state_table := CASE WHEN reached_versions[i] = versions[at] THEN state_tables[i] END;
        bytes := sizes[i];
        made_on := segments[i];
        RETURN NEXT;
    END LOOP;
    IF left_over IS DISTINCT FROM '{}' OR stages = '{}' THEN  -- (without a row the fencing token is unknown)
        at := (SELECT n FROM generate_subscripts(stages, 1) AS n WHERE stages[n] = left_over[1]);
        RAISE EXCEPTION 'stage % of run % is not at version %', left_over[1], run, versions[at]
            USING ERRCODE = '55000';
    END IF;
    PERFORM @extschema@.mop_know('@extschema@.mop_secret'::regclass, run, token, timestamptz_send(now()));
END
$$;

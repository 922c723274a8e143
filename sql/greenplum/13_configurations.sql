-- Configurations and stages are added to a run: the twin of postgresql/13_configurations.sql, without ON CONFLICT.

-- A coordinator adds configurations, the stages that they request, and the stage of each of their iterations.
CREATE FUNCTION @extschema@.mop_ask(run bigint, run_fencing_token integer, configurations json, stages json,
    requests json, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    -- mop_lineage reads these parts: what it cannot read is refused here, so that no role's run can make the view fail
    PERFORM (c.member ->> 'parent')::integer, c.member ->> 'changed', c.member ->> 'before', c.member ->> 'after',
        c.member ->> 'inherited', (c.member ->> 'base')::integer, (c.member ->> 'member')::numeric,
        (c.member -> 'choices')::jsonb, (c.member -> 'primitives')::jsonb, (c.member -> 'inherits')::jsonb
    FROM json_to_recordset(configurations) AS c(member json) WHERE c.member IS NOT NULL;
    INSERT INTO @extschema@.mop_configuration (run_id, mst_key, model_id, compile_params, fit_params, model_arch, error,
        blame, weights_sql, weights_md5, member, kept_by)
    SELECT run, c.mst_key, c.model_id, c.compile_params, c.fit_params, c.model_arch, c.error,
        CASE WHEN c.error IS NOT NULL THEN 'configuration' END, c.weights_sql, c.weights_md5, c.member, c.kept_by
    FROM json_to_recordset(configurations) AS c(mst_key integer, model_id integer, compile_params text,
        fit_params text, model_arch text, error text, weights_sql text, weights_md5 text, member json, kept_by text);
    FOR attempt IN 1 .. 2 LOOP
        BEGIN
            -- stages from an earlier call may need an evaluation now
            UPDATE @extschema@.mop_stage t SET evaluated = true
            FROM json_to_recordset(stages) AS s(stage integer, evaluated boolean)
            WHERE t.run_id = run AND t.stage = s.stage AND s.evaluated AND NOT t.evaluated;
            INSERT INTO @extschema@.mop_stage (run_id, stage, parent, iteration, identity, mst_key, compile_params,
                fit_params, evaluated)
            SELECT run, s.stage, s.parent, s.iteration, s.identity, s.mst_key, s.compile_params, s.fit_params,
                s.evaluated
            FROM json_to_recordset(stages) AS s(stage integer, parent integer, iteration integer, identity text,
                mst_key integer, compile_params text, fit_params text, evaluated boolean)
            WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage t WHERE (t.run_id, t.stage) = (run, s.stage));
            INSERT INTO @extschema@.mop_stage_state (run_id, stage, version)
            SELECT run, s.stage, s.version FROM json_to_recordset(stages) AS s(stage integer, version integer)
            WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage_state m WHERE (m.run_id, m.stage) = (run, s.stage));
            INSERT INTO @extschema@.mop_request (run_id, mst_key, iteration, stage)
            SELECT run, r.mst_key, r.iteration, r.stage
            FROM json_to_recordset(requests) AS r(mst_key integer, iteration integer, stage integer)
            WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_request q WHERE q.run_id = run AND q.mst_key = r.mst_key
                              AND q.iteration = r.iteration);
            EXIT;
        EXCEPTION WHEN unique_violation THEN  -- an earlier session, whose answer was lost, commits the same rows now
            IF attempt = 2 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;

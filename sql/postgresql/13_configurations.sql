-- Configurations and stages are added to a run.

-- A coordinator adds configurations, the stages that they request, and the stage of each of their iterations. Stages
-- and requests that exist already, such as those of a call whose answer was lost, are not added again.
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
        blame, weights_sql, weights_md5, fold, fold_of, held_out, member, kept_by)
    SELECT run, c.mst_key, c.model_id, c.compile_params, c.fit_params, c.model_arch, c.error,
        CASE WHEN c.error IS NOT NULL THEN 'configuration' END, c.weights_sql, c.weights_md5,
        c.fold, c.fold_of, c.held_out, c.member, c.kept_by
    FROM json_to_recordset(configurations) AS c(mst_key integer, model_id integer, compile_params text,
        fit_params text, model_arch text, error text, weights_sql text, weights_md5 text, fold integer,
        fold_of integer, held_out integer[], member json, kept_by text);
    INSERT INTO @extschema@.mop_stage (run_id, stage, parent, iteration, identity, mst_key, compile_params, fit_params,
        evaluated)
    SELECT run, s.stage, s.parent, s.iteration, s.identity, s.mst_key, s.compile_params, s.fit_params, s.evaluated
    FROM json_to_recordset(stages) AS s(stage integer, parent integer, iteration integer, identity text,
        mst_key integer, compile_params text, fit_params text, evaluated boolean)
    ON CONFLICT DO NOTHING;
    -- stages from an earlier call may need an evaluation now
    -- (an array: for a new run the planner expects a row or two, and a join would read all its stages)
    UPDATE @extschema@.mop_stage t SET evaluated = true
    WHERE t.run_id = run AND NOT t.evaluated AND t.stage = ANY (ARRAY(
        SELECT s.stage FROM json_to_recordset(stages) AS s(stage integer, evaluated boolean) WHERE s.evaluated));
    INSERT INTO @extschema@.mop_stage_state (run_id, stage, version)
    SELECT run, s.stage, s.version FROM json_to_recordset(stages) AS s(stage integer, version integer)
    ON CONFLICT DO NOTHING;
    INSERT INTO @extschema@.mop_request (run_id, mst_key, iteration, stage)
    SELECT run, r.mst_key, r.iteration, r.stage
    FROM json_to_recordset(requests) AS r(mst_key integer, iteration integer, stage integer)
    ON CONFLICT DO NOTHING;
END
$$;

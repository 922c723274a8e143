-- Metrics: sums of evaluated segments, and the loss and metrics of a whole dataset.

-- A worker session adds a segment's evaluations of stages: `numbers` holds counts[i] numbers of stage i, one stage
-- after the other. It returns the stages whose last segment this was in `complete`, and the sums of all their segments:
-- each number in `value` with its stage in `whose` and its segment in `segments`.
CREATE FUNCTION @extschema@.mop_put_sums(run bigint, of_stages integer[], of_dataset text, of_segment integer,
    counts integer[], numbers double precision[], token text DEFAULT @extschema@.mop_token(),
    OUT complete integer[], OUT whose integer[], OUT segments integer[], OUT value double precision[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted integer[];  -- segments that each stage is evaluated on
    late integer;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    wanted := ARRAY(
        SELECT coalesce(cardinality((
                   SELECT c.held_out FROM @extschema@.mop_configuration c WHERE (c.run_id, c.mst_key) = (run, (
                       SELECT s.mst_key FROM @extschema@.mop_stage s WHERE (s.run_id, s.stage) = (run, e.stage))))),
               d.segments)
        FROM unnest(of_stages) WITH ORDINALITY AS e(stage, n), (
            SELECT count(*)::integer FROM @extschema@.mop_segment s WHERE s.run_id = run AND s.dataset = of_dataset
        ) AS d(segments)
        ORDER BY e.n);
    IF 1 >= ALL (wanted) THEN
        complete := of_stages;
        RETURN;
    END IF;
    -- Sessions with evaluations of one stage take turns, so that exactly one of them is the last. They lock all stages
    -- before they write, in the order of mop_take_states.
    FOR late IN SELECT e.stage FROM unnest(of_stages) AS e(stage) ORDER BY 1 LOOP
        PERFORM @extschema@.mop_lock_stage_exclusive(run, late);
    END LOOP;
    INSERT INTO @extschema@.mop_partial (run_id, stage, dataset, segment, sums)
    SELECT run, e.stage, of_dataset, of_segment, numbers[e.until - e.count + 1 : e.until]
    FROM (SELECT u.stage, u.count, (sum(u.count) OVER (ORDER BY u.n))::integer AS until
          FROM unnest(of_stages, counts) WITH ORDINALITY AS u(stage, count, n)) AS e
    ON CONFLICT (run_id, stage, dataset, segment) DO UPDATE SET sums = EXCLUDED.sums; -- the unit is repeated
    complete := ARRAY(SELECT p.stage FROM @extschema@.mop_partial p
                      WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (of_stages)
                      GROUP BY p.stage
                      HAVING count(*) >= wanted[array_position(of_stages, p.stage)]);
    -- a repeated unit may find metrics from its first attempt
    complete := ARRAY(SELECT e.stage FROM unnest(complete) AS e(stage)
                      EXCEPT SELECT x.stage FROM @extschema@.mop_metric x
                      WHERE (x.run_id, x.dataset) = (run, of_dataset) AND x.stage = ANY (complete) ORDER BY 1);
    IF complete = '{}' THEN
        RETURN;
    END IF;
    SELECT array_agg(v.stage), array_agg(v.segment), array_agg(v.value) INTO whose, segments, value FROM (
        SELECT p.stage, p.segment, unnest(p.sums) AS value FROM @extschema@.mop_partial p
        WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (complete)) AS v;
    DELETE FROM @extschema@.mop_partial p WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (complete);
END
$$;

-- The session that evaluated the last segment records the loss and metrics of stages for a whole dataset.
CREATE FUNCTION @extschema@.mop_note_metrics(run bigint, of_stages integer[], of_dataset text,
    losses double precision[], of_metric double precision[], all_metrics text[],
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    INSERT INTO @extschema@.mop_metric (run_id, stage, dataset, loss, metric, metrics)
    SELECT run, e.stage, of_dataset, e.loss, e.metric, e.metrics::json
    FROM unnest(of_stages, losses, of_metric, all_metrics) AS e(stage, loss, metric, metrics);
END
$$;

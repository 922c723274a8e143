-- Metrics: the twin of postgresql/13_metrics.sql, which says more. Rows are written one by one: a join with a list
-- would visit all segments of the cluster.

-- A worker session adds a segment's evaluations of stages, and gets the sums of those whose last segment this was.
CREATE FUNCTION @extschema@.mop_put_sums(run bigint, of_stages integer[], of_dataset text, of_segment integer,
    counts integer[], numbers double precision[], token text DEFAULT @extschema@.mop_token(),
    OUT complete integer[], OUT whose integer[], OUT segments integer[], OUT value double precision[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    others integer;
    before integer := 0;
    of_stage integer;
    own double precision[];
    repeated integer[];  -- stages whose unit is repeated
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    SELECT count(*) - 1 INTO others FROM @extschema@.mop_segment s WHERE s.run_id = run AND s.dataset = of_dataset;
    IF others <= 0 THEN
        complete := of_stages;
        RETURN;
    END IF;
    -- Sessions with evaluations of one stage take turns, so that exactly one of them is the last. They lock all stages
    -- before they write, in the order of mop_take_states.
    FOR of_stage IN SELECT e.stage FROM unnest(of_stages) AS e (stage) ORDER BY 1 LOOP
        PERFORM @extschema@.mop_lock_stage_exclusive(run, of_stage);
    END LOOP;
    repeated := ARRAY(SELECT p.stage FROM @extschema@.mop_partial p
                   WHERE (p.run_id, p.dataset, p.segment) = (run, of_dataset, of_segment)
                   AND p.stage = ANY (of_stages));
    FOR i IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        of_stage := of_stages[i];
        own := numbers[before + 1 : before + counts[i]];
        before := before + counts[i];
        IF of_stage = ANY (repeated) THEN
            UPDATE @extschema@.mop_partial p SET sums = own
            WHERE (p.run_id, p.stage, p.dataset, p.segment) = (run, of_stage, of_dataset, of_segment);
        ELSE
            INSERT INTO @extschema@.mop_partial (run_id, stage, dataset, segment, sums)
            VALUES (run, of_stage, of_dataset, of_segment, own);
        END IF;
    END LOOP;
    -- (rows are neither grouped nor summed up: Greenplum would start processes for that)
    whose := ARRAY(SELECT p.stage FROM @extschema@.mop_partial p
                   WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (of_stages));
    -- (the array of an empty query is NULL)
    complete := ARRAY(SELECT e.stage FROM unnest(whose) AS e (stage) GROUP BY 1 HAVING count(*) > others ORDER BY 1);
    whose := NULL;
    IF array_length(complete, 1) > 0 THEN  -- a repeated unit may find metrics from its first attempt
        whose := ARRAY(SELECT x.stage FROM @extschema@.mop_metric x
                       WHERE (x.run_id, x.dataset) = (run, of_dataset) AND x.stage = ANY (complete));
        complete := ARRAY(SELECT e.stage FROM unnest(complete) AS e (stage)
                          WHERE e.stage <> ALL (coalesce(whose, '{}')) ORDER BY 1);
        whose := NULL;
    END IF;
    IF array_length(complete, 1) IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(v.stage), array_agg(v.segment), array_agg(v.value) INTO whose, segments, value FROM (
        SELECT p.stage, p.segment, unnest(p.sums) AS value FROM @extschema@.mop_partial p
        WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (complete)) AS v;
    -- The sums are deleted with the run. (A DELETE would lock the whole table: two units that both put sums of
    -- different stages would wait for each other.)
END
$$;

-- The session that evaluated the last segment records the loss and metrics of stages for a whole dataset.
CREATE FUNCTION @extschema@.mop_note_metrics(run bigint, of_stages integer[], of_dataset text,
    losses double precision[], of_metric double precision[], all_metrics text[],
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR i IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        INSERT INTO @extschema@.mop_metric (run_id, stage, dataset, loss, metric, metrics)
        VALUES (run, of_stages[i], of_dataset, losses[i], of_metric[i], all_metrics[i]::json);
    END LOOP;
END
$$;

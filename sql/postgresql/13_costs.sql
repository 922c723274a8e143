-- Costs of training: later runs of the role estimate their times from them (plan/cost_history.py).

-- A coordinator records the costs that units of its run measured, by the server that did them: for each of `nets`, those
-- of units of the stages in its `stages`, {stage: passes over the rows in a unit}. The history keeps the last 9 runs of each
-- row, of their memory the last run's, and 5,000 rows of each role.
CREATE FUNCTION @extschema@.mop_note_costs(run bigint, run_fencing_token integer, nets json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number integer;
    net record;
    noted timestamptz := clock_timestamp();  -- of all rows of this run: what it used is told from what earlier ones did
    oldest timestamptz;
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    number := (SELECT r.owner FROM @extschema@.mop_run r WHERE r.run_id = run);
    FOR net IN -- in one order for all sessions, which cannot deadlock then
        SELECT n.net AS digest, n.architecture, n.optimizer, n.loss, n.batch_size, n.shape, n.stages
        FROM json_to_recordset(nets) AS n(net text, architecture text, optimizer text, loss text, batch_size integer,
            shape text, stages json) ORDER BY 1
    LOOP
        INSERT INTO @extschema@.mop_cost AS c (owner, net, part, version, device, kernel, architecture, optimizer, loss,
            batch_size, shape, batch_seconds, compile_seconds, noted_at, place, unit_seconds, units, memory_bytes)
        SELECT number, net.digest, g.part, g.version, g.device, g.kernel, net.architecture, net.optimizer, net.loss,
               net.batch_size, net.shape, ARRAY[g.batch_seconds], ARRAY[g.compile_seconds], noted, g.place,
               -- (a unit that took very long was disturbed, and counts as one that took ten times the median)
               ARRAY(SELECT avg(least(t.seconds, 10 * m.median)) FROM unnest(g.took) AS t(seconds),
                     (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY o.seconds) AS median
                      FROM unnest(g.took) AS o(seconds)) AS m HAVING count(*) > 0),
               coalesce(array_length(g.took, 1), 0), g.memory_bytes
        FROM (SELECT CASE WHEN (u.choice ->> 'prefix') IS NULL THEN 'model' ELSE 'head' END AS part,
                     u.choice ->> 'version' AS version, u.choice ->> 'device' AS device, k.key AS kernel,
                     coalesce(u.server::text, '') AS place, min(k.value::double precision) AS batch_seconds,
                     max(coalesce((u.choice -> 'compile_seconds' ->> k.key)::double precision, 0)) AS compile_seconds,
                     array_agg(u.train_seconds / greatest(1, w.passes::integer
                         * ceil(u.rows::double precision / net.batch_size)))
                         FILTER (WHERE u.kernel = k.key AND coalesce(u.compilations, 0) = 0) AS took,
                     max((u.choice ->> 'memory_bytes')::bigint) AS memory_bytes
              -- (stage by stage: of a new run the planner expects a row or two, and would read all of it for each net)
              FROM json_each_text(net.stages) AS w(stage, passes) CROSS JOIN LATERAL (
                  SELECT t.* FROM @extschema@.mop_unit t WHERE (t.run_id, t.stage, t.kind) = (run, w.stage::integer, 'train')
                  AND t.status = 'finished' AND (t.choice ->> 'device') IS NOT NULL OFFSET 0) AS u
              CROSS JOIN LATERAL json_each_text(u.choice -> 'batch_seconds') AS k
              GROUP BY 1, 2, 3, 4, 5) AS g
        ORDER BY g.part, g.version, g.device, g.kernel, g.place
        ON CONFLICT ON CONSTRAINT mop_cost_pkey DO UPDATE SET noted_at = EXCLUDED.noted_at,
            batch_seconds = (EXCLUDED.batch_seconds || c.batch_seconds)[1:9],
            compile_seconds = (EXCLUDED.compile_seconds || c.compile_seconds)[1:9],
            unit_seconds = (EXCLUDED.unit_seconds || c.unit_seconds)[1:9], units = EXCLUDED.units,
            memory_bytes = coalesce(EXCLUDED.memory_bytes, c.memory_bytes);
    END LOOP;
    -- (all rows that one run noted have one time, and stay or go together)
    oldest := (SELECT c.noted_at FROM @extschema@.mop_cost c WHERE c.owner = number
               ORDER BY c.noted_at DESC OFFSET 4999 LIMIT 1);
    IF oldest IS NOT NULL THEN
        DELETE FROM @extschema@.mop_cost c WHERE c.owner = number AND c.noted_at < oldest;
    END IF;
END
$$;

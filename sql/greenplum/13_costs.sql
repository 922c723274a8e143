-- Costs of training: the twin of postgresql/13_costs.sql, without ON CONFLICT.

-- A coordinator records the costs that units of its run measured: for each of `nets`, those of units of the stages in
-- its `stages`, {stage: passes over the rows in a unit}. The history keeps the last 9 runs of each row, and 5,000 rows of
-- each role.
CREATE FUNCTION @extschema@.mop_note_costs(run bigint, run_fencing_token integer, nets json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number integer;
    net record;
    measured record;
    noted timestamptz := clock_timestamp();  -- (a replicated table accepts no volatile function)
    oldest timestamptz;
    unit double precision[];
    used integer;
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    number := (SELECT r.owner FROM @extschema@.mop_run r WHERE r.run_id = run);
    FOR net IN
        SELECT n.net AS digest, n.architecture, n.optimizer, n.loss, n.batch_size, n.shape,
               ARRAY(SELECT e::integer FROM json_object_keys(n.stages) AS e) AS stages, n.stages AS passes
        FROM json_to_recordset(nets) AS n(net text, architecture text, optimizer text, loss text, batch_size integer,
            shape text, stages json)
    LOOP
        FOR measured IN
            SELECT CASE WHEN (u.choice ->> 'prefix') IS NULL THEN 'model' ELSE 'head' END AS part,
                   u.choice ->> 'version' AS version, u.choice ->> 'device' AS device, k.key AS kernel,
                   min(k.value::double precision) AS batch,
                   max(coalesce((u.choice -> 'compile_seconds' ->> k.key)::double precision, 0)) AS compile,
                   array_agg(u.train_seconds / greatest(1, (net.passes ->> u.stage::text)::integer
                       * ceil(u.rows::double precision / net.batch_size)))
                       FILTER (WHERE u.kernel = k.key AND coalesce(u.compilations, 0) = 0) AS took
            FROM @extschema@.mop_unit u, json_each_text(u.choice -> 'batch_seconds') AS k
            WHERE u.run_id = run AND u.stage = ANY (net.stages) AND u.kind = 'train' AND u.status = 'finished'
            AND (u.choice ->> 'device') IS NOT NULL
            GROUP BY 1, 2, 3, 4
        LOOP
            -- (a unit that took very long was disturbed, and counts as one that took ten times the median)
            unit := coalesce(ARRAY(SELECT avg(least(t.seconds, 10 * m.median)) FROM unnest(measured.took) AS t(seconds),
                          (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY o.seconds) AS median
                           FROM unnest(measured.took) AS o(seconds)) AS m HAVING count(*) > 0), '{}');
            used := coalesce(array_length(measured.took, 1), 0);
            UPDATE @extschema@.mop_cost c SET noted_at = noted,
                batch_seconds = (measured.batch || c.batch_seconds)[1:9],
                compile_seconds = (measured.compile || c.compile_seconds)[1:9],
                unit_seconds = (unit || c.unit_seconds)[1:9], units = used
            WHERE (c.owner, c.net, c.part, c.version, c.device, c.kernel)
                = (number, net.digest, measured.part, measured.version, measured.device, measured.kernel);
            CONTINUE WHEN FOUND;
            BEGIN
                INSERT INTO @extschema@.mop_cost (owner, net, part, version, device, kernel, architecture, optimizer,
                    loss, batch_size, shape, batch_seconds, compile_seconds, noted_at, unit_seconds, units)
                VALUES (number, net.digest, measured.part, measured.version, measured.device, measured.kernel,
                    net.architecture, net.optimizer, net.loss, net.batch_size, net.shape, ARRAY[measured.batch],
                    ARRAY[measured.compile], noted, unit, used);
            EXCEPTION WHEN unique_violation THEN
                NULL;  -- another run of the role commits the same row now
            END;
        END LOOP;
    END LOOP;
    -- (all rows that one run noted have one time, and stay or go together)
    oldest := (SELECT c.noted_at FROM @extschema@.mop_cost c WHERE c.owner = number
               ORDER BY c.noted_at DESC OFFSET 4999 LIMIT 1);
    IF oldest IS NOT NULL THEN
        DELETE FROM @extschema@.mop_cost c WHERE c.owner = number AND c.noted_at < oldest;
    END IF;
END
$$;

-- Counters for mop_monitoring: they never fall, also where runs are dropped. A coordinator has a row of its own for each of
-- its runs, so that no session waits for another one.

-- A coordinator records what it has counted since it took the run, and never lowers these numbers; and how many units of the
-- run are done and left now, for mop_run_progress.
CREATE FUNCTION @extschema@.mop_note_counts(run bigint, run_fencing_token integer, finished bigint, failed bigint,
    retried bigint, sent bigint, done bigint DEFAULT NULL, remaining bigint DEFAULT NULL,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token);
    -- (sums of many such numbers stay within bigint)
    IF (finished BETWEEN 0 AND 1e15 AND failed BETWEEN 0 AND 1e15 AND retried BETWEEN 0 AND 1e15
            AND sent BETWEEN 0 AND 1e15) IS NOT TRUE
            OR NOT coalesce(done BETWEEN 0 AND 1e15 AND remaining BETWEEN 0 AND 1e15,
                coalesce(done, remaining) IS NULL) THEN
        RAISE EXCEPTION 'a count is a number from 0 to 1e15' USING ERRCODE = '22023';
    END IF;
    -- nothing depends on these rows after a crash
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM @extschema@.mop_count(run, run_fencing_token, finished, failed, retried, sent, NULL, done, remaining);
END
$$;

-- Raises the numbers of a coordinator to these, and records the first outcome of its run: a finished run whose output cannot
-- be written counts as finished, since a counter that falls would be taken for one that began anew.
CREATE FUNCTION @extschema@.mop_count(run bigint, run_fencing_token integer, finished bigint, failed bigint,
    retried bigint, sent bigint, ended text, done bigint DEFAULT NULL, remaining bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE @extschema@.mop_run_count c SET units_finished = greatest(c.units_finished, finished),
        units_failed = greatest(c.units_failed, failed), units_retried = greatest(c.units_retried, retried),
        sent_bytes = greatest(c.sent_bytes, sent), outcome = coalesce(c.outcome, ended), units_done = done,
        units_left = remaining
    WHERE c.run_id = run AND c.fencing_token = run_fencing_token;
    IF NOT FOUND THEN
        INSERT INTO @extschema@.mop_run_count (run_id, fencing_token, owner, outcome, units_finished, units_failed,
            units_retried, sent_bytes, units_done, units_left)
        SELECT run, run_fencing_token, r.owner, ended, finished, failed, retried, sent, done, remaining
        FROM @extschema@.mop_run r WHERE r.run_id = run;
    END IF;
END
$$;

-- A run ends: its log has the true numbers, also of a coordinator that was lost.
CREATE FUNCTION @extschema@.mop_count_whole(run bigint, ended text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    closed @extschema@.mop_run;
    logged record;
    others record;
    -- (the role's sessions tell the bytes)
    sent bigint := (SELECT least(coalesce(sum(h.bytes), 0), 1e15) FROM @extschema@.mop_hop h WHERE h.run_id = run);
BEGIN
    SELECT r.* INTO closed FROM @extschema@.mop_run r WHERE r.run_id = run;
    IF closed.function = 'remote_run' THEN
        RETURN;  -- the coordinator's server counts its units
    END IF;
    SELECT sum(CASE WHEN u.status = 'finished' THEN 1 ELSE 0 END) AS finished,
           sum(CASE WHEN u.status = 'failed' THEN 1 ELSE 0 END) AS failed,
           sum(CASE WHEN u.attempt > 1 THEN 1 ELSE 0 END) AS retried INTO logged
    FROM @extschema@.mop_unit u WHERE u.run_id = run;
    SELECT sum(c.units_finished) AS finished, sum(c.units_failed) AS failed, sum(c.units_retried) AS retried,
           sum(c.sent_bytes) AS sent INTO others
    FROM @extschema@.mop_run_count c WHERE c.run_id = run AND c.fencing_token <> closed.fencing_token;
    PERFORM @extschema@.mop_count(run, closed.fencing_token,
        greatest(0, coalesce(logged.finished, 0) - coalesce(others.finished, 0))::bigint,
        greatest(0, coalesce(logged.failed, 0) - coalesce(others.failed, 0))::bigint,
        greatest(0, coalesce(logged.retried, 0) - coalesce(others.retried, 0))::bigint,
        greatest(0, sent - coalesce(others.sent, 0))::bigint,
        CASE WHEN @extschema@.mop_trains(closed.function) THEN ended END);
END
$$;

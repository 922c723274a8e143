-- Configurations and the search plan of a run. mop_ask, which adds both, is in the directories postgresql and
-- greenplum.

-- A search calls this when it stops a trial: the configuration ends after `iterations`, for the reason `why`.
CREATE FUNCTION @extschema@.mop_withdraw(run bigint, run_fencing_token integer, key integer, iterations integer,
    why text, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    DELETE FROM @extschema@.mop_request r WHERE r.run_id = run AND r.mst_key = key AND r.iteration > iterations;
    UPDATE @extschema@.mop_configuration c SET reason = why WHERE c.run_id = run AND c.mst_key = key;
END
$$;

-- A coordinator calls this when its run has grown much: the planner learns the sizes of the catalog's tables.
CREATE FUNCTION @extschema@.mop_note_growth(run bigint, run_fencing_token integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    PERFORM @extschema@.mop_count_rows();
END
$$;

-- A search appends its events to the log, with numbers from `first` on.
CREATE FUNCTION @extschema@.mop_log_search(run bigint, run_fencing_token integer, first integer, events json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    INSERT INTO @extschema@.mop_search_log (run_id, number, event)
    SELECT run, first + (e.position - 1)::integer, e.event
    FROM json_array_elements(events) WITH ORDINALITY AS e(event, position);
END
$$;

-- A coordinator calls this when it gives configurations up: it records their error, and whether the configuration or
-- the infrastructure is to blame.
CREATE FUNCTION @extschema@.mop_fail_configurations(run bigint, run_fencing_token integer, keys integer[], message text,
    blamed text, token text DEFAULT @extschema@.mop_token())
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    UPDATE @extschema@.mop_configuration c SET error = message, blame = blamed
    WHERE c.run_id = run AND c.mst_key = ANY (keys);
END
$$;

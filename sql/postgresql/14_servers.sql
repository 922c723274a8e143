-- Runs on several servers. On each other server that holds segments of a run, the run has a remote run with the same
-- stages. The remote run's units and states belong to that server; the coordinator's server registers them after their
-- commit.

-- Returns an identity of this database that does not depend on the server's names and addresses.
CREATE FUNCTION @extschema@.mop_identity() RETURNS text LANGUAGE sql STABLE AS $$
SELECT system_identifier || '/' || (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
FROM pg_catalog.pg_control_system()
$$;

-- A coordinator calls this to distribute segments and to check the server: it returns the version of pg_mop, cores,
-- GPUs, the identity, and the servers that the role can reach from this one.
CREATE FUNCTION @extschema@.mop_server_info() RETURNS json
LANGUAGE plpython3u STABLE AS $$ #python pg_mop.api.runs.servers.info(plpy) $$;

-- A coordinator registers a remote run of its run.
CREATE FUNCTION @extschema@.mop_add_remote_run(run bigint, run_fencing_token integer, on_server name, remote_run bigint,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    INSERT INTO @extschema@.mop_remote_run (run_id, server, remote_run) VALUES (run, on_server, remote_run);
END
$$;

-- On the other server: this session replaces the lost session that led the remote run.
CREATE FUNCTION @extschema@.mop_lead_remote_run(run bigint, run_fencing_token integer, coordinator text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    backend record := @extschema@.mop_backend(coordinator, @extschema@.mop_caller(token));
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token);
    UPDATE @extschema@.mop_run r SET coordinator_pid = backend.pid, coordinator_start = backend.start
    WHERE r.run_id = run AND r.fencing_token = run_fencing_token;
END
$$;

-- A coordinator removes the remote run on a server from its run.
CREATE FUNCTION @extschema@.mop_forget_remote_run(run bigint, run_fencing_token integer, of_server name,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    DELETE FROM @extschema@.mop_remote_run g WHERE g.run_id = run AND g.server = of_server;
END
$$;

-- On the other server: returns a finished unit of a remote run with the size of its new state, its sums and its
-- metrics, or NULL if the unit is not finished.
CREATE FUNCTION @extschema@.mop_report_unit(run bigint, of_stage integer, of_segment integer, of_kind text,
    of_dataset text, token text DEFAULT @extschema@.mop_token()) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN (
        SELECT json_build_object(
            'unit', row_to_json(u),
            'bytes', (SELECT m.bytes FROM @extschema@.mop_stage_state m WHERE u.kind = 'train' AND m.run_id = run
                      AND m.stage = of_stage AND m.version = u.version),
            'sums', (SELECT array_to_json(p.sums) FROM @extschema@.mop_partial p WHERE u.kind = 'evaluate'
                     AND (p.run_id, p.stage, p.dataset, p.segment) = (run, of_stage, of_dataset, of_segment)),
            'metrics', (SELECT row_to_json(x) FROM @extschema@.mop_metric x WHERE u.kind = 'evaluate'
                        AND (x.run_id, x.stage, x.dataset) = (run, of_stage, of_dataset)))
        FROM @extschema@.mop_unit u
        WHERE (u.run_id, u.stage, u.segment, u.kind, u.dataset, u.status) =
              (run, of_stage, of_segment, of_kind, of_dataset, 'finished'));
END
$$;

-- A coordinator registers a remote run's report of a unit that a server has done. A stage's state is at the version that was
-- registered last, and only on the server of that unit. A repeated registration changes nothing.
CREATE FUNCTION @extschema@.mop_register_unit(run bigint, run_fencing_token integer, report json, on_server name,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    u @extschema@.mop_unit := json_populate_record(NULL::@extschema@.mop_unit, report -> 'unit');
    x @extschema@.mop_metric := json_populate_record(NULL::@extschema@.mop_metric, CASE
        WHEN json_typeof(report -> 'metrics') = 'object' THEN report -> 'metrics' END);
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    IF EXISTS (SELECT 1 FROM @extschema@.mop_unit o WHERE (o.run_id, o.stage, o.segment, o.kind, o.dataset, o.status) =
               (run, u.stage, u.segment, u.kind, u.dataset, 'finished')) THEN
        RETURN;
    END IF;
    u.run_id := run;
    u.server := on_server;
    DELETE FROM @extschema@.mop_unit o WHERE (o.run_id, o.stage, o.segment, o.kind, o.dataset, o.attempt) =
        (run, u.stage, u.segment, u.kind, u.dataset, u.attempt);
    INSERT INTO @extschema@.mop_unit SELECT u.*;
    IF u.kind = 'train' THEN
        UPDATE @extschema@.mop_stage_state m SET version = u.version, state_table = NULL,
            bytes = (report ->> 'bytes')::bigint
        WHERE m.run_id = run AND m.stage = u.stage AND m.version = u.version - 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'stage % of run % is not at version %', u.stage, run, u.version - 1 USING ERRCODE = '55000';
        END IF;
    ELSIF report ->> 'metrics' IS NOT NULL THEN
        INSERT INTO @extschema@.mop_metric (run_id, stage, dataset, loss, metric, metrics)
        VALUES (run, u.stage, u.dataset, x.loss, x.metric, x.metrics) ON CONFLICT DO NOTHING;
        DELETE FROM @extschema@.mop_partial p WHERE (p.run_id, p.stage, p.dataset) = (run, u.stage, u.dataset);
    ELSIF report ->> 'sums' IS NOT NULL THEN
        PERFORM @extschema@.mop_put_partials(run, run_fencing_token, u.stage, u.dataset,
                                             json_build_object(u.segment, report -> 'sums'), token);
    END IF;
END
$$;

-- A coordinator records states that have arrived: of each its stage, version, source and target ('' for this server), way,
-- bytes and seconds.
CREATE FUNCTION @extschema@.mop_note_hops(run bigint, run_fencing_token integer, hops json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    -- nothing depends on these rows, so nobody waits for the disk
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO @extschema@.mop_hop AS h (run_id, stage, version, source, target, way, bytes, seconds)
    SELECT DISTINCT ON (r.stage, r.version, r.target) run, r.stage, r.version, r.source, r.target, r.way, r.bytes, r.seconds
    FROM json_to_recordset(hops) AS r(stage integer, version integer, source text, target text, way text, bytes bigint,
        seconds double precision)
    ON CONFLICT (run_id, stage, version, target) DO UPDATE SET source = EXCLUDED.source, way = EXCLUDED.way,
        bytes = EXCLUDED.bytes, seconds = h.seconds + EXCLUDED.seconds, noted_at = EXCLUDED.noted_at;
END
$$;

-- A coordinator reads the sums of the evaluated segments, for the server that evaluates the last segment.
CREATE FUNCTION @extschema@.mop_take_partials(run bigint, of_stage integer, of_dataset text,
    token text DEFAULT @extschema@.mop_token()) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN (SELECT json_object_agg(p.segment, p.sums) FROM @extschema@.mop_partial p
            WHERE (p.run_id, p.stage, p.dataset) = (run, of_stage, of_dataset));
END
$$;

-- A coordinator stores sums of segments that other servers evaluated.
CREATE FUNCTION @extschema@.mop_put_partials(run bigint, run_fencing_token integer, of_stage integer, of_dataset text,
    sums json, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    INSERT INTO @extschema@.mop_partial (run_id, stage, dataset, segment, sums)
    SELECT run, of_stage, of_dataset, o.key::integer,
           ARRAY(SELECT v::double precision FROM json_array_elements_text(o.value) WITH ORDINALITY AS e(v, position)
                 ORDER BY e.position)
    FROM json_each(sums) AS o
    ON CONFLICT DO NOTHING;
END
$$;

-- Model states move between servers with INSERT INTO one server's mop_arrivals SELECT ... FROM another's
-- mop_departures; either may be a postgres_fdw table. A row is one part of a state; `server` identifies the server that
-- sent it.
CREATE VIEW @extschema@.mop_departures WITH (security_barrier) AS
SELECT m.run_id, m.stage, m.version, (p.position - 1)::integer AS part, p.data, @extschema@.mop_identity() AS server
FROM @extschema@.mop_stage_state m
CROSS JOIN LATERAL @extschema@.mop_read_states(m.run_id, ARRAY[m.stage], ARRAY[m.version])
    WITH ORDINALITY AS p(stage, data, position)
WHERE m.state_table IS NOT NULL AND m.run_id = ANY (ARRAY(
    SELECT r.run_id FROM @extschema@.mop_run r JOIN @extschema@.mop_owner o USING (owner)
    WHERE o.who = to_regrole(quote_ident(current_user))));

-- Rows inserted here are parts of a state for state table `target`.
CREATE VIEW @extschema@.mop_arrivals AS
SELECT NULL::bigint AS run_id, NULL::integer AS stage, NULL::integer AS version, NULL::integer AS target,
       NULL::integer AS part, NULL::bytea AS data, NULL::text AS token WHERE false;
ALTER VIEW @extschema@.mop_arrivals ALTER token SET DEFAULT @extschema@.mop_token();

-- Trigger of mop_arrivals: it writes the part into the state table.
CREATE FUNCTION @extschema@.mop_arrive() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_RELID <> '@extschema@.mop_arrivals'::regclass THEN
        RAISE EXCEPTION 'this is the trigger of mop_arrivals' USING ERRCODE = '42501';
    END IF;
    PERFORM @extschema@.mop_own(NEW.run_id, NEW.token);
    EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_state_table_name(NEW.run_id, NEW.target))
            || ' VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING' USING NEW.stage, NEW.version, NEW.part, NEW.data;
    RETURN NEW;
END
$$;

-- A coordinator calls this when all parts of a state have arrived in state table `target`: the stage has this version
-- on this server, too. Returns the state's bytes.
CREATE FUNCTION @extschema@.mop_arrived(run bigint, run_fencing_token integer, of_stage integer, at_version integer,
    target integer, token text DEFAULT @extschema@.mop_token()) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size bigint;
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    EXECUTE 'SELECT sum(octet_length(data)) FROM @extschema@.'
            || quote_ident(@extschema@.mop_state_table_name(run, target)) || ' WHERE stage = $1 AND version = $2'
        INTO size USING of_stage, at_version;
    UPDATE @extschema@.mop_stage_state m SET version = at_version, state_table = target, bytes = size
    WHERE m.run_id = run AND m.stage = of_stage AND m.version <= at_version AND size IS NOT NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'version % of stage % of run % has not arrived', at_version, of_stage, run
            USING ERRCODE = '55000';
    END IF;
    RETURN size;
END
$$;

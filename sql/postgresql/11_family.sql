-- What PostgreSQL and Greenplum say differently, under names that both have: greenplum/11_family.sql is its twin.

CREATE FUNCTION @extschema@.mop_sha256(data bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.sha256($1)
$$;

-- the role of a name, NULL where there is none
CREATE FUNCTION @extschema@.mop_role(name name) RETURNS oid LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.to_regrole(pg_catalog.quote_ident($1))::pg_catalog.oid
$$;

-- What follows is for functions of the extension's owner alone, which have set search_path. All locks last until the
-- transaction's end.

-- nobody takes the run over or drops it: its epoch, NULL where it is gone
CREATE FUNCTION @extschema@.mop_lock_run_shared(run bigint) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
BEGIN
    SELECT r.fencing_token INTO reached FROM @extschema@.mop_run r WHERE r.run_id = run FOR KEY SHARE;
    RETURN reached;
END
$$;

-- Raises unless the run is the calling role's: for who reads the run itself afterwards, and then tells so by
-- mop_has_seen.
CREATE FUNCTION @extschema@.mop_own_once(run bigint, token text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
END
$$;

CREATE FUNCTION @extschema@.mop_has_seen(run bigint, token text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END
$$;

-- nobody holds the run, and nobody else takes it over or drops it
CREATE FUNCTION @extschema@.mop_lock_run_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_run r WHERE r.run_id = run FOR UPDATE;
END
$$;

-- nobody else trains the stage
CREATE FUNCTION @extschema@.mop_lock_stage_exclusive(run bigint, of_stage integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = of_stage FOR NO KEY UPDATE;
END
$$;

-- nobody is at work on any stage of the run
CREATE FUNCTION @extschema@.mop_lock_stages_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run ORDER BY m.stage FOR UPDATE;
END
$$;

-- nobody else drops or takes over these checkpoints
CREATE FUNCTION @extschema@.mop_lock_checkpoints_exclusive(runs bigint[], stages integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_checkpoint c
    WHERE (c.run_id, c.stage) IN (SELECT l.run_id, l.stage FROM unnest(runs, stages) AS l(run_id, stage))
    ORDER BY c.run_id, c.stage FOR NO KEY UPDATE;
END
$$;

-- nobody else does what is done for a role by one session at a time
CREATE FUNCTION @extschema@.mop_lock_owner_exclusive(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_owner o WHERE o.owner = number FOR NO KEY UPDATE;
END
$$;

-- a role's runs that may have lost their coordinator, held but for those that somebody else takes over
CREATE FUNCTION @extschema@.mop_lock_lost_runs_exclusive(number integer) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT r.run_id FROM @extschema@.mop_run r
        WHERE r.owner = number AND r.status = 'running' AND @extschema@.mop_status(
            r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'failed'
        FOR NO KEY UPDATE SKIP LOCKED;
END
$$;

-- forgets the output of runs that are gone
CREATE FUNCTION @extschema@.mop_forget_outputs() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @extschema@.mop_output o WHERE o.run_id IN (
        SELECT w.run_id FROM @extschema@.mop_output w WHERE NOT EXISTS (
            SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = w.run_id) FOR UPDATE SKIP LOCKED);
END
$$;

-- a state_table's table, by its quoted name
CREATE FUNCTION @extschema@.mop_make_state_table(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET default_table_access_method = 'heap' AS $$
BEGIN
    EXECUTE 'CREATE TABLE @extschema@.' || name || ' (stage integer, version integer, part integer, '
            'data bytea NOT NULL, PRIMARY KEY (stage, version, part)) WITH (autovacuum_enabled = false, '
            'toast.autovacuum_enabled = false)';
END
$$;

-- where a number is in a list
CREATE FUNCTION @extschema@.mop_place_of(one integer, list integer[]) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.array_position($2, $1)
$$;

-- nobody waits for the disk that is to have this transaction
CREATE FUNCTION @extschema@.mop_commit_soon() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
END
$$;

-- notes a unit as running
CREATE FUNCTION @extschema@.mop_put_unit(run bigint, stage integer, iteration integer, segment integer, kind text,
    dataset text, attempt integer, backend integer, queued timestamptz, started timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO @extschema@.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, backend_pid,
        queued_at, started_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, 'running', $8, $9, $10);
END
$$;

-- nobody needs the segments' sums of evaluations any more
CREATE FUNCTION @extschema@.mop_forget_sums(run bigint, stages integer[], of_dataset text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @extschema@.mop_partial p WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (stages);
END
$$;

-- copies a state from a state_table (the names of their tables) to another, as that of a stage there: how many parts it has
CREATE FUNCTION @extschema@.mop_copy_state(source text, of_stage integer, at_version integer, target text,
    to_stage integer) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    parts bigint;
BEGIN
    EXECUTE format('INSERT INTO %s.%I SELECT %s, s.version, s.part, s.data FROM %s.%I s '
                   'WHERE s.stage = %s AND s.version = %s', '@extschema@', target, to_stage, '@extschema@', source,
                   of_stage, at_version);
    GET DIAGNOSTICS parts = ROW_COUNT;
    RETURN parts;
END
$$;

-- Deletes a run's state_table, or all of them. The table goes by a trigger, as where the run is deleted.
CREATE FUNCTION @extschema@.mop_delete_state_tables(run bigint, one integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE @extschema@.mop_stage_state m SET state_table = NULL
    WHERE m.run_id = run AND m.state_table IS NOT NULL AND (one IS NULL OR m.state_table = one);
    DELETE FROM @extschema@.mop_state_table g WHERE g.run_id = run AND (one IS NULL OR g.state_table = one);
END
$$;

-- deletes a run with all that belongs to it
CREATE FUNCTION @extschema@.mop_delete_run(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @extschema@.mop_run r WHERE r.run_id = run;
END
$$;

-- --- triggers --------------------------------------------------------------------------------------

-- The role that is called so: where a row is written by hand, or comes from a dump, which has no oids.
CREATE FUNCTION @extschema@.mop_find_role() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    renamed boolean := true;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        renamed := NEW.role IS DISTINCT FROM OLD.role;
        IF renamed AND NEW.who IS NOT DISTINCT FROM OLD.who THEN
            NEW.who := NULL;
        END IF;
    END IF;
    IF NEW.who IS NULL AND NEW.role IS NOT NULL THEN
        NEW.who := coalesce(to_regrole(quote_ident(NEW.role)), 0::regrole);
    END IF;
    IF renamed AND TG_TABLE_NAME = 'mop_limit' THEN
        -- a role that is gone, or is called otherwise now, does not keep its name from others
        DELETE FROM @extschema@.mop_limit l WHERE l.role = NEW.role AND l.who <> 0::oid
        AND NOT EXISTS (SELECT 1 FROM pg_roles a WHERE a.oid = l.who);
        UPDATE @extschema@.mop_limit l SET role = a.rolname FROM pg_roles a
        WHERE l.role = NEW.role AND a.oid = l.who AND a.rolname <> l.role;
    END IF;
    RETURN NEW;
END
$$;

-- Tells the planner how large the tables of runs are. Of a run that it has not met it expects a row or two, and would
-- look at all of its units for each of its stages. (Another session that does so just now is enough.)
CREATE FUNCTION @extschema@.mop_count_rows() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    ANALYZE (SKIP_LOCKED) @extschema@.mop_configuration, @extschema@.mop_stage, @extschema@.mop_request,
        @extschema@.mop_unit, @extschema@.mop_metric, @extschema@.mop_stage_state;
END
$$;

-- a state_table's table goes with its row
CREATE FUNCTION @extschema@.mop_state_table_gone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    IF TG_RELID <> '@extschema@.mop_state_table'::regclass THEN
        RAISE EXCEPTION 'this is the trigger of mop_state_table' USING ERRCODE = '42501';
    END IF;
    name := '@extschema@.' || quote_ident(@extschema@.mop_state_table_name(OLD.run_id, OLD.state_table));
    IF to_regclass(name) IS NOT NULL THEN
        EXECUTE 'ALTER EXTENSION pg_mop DROP TABLE ' || name;
        EXECUTE 'DROP TABLE ' || name;
    END IF;
    RETURN OLD;
END
$$;

-- Functions with the same names on PostgreSQL and Greenplum, whose bodies differ: locks, state tables, triggers. The
-- twin is greenplum/11_family.sql.

-- Returns a digest: tokens and keys of locks are made of digests.
CREATE FUNCTION @extschema@.mop_sha256(data bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.sha256($1)
$$;

-- Returns the OID of the role with this name, or NULL.
CREATE FUNCTION @extschema@.mop_role(name name) RETURNS oid LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.to_regrole(pg_catalog.quote_ident($1))::pg_catalog.oid
$$;

-- Only functions of the extension's owner with a fixed search_path may call the following functions. All locks last
-- until the transaction ends.

-- Returns the run's fencing token, or NULL without a run. Afterwards no session takes the run over or drops it.
CREATE FUNCTION @extschema@.mop_lock_run_shared(run bigint) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
BEGIN
    SELECT r.fencing_token INTO reached FROM @extschema@.mop_run r WHERE r.run_id = run FOR KEY SHARE;
    RETURN reached;
END
$$;

-- Waits for all locks on the run. Afterwards no other session uses, takes over or drops it.
CREATE FUNCTION @extschema@.mop_lock_run_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_run r WHERE r.run_id = run FOR UPDATE;
END
$$;

-- Afterwards no other session trains the stage.
CREATE FUNCTION @extschema@.mop_lock_stage_exclusive(run bigint, of_stage integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = of_stage FOR NO KEY UPDATE;
END
$$;

-- Afterwards no other session trains any stage of the run.
CREATE FUNCTION @extschema@.mop_lock_stages_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run ORDER BY m.stage FOR UPDATE;
END
$$;

-- Afterwards no other session drops or takes over these checkpoints.
CREATE FUNCTION @extschema@.mop_lock_checkpoints_exclusive(runs bigint[], stages integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    locked record;
BEGIN
    FOR locked IN SELECT l.* FROM unnest(runs, stages) AS l(run_id, stage) ORDER BY 1, 2 LOOP
        PERFORM 1 FROM @extschema@.mop_checkpoint c WHERE (c.run_id, c.stage) = (locked.run_id, locked.stage)
        FOR NO KEY UPDATE;
    END LOOP;
END
$$;

-- Afterwards no other session evicts checkpoints of this owner.
CREATE FUNCTION @extschema@.mop_lock_owner_exclusive(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM @extschema@.mop_owner o WHERE o.owner = number FOR NO KEY UPDATE;
END
$$;

-- Locks and returns the runs of an owner that may have lost their coordinator; it skips runs that another session
-- locked.
CREATE FUNCTION @extschema@.mop_lock_lost_runs_exclusive(number integer) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY SELECT r.run_id FROM @extschema@.mop_run r
        WHERE r.owner = number AND r.status = 'running' AND @extschema@.mop_status(
            r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'failed'
        FOR NO KEY UPDATE SKIP LOCKED;
END
$$;

-- Deletes the output records of deleted runs.
CREATE FUNCTION @extschema@.mop_forget_outputs() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @extschema@.mop_output o WHERE o.run_id IN (
        SELECT w.run_id FROM @extschema@.mop_output w WHERE NOT EXISTS (
            SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = w.run_id) FOR UPDATE SKIP LOCKED);
END
$$;

-- Creates the table of a state table; `name` is quoted.
CREATE FUNCTION @extschema@.mop_make_state_table(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET default_table_access_method = 'heap' AS $$
BEGIN
    EXECUTE 'CREATE TABLE @extschema@.' || name || ' (stage integer, version integer, part integer, '
            'data bytea NOT NULL, PRIMARY KEY (stage, version, part)) WITH (autovacuum_enabled = false, '
            'toast.autovacuum_enabled = false)';
END
$$;

-- Returns the position of a number in a list.
CREATE FUNCTION @extschema@.mop_position(number integer, list integer[]) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.array_position($2, $1)
$$;

CREATE FUNCTION @extschema@.mop_position(number bigint, list bigint[]) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.array_position($2, $1)
$$;

-- Copies a stage's state from table `source` to table `target`, where it belongs to `to_stage`; returns the number of
-- parts.
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

-- Deletes one state table of a run, or all of them. The trigger state_table_gone drops the table, as it does for a
-- deleted run.
CREATE FUNCTION @extschema@.mop_delete_state_tables(run bigint, only_table integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE @extschema@.mop_stage_state m SET state_table = NULL
    WHERE m.run_id = run AND m.state_table IS NOT NULL AND (only_table IS NULL OR m.state_table = only_table);
    DELETE FROM @extschema@.mop_state_table g
    WHERE g.run_id = run AND (only_table IS NULL OR g.state_table = only_table);
END
$$;

-- Deletes a run with all its rows and state tables.
CREATE FUNCTION @extschema@.mop_delete_run(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @extschema@.mop_run r WHERE r.run_id = run;
END
$$;

-- Sums up the counts of dropped runs of an owner, if they have many rows. It skips rows that another session sums up.
CREATE FUNCTION @extschema@.mop_sum_up_counts(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (SELECT count(*) FROM @extschema@.mop_past_count c WHERE c.owner = number) < 100 THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM @extschema@.mop_past_count c WHERE c.ctid = ANY (ARRAY(
            SELECT l.ctid FROM @extschema@.mop_past_count l WHERE l.owner = number FOR UPDATE SKIP LOCKED)) RETURNING c.*
    )
    INSERT INTO @extschema@.mop_past_count
    SELECT g.owner, sum(g.runs_finished), sum(g.runs_failed), sum(g.runs_cancelled), least(sum(g.units_finished), 9e18),
           least(sum(g.units_failed), 9e18), least(sum(g.units_retried), 9e18), least(sum(g.sent_bytes), 9e18),
           sum(g.core_seconds)
    FROM gone g GROUP BY g.owner;
END
$$;

-- --- triggers --------------------------------------------------------------------------------------

-- Trigger of mop_owner and mop_limit: it fills in the OID of the named role in rows from a user or from a dump, which
-- has no OIDs.
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
        -- rows of dropped and renamed roles do not block the name for a new role
        DELETE FROM @extschema@.mop_limit l WHERE l.role = NEW.role AND l.who <> 0::oid
        AND NOT EXISTS (SELECT 1 FROM pg_roles a WHERE a.oid = l.who);
        UPDATE @extschema@.mop_limit l SET role = a.rolname FROM pg_roles a
        WHERE l.role = NEW.role AND a.oid = l.who AND a.rolname <> l.role;
    END IF;
    RETURN NEW;
END
$$;

-- Tells the planner the sizes of the catalog's tables: for a new run it expects a row or two, and would read all units
-- of the run for each stage. It skips tables that another session analyzes now.
CREATE FUNCTION @extschema@.mop_count_rows() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    ANALYZE (SKIP_LOCKED) @extschema@.mop_configuration, @extschema@.mop_stage, @extschema@.mop_request,
        @extschema@.mop_unit, @extschema@.mop_metric, @extschema@.mop_stage_state;
END
$$;

-- Trigger of mop_state_table: the table is dropped with its row.
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

-- Trigger of mop_run_count and mop_turn: what a run has counted stays when its row goes.
CREATE FUNCTION @extschema@.mop_keep_counts() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_NAME = 'mop_turn' THEN
        INSERT INTO @extschema@.mop_past_count (owner, core_seconds) VALUES (OLD.owner, OLD.used);
    ELSE
        INSERT INTO @extschema@.mop_past_count (owner, runs_finished, runs_failed, runs_cancelled, units_finished,
            units_failed, units_retried, sent_bytes)
        SELECT OLD.owner, CASE WHEN OLD.outcome = 'finished' THEN 1 ELSE 0 END,
               CASE WHEN OLD.outcome = 'failed' THEN 1 ELSE 0 END, CASE WHEN OLD.outcome = 'cancelled' THEN 1 ELSE 0 END,
               OLD.units_finished, OLD.units_failed, OLD.units_retried, OLD.sent_bytes;
    END IF;
    RETURN NULL;
END
$$;

-- Trigger of mop_limit: the audit log tells who changed a role's limits. (It is the owner who may write there. The role in
-- force is that of SET ROLE, or the login.)
CREATE FUNCTION @extschema@.mop_audit_limit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_role(coalesce(nullif(current_setting('role'), 'none'), session_user)::name);
    was json := CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN row_to_json(OLD) END;
    is_now json := CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN row_to_json(NEW) END;
BEGIN
    IF TG_RELID <> '@extschema@.mop_limit'::regclass THEN
        RAISE EXCEPTION 'this is the trigger of mop_limit' USING ERRCODE = '42501';
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM @extschema@.mop_audit_act(caller, 'truncate limits', NULL);
        RETURN NULL;
    END IF;
    PERFORM @extschema@.mop_audit_act(caller, lower(TG_OP) || ' limits', NULL, json_build_object('role', coalesce(
            is_now ->> 'role', was ->> 'role'), 'changed', (
        SELECT json_object_agg(n.key, json_build_object('from', was -> n.key, 'to', is_now -> n.key))
        FROM json_object_keys(coalesce(is_now, was)) AS n(key)
        WHERE n.key NOT IN ('role', 'who') AND (was ->> n.key) IS DISTINCT FROM (is_now ->> n.key))));
    RETURN NULL;
END
$$;

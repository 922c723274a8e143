-- Functions with the same names on PostgreSQL and Greenplum, whose bodies differ. The twin, postgresql/11_family.sql,
-- says more about each.
--
-- On Greenplum a row lock, and so an UPDATE or DELETE, locks the whole table while the deadlock detector is off (the
-- default). Therefore locks that last as long as a unit are advisory locks, with keys that the secret makes impossible
-- to guess. Queries of tables run on segments. Therefore the session's own properties (its process, its locks) are read
-- in expressions without a table.

-- Returns a digest: tokens and keys of locks are made of digests.
CREATE FUNCTION @extschema@.mop_sha256(data bytea) RETURNS bytea LANGUAGE plpython3u IMMUTABLE STRICT AS $$
import hashlib
return hashlib.sha256(data).digest()
$$;

-- Returns the OID of the role with this name, or NULL.
CREATE FUNCTION @extschema@.mop_role(name name) RETURNS oid LANGUAGE sql STABLE AS $$
    SELECT a.oid FROM pg_catalog.pg_roles a WHERE a.rolname OPERATOR(pg_catalog.=) $1
$$;

-- Returns the key of an advisory lock.
CREATE FUNCTION @extschema@.mop_lock_number(kind text, run bigint, part bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ('x' || left(encode(@extschema@.mop_sha256(
        @extschema@.mop_the_secret('@extschema@.mop_secret'::regclass) || convert_to(kind, 'UTF8') || int8send(run)
        || int8send(part)), 'hex'), 16))::bit(64)::bigint;
END
$$;

-- Returns the run's fencing token, or NULL without a run. Afterwards no session takes the run over or drops it. (With
-- the run as a literal the query visits one segment.)
CREATE FUNCTION @extschema@.mop_lock_run_shared(run bigint) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@extschema@.mop_lock_number('run', run, 0));
    EXECUTE format('SELECT r.fencing_token FROM %s.mop_run r WHERE r.run_id = %L', '@extschema@', run) INTO reached;
    RETURN reached;
END
$$;

-- Waits for all locks on the run. Afterwards no other session uses, takes over or drops it.
CREATE FUNCTION @extschema@.mop_lock_run_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('run', run, 0));
END
$$;

-- Afterwards no other session trains the stage.
CREATE FUNCTION @extschema@.mop_lock_stage_exclusive(run bigint, of_stage integer) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@extschema@.mop_lock_number('models', run, 0));
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('model', run, of_stage));
END
$$;

-- Afterwards no other session trains any stage of the run.
CREATE FUNCTION @extschema@.mop_lock_stages_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('models', run, 0));
END
$$;

-- Afterwards no other session drops or takes over these checkpoints.
CREATE FUNCTION @extschema@.mop_lock_checkpoints_exclusive(runs bigint[], stages integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    checkpoint record;
BEGIN
    FOR checkpoint IN SELECT DISTINCT l.run_id, l.stage FROM unnest(runs, stages) AS l(run_id, stage) ORDER BY 1, 2 LOOP
        PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('checkpoint', checkpoint.run_id, checkpoint.stage));
    END LOOP;
END
$$;

-- Afterwards no other session evicts checkpoints of this owner.
CREATE FUNCTION @extschema@.mop_lock_owner_exclusive(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('owner', 0, number));
END
$$;

-- Locks and returns the runs of an owner that may have lost their coordinator; it skips runs that another session
-- locked.
CREATE FUNCTION @extschema@.mop_lock_lost_runs_exclusive(number integer) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    lost record;
BEGIN
    FOR lost IN SELECT r.* FROM @extschema@.mop_run r WHERE r.owner = number AND r.status = 'running' LOOP
        IF @extschema@.mop_status(lost.status, lost.coordinator_pid, lost.coordinator_start, 'failed') = 'failed'
           AND pg_try_advisory_xact_lock(@extschema@.mop_lock_number('run', lost.run_id, 0)) THEN
            RETURN NEXT lost.run_id;
        END IF;
    END LOOP;
END
$$;

-- Deletes the output records of deleted runs.
CREATE FUNCTION @extschema@.mop_forget_outputs() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @extschema@.mop_output o WHERE NOT EXISTS (
        SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = o.run_id);
END
$$;

-- Creates the table of a state table; `name` is quoted. A state stays on the host segment where it was made, whose
-- number in mop_host_segment is `dist_key`.
CREATE FUNCTION @extschema@.mop_make_state_table(name text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    EXECUTE 'CREATE TABLE @extschema@.' || name || ' (stage integer, version integer, part integer, '
            'data bytea NOT NULL, dist_key integer NOT NULL DEFAULT 0, PRIMARY KEY (dist_key, stage, version, part)) '
            'WITH (appendonly = false) DISTRIBUTED BY (dist_key)';
END
$$;

-- Returns the position of a number in a list. It runs on segments, with the search_path of the caller's session.
CREATE FUNCTION @extschema@.mop_position(number integer, list integer[]) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    FOR i IN 1 .. pg_catalog.array_length(list, 1) LOOP
        IF list[i] OPERATOR(pg_catalog.=) number THEN
            RETURN i;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE FUNCTION @extschema@.mop_position(number bigint, list bigint[]) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    FOR i IN 1 .. pg_catalog.array_length(list, 1) LOOP
        IF list[i] OPERATOR(pg_catalog.=) number THEN
            RETURN i;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Copies a stage's state from table `source` to table `target`, where it belongs to `to_stage`; returns the number of
-- parts.
CREATE FUNCTION @extschema@.mop_copy_state(source text, of_stage integer, at_version integer, target text,
    to_stage integer) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    parts bigint;
BEGIN
    EXECUTE format('INSERT INTO %s.%I SELECT %s, s.version, s.part, s.data, s.dist_key FROM %s.%I s '
                   'WHERE s.stage = %s AND s.version = %s', '@extschema@', target, to_stage, '@extschema@', source,
                   of_stage, at_version);
    GET DIAGNOSTICS parts = ROW_COUNT;
    RETURN parts;
END
$$;

-- The setting gp_autostats_mode does this on Greenplum.
CREATE FUNCTION @extschema@.mop_count_rows() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END
$$;

-- Deletes one state table of a run, or all of them. (Triggers run on segments, which cannot drop a table.)
CREATE FUNCTION @extschema@.mop_delete_state_tables(run bigint, only_table integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    late integer;
    name text;
BEGIN
    UPDATE @extschema@.mop_stage_state m SET state_table = NULL
    WHERE m.run_id = run AND m.state_table IS NOT NULL AND (only_table IS NULL OR m.state_table = only_table);
    FOR late IN SELECT g.state_table FROM @extschema@.mop_state_table g
                WHERE g.run_id = run AND (only_table IS NULL OR g.state_table = only_table) ORDER BY 1
    LOOP
        name := '@extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, late));
        IF to_regclass(textout(name)) IS NOT NULL THEN
            EXECUTE 'ALTER EXTENSION pg_mop DROP TABLE ' || name;
            EXECUTE 'DROP TABLE ' || name;
        END IF;
        DELETE FROM @extschema@.mop_state_table g WHERE g.run_id = run AND g.state_table = late;
    END LOOP;
END
$$;

-- The rows stay as they are: to sum them up would lock the whole table.
CREATE FUNCTION @extschema@.mop_sum_up_counts(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END
$$;

-- Deletes a run with all its rows and state tables; what it has counted stays. (Foreign keys are not enforced.)
CREATE FUNCTION @extschema@.mop_delete_run(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    name text;
BEGIN
    PERFORM @extschema@.mop_delete_state_tables(run);
    INSERT INTO @extschema@.mop_past_count (owner, runs_finished, runs_failed, runs_cancelled, units_finished, units_failed,
        units_retried, sent_bytes)
    SELECT c.owner, sum(CASE WHEN c.outcome = 'finished' THEN 1 ELSE 0 END),
           sum(CASE WHEN c.outcome = 'failed' THEN 1 ELSE 0 END), sum(CASE WHEN c.outcome = 'cancelled' THEN 1 ELSE 0 END),
           least(sum(c.units_finished), 9e18), least(sum(c.units_failed), 9e18), least(sum(c.units_retried), 9e18),
           least(sum(c.sent_bytes), 9e18)
    FROM @extschema@.mop_run_count c WHERE c.run_id = run GROUP BY c.owner;
    FOREACH name IN ARRAY @extschema@.mop_tables_of_runs() LOOP
        EXECUTE 'DELETE FROM @extschema@.' || quote_ident(name) || ' WHERE run_id = $1' USING run;
    END LOOP;
END
$$;

-- Returns the names of the tables whose rows belong to runs, mop_run as the last.
CREATE FUNCTION @extschema@.mop_tables_of_runs() RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.array_agg(c.relname::text ORDER BY c.relname = 'mop_run', c.relname)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'run_id'
    WHERE c.relkind = 'r' AND c.relname LIKE 'mop\_%' AND c.relnamespace = (
        SELECT o.relnamespace FROM pg_catalog.pg_class o WHERE o.oid = '@extschema@.mop_run'::regclass)
$$;

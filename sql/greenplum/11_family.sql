-- What PostgreSQL and Greenplum say differently, under names that both have: postgresql/11_family.sql is its twin,
-- which says what each is for.
--
-- A row lock, and so an UPDATE or DELETE, locks the whole table on Greenplum (while its deadlock detector is off, which
-- is the default). What is held for as long as a unit works is an advisory lock here, by a number that nobody else can
-- know. What a function reads of tables runs on segments: it is asked of the session (its process, its locks) in
-- expressions without a table.

CREATE FUNCTION @extschema@.mop_sha256(data bytea) RETURNS bytea LANGUAGE plpython3u IMMUTABLE STRICT AS $$
import hashlib
return hashlib.sha256(data).digest()
$$;

CREATE FUNCTION @extschema@.mop_role(name name) RETURNS oid LANGUAGE sql STABLE AS $$
    SELECT a.oid FROM pg_catalog.pg_roles a WHERE a.rolname OPERATOR(pg_catalog.=) $1
$$;

CREATE FUNCTION @extschema@.mop_lock_number(kind text, run bigint, part bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ('x' || left(encode(@extschema@.mop_sha256(
        @extschema@.mop_the_secret('@extschema@.mop_secret'::regclass) || convert_to(kind, 'UTF8') || int8send(run)
        || int8send(part)), 'hex'), 16))::bit(64)::bigint;
END
$$;

-- (with the run as a literal its segment alone is asked)
CREATE FUNCTION @extschema@.mop_lock_run_shared(run bigint) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@extschema@.mop_lock_number('run', run, 0));
    EXECUTE format('SELECT r.fencing_token FROM %s.mop_run r WHERE r.run_id = %L', '@extschema@', run) INTO reached;
    RETURN reached;
END
$$;

-- (what this process knows need not be looked up: 13_own.sql)
CREATE FUNCTION @extschema@.mop_own_once(run bigint, token text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF @extschema@.mop_standing('@extschema@.mop_secret'::regclass, run, token, pg_backend_pid(),
                                timestamptz_send(now())) = 0 THEN
        PERFORM @extschema@.mop_own(run, token);
    END IF;
END
$$;

CREATE FUNCTION @extschema@.mop_has_seen(run bigint, token text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM @extschema@.mop_know('@extschema@.mop_secret'::regclass, run, token, timestamptz_send(now()));
END
$$;

CREATE FUNCTION @extschema@.mop_lock_run_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('run', run, 0));
END
$$;

CREATE FUNCTION @extschema@.mop_lock_stage_exclusive(run bigint, of_stage integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@extschema@.mop_lock_number('models', run, 0));
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('model', run, of_stage));
END
$$;

CREATE FUNCTION @extschema@.mop_lock_stages_exclusive(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('models', run, 0));
END
$$;

CREATE FUNCTION @extschema@.mop_lock_checkpoints_exclusive(runs bigint[], stages integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT DISTINCT l.run_id, l.stage FROM unnest(runs, stages) AS l(run_id, stage) ORDER BY 1, 2 LOOP
        PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('checkpoint', one.run_id, one.stage));
    END LOOP;
END
$$;

CREATE FUNCTION @extschema@.mop_lock_owner_exclusive(number integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(@extschema@.mop_lock_number('owner', 0, number));
END
$$;

CREATE FUNCTION @extschema@.mop_lock_lost_runs_exclusive(number integer) RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    its record;
BEGIN
    FOR its IN SELECT r.* FROM @extschema@.mop_run r WHERE r.owner = number AND r.status = 'running' LOOP
        IF @extschema@.mop_status(its.status, its.coordinator_pid, its.coordinator_start, 'failed') = 'failed'
           AND pg_try_advisory_xact_lock(@extschema@.mop_lock_number('run', its.run_id, 0)) THEN
            RETURN NEXT its.run_id;
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION @extschema@.mop_forget_outputs() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM @extschema@.mop_output o WHERE NOT EXISTS (
        SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = o.run_id);
END
$$;

-- (a state is where it was made: at a place of mop_place)
CREATE FUNCTION @extschema@.mop_make_state_table(name text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    EXECUTE 'CREATE TABLE @extschema@.' || name || ' (stage integer, version integer, part integer, '
            'data bytea NOT NULL, place integer NOT NULL DEFAULT 0, PRIMARY KEY (place, stage, version, part)) '
            'WITH (appendonly = false) DISTRIBUTED BY (place)';
END
$$;

-- (it runs on segments, in queries of the extension's owner: they have the path of the caller's session)
CREATE FUNCTION @extschema@.mop_place_of(one integer, list integer[]) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    FOR place IN 1 .. pg_catalog.array_length(list, 1) LOOP
        IF list[place] OPERATOR(pg_catalog.=) one THEN
            RETURN place;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- (a setting goes to all segments, and then so does the COMMIT)
CREATE FUNCTION @extschema@.mop_commit_soon() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END
$$;

-- (with the run as a literal it goes to that segment alone, and so does the COMMIT)
CREATE FUNCTION @extschema@.mop_put_unit(run bigint, stage integer, iteration integer, segment integer, kind text,
    dataset text, attempt integer, backend integer, queued timestamptz, started timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    EXECUTE format('INSERT INTO %s.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status, '
                   'backend_pid, queued_at, started_at) VALUES (%L, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)', '@extschema@', run)
        USING stage, iteration, segment, kind, dataset, attempt, 'running'::text, backend, queued, started;
END
$$;

-- (They go with the run. A DELETE locks the table for all: two units that have both put sums there, each of stages of its
-- own, would wait for each other.)
CREATE FUNCTION @extschema@.mop_forget_sums(run bigint, stages integer[], of_dataset text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END
$$;

CREATE FUNCTION @extschema@.mop_copy_state(source text, of_stage integer, at_version integer, target text,
    to_stage integer) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    parts bigint;
BEGIN
    EXECUTE format('INSERT INTO %s.%I SELECT %s, s.version, s.part, s.data, s.place FROM %s.%I s '
                   'WHERE s.stage = %s AND s.version = %s', '@extschema@', target, to_stage, '@extschema@', source,
                   of_stage, at_version);
    GET DIAGNOSTICS parts = ROW_COUNT;
    RETURN parts;
END
$$;

-- (gp_autostats_mode does it)
CREATE FUNCTION @extschema@.mop_count_rows() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
END
$$;

-- (triggers run on segments, where no table can be dropped)
CREATE FUNCTION @extschema@.mop_delete_state_tables(run bigint, one integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    late integer;
    name text;
BEGIN
    UPDATE @extschema@.mop_stage_state m SET state_table = NULL
    WHERE m.run_id = run AND m.state_table IS NOT NULL AND (one IS NULL OR m.state_table = one);
    FOR late IN SELECT g.state_table FROM @extschema@.mop_state_table g
                WHERE g.run_id = run AND (one IS NULL OR g.state_table = one) ORDER BY 1
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

-- (foreign keys are not enforced)
CREATE FUNCTION @extschema@.mop_delete_run(run bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    name text;
BEGIN
    PERFORM @extschema@.mop_delete_state_tables(run);
    FOREACH name IN ARRAY @extschema@.mop_tables_of_runs() LOOP
        EXECUTE 'DELETE FROM @extschema@.' || quote_ident(name) || ' WHERE run_id = $1' USING run;
    END LOOP;
END
$$;

-- the names of the tables whose rows belong to runs: the run's own is the last one
CREATE FUNCTION @extschema@.mop_tables_of_runs() RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.array_agg(c.relname::text ORDER BY c.relname = 'mop_run', c.relname)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'run_id'
    WHERE c.relkind = 'r' AND c.relname LIKE 'mop\_%' AND c.relnamespace = (
        SELECT o.relnamespace FROM pg_catalog.pg_class o WHERE o.oid = '@extschema@.mop_run'::regclass)
$$;

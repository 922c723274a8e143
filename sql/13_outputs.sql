-- Output tables: a run has an output once the transaction that wrote it has committed; until then an advisory lock
-- reserves the tables' names.

-- The coordinator's catalog session calls this: it returns a token that lets the caller's transaction record the output
-- of the run. (At isolation level repeatable read that transaction does not see the run, so it cannot prove its
-- ownership.)
CREATE FUNCTION @extschema@.mop_output_token(run bigint, token text DEFAULT @extschema@.mop_token()) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN encode(@extschema@.mop_sha256(secret || 'output' || int8send(run)), 'hex');
END
$$;

-- The caller's transaction records with this that the run's output is written; the record becomes visible with its
-- commit.
CREATE FUNCTION @extschema@.mop_note_output(run bigint, token text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    IF encode(@extschema@.mop_sha256(secret || 'output' || int8send(run)), 'hex') IS DISTINCT FROM token THEN
        RAISE EXCEPTION 'this is no token of run %', run USING ERRCODE = '42501';
    END IF;
    INSERT INTO @extschema@.mop_output VALUES (run);
EXCEPTION WHEN unique_violation THEN
    NULL;  -- the output is recorded already
END
$$;

-- Returns the key of the advisory lock that reserves a table's name for a session. The secret makes the key impossible
-- to guess.
CREATE FUNCTION @extschema@.mop_reservation(namespace oid, output_name name, pid integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    RETURN ('x' || left(encode(@extschema@.mop_sha256(
        secret || 'reservation' || oidsend(namespace) || int4send(pid) || convert_to(output_name, 'UTF8')), 'hex'),
        16))::bit(64)::bigint;
END
$$;

-- Returns the schema in which the caller may create an output table, or raises an error. (An internal function.)
CREATE FUNCTION @extschema@.mop_output_namespace(output_schema text, token text) RETURNS oid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    namespace oid := (SELECT n.oid FROM pg_namespace n WHERE n.nspname = output_schema);
BEGIN
    IF has_schema_privilege(@extschema@.mop_caller(token), namespace, 'CREATE') IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for schema "%"', output_schema USING ERRCODE = '42501';
    END IF;
    RETURN namespace;
END
$$;

-- Returns the process of another session that has reserved a table's name, or NULL. A role without the right to create the
-- table learns nothing.
CREATE FUNCTION @extschema@.mop_reserved_by(output_schema text, output_name name,
    token text DEFAULT @extschema@.mop_token()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    namespace oid := @extschema@.mop_output_namespace(output_schema, token);
BEGIN
    RETURN (SELECT min(l.pid) FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.objsubid = 1
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND (l.classid::bigint << 32 | l.objid::bigint) = @extschema@.mop_reservation(namespace, output_name, l.pid));
END
$$;

-- A call that will create an output table reserves its name until the transaction ends; false means that another
-- session holds a reservation or requests one at this moment. A role without the right to create the table reserves
-- nothing. (A row would need a transaction id, and a procedure's locks would then last as long as it trains.)
CREATE FUNCTION @extschema@.mop_reserve(output_schema text, output_name name,
    token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    namespace oid := @extschema@.mop_output_namespace(output_schema, token);
BEGIN
    PERFORM pg_try_advisory_xact_lock(@extschema@.mop_reservation(namespace, output_name, pg_backend_pid()));
    RETURN @extschema@.mop_reserved_by(output_schema, output_name, token) IS NULL;
END
$$;

-- Returns whether the output tables of a run of the calling role are committed.
CREATE FUNCTION @extschema@.mop_has_output(run bigint, token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = run);
END
$$;

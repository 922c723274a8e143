-- The pool: the trainers that the fork servers of this database server keep.

-- The view mop_trainers reads the pool with this: the trainers of the roles that the caller may act as, or of all roles
-- for superusers and members of pg_read_all_stats.
CREATE FUNCTION @extschema@.mop_pool(OUT role oid, OUT database oid, OUT pid integer, OUT state text,
    OUT session_pid integer, OUT since timestamptz, OUT framework text, OUT gpu integer, OUT threads integer,
    OUT memory_bytes bigint, OUT nets integer, OUT rows_bytes bigint) RETURNS SETOF record
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.trainers.mop_pool(plpy) $$;

-- Trainers: leased to a session, serving several, or idle. An idle trainer keeps compiled models ("nets") and rows for the next session of
-- the same role and database (as of the end of its last lease).
CREATE VIEW @extschema@.mop_trainers WITH (security_barrier) AS
SELECT coalesce(a.rolname, 'unknown (' || p.role || ')')::name AS role, d.datname AS database, p.pid, p.state,
       p.session_pid, p.since, p.framework, p.gpu, p.threads, p.memory_bytes, p.nets, p.rows_bytes
FROM @extschema@.mop_pool() AS p LEFT JOIN pg_catalog.pg_roles a ON a.oid = p.role
LEFT JOIN pg_catalog.pg_database d ON d.oid = p.database;

-- Users end idle trainers and serving processes with this, to free their memory: those of the roles that the caller may act as, or all for
-- superusers. Returns their number.
CREATE FUNCTION @extschema@.mop_end_trainers() RETURNS integer
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.trainers.mop_end_trainers(plpy) $$;

-- The event trigger calls this before DROP EXTENSION, so that no process of the pool remains idle. Where the packages are gone
-- already, the extension can be dropped all the same.
CREATE FUNCTION @extschema@.mop_end_trainers_at_drop() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (SELECT pg_has_role(e.extowner, 'USAGE') FROM pg_extension e WHERE e.extname = 'pg_mop') THEN
        RETURN;  -- the user may not drop the extension
    END IF;
    BEGIN
        PERFORM @extschema@.mop_end_trainers();
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'pg_mop: the idle trainers were not ended: %', SQLERRM;
    END;
END
$$;

-- Sessions of a role: the limits that an administrator sets for them, and their process ids.

-- Sessions call this before they start a trainer: it returns the strictest limits of the login role, the SET role and
-- the role whose rights are in force. If the role of a row did not exist when the row was written, its name counts.
CREATE FUNCTION @extschema@.mop_limits(token text DEFAULT @extschema@.mop_token(), OUT sessions integer,
    OUT threads integer, OUT trainer_memory_mb integer, OUT max_model_mb integer, OUT max_seconds double precision,
    OUT max_disk_mb integer, OUT max_priority integer, OUT share double precision,
    OUT device_share double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH limits AS (
        SELECT l.*, a.rolname FROM @extschema@.mop_limit l
        JOIN pg_roles a ON l.who = a.oid OR l.who = 0::oid AND l.role = a.rolname
        WHERE a.rolname IN (session_user, current_setting('role')) OR a.oid = (SELECT @extschema@.mop_caller($1))
        UNION ALL
        SELECT l.*, NULL FROM @extschema@.mop_limit l WHERE l.role IS NULL
    )
    SELECT min(l.sessions), min(l.threads), min(l.trainer_memory_mb), min(l.max_model_mb), min(l.max_seconds),
           min(l.max_disk_mb), min(l.max_priority), min(l.share), min(l.device_share) FROM limits l
    WHERE l.rolname IS NOT NULL OR NOT EXISTS (SELECT 1 FROM limits o WHERE o.rolname = session_user)
$$;

-- Sessions count the role's trainers with this: it returns the process ids of the calling role's sessions in all
-- databases.
CREATE FUNCTION @extschema@.mop_backends(OUT pid integer) RETURNS SETOF integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot(); -- a transaction keeps its first snapshot of all sessions
    RETURN QUERY SELECT a.pid FROM pg_stat_activity a WHERE a.usename = session_user;
END
$$;

-- Returns the living sessions, as digests of process id and start, since not every role may know the start of another
-- role's session. In FROM the coordinator calls it once.
CREATE FUNCTION @extschema@.mop_sessions() RETURNS SETOF text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT md5(a.pid || ' ' || (extract(epoch FROM a.backend_start) * 1000000)::bigint) FROM pg_stat_activity a
$$;

-- The runs that a role may see: the twin of postgresql/14_seen_run.sql.
CREATE VIEW @extschema@.mop_seen_run WITH (security_barrier) AS
SELECT CASE WHEN r.status = 'running' AND s.session IS NULL THEN 'failed' ELSE r.status END AS now,
       s.session IS NOT NULL AS alive, r.*
FROM @extschema@.mop_run r LEFT JOIN @extschema@.mop_sessions() AS s(session)
     ON s.session = md5(r.coordinator_pid || ' ' || (extract(epoch FROM r.coordinator_start) * 1000000)::bigint)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

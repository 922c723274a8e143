-- The audit log: who ran, changed, stopped or dropped what, and when. Functions of the extension's owner add a row in the
-- transaction of the act. No role but the owner may write to the log.

-- Adds a row. `caller`: the role whose token the act's function has checked; `backend`: the process of the session in which
-- that role acts, where it is not this session.
CREATE FUNCTION @extschema@.mop_audit_act(caller oid, act text, run bigint, details json DEFAULT NULL,
    backend integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    login name := session_user;
    since timestamptz := clock_timestamp(); -- (Greenplum would call the function on each segment)
BEGIN
    IF backend IS NOT NULL THEN
        login := coalesce((SELECT a.usename FROM pg_catalog.pg_stat_activity a WHERE a.pid = backend), login);
    END IF;
    INSERT INTO @extschema@.mop_audit_log (noted_at, act, run, role, login, who, details)
    VALUES (since, act, run, pg_catalog.pg_get_userbyid(caller), login, caller, details);
END
$$;

-- Functions note with this an act of the caller that is on no table of the catalog. (A role can note such acts in its own
-- name alone.) Of the details, only what the act has is kept: a number, the caller's own table, servers that he may use.
CREATE FUNCTION @extschema@.mop_note_act(act text, details json, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    servers text[] := '{}';
    kept json;
BEGIN
    IF act IS NULL OR act NOT IN ('end trainers', 'drop packed', 'connect servers') THEN
        RAISE EXCEPTION 'no such act: %', coalesce(act, 'NULL') USING ERRCODE = '22023';
    ELSIF octet_length(details::text) > 10000 THEN
        RAISE EXCEPTION 'the details of an act are longer than 10000 bytes' USING ERRCODE = '54000';
    END IF;
    IF json_typeof(details) = 'object' AND json_typeof(details->'servers') = 'array' THEN
        servers := ARRAY(SELECT s.srvname::text FROM pg_foreign_server s
            JOIN json_array_elements_text(details->'servers') WITH ORDINALITY AS n(name, place) ON n.name = s.srvname
            WHERE has_server_privilege(caller, s.oid, 'USAGE') GROUP BY s.srvname ORDER BY min(n.place));
    END IF;
    IF act = 'end trainers' AND details->>'trainers' ~ '^[0-9]{1,6}$' THEN
        kept := json_build_object('trainers', (details->>'trainers')::integer);
    ELSIF act = 'connect servers' AND cardinality(servers) > 1 THEN
        kept := json_build_object('servers', servers);
    ELSIF act = 'drop packed' AND EXISTS (
        SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE '"' || replace(n.nspname, '"', '""') || '"."' || replace(c.relname, '"', '""') || '"' = details->>'table') THEN
        IF NOT EXISTS (
            SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE '"' || replace(n.nspname, '"', '""') || '"."' || replace(c.relname, '"', '""') || '"' = details->>'table'
            AND (pg_has_role(caller, c.relowner, 'USAGE') OR pg_has_role(caller, n.nspowner, 'USAGE'))) THEN
            RAISE EXCEPTION 'must be owner of table %', details->>'table' USING ERRCODE = '42501';
        END IF;
        kept := json_build_object('table', details->>'table', 'servers', servers);
    ELSE
        RAISE EXCEPTION 'the act "%" has other details', act USING ERRCODE = '22023',
            DETAIL = 'It has a number of trainers, an existing table, or at least two servers that the role may use.';
    END IF;
    PERFORM @extschema@.mop_audit_act(caller, act, NULL, kept);
END
$$;

-- Superusers delete the rows before a time with this; returns their number. The log says so.
CREATE FUNCTION @extschema@.mop_trim_audit(before timestamptz, token text DEFAULT @extschema@.mop_token()) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    gone bigint;
BEGIN
    IF NOT coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller), false) THEN
        RAISE EXCEPTION 'only superusers may trim the audit log' USING ERRCODE = '42501';
    END IF;
    IF before IS NULL OR before > clock_timestamp() THEN
        RAISE EXCEPTION 'the time before which rows go must be in the past, not %', coalesce(before::text, 'NULL')
            USING ERRCODE = '22023', HINT = 'SELECT @extschema@.mop_trim_audit(now() - interval ''1 year'');';
    END IF;
    DELETE FROM @extschema@.mop_audit_log l WHERE l.noted_at < before;
    GET DIAGNOSTICS gone = ROW_COUNT;
    PERFORM @extschema@.mop_audit_act(caller, 'trim audit', NULL, json_build_object('before', before, 'rows', gone));
    RETURN gone;
END
$$;

-- Capability tokens: how the functions that write to the catalog know their caller.
--
-- Worker sessions write to the catalog as its users, who have no rights to write to its tables. Therefore each of these
-- functions is SECURITY DEFINER with the rights of the extension's owner, and touches only runs of the calling role.
--
-- Inside such a function current_user is the owner; session_user and the SET role name the session's user, but not the
-- user whose function issued the call. Therefore the caller shows a token. The token is the default of the last
-- argument. PostgreSQL evaluates a default at the place of the call, and reads it from a view, where current_user is
-- the role whose rights are in force. A token is valid for one role in one transaction of one session, so a copied
-- token is useless elsewhere.

-- The two tokens of the current session. `token` names the calling role; `backend` proves to another session of the
-- role that this session exists. (On Greenplum a query of a table runs on segments, and the session's own properties
-- must not be read there. Therefore the secret is a subquery in this and the following functions.)
CREATE VIEW @extschema@.mop_tokens AS
SELECT @extschema@.mop_role(current_user) || ' ' || encode(@extschema@.mop_sha256(
           (SELECT s.secret FROM @extschema@.mop_secret s) || 'caller' || oidsend(@extschema@.mop_role(current_user))
           || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') AS token,
       pg_backend_pid() || ' ' || (extract(epoch FROM now()) * 1000000)::bigint || ' ' || encode(@extschema@.mop_sha256(
           (SELECT s.secret FROM @extschema@.mop_secret s) || 'backend' || oidsend(@extschema@.mop_role(current_user))
           || int4send(pg_backend_pid()) || int8send((extract(epoch FROM now()) * 1000000)::bigint)), 'hex') AS backend;

-- The default of the argument `token`: the capability token of the caller.
CREATE FUNCTION @extschema@.mop_token() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT t.token FROM @extschema@.mop_tokens t);
END
$$;

-- Functions with a token call this: it returns the role that received the token, or raises an error. Like
-- mop_owner_of, mop_backend, mop_own and mop_reservation, only functions of the extension's owner with a fixed
-- search_path may call it.
CREATE FUNCTION @extschema@.mop_caller(token text) RETURNS oid LANGUAGE plpgsql STABLE AS $$
DECLARE
    role oid;
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    IF token ~ '^[0-9]{1,10} [0-9a-f]{64}$' THEN
        role := split_part(token, ' ', 1);
    END IF;
    IF token = role || ' ' || encode(@extschema@.mop_sha256(secret || 'caller' || oidsend(role)
            || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') THEN
        RETURN role;
    END IF;
    RAISE EXCEPTION 'this is no token of this transaction' USING ERRCODE = '42501',
        HINT = 'Leave the argument out.';
END
$$;

-- Returns the owner number of the calling role, or NULL before its first run.
CREATE FUNCTION @extschema@.mop_owner_of(token text) RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
BEGIN
    RETURN (SELECT o.owner FROM @extschema@.mop_owner o WHERE o.who = caller);
END
$$;

-- A coordinator's catalog session calls this: it checks the text mop_tokens.backend that another session of the role
-- passed, and returns that session's process id and start. Process ids are reused, so the session must still exist.
CREATE FUNCTION @extschema@.mop_backend(said text, role oid, OUT pid integer, OUT start timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    parts text[] := string_to_array(said, ' ');
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    IF said ~ '^[0-9]{1,9} [0-9]{1,18} [0-9a-f]{64}$' AND parts[3] = encode(@extschema@.mop_sha256(
            secret || 'backend' || oidsend(role) || int4send(parts[1]::integer) || int8send(parts[2]::bigint)),
            'hex') THEN
        PERFORM pg_stat_clear_snapshot();
        SELECT a.pid, a.backend_start INTO pid, start FROM pg_stat_activity a
        WHERE a.pid = parts[1]::integer AND extract(epoch FROM a.backend_start) * 1000000 <= parts[2]::bigint;
    END IF;
    IF pid IS NULL THEN
        RAISE EXCEPTION 'there is no such session of the role' USING ERRCODE = '42501';
    END IF;
END
$$;

-- All functions on a run call this first: it raises an error unless the run belongs to the calling role and, if a
-- fencing token is given, has this fencing token. With `lock`, no session takes the run over before this transaction
-- ends: a takeover waits for this transaction, or has finished and changed the fencing token.
CREATE FUNCTION @extschema@.mop_own(run bigint, token text, run_fencing_token integer DEFAULT NULL,
    lock boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
    role oid;
    secret bytea;
BEGIN
    -- mop_caller's comparison with the run's role, in one query: each unit calls this several times
    SELECT r.fencing_token, o.who::oid, s.secret INTO reached, role, secret
    FROM @extschema@.mop_run r JOIN @extschema@.mop_owner o USING (owner), @extschema@.mop_secret s
    WHERE r.run_id = run;
    IF token = role || ' ' || encode(@extschema@.mop_sha256(secret || 'caller' || oidsend(role)
            || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') THEN
        IF lock THEN
            reached := @extschema@.mop_lock_run_shared(run);
        END IF;
    ELSE
        reached := NULL;
    END IF;
    IF reached IS NULL THEN
        RAISE EXCEPTION 'there is no run % of role "%"', run, pg_get_userbyid(@extschema@.mop_caller(token))
            USING ERRCODE = '42501';
    ELSIF reached <> run_fencing_token THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
END
$$;

-- Returns a signature of a text by the calling role. The text and the signature may then be kept where other roles write.
CREATE FUNCTION @extschema@.mop_sign(value text, token text DEFAULT @extschema@.mop_token()) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role oid := @extschema@.mop_caller(token);
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    RETURN role || ' ' || encode(@extschema@.mop_sha256(secret || @extschema@.mop_sha256(
        secret || 'signature' || oidsend(role) || convert_to(value, 'UTF8'))), 'hex');
END
$$;

-- Returns the role that has signed a text, or NULL where it is no signature of this text.
CREATE FUNCTION @extschema@.mop_signer(value text, signature text) RETURNS oid
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    role oid;
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    IF signature ~ '^[0-9]{1,10} [0-9a-f]{64}$' AND split_part(signature, ' ', 1)::bigint < 4294967296 THEN
        role := split_part(signature, ' ', 1);
    END IF;
    IF signature = role || ' ' || encode(@extschema@.mop_sha256(secret || @extschema@.mop_sha256(
            secret || 'signature' || oidsend(role) || convert_to(value, 'UTF8'))), 'hex') THEN
        RETURN role;
    END IF;
    RETURN NULL;
END
$$;

-- Capability tokens and the owners of runs, cached in the coordinator's process (pg_mop/backend/tokens.py): a query of
-- a table visits a segment, so 12_tokens.sql would be slow. A token belongs to one transaction of one role, and a run
-- to one role for ever. The existence of the run and its fencing token are looked up in each transaction.

-- Returns the secret from the process's memory, and reads it from the table first if needed.
CREATE FUNCTION @extschema@.mop_the_secret(home oid) RETURNS bytea
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.tokens.secret(plpy, int(home)) $$;

-- Loads the secret into the process's memory, and returns it to nobody.
CREATE FUNCTION @extschema@.mop_learn_secret() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_the_secret('@extschema@.mop_secret'::regclass);
END
$$;

-- Makes the tokens of mop_tokens.
CREATE FUNCTION @extschema@.mop_make_tokens(OUT token text, OUT backend text) LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import tokens
if not SD:
    SD[0] = plpy.execute("""SELECT '@extschema@.mop_secret'::pg_catalog.regclass::pg_catalog.int8 AS home""")[0]["home"]
return tokens.make(plpy, SD[0], """SELECT @extschema@.mop_learn_secret()""")
$$;

CREATE OR REPLACE VIEW @extschema@.mop_tokens AS SELECT t.token, t.backend FROM @extschema@.mop_make_tokens() AS t;

-- (functions on segments cannot read views)
CREATE OR REPLACE FUNCTION @extschema@.mop_token() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT t.token FROM @extschema@.mop_make_tokens() AS t);
END
$$;

-- Returns the role that received the token in this transaction, or NULL.
CREATE FUNCTION @extschema@.mop_token_role(home oid, token text, pid integer, moment bytea) RETURNS bigint
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.tokens.caller(plpy, int(home), token, pid, moment) $$;

-- Returns the process's knowledge of run and token: 2: the role owns the run, which exists in this transaction; 1: the
-- role owns the run; 0: nothing.
CREATE FUNCTION @extschema@.mop_standing(home oid, run bigint, token text, pid integer, moment bytea) RETURNS integer
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.tokens.standing(plpy, int(home), run, token, pid, moment) $$;

-- The process remembers that the token's role owns the run, which exists in this transaction.
CREATE FUNCTION @extschema@.mop_know(home oid, run bigint, token text, moment bytea) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.tokens.know(int(home), run, token, moment) $$;

CREATE OR REPLACE FUNCTION @extschema@.mop_caller(token text) RETURNS oid LANGUAGE plpgsql STABLE AS $$
DECLARE
    role oid := @extschema@.mop_token_role('@extschema@.mop_secret'::regclass, token, pg_backend_pid(),
                                            timestamptz_send(now()));
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'this is no token of this transaction' USING ERRCODE = '42501',
            HINT = 'Leave the argument out.';
    END IF;
    RETURN role;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.mop_own(run bigint, token text, run_fencing_token integer DEFAULT NULL,
    lock boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known integer := @extschema@.mop_standing('@extschema@.mop_secret'::regclass, run, token, pg_backend_pid(),
                                              timestamptz_send(now()));
    owned boolean := true;
    reached integer;
    number integer;
BEGIN
    IF known = 2 AND NOT lock AND run_fencing_token IS NULL THEN
        RETURN;
    END IF;
    IF known = 0 THEN
        number := (SELECT r.owner FROM @extschema@.mop_run r WHERE r.run_id = run);
        owned := coalesce((SELECT o.who::oid FROM @extschema@.mop_owner o WHERE o.owner = number)
                        = @extschema@.mop_caller(token), false);
    END IF;
    IF owned AND lock THEN
        reached := @extschema@.mop_lock_run_shared(run);
    ELSIF owned THEN
        reached := (SELECT r.fencing_token FROM @extschema@.mop_run r WHERE r.run_id = run);
    END IF;
    IF reached IS NULL THEN
        RAISE EXCEPTION 'there is no run % of role "%"', run, pg_get_userbyid(@extschema@.mop_caller(token))
            USING ERRCODE = '42501';
    ELSIF reached <> run_fencing_token THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
    IF known < 2 THEN
        PERFORM @extschema@.mop_know('@extschema@.mop_secret'::regclass, run, token, timestamptz_send(now()));
    END IF;
END
$$;

-- Every call that opens a run or a job starts with this: it returns the owner number of the calling role, and assigns
-- one to a new role (postgresql/12_tokens.sql has the twin).
CREATE FUNCTION @extschema@.mop_enroll(token text DEFAULT @extschema@.mop_token()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    number integer := (SELECT o.owner FROM @extschema@.mop_owner o
                       WHERE o.who = caller AND o.role = pg_get_userbyid(caller));
BEGIN
    FOR attempt IN 1 .. 2 LOOP
        EXIT WHEN number IS NOT NULL;
        UPDATE @extschema@.mop_owner o SET role = pg_get_userbyid(caller), who = caller WHERE o.who = caller
        RETURNING o.owner INTO number;
        CONTINUE WHEN number IS NOT NULL;
        BEGIN
            number := nextval('@extschema@.mop_owner_owner_seq');
            INSERT INTO @extschema@.mop_owner (owner, role, who) VALUES (number, pg_get_userbyid(caller), caller);
        EXCEPTION WHEN unique_violation THEN  -- another session of the role commits its number now
            IF attempt = 2 THEN
                RAISE;
            END IF;
            number := NULL;
        END;
    END LOOP;
    RETURN number;
END
$$;

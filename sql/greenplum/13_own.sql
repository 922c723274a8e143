-- Tickets, and whose a run is: what 12_journal.sql has, asked of this process (pg_mop/tokens.py), since every look at a
-- table is one at a segment. A token is of one transaction of one role; a run is one role's for ever. Whether the run is
-- still there, and in which epoch, is looked up in each transaction.

CREATE FUNCTION @extschema@.mop_the_secret(home oid) RETURNS bytea LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import tokens
return tokens.secret(plpy, int(home))
$$;

-- the process has the secret from now on, and nobody else
CREATE FUNCTION @extschema@.mop_learn_secret() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_the_secret('@extschema@.mop_secret'::regclass);
END
$$;

CREATE FUNCTION @extschema@.mop_make_tokens(OUT token text, OUT backend text) LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import tokens
if not SD:
    SD[0] = plpy.execute("""SELECT '@extschema@.mop_secret'::pg_catalog.regclass::pg_catalog.int8 AS home""")[0]["home"]
return tokens.make(plpy, SD[0], """SELECT @extschema@.mop_learn_secret()""")
$$;

CREATE OR REPLACE VIEW @extschema@.mop_tokens AS SELECT t.token, t.backend FROM @extschema@.mop_make_tokens() AS t;

-- (at a segment no view is read by functions)
CREATE OR REPLACE FUNCTION @extschema@.mop_token() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT t.token FROM @extschema@.mop_make_tokens() AS t);
END
$$;

CREATE FUNCTION @extschema@.mop_token_role(home oid, token text, pid integer, moment bytea) RETURNS bigint
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import tokens
return tokens.caller(plpy, int(home), token, pid, moment)
$$;

CREATE FUNCTION @extschema@.mop_standing(home oid, run bigint, token text, pid integer, moment bytea) RETURNS integer
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import tokens
return tokens.standing(plpy, int(home), run, token, pid, moment)
$$;

CREATE FUNCTION @extschema@.mop_know(home oid, run bigint, token text, moment bytea) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import tokens
tokens.know(int(home), run, token, moment)
$$;

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
    own boolean := true;
    reached integer;
    number integer;
BEGIN
    IF known = 2 AND NOT lock AND run_fencing_token IS NULL THEN
        RETURN;
    END IF;
    IF known = 0 THEN
        number := (SELECT r.owner FROM @extschema@.mop_run r WHERE r.run_id = run);
        own := coalesce((SELECT o.who::oid FROM @extschema@.mop_owner o WHERE o.owner = number)
                        = @extschema@.mop_caller(token), false);
    END IF;
    IF own AND lock THEN
        reached := @extschema@.mop_lock_run_shared(run);
    ELSIF own THEN
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

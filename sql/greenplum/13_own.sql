-- Tickets, and whose a run is: what 12_journal.sql has, asked of this process (pg_mop/tickets.py), since every look at a
-- table is one at a segment. A ticket is of one transaction of one role; a run is one role's for ever. Whether the run is
-- still there, and in which epoch, is looked up in each transaction.

CREATE FUNCTION @extschema@.mop_the_secret(home oid) RETURNS bytea LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop import tickets
return tickets.secret(plpy, int(home))
$$;

-- the process has the secret from now on, and nobody else
CREATE FUNCTION @extschema@.mop_learn_secret() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_the_secret('@extschema@.mop_secret'::regclass);
END
$$;

CREATE FUNCTION @extschema@.mop_make_tickets(OUT ticket text, OUT backend text) LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop import tickets
if not SD:
    SD[0] = plpy.execute("""SELECT '@extschema@.mop_secret'::pg_catalog.regclass::pg_catalog.int8 AS home""")[0]["home"]
return tickets.make(plpy, SD[0], """SELECT @extschema@.mop_learn_secret()""")
$$;

CREATE OR REPLACE VIEW @extschema@.mop_tickets AS SELECT t.ticket, t.backend FROM @extschema@.mop_make_tickets() AS t;

-- (at a segment no view is read by functions)
CREATE OR REPLACE FUNCTION @extschema@.mop_ticket() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT t.ticket FROM @extschema@.mop_make_tickets() AS t);
END
$$;

CREATE FUNCTION @extschema@.mop_ticket_role(home oid, ticket text, pid integer, moment bytea) RETURNS bigint
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop import tickets
return tickets.caller(plpy, int(home), ticket, pid, moment)
$$;

CREATE FUNCTION @extschema@.mop_standing(home oid, run bigint, ticket text, pid integer, moment bytea) RETURNS integer
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop import tickets
return tickets.standing(plpy, int(home), run, ticket, pid, moment)
$$;

CREATE FUNCTION @extschema@.mop_know(home oid, run bigint, ticket text, moment bytea) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop import tickets
tickets.know(int(home), run, ticket, moment)
$$;

CREATE OR REPLACE FUNCTION @extschema@.mop_caller(ticket text) RETURNS oid LANGUAGE plpgsql STABLE AS $$
DECLARE
    role oid := @extschema@.mop_ticket_role('@extschema@.mop_secret'::regclass, ticket, pg_backend_pid(),
                                            timestamptz_send(now()));
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'this is no ticket of this transaction' USING ERRCODE = '42501',
            HINT = 'Leave the argument out.';
    END IF;
    RETURN role;
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.mop_own(run bigint, ticket text, run_epoch integer DEFAULT NULL,
    lock boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known integer := @extschema@.mop_standing('@extschema@.mop_secret'::regclass, run, ticket, pg_backend_pid(),
                                              timestamptz_send(now()));
    own boolean := true;
    reached integer;
    number integer;
BEGIN
    IF known = 2 AND NOT lock AND run_epoch IS NULL THEN
        RETURN;
    END IF;
    IF known = 0 THEN
        number := (SELECT r.owner FROM @extschema@.mop_run r WHERE r.run_id = run);
        own := coalesce((SELECT o.who::oid FROM @extschema@.mop_owner o WHERE o.owner = number)
                        = @extschema@.mop_caller(ticket), false);
    END IF;
    IF own AND lock THEN
        reached := @extschema@.mop_hold_run(run);
    ELSIF own THEN
        reached := (SELECT r.epoch FROM @extschema@.mop_run r WHERE r.run_id = run);
    END IF;
    IF reached IS NULL THEN
        RAISE EXCEPTION 'there is no run % of role "%"', run, pg_get_userbyid(@extschema@.mop_caller(ticket))
            USING ERRCODE = '42501';
    ELSIF reached <> run_epoch THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
    IF known < 2 THEN
        PERFORM @extschema@.mop_know('@extschema@.mop_secret'::regclass, run, ticket, timestamptz_send(now()));
    END IF;
END
$$;

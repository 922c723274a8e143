-- mop_own of 12_journal.sql, which is asked several times in a unit's transaction: each look at a table is one at a
-- segment. A ticket is of one transaction of one role, so what was found for it holds to the end of that.

-- These are for mop_own alone: what this process knows of its transaction, which began at a moment. (No role but
-- superusers has code of its own in it.)
CREATE FUNCTION @extschema@.mop_known(run bigint, ticket text, moment timestamptz) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$
#python
import mop_udf
return getattr(mop_udf, 'owned', None) == (run, ticket, moment)
$$;

CREATE FUNCTION @extschema@.mop_know(run bigint, ticket text, moment timestamptz) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$
#python
import mop_udf
mop_udf.owned = run, ticket, moment
$$;

CREATE OR REPLACE FUNCTION @extschema@.mop_own(run bigint, ticket text, run_epoch integer DEFAULT NULL,
    lock boolean DEFAULT false) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
    number integer;
    role oid;
BEGIN
    IF @extschema@.mop_known(run, ticket, now()) THEN
        IF lock THEN
            reached := @extschema@.mop_hold_run(run);
        ELSIF run_epoch IS NOT NULL THEN
            reached := (SELECT r.epoch FROM @extschema@.mop_run r WHERE r.run_id = run);
        ELSE
            RETURN;
        END IF;
    ELSE
        SELECT r.epoch, r.owner INTO reached, number FROM @extschema@.mop_run r WHERE r.run_id = run;
        role := (SELECT o.who::oid FROM @extschema@.mop_owner o WHERE o.owner = number);
        IF ticket = role || ' ' || encode(@extschema@.mop_sha256((SELECT s.secret FROM @extschema@.mop_secret s)
                || 'caller' || oidsend(role) || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') THEN
            PERFORM @extschema@.mop_know(run, ticket, now());
            IF lock THEN
                reached := @extschema@.mop_hold_run(run);
            END IF;
        ELSE
            reached := NULL;
        END IF;
    END IF;
    IF reached IS NULL THEN
        RAISE EXCEPTION 'there is no run % of role "%"', run, pg_get_userbyid(@extschema@.mop_caller(ticket))
            USING ERRCODE = '42501';
    ELSIF reached <> run_epoch THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
END
$$;

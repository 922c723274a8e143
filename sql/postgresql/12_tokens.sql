-- Owner numbers of roles.

-- Every call that opens a run or a job starts with this: it returns the owner number of the calling role, and assigns
-- one to a new role. It never waits for a session that has the role's row locked, unless the role was renamed.
CREATE FUNCTION @extschema@.mop_enroll(token text DEFAULT @extschema@.mop_token()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    number integer := (SELECT o.owner FROM @extschema@.mop_owner o
                       WHERE o.who = caller AND o.role = pg_get_userbyid(caller));
BEGIN
    IF number IS NULL THEN
        INSERT INTO @extschema@.mop_owner AS o (role, who) VALUES (pg_get_userbyid(caller), caller)
        ON CONFLICT (who) WHERE who::oid <> 0::oid DO UPDATE SET role = EXCLUDED.role
        RETURNING o.owner INTO number;
    END IF;
    RETURN number;
END
$$;

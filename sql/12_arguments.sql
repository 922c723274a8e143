-- How functions read their arguments. Functions for users take numbers as double precision: PostgreSQL casts every
-- number to it implicitly, so calls find the function with any driver's type, smallint and numeric included.

-- Functions for users call this: it returns the integer that an argument holds, or raises an error with the
-- argument's name.
CREATE FUNCTION @extschema@.mop_integer(name text, value double precision) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value <> trunc(value) OR abs(value) > 9007199254740992 THEN
        RAISE EXCEPTION '% must be an integer, not %', name, value USING ERRCODE = '22023';
    END IF;
    RETURN value::bigint;
END
$$;

-- Returns the time that a text names: a time, or an interval from now on; NULL if it is neither.
CREATE FUNCTION @extschema@.mop_time(value text) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN value::timestamptz;
EXCEPTION WHEN data_exception THEN
    BEGIN
        RETURN clock_timestamp() + value::interval;
    EXCEPTION WHEN data_exception THEN
        RETURN NULL;
    END;
END
$$;

-- Locks a table as a query of it does, without waiting. (LOCK TABLE itself is refused in STABLE functions.)
CREATE FUNCTION @extschema@.mop_hold(relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE NOWAIT', relation);
END
$$;

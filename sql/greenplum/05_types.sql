-- Greenplum 6 has no type regrole: the catalog's roles are numbers there.
DO $$
BEGIN
    IF pg_catalog.to_regtype('pg_catalog.regrole') IS NULL THEN
        CREATE DOMAIN @extschema@.regrole AS pg_catalog.oid;
    END IF;
END
$$;
-- that foreign keys are not enforced is known (11_family.sql), and not told of each
SET LOCAL client_min_messages = error;

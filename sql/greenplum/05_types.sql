-- Greenplum 6 has no type regrole: there the catalog stores roles as plain OIDs.
DO $$
BEGIN
    IF pg_catalog.to_regtype('pg_catalog.regrole') IS NULL THEN
        CREATE DOMAIN @extschema@.regrole AS pg_catalog.oid;
    END IF;
END
$$;
-- Greenplum does not enforce foreign keys (11_family.sql), and would warn at each of them.
SET LOCAL client_min_messages = error;

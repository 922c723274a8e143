-- What the server looks after by itself.

-- (Greenplum asks of a unique index that it has the column by which rows are distributed: 11_distribution.sql.)
CREATE UNIQUE INDEX mop_owner_who ON @extschema@.mop_owner (who) WHERE who::oid OPERATOR(pg_catalog.<>) 0::oid;
-- a unit is done once
CREATE UNIQUE INDEX mop_unit_once ON @extschema@.mop_unit (run_id, stage, kind, dataset, segment)
    WHERE status = 'finished';

CREATE EVENT TRIGGER pg_mop_end_idle_sessions ON ddl_command_start WHEN TAG IN ('DROP EXTENSION')
    EXECUTE PROCEDURE @extschema@.mop_end_idle_sessions();

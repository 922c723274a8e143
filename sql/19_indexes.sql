-- Unique indexes. (On Greenplum a unique index must contain the columns that distribute the rows: 11_distribution.sql.)

CREATE UNIQUE INDEX mop_owner_who ON @extschema@.mop_owner (who) WHERE who::oid OPERATOR(pg_catalog.<>) 0::oid;
-- a unit finishes once
CREATE UNIQUE INDEX mop_unit_once ON @extschema@.mop_unit (run_id, stage, kind, dataset, segment)
    WHERE status = 'finished';

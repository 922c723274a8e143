-- Users no longer write to the catalog's tables. Model states move into generations: tables that are dropped as a whole.
--
-- Functions, views and triggers come with the last update script (CONTRIBUTING.md, Releases).

\echo Use "ALTER EXTENSION pg_mop UPDATE" to load this file. \quit

DROP VIEW @extschema@.mop_runs, @extschema@.mop_units, @extschema@.mop_kernel_choices, @extschema@.mop_visit_order,
    @extschema@.mop_progress;

REVOKE ALL ON @extschema@.mop_run, @extschema@.mop_configuration, @extschema@.mop_segment, @extschema@.mop_unit,
    @extschema@.mop_state FROM mop_user;
REVOKE ALL (function, source_table, validation_table, model_output_table, seed, scheduler, num_iterations,
    metrics_iterations, configurations, segments, parameters, coordinator_pid, coordinator_start, status, error,
    finished_at, output_written) ON @extschema@.mop_run FROM mop_user;
REVOKE ALL ON SEQUENCE @extschema@.mop_run_run_id_seq FROM mop_user;
DROP POLICY own_runs ON @extschema@.mop_run;
DROP POLICY own_runs ON @extschema@.mop_configuration;
DROP POLICY own_runs ON @extschema@.mop_segment;
DROP POLICY own_runs ON @extschema@.mop_unit;

CREATE TABLE @extschema@.mop_output (
    run_id bigint NOT NULL,
    owner name NOT NULL,
    PRIMARY KEY (run_id, owner)
);
INSERT INTO @extschema@.mop_output SELECT run_id, owner FROM @extschema@.mop_run WHERE output_written;
ALTER TABLE @extschema@.mop_run DROP COLUMN output_written, ADD COLUMN sessions integer CHECK (sessions > 0),
    ADD COLUMN epoch integer NOT NULL DEFAULT 1;

CREATE TABLE @extschema@.mop_model (
    run_id bigint NOT NULL,
    mst_key integer NOT NULL,
    version integer NOT NULL DEFAULT 0,
    generation integer,
    kept_generation integer,
    bytes bigint,
    PRIMARY KEY (run_id, mst_key),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
) WITH (fillfactor = 50);
CREATE TABLE @extschema@.mop_generation (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    generation integer NOT NULL,
    PRIMARY KEY (run_id, generation)
);
CREATE TABLE @extschema@.mop_limit (
    role name UNIQUE,
    sessions integer CHECK (sessions > 0),
    threads integer CHECK (threads > 0),
    trainer_memory_mb integer CHECK (trainer_memory_mb > 0),
    max_model_mb integer CHECK (max_model_mb > 0)
);

INSERT INTO @extschema@.mop_model (run_id, mst_key, version, generation, bytes)
SELECT c.run_id, c.mst_key, c.version, CASE WHEN s.bytes IS NOT NULL THEN 1 END, s.bytes
FROM @extschema@.mop_configuration c LEFT JOIN (
    SELECT run_id, mst_key, version, sum(pg_catalog.octet_length(data)) AS bytes
    FROM @extschema@.mop_state GROUP BY 1, 2, 3) s USING (run_id, mst_key, version);
ALTER TABLE @extschema@.mop_configuration DROP COLUMN version,
    ADD COLUMN blame text CHECK (blame IN ('configuration', 'place')), ADD COLUMN weights_sql text,
    ADD COLUMN weights_md5 text;
UPDATE @extschema@.mop_configuration SET blame = 'configuration' WHERE error IS NOT NULL;

DO $$
DECLARE
    run bigint;
BEGIN
    FOR run IN SELECT DISTINCT run_id FROM @extschema@.mop_state LOOP
        INSERT INTO @extschema@.mop_generation VALUES (run, 1);
        EXECUTE pg_catalog.format('CREATE TABLE @extschema@.mop_state_%s_1 (mst_key integer, version integer, part '
            'integer, data bytea NOT NULL, PRIMARY KEY (mst_key, version, part)) WITH (autovacuum_enabled = false, '
            'toast.autovacuum_enabled = false)', run);
        EXECUTE pg_catalog.format('ALTER TABLE @extschema@.mop_state_%s_1 ALTER COLUMN data SET STORAGE EXTERNAL', run);
        EXECUTE pg_catalog.format('INSERT INTO @extschema@.mop_state_%s_1 SELECT mst_key, version, part, data '
            'FROM @extschema@.mop_state WHERE run_id = $1', run) USING run;
    END LOOP;
END
$$;
ALTER EXTENSION pg_mop DROP TABLE @extschema@.mop_state;
DROP TABLE @extschema@.mop_state;

CREATE POLICY own_runs ON @extschema@.mop_run FOR SELECT USING (owner = current_user);
CREATE POLICY own_runs ON @extschema@.mop_configuration FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
CREATE POLICY own_runs ON @extschema@.mop_segment FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
CREATE POLICY own_runs ON @extschema@.mop_unit FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_generation ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_generation FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_model ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_model FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));

SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_output', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_limit', '');

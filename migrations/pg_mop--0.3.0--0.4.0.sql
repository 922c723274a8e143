-- The search plan: units, states and metrics belong to stages, which configurations share.

\echo Use "ALTER EXTENSION pg_mop UPDATE" to load this file. \quit

-- The views stay, and with them users' views of them and grants. Without their queries they depend on no table; the
-- functions and views below give them their queries again.
DO $do$
DECLARE
    shown record;
BEGIN
    FOR shown IN
        SELECT c.oid::pg_catalog.regclass AS name, pg_catalog.string_agg(pg_catalog.format(
            'NULL::%s AS %I', pg_catalog.format_type(a.atttypid, a.atttypmod), a.attname), ', ' ORDER BY a.attnum)
            AS columns
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relkind = 'v' AND c.relnamespace = '@extschema@'::pg_catalog.regnamespace AND EXISTS (
            SELECT 1 FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
            WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e'
            AND e.extname = 'pg_mop')
        GROUP BY c.oid
    LOOP
        EXECUTE pg_catalog.format('CREATE OR REPLACE VIEW %s AS SELECT %s WHERE false', shown.name, shown.columns);
    END LOOP;
END
$do$;

-- types and tables

CREATE DOMAIN @extschema@.mop_source AS text;

ALTER TABLE @extschema@.mop_configuration ADD COLUMN reason text, ADD COLUMN fold integer, ADD COLUMN fold_of integer,
    ADD COLUMN held_out integer[], ADD COLUMN member json, ADD COLUMN kept_by text;

CREATE TABLE @extschema@.mop_stage (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,             -- a parent's number is smaller than its children's
    parent integer,                     -- NULL: the first stage of a path
    iteration integer NOT NULL,
    identity text NOT NULL,             -- digest of all inputs of its result (plan/identity.py)
    mst_key integer NOT NULL,           -- the first configuration that requested it
    compile_params text NOT NULL,       -- in force in this iteration
    fit_params text,
    evaluated boolean NOT NULL,         -- its metrics are requested
    source_run bigint,                  -- the earlier run that trained it, if this run did not
    source_stage integer,
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);
CREATE TABLE @extschema@.mop_request (
    run_id bigint NOT NULL,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    stage integer NOT NULL,
    PRIMARY KEY (run_id, mst_key, iteration),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE,
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);
CREATE INDEX mop_stage_identity ON @extschema@.mop_stage (identity);
CREATE INDEX mop_request_stage ON @extschema@.mop_request (run_id, stage);
CREATE INDEX mop_stage_configuration ON @extschema@.mop_stage (run_id, mst_key);
CREATE TABLE @extschema@.mop_search_log (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    number integer NOT NULL,
    event json NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, number)
);
CREATE TABLE @extschema@.mop_control_request (
    request bigserial PRIMARY KEY,
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    content json NOT NULL
);
-- notes of runs
CREATE TABLE @extschema@.mop_run_note (
    run_id bigint PRIMARY KEY REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    note text NOT NULL,
    tags text[] NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE @extschema@.mop_run_note ENABLE ROW LEVEL SECURITY;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run_note', '');
ALTER TABLE @extschema@.mop_stage ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_stage FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_request FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_search_log ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_search_log FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_control_request ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_control_request FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_stage', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_request', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_search_log', '');

ALTER TABLE @extschema@.mop_run ADD COLUMN expected_seconds double precision, ADD COLUMN prediction json;
CREATE TABLE @extschema@.mop_cost (
    owner integer NOT NULL REFERENCES @extschema@.mop_owner,
    net text NOT NULL,                  -- digest of all inputs of a mini-batch's time
    part text NOT NULL CHECK (part IN ('model', 'head')), -- head: the layers after frozen layers
    version text NOT NULL,              -- versions of Keras and its framework
    device text NOT NULL,
    kernel text NOT NULL,
    architecture text NOT NULL,         -- digest
    optimizer text NOT NULL,
    loss text NOT NULL,
    batch_size integer NOT NULL,
    shape text NOT NULL,                -- shape of a row
    batch_seconds double precision[] NOT NULL,   -- minimum of each run, the latest first
    compile_seconds double precision[] NOT NULL, -- maximum of each run
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    place text NOT NULL DEFAULT '',     -- the foreign server that held the rows; '': this server
    unit_seconds double precision[] NOT NULL DEFAULT '{}', -- of a mini-batch in the typical unit of each run that used the
                                        -- kernel, with all that the trainer does for a unit; the latest first
    units integer NOT NULL DEFAULT 0,   -- of the last run, that used the kernel
    memory_bytes bigint,                -- of the device, main memory or a GPU's: the most that a trainer held, in the last run
    PRIMARY KEY (owner, net, part, version, device, kernel, place)
);
CREATE INDEX mop_cost_architecture ON @extschema@.mop_cost (owner, architecture);
ALTER TABLE @extschema@.mop_cost ENABLE ROW LEVEL SECURITY; -- only the extension's owner reads it; users read mop_unit_costs

CREATE TABLE @extschema@.mop_remote_run (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    server name NOT NULL,               -- the foreign server's name
    remote_run bigint NOT NULL,         -- the run's number on that server
    PRIMARY KEY (run_id, server)
);
ALTER TABLE @extschema@.mop_remote_run ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_remote_run FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_segment ADD COLUMN server name;

CREATE TABLE @extschema@.mop_copy (
    run_id bigint NOT NULL,
    dataset text NOT NULL,
    segment integer NOT NULL,
    fingerprint text NOT NULL,
    server name,                        -- the foreign server that holds it; NULL: this server
    FOREIGN KEY (run_id, dataset, segment) REFERENCES @extschema@.mop_segment ON DELETE CASCADE
);
CREATE INDEX mop_copy_segment ON @extschema@.mop_copy (run_id, dataset, segment);
ALTER TABLE @extschema@.mop_copy ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_copy FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_copy REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_unit ADD COLUMN cpu_seconds double precision, ADD COLUMN server name;
UPDATE @extschema@.mop_unit u SET server = g.server FROM @extschema@.mop_segment g
WHERE (g.run_id, g.dataset, g.segment) = (u.run_id, u.dataset, u.segment) AND g.server IS NOT NULL AND u.status = 'finished';
ALTER TABLE @extschema@.mop_unit ADD COLUMN threads integer CHECK (threads > 0),
    ADD COLUMN gpu_utilization double precision, ADD COLUMN gpu_memory_bytes bigint;
ALTER TABLE @extschema@.mop_secret REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_limit REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_limit ADD COLUMN max_seconds double precision CHECK (max_seconds > 0 AND max_seconds < 'Infinity'),
    ADD COLUMN max_disk_mb integer CHECK (max_disk_mb > 0),
    ADD COLUMN max_priority integer CHECK (max_priority BETWEEN -100 AND 100),
    ADD COLUMN share double precision CHECK (share > 0 AND share < 'Infinity'),
    ADD COLUMN device_share double precision CHECK (device_share BETWEEN 0.001 AND 1);
-- Training runs that share the cores of this server (postgresql/13_turns.sql).
CREATE TABLE @extschema@.mop_turn (
    run_id bigint PRIMARY KEY REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    owner integer NOT NULL REFERENCES @extschema@.mop_owner,
    priority integer NOT NULL,
    share double precision NOT NULL,    -- of its role, when the run began
    wanted integer NOT NULL,            -- cores that it can use now
    cores integer NOT NULL,             -- cores that it has
    used double precision NOT NULL DEFAULT 0, -- core-seconds that it has had
    pass double precision NOT NULL DEFAULT 0, -- the same, counted from where the other runs of its role were
    charged_at timestamptz NOT NULL,    -- until when `used` counts
    waits_since timestamptz,            -- NULL: it has cores, or wants none
    deadline timestamptz,
    left_seconds double precision       -- that its training would take if it were alone, by its prediction
) WITH (fillfactor = 50);
-- The roles of these runs.
CREATE TABLE @extschema@.mop_role_turn (
    owner integer PRIMARY KEY REFERENCES @extschema@.mop_owner,
    pass double precision NOT NULL DEFAULT 0 -- core-seconds divided by its share, counted from where the other roles were
) WITH (fillfactor = 50);
ALTER TABLE @extschema@.mop_turn ENABLE ROW LEVEL SECURITY; -- only the extension's owner reads them; users read mop_queue
ALTER TABLE @extschema@.mop_role_turn ENABLE ROW LEVEL SECURITY;
-- What each coordinator of a run has counted, for mop_monitoring. These tables are not dumped: a restored database counts anew.
CREATE TABLE @extschema@.mop_run_count (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    fencing_token integer NOT NULL,     -- of the coordinator
    owner integer NOT NULL REFERENCES @extschema@.mop_owner ON DELETE CASCADE,
    outcome text,                       -- the status with which it ended the run; NULL: it has not, or the run trains nothing
    units_finished bigint NOT NULL DEFAULT 0,
    units_failed bigint NOT NULL DEFAULT 0,
    units_retried bigint NOT NULL DEFAULT 0,
    sent_bytes bigint NOT NULL DEFAULT 0, -- of model states that went from one server to another
    units_done bigint,
    units_left bigint,
    PRIMARY KEY (run_id, fencing_token)
) WITH (fillfactor = 50);
-- The same, summed up, of runs that were dropped; and the core-seconds of ended runs.
CREATE TABLE @extschema@.mop_past_count (
    owner integer NOT NULL REFERENCES @extschema@.mop_owner ON DELETE CASCADE,
    runs_finished bigint NOT NULL DEFAULT 0,
    runs_failed bigint NOT NULL DEFAULT 0,
    runs_cancelled bigint NOT NULL DEFAULT 0,
    units_finished bigint NOT NULL DEFAULT 0,
    units_failed bigint NOT NULL DEFAULT 0,
    units_retried bigint NOT NULL DEFAULT 0,
    sent_bytes bigint NOT NULL DEFAULT 0,
    core_seconds double precision NOT NULL DEFAULT 0
);
CREATE INDEX mop_run_in_progress ON @extschema@.mop_run (owner) WHERE status = 'running';
ALTER TABLE @extschema@.mop_run_count ENABLE ROW LEVEL SECURITY; -- only the extension's owner reads them
ALTER TABLE @extschema@.mop_past_count ENABLE ROW LEVEL SECURITY;
ALTER TABLE @extschema@.mop_past_count REPLICA IDENTITY FULL;
-- Who did what, and when (13_audit.sql): rows are only added. The column `run` is no foreign key: a row
-- outlives its run. The table has no primary key: a restored dump meets rows that the restoration has added.
CREATE TABLE @extschema@.mop_audit_log (
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    act text NOT NULL,
    run bigint,                         -- NULL: the act is on no run
    role name,                          -- whose rights were in force: its name at that time, or at a dump
    login name NOT NULL,                -- the role that was logged in
    who regrole,                        -- the role's OID; 0: it was dropped before a dump
    details json                        -- numbers and names
);
CREATE INDEX mop_audit_log_noted_at ON @extschema@.mop_audit_log (noted_at);
ALTER TABLE @extschema@.mop_audit_log ENABLE ROW LEVEL SECURITY; -- only the extension's owner reads it; users read mop_audit
ALTER TABLE @extschema@.mop_audit_log REPLICA IDENTITY FULL;
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_audit_log', $$WHERE false UNION ALL
    SELECT l.noted_at, l.act, l.run, coalesce(a.rolname, l.role), l.login, CASE WHEN a.oid IS NULL THEN 0::regrole END,
        l.details
    FROM @extschema@.mop_audit_log l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who$$);
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_limit', $$WHERE false UNION ALL
    SELECT coalesce(a.rolname, l.role), l.sessions, l.threads, l.trainer_memory_mb, l.max_model_mb, NULL::regrole,
        l.max_seconds, l.max_disk_mb, l.max_priority, l.share, l.device_share
    FROM @extschema@.mop_limit l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who
    WHERE l.role IS NULL OR l.who = 0::oid OR a.oid IS NOT NULL$$);
DROP FUNCTION IF EXISTS @extschema@.mop_limits(text); -- it returns more columns now

-- (these tables have no primary key for a while, and a publication FOR ALL TABLES would forbid their updates)
ALTER TABLE @extschema@.mop_unit REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_metric REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_partial REPLICA IDENTITY FULL;
ALTER TABLE @extschema@.mop_model REPLICA IDENTITY FULL;

-- In runs of older versions, every iteration of every configuration becomes a separate stage, numbered by iteration. (No
-- temporary tables: Citus cannot prepare a transaction that uses them.)
CREATE TABLE @extschema@.mop_chain AS
SELECT c.run_id, c.mst_key, c.compile_params, c.fit_params, i.iteration, r.metrics_iterations, r.averaging,
       ((i.iteration - 1) * pg_catalog.count(*) OVER of_iteration
        + pg_catalog.row_number() OVER (of_iteration ORDER BY c.mst_key))::integer AS stage,
       pg_catalog.count(*) OVER of_iteration AS width,
       CASE WHEN r.averaging THEN 1 ELSE r.segments END AS visits
FROM @extschema@.mop_configuration c JOIN (
    SELECT run_id, num_iterations, metrics_iterations, segments, function OPERATOR(pg_catalog.=) 'madlib_keras_fit'
           AND coalesce(parameters #>> '{settings,fit_strategy}' = 'averaging', false) AS averaging
    FROM @extschema@.mop_run) r USING (run_id)
CROSS JOIN LATERAL pg_catalog.generate_series(1, r.num_iterations) AS i(iteration)
WINDOW of_iteration AS (PARTITION BY c.run_id, i.iteration);
INSERT INTO @extschema@.mop_stage (run_id, stage, parent, iteration, identity, mst_key, compile_params, fit_params,
    evaluated)
SELECT run_id, stage, CASE WHEN iteration > 1 THEN stage - width END, iteration,
       pg_catalog.concat_ws('/', 'before 0.4.0', run_id, mst_key, iteration), mst_key, compile_params, fit_params,
       iteration = ANY (metrics_iterations) AND (mst_key = 1 OR NOT averaging) FROM @extschema@.mop_chain;
INSERT INTO @extschema@.mop_request SELECT run_id, mst_key, iteration, stage FROM @extschema@.mop_chain;

DROP INDEX @extschema@.mop_unit_once;
ALTER TABLE @extschema@.mop_unit DROP CONSTRAINT mop_unit_pkey, DROP CONSTRAINT mop_unit_run_id_mst_key_fkey,
    ADD COLUMN stage integer, ADD COLUMN decision text;
-- the metrics of an average belong to the first replica
UPDATE @extschema@.mop_unit u SET stage = c.stage FROM @extschema@.mop_chain c
WHERE (c.run_id, c.mst_key, c.iteration) =
      (u.run_id, CASE WHEN c.averaging AND u.kind = 'evaluate' THEN 1 ELSE u.mst_key END, u.iteration);
DELETE FROM @extschema@.mop_unit WHERE stage IS NULL;
ALTER TABLE @extschema@.mop_unit DROP COLUMN mst_key, ALTER COLUMN stage SET NOT NULL,
    ADD PRIMARY KEY (run_id, stage, kind, dataset, segment, attempt),
    ADD FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE;
CREATE UNIQUE INDEX mop_unit_once ON @extschema@.mop_unit (run_id, stage, kind, dataset, segment)
    WHERE status = 'finished';

ALTER TABLE @extschema@.mop_metric DROP CONSTRAINT mop_metric_pkey, DROP CONSTRAINT mop_metric_run_id_mst_key_fkey,
    ADD COLUMN stage integer, ADD COLUMN noted_at timestamptz NOT NULL DEFAULT clock_timestamp();
UPDATE @extschema@.mop_metric m SET noted_at = u.noted_at FROM (
    SELECT run_id, iteration, dataset, mst_key, max(finished_at) AS noted_at
    FROM @extschema@.mop_unit JOIN @extschema@.mop_chain c USING (run_id, stage, iteration)
    WHERE kind = 'evaluate' AND finished_at IS NOT NULL GROUP BY 1, 2, 3, 4) u
WHERE (u.run_id, u.iteration, u.dataset, u.mst_key) = (m.run_id, m.iteration, m.dataset, m.mst_key);
UPDATE @extschema@.mop_metric m SET stage = c.stage FROM @extschema@.mop_chain c
WHERE (c.run_id, c.mst_key, c.iteration) = (m.run_id, m.mst_key, m.iteration);
DELETE FROM @extschema@.mop_metric WHERE stage IS NULL;
ALTER TABLE @extschema@.mop_metric DROP COLUMN mst_key, DROP COLUMN iteration, ALTER COLUMN stage SET NOT NULL,
    ADD PRIMARY KEY (run_id, stage, dataset),
    ADD FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE;

ALTER TABLE @extschema@.mop_partial DROP CONSTRAINT mop_partial_pkey, ADD COLUMN stage integer;
UPDATE @extschema@.mop_partial p SET stage = c.stage FROM @extschema@.mop_chain c
WHERE (c.run_id, c.mst_key, c.iteration) = (p.run_id, p.mst_key, p.iteration);
DELETE FROM @extschema@.mop_partial WHERE stage IS NULL;
ALTER TABLE @extschema@.mop_partial DROP COLUMN mst_key, DROP COLUMN iteration, ALTER COLUMN stage SET NOT NULL,
    ADD PRIMARY KEY (run_id, stage, dataset, segment);

-- a version of a state belongs to the stage of its iteration
CREATE TABLE @extschema@.mop_model_before AS SELECT * FROM @extschema@.mop_model;
ALTER TABLE @extschema@.mop_model DROP CONSTRAINT mop_model_pkey, DROP CONSTRAINT mop_model_run_id_mst_key_fkey,
    DROP COLUMN mst_key, DROP COLUMN kept_generation, ALTER COLUMN version DROP DEFAULT, ADD COLUMN stage integer,
    ADD COLUMN made_on integer;
DELETE FROM @extschema@.mop_model;
ALTER TABLE @extschema@.mop_model ALTER COLUMN stage SET NOT NULL, ADD PRIMARY KEY (run_id, stage),
    ADD FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE;
INSERT INTO @extschema@.mop_model (run_id, stage, version, generation, bytes)
SELECT c.run_id, c.stage,
       least(greatest(m.version, (c.iteration - 1) * c.visits), c.iteration * c.visits),
       CASE WHEN greatest(m.version, 1) BETWEEN (c.iteration - 1) * c.visits + 1 AND c.iteration * c.visits
                 THEN m.generation
            WHEN greatest(m.version - 1, 1) BETWEEN (c.iteration - 1) * c.visits + 1 AND c.iteration * c.visits
                 THEN m.kept_generation END,
       CASE WHEN (c.iteration - 1) * c.visits < m.version OR c.iteration = 1 THEN m.bytes END
FROM @extschema@.mop_chain c JOIN @extschema@.mop_model_before m USING (run_id, mst_key);

CREATE TABLE @extschema@.mop_checkpoint (
    run_id bigint NOT NULL,
    stage integer NOT NULL,
    seconds double precision NOT NULL,  -- session time to train it again from the start
    used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_model ON DELETE CASCADE
);
ALTER TABLE @extschema@.mop_checkpoint ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_checkpoint FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));

DO $do$
DECLARE
    kept record;
    name text;
BEGIN
    FOR kept IN SELECT run_id, generation FROM @extschema@.mop_generation LOOP
        name := '@extschema@.' || pg_catalog.quote_ident('mop_state_' || kept.run_id || '_' || kept.generation);
        EXECUTE 'ALTER TABLE ' || name || ' RENAME COLUMN mst_key TO stage';
        -- (first to large numbers, since the new numbers of stages overlap with the old keys)
        EXECUTE 'UPDATE ' || name || ' t SET stage = c.stage + 1000000000 FROM @extschema@.mop_chain c WHERE c.run_id = $1'
                ' AND c.mst_key = t.stage AND greatest(t.version, 1) BETWEEN (c.iteration - 1) * c.visits + 1'
                ' AND c.iteration * c.visits' USING kept.run_id;
        EXECUTE 'UPDATE ' || name || ' SET stage = stage - 1000000000 WHERE stage > 1000000000';
    END LOOP;
END
$do$;
DROP TABLE @extschema@.mop_chain, @extschema@.mop_model_before;
ALTER TABLE @extschema@.mop_unit REPLICA IDENTITY DEFAULT;

CREATE TABLE @extschema@.mop_hop (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,
    version integer NOT NULL,           -- of the state
    source text NOT NULL,
    target text NOT NULL,
    way text NOT NULL CHECK (way IN ('direct', 'coordinator')), -- coordinator: it passed through this server
    bytes bigint NOT NULL,
    seconds double precision NOT NULL,  -- to carry it; of states that went together, an equal part each
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, stage, version, target),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);
ALTER TABLE @extschema@.mop_hop ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_hop FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_hop', '');
ALTER TABLE @extschema@.mop_metric REPLICA IDENTITY DEFAULT;
ALTER TABLE @extschema@.mop_partial REPLICA IDENTITY DEFAULT;
ALTER TABLE @extschema@.mop_model REPLICA IDENTITY DEFAULT;

-- Jobs: calls that continue without their client, the last ones of each role.
CREATE TABLE @extschema@.mop_job (
    job bigserial PRIMARY KEY,
    owner integer NOT NULL REFERENCES @extschema@.mop_owner,
    command text NOT NULL,
    status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'finished', 'failed', 'cancelled')),
    session_pid integer NOT NULL,       -- the backend that runs it, and the start of that backend
    session_start timestamptz NOT NULL,
    submitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    error text,
    messages text[] NOT NULL DEFAULT '{}', -- the last 200 lines of INFO, NOTICE and WARNING
    runs bigint[] NOT NULL DEFAULT '{}' -- its runs that another session has taken over
);
CREATE INDEX mop_job_owner ON @extschema@.mop_job (owner);
ALTER TABLE @extschema@.mop_job ENABLE ROW LEVEL SECURITY; -- only the extension's owner reads it; users read mop_jobs

-- states of dropped tables
UPDATE @extschema@.mop_model m SET generation = NULL WHERE m.generation IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM @extschema@.mop_generation g WHERE (g.run_id, g.generation) = (m.run_id, m.generation));

-- old names

DROP TRIGGER IF EXISTS generation_gone ON @extschema@.mop_generation;
ALTER TABLE @extschema@.mop_model RENAME TO mop_stage_state;
ALTER TABLE @extschema@.mop_stage_state RENAME COLUMN generation TO state_table;
ALTER TABLE @extschema@.mop_stage_state RENAME CONSTRAINT mop_model_pkey TO mop_stage_state_pkey;
ALTER TABLE @extschema@.mop_stage_state RENAME CONSTRAINT mop_model_run_id_stage_fkey TO mop_stage_state_run_id_stage_fkey;
ALTER TABLE @extschema@.mop_generation RENAME TO mop_state_table;
ALTER TABLE @extschema@.mop_state_table RENAME COLUMN generation TO state_table;
ALTER TABLE @extschema@.mop_state_table RENAME CONSTRAINT mop_generation_pkey TO mop_state_table_pkey;
ALTER TABLE @extschema@.mop_state_table RENAME CONSTRAINT mop_generation_run_id_fkey TO mop_state_table_run_id_fkey;
ALTER TABLE @extschema@.mop_run RENAME COLUMN epoch TO fencing_token;
ALTER TABLE @extschema@.mop_configuration DROP CONSTRAINT mop_configuration_blame_check;
UPDATE @extschema@.mop_configuration SET blame = 'infrastructure' WHERE blame = 'place';
ALTER TABLE @extschema@.mop_configuration ADD CONSTRAINT mop_configuration_blame_check
    CHECK (blame IN ('configuration', 'infrastructure'));
DROP VIEW IF EXISTS @extschema@.mop_tickets;

-- Functions of older versions without a successor, or with other arguments. (An update from 0.1.0 or 0.2.0 has a part of
-- them.)

DROP FUNCTION IF EXISTS @extschema@.mop_open_run(json, json, json, text),
    @extschema@.mop_begin_unit(bigint, integer, integer, integer, integer, text, text, integer, double precision, text),
    @extschema@.mop_fail_unit(bigint, integer, integer, integer, integer, text, text, integer, double precision, text,
        text),
    @extschema@.mop_finish_unit(bigint, integer, integer, integer, text, text, integer, integer, integer, bigint,
        boolean, text, bigint, double precision, double precision, double precision, double precision,
        double precision, integer, text, text),
    @extschema@.mop_put_sums(bigint, integer, integer, text, integer, double precision[], text),
    @extschema@.mop_note_metrics(bigint, integer, integer, text, double precision, double precision, text, text),
    @extschema@.mop_fail_configuration(bigint, integer, integer, text, text, text),
    @extschema@.mop_move_states(bigint, integer[], integer, text), @extschema@.mop_put_weights(bigint, integer, bytea, text),
    @extschema@.mop_take_model(bigint, integer, integer, integer, boolean, text),
    @extschema@.mop_read_state(bigint, integer, integer, text),
    @extschema@.mop_put_state(bigint, integer, integer, integer, integer, bytea, text);
-- (numbers are double precision now)
DROP FUNCTION IF EXISTS
    @extschema@.training_preprocessor_dl(varchar, varchar, varchar, varchar, integer, real, integer[], text, text),
    @extschema@.validation_preprocessor_dl(varchar, varchar, varchar, varchar, varchar, integer, text),
    @extschema@.delete_keras_model(varchar, integer), @extschema@.delete_custom_function(varchar, integer),
    @extschema@.load_top_k_accuracy_function(varchar, integer),
    @extschema@.top_k_categorical_acc_pickled(integer, varchar),
    @extschema@.load_model_selection_table(varchar, varchar, integer[], varchar[], varchar[], varchar),
    @extschema@.generate_model_configs(varchar, varchar, integer[], varchar, varchar, varchar, integer, integer, varchar),
    @extschema@.madlib_keras_fit_multiple_model(varchar, varchar, varchar, integer, boolean, varchar, integer, boolean,
        varchar, varchar, boolean),
    @extschema@.madlib_keras_fit(varchar, varchar, varchar, integer, varchar, varchar, integer, boolean, varchar,
        integer, boolean, varchar, varchar, varchar),
    @extschema@.mop_resume(bigint), @extschema@.mop_replay(bigint, varchar), @extschema@.mop_drop_run(bigint),
    @extschema@.mop_drop_states(bigint), @extschema@.mop_set_sessions(bigint, integer),
    @extschema@.madlib_keras_evaluate(varchar, varchar, varchar, boolean, integer),
    @extschema@.madlib_keras_predict(varchar, varchar, varchar, varchar, varchar, varchar, boolean, integer),
    @extschema@.madlib_keras_predict(varchar, varchar, varchar, varchar, varchar, integer, boolean, integer),
    @extschema@.madlib_keras_predict(varchar, varchar, varchar, varchar, varchar, double precision, boolean, integer),
    @extschema@.madlib_keras_predict_byom(varchar, integer, varchar, varchar, varchar, varchar, varchar, boolean, text[],
        double precision, integer),
    @extschema@.madlib_keras_predict_byom(varchar, integer, varchar, varchar, varchar, varchar, integer, boolean, text[],
        double precision, integer),
    @extschema@.madlib_keras_predict_byom(varchar, integer, varchar, varchar, varchar, varchar, double precision, boolean,
        text[], double precision, integer),
    @extschema@.mop_export_model(varchar, integer);
DROP PROCEDURE IF EXISTS @extschema@.mop_fit_multiple_model(varchar, varchar, varchar, integer, boolean, varchar, integer,
    boolean, varchar, varchar, boolean);
-- what roles share with one another
-- The role with whose members a role shares what its runs train.
CREATE TABLE @extschema@.mop_sharing (
    owner integer PRIMARY KEY REFERENCES @extschema@.mop_owner ON DELETE CASCADE,
    of_group regrole NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Runs that share: their packed tables, and digests of all rows of these.
CREATE TABLE @extschema@.mop_shared_run (
    run_id bigint PRIMARY KEY REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    training oid NOT NULL,
    training_rows text NOT NULL,
    validation oid,
    validation_rows text
);
CREATE INDEX mop_shared_run_rows ON @extschema@.mop_shared_run (training_rows);
-- Stages that a run has taken over from another role's run, which may be gone.
CREATE TABLE @extschema@.mop_taken_stage (
    run_id bigint NOT NULL,
    stage integer NOT NULL,
    of_group oid NOT NULL,
    giver integer NOT NULL,             -- the role's number in mop_owner
    giver_run bigint NOT NULL,
    giver_stage integer NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);
-- The training units of stages that a run has taken over from another role's run: their visit order, for replays.
CREATE TABLE @extschema@.mop_taken_unit (
    run_id bigint NOT NULL,
    stage integer NOT NULL,
    segment integer NOT NULL,
    version integer NOT NULL,
    kernel text,
    rows bigint,
    loss double precision,
    train_seconds double precision,
    threads integer,
    kernels json,                       -- of each batch, where several trained the unit
    divided_by integer,                 -- devices that the model was divided among; NULL: one had all of it
    PRIMARY KEY (run_id, stage, segment),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);
ALTER TABLE @extschema@.mop_sharing ENABLE ROW LEVEL SECURITY;
ALTER TABLE @extschema@.mop_shared_run ENABLE ROW LEVEL SECURITY;
ALTER TABLE @extschema@.mop_taken_stage ENABLE ROW LEVEL SECURITY;
ALTER TABLE @extschema@.mop_taken_unit ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_taken_unit FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_taken_unit', '');

-- sessions end with their run; trainers wait in a pool
DROP EVENT TRIGGER IF EXISTS pg_mop_end_idle_sessions;
DROP FUNCTION IF EXISTS @extschema@.mop_end_idle_sessions(), @extschema@.mop_start_trainer(text);
DROP VIEW IF EXISTS @extschema@.mop_kernel_choices; -- two of its columns are jsonb now
-- internal functions whose arguments have other names now, which CREATE OR REPLACE refuses
DO $do$
DECLARE
    named text;
BEGIN
    named := (
        SELECT pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::pg_catalog.text, ', ')
        FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid
            AND d.deptype = 'e'
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        WHERE p.proargnames && ARRAY['ticket', 'run_epoch', 'seal', 'generation', 'place']
            OR p.proname IN ('mop_ticket', 'mop_generation_gone'));
    IF named IS NOT NULL THEN
        EXECUTE 'DROP FUNCTION ' || named;
    END IF;
END
$do$;

#functions

-- The catalog's tables: runs, their configurations, stages, segments, units and model states.
--
-- Users may not write to these tables: the sessions of a run belong to the caller, and write with the SECURITY DEFINER
-- functions of 12_tokens.sql and the 13_ files. Row security lets a role read its own runs; on Greenplum, which has no
-- row security, views of the same columns do (greenplum/14_own_rows.sql). The views of 14_views.sql show a role its own
-- runs and those of the roles that it may act as.

\echo Use "CREATE EXTENSION pg_mop" to load this file. \quit

DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'pg_mop needs a database of encoding UTF8, not %', pg_catalog.getdatabaseencoding();
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = 'mop_user') THEN
        CREATE ROLE mop_user NOLOGIN;
    END IF;
END
$$;

-- A table, a view or a query. A function that also takes rows takes these only by the argument's name (62_named_models.sql).
CREATE DOMAIN @extschema@.mop_source AS text;

-- The secret of capability tokens (12_tokens.sql). Only the extension's owner reads it: row security hides it even from
-- roles that may read all tables (11_row_security.sql). It is not dumped, since every database has its own.
CREATE TABLE @extschema@.mop_secret (secret bytea NOT NULL);

-- The roles that own runs. Roles are identified by OID: reusing the name of a dropped or renamed role grants nothing. A
-- dump contains the roles' names at its time instead of their OIDs.
CREATE TABLE @extschema@.mop_owner (
    owner serial PRIMARY KEY,
    role name NOT NULL,                 -- its name at its last run; shown after the role was dropped
    who regrole NOT NULL                -- 0: a dropped role
);

CREATE TABLE @extschema@.mop_run (
    run_id bigserial PRIMARY KEY,
    owner integer NOT NULL REFERENCES @extschema@.mop_owner,
    status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'finished', 'failed', 'cancelled')),
    function text NOT NULL,
    source_table text NOT NULL,
    validation_table text,
    model_output_table text NOT NULL,
    seed bigint NOT NULL,
    scheduler text NOT NULL,
    num_iterations integer NOT NULL,
    metrics_iterations integer[] NOT NULL,
    configurations integer NOT NULL,
    segments integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    error text,
    parameters json NOT NULL,           -- the call's arguments and the settings in force
    coordinator_pid integer NOT NULL,   -- the backend that runs it, and the start of that backend
    coordinator_start timestamptz,
    sessions integer CHECK (sessions > 0), -- the requested number of worker sessions
    fencing_token integer NOT NULL DEFAULT 1, -- number of coordinators so far; earlier ones are refused
    expected_seconds double precision,  -- estimated from the cost history; NULL: without history
    prediction json                     -- what the planner expected at its start (plan/estimates.py)
);

-- Runs with output tables: the caller's transaction inserts the row, which becomes visible with its commit. (The row
-- has no foreign key, since a transaction at repeatable read does not see the run's row. mop_housekeeping deletes rows
-- without a run.)
CREATE TABLE @extschema@.mop_output (
    run_id bigint PRIMARY KEY
);

CREATE TABLE @extschema@.mop_configuration (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    model_id integer NOT NULL,
    compile_params text NOT NULL,
    fit_params text,
    model_arch text NOT NULL,
    error text,                         -- the reason of its failure, if it failed
    blame text CHECK (blame IN ('configuration', 'infrastructure')), -- infrastructure: a resumed run tries again
    weights_sql text,                   -- the source of its initial weights; NULL: drawn from the seed
    weights_md5 text,
    reason text,                        -- set if a rule or a user stopped it early
    fold integer,                       -- of cross-validation: from 1; NULL: it trains on all segments
    fold_of integer,                    -- the mst_key of the configuration of which it is a fold
    held_out integer[],                 -- the segments that it never visits, and is evaluated on
    member json,                        -- of a model space: its number, choices, primitives; its parent and what was changed
    kept_by text,                       -- what chooses its best state: 'validation accuracy max'; NULL: the last one is kept
    PRIMARY KEY (run_id, mst_key)
);

-- The search plan: a forest of stages. A stage is one iteration of training from its parent's state under given
-- parameters; all configurations with the same path to it share it.
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

-- The stage of each iteration of a configuration.
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
CREATE INDEX mop_stage_configuration ON @extschema@.mop_stage (run_id, mst_key); -- for the end of a run

-- The location of a stage's model state: the rows of this version in this state table. The row is narrow because every
-- unit updates it.
CREATE TABLE @extschema@.mop_stage_state (
    run_id bigint NOT NULL,
    stage integer NOT NULL,
    version integer NOT NULL,           -- units trained since the start of the path; first the parent's version
    state_table integer,                -- NULL: drawn from the seed, the parent's state, or no longer needed
    bytes bigint,                       -- size of the state
    made_on integer,                    -- the segment of its last unit (of a chain: of its first); NULL: no unit, or a
                                        -- unit on another server
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
) WITH (fillfactor = 50);

-- Checkpoints: states of ended runs from which later runs may continue.
CREATE TABLE @extschema@.mop_checkpoint (
    run_id bigint NOT NULL,
    stage integer NOT NULL,
    seconds double precision NOT NULL,  -- session time to train it again from the start
    used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage_state ON DELETE CASCADE
);

-- A state table is a table mop_state_<run_id>_<state_table> of model states. States that are written in the same period
-- share one. When none of its states is needed, the whole table is dropped. That frees the disk at once; VACUUM could
-- not free it while the call's own transaction is open.
CREATE TABLE @extschema@.mop_state_table (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    state_table integer NOT NULL,
    PRIMARY KEY (run_id, state_table)
);

-- A run's remote runs: one on each other server with segments of the run (postgresql/14_servers.sql).
CREATE TABLE @extschema@.mop_remote_run (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    server name NOT NULL,               -- the foreign server's name
    remote_run bigint NOT NULL,         -- the run's number on that server
    PRIMARY KEY (run_id, server)
);

-- Limits that an administrator sets for a role, or with role NULL for all roles without a row. NULL columns do not
-- limit.
CREATE TABLE @extschema@.mop_limit (
    role name UNIQUE,
    sessions integer CHECK (sessions > 0),                   -- trainers of all sessions of the role
    threads integer CHECK (threads > 0),                     -- of a trainer
    trainer_memory_mb integer CHECK (trainer_memory_mb > 0), -- of a trainer
    max_model_mb integer CHECK (max_model_mb > 0),           -- of a model with its optimizer's variables
    who regrole,                        -- the named role's OID; 0: no role had this name
    -- of a run, as the planner expects it at least
    max_seconds double precision CHECK (max_seconds > 0 AND max_seconds < 'Infinity'),
    max_disk_mb integer CHECK (max_disk_mb > 0),             -- of the live model states of a run, as the planner expects them
    max_priority integer CHECK (max_priority BETWEEN -100 AND 100), -- of a run
    share double precision CHECK (share > 0 AND share < 'Infinity'), -- of the cores, where roles compete; NULL: 1
    device_share double precision CHECK (device_share BETWEEN 0.001 AND 1) -- of a device's memory, for all of its trainers
);

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

-- What each coordinator of a run has counted, for mop_monitoring and mop_run_progress. These tables are not dumped: a restored database counts anew.
CREATE TABLE @extschema@.mop_run_count (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    fencing_token integer NOT NULL,     -- of the coordinator
    owner integer NOT NULL REFERENCES @extschema@.mop_owner ON DELETE CASCADE,
    outcome text,                       -- the status with which it ended the run; NULL: it has not, or the run trains nothing
    units_finished bigint NOT NULL DEFAULT 0,
    units_failed bigint NOT NULL DEFAULT 0,
    units_retried bigint NOT NULL DEFAULT 0,
    sent_bytes bigint NOT NULL DEFAULT 0, -- of model states that went from one server to another
    -- of the run, as its coordinator has counted while it goes on: so that a look needs no count. NULL: it has not told them
    units_done bigint,                  -- with those of earlier coordinators
    units_left bigint,                  -- also those that run
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

CREATE TABLE @extschema@.mop_segment (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    segment integer NOT NULL,
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    fingerprint text NOT NULL,          -- digest of the packed rows' versions, which changes with every write
    server name,                        -- the foreign server that holds it; NULL: this server
    PRIMARY KEY (run_id, dataset, segment)
);

-- Copies of segments on other servers, with the same rows at the run's start: the run may continue with them.
CREATE TABLE @extschema@.mop_copy (
    run_id bigint NOT NULL,
    dataset text NOT NULL,
    segment integer NOT NULL,
    fingerprint text NOT NULL,
    server name,                        -- as in mop_segment
    FOREIGN KEY (run_id, dataset, segment) REFERENCES @extschema@.mop_segment ON DELETE CASCADE
);
CREATE INDEX mop_copy_segment ON @extschema@.mop_copy (run_id, dataset, segment);

CREATE TABLE @extschema@.mop_unit (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,
    iteration integer NOT NULL,
    segment integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('train', 'evaluate')),
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    attempt integer NOT NULL,
    status text NOT NULL CHECK (status IN ('running', 'finished', 'failed', 'cancelled')),
    version integer,                    -- train: the version of its new model state
    backend_pid integer,                -- of the session, on `server`
    kernel text,
    rows bigint,
    loss double precision,
    metric double precision,
    queued_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    read_seconds double precision,      -- for the model state, and for the rows if they were sent
    train_seconds double precision,     -- of the trainer
    write_seconds double precision,     -- of the new model state
    error text,
    compilations integer,               -- number of steps and loops that the trainer compiled for this unit
    choice json,                        -- measurements of the kernel autotuner (mop_udf/kernels)
    decision text,                      -- of a failed attempt: why the unit was tried again, or not (run/attempt.py)
    cpu_seconds double precision,       -- processor time of the trainer, of all its threads, within train_seconds
    server name,                        -- the foreign server that does it; NULL: this server
    threads integer CHECK (threads > 0), -- of the trainer; a replay gives the unit as many
    gpu_utilization double precision,   -- part of the time in which the trainer's GPU worked, for any process (NVML)
    gpu_memory_bytes bigint,            -- most memory in use on this GPU, by all processes
    PRIMARY KEY (run_id, stage, kind, dataset, segment, attempt),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);

-- Model states that went from one server to another. A server is a foreign server's name, '' for this one.
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

-- Results of evaluations: loss and metrics of all rows of a dataset. The results of averaged replicas belong to mst_key
-- 1.
CREATE TABLE @extschema@.mop_metric (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    loss double precision NOT NULL,
    metric double precision,            -- the first requested metric
    metrics json NOT NULL,              -- all requested metrics by name
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, stage, dataset),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);

-- Sums of evaluated segments, until all segments of their dataset are evaluated.
CREATE TABLE @extschema@.mop_partial (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,
    dataset text NOT NULL,
    segment integer NOT NULL,
    sums double precision[] NOT NULL,   -- the number of rows, then the sums of mop_udf/kernels/scores.py
    PRIMARY KEY (run_id, stage, dataset, segment)
);

-- The results that a search procedure received, and the requests and limits that it obeyed, in order: a resumed search repeats
-- them and continues. The last event of a finished search has what its output tables tell besides.
CREATE TABLE @extschema@.mop_search_log (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    number integer NOT NULL,
    event json NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, number)
);

-- The cost history: seconds of training by net, kernel and device, from the last runs of each role
-- (plan/cost_history.py). It is not dumped, since it describes this machine, and the next runs measure it again.
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

-- Control requests of users to a running run; its coordinator reads and removes them.
CREATE TABLE @extschema@.mop_control_request (
    request bigserial PRIMARY KEY,
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    content json NOT NULL
);

-- What people write about runs (13_notes.sql).
CREATE TABLE @extschema@.mop_run_note (
    run_id bigint PRIMARY KEY REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    note text NOT NULL,
    tags text[] NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Jobs: calls that continue without their client (59_jobs.sql), the last ones of each role. They are not dumped, since
-- the runs keep the parameters.
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

-- What roles share with one another (postgresql/13_sharing.sql). These tables are not dumped: model states are not, either,
-- and the roles of a restored database say anew what they share.
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

SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run_run_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_configuration', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run_note', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_stage', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_request', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_search_log', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_segment', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_unit', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_taken_unit', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_hop', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_metric', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_output', '');
-- A dump contains names instead of these tables' OIDs: pg_dump appends this text to its SELECT ... FROM the table. A
-- dropped role becomes 0.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_owner', $$WHERE false UNION ALL
    SELECT o.owner, coalesce(a.rolname, o.role), CASE WHEN a.oid IS NULL THEN 0::regrole END
    FROM @extschema@.mop_owner o LEFT JOIN pg_catalog.pg_roles a ON a.oid = o.who$$);
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_owner_owner_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_audit_log', $$WHERE false UNION ALL
    SELECT l.noted_at, l.act, l.run, coalesce(a.rolname, l.role), l.login, CASE WHEN a.oid IS NULL THEN 0::regrole END,
        l.details
    FROM @extschema@.mop_audit_log l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who$$);
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_limit', $$WHERE false UNION ALL
    SELECT coalesce(a.rolname, l.role), l.sessions, l.threads, l.trainer_memory_mb, l.max_model_mb, NULL::regrole,
        l.max_seconds, l.max_disk_mb, l.max_priority, l.share, l.device_share
    FROM @extschema@.mop_limit l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who
    WHERE l.role IS NULL OR l.who = 0::oid OR a.oid IS NOT NULL$$);
-- model states are not dumped: a run continues only in the database of its packed rows

-- Servers of this wrapper hold the connection options of worker sessions, and user mappings their users. It has no
-- handler.
CREATE FOREIGN DATA WRAPPER pg_mop NO HANDLER NO VALIDATOR;

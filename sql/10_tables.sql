-- The catalog: runs, their configurations, stages, segments, units and model states.
--
-- Users may not write to the tables: the sessions of a run, which are the caller's, write by the functions of
-- 12_journal.sql. Row security keeps what a role reads to its own runs; where there is none, views of the same columns
-- do (greenplum/14_own_rows.sql). The views show a role its own runs and those of the roles that it may act as.

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

-- What tells a function of the extension's owner who calls it: 12_journal.sql. Nobody reads it but the extension's
-- owner, not even who may read all tables (11_row_security.sql). It is not dumped: every database has its own.
CREATE TABLE @extschema@.mop_secret (secret bytea NOT NULL);

-- Whose runs are whose. A role is what its oid says, whatever it is called: who takes the name of one that is gone, or
-- was renamed, gets nothing of it. A dump has names in place of oids, those that the roles have when it is made.
CREATE TABLE @extschema@.mop_owner (
    owner serial PRIMARY KEY,
    role name NOT NULL,                 -- what it was called when it came here; shown once it is gone
    who regrole NOT NULL                -- 0: nobody
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
    coordinator_pid integer NOT NULL,   -- the backend that runs it, and since when that backend lives
    coordinator_start timestamptz,
    sessions integer CHECK (sessions > 0), -- how many worker sessions are wanted
    fencing_token integer NOT NULL DEFAULT 1,   -- how many coordinators it has had: sessions of those before count no more
    expected_seconds double precision   -- that it would take, by what earlier runs took; NULL: nobody knew
);

-- A run whose output tables are written, by the caller's transaction: seen once that has committed. (No reference to
-- the run, whose row a transaction at repeatable read does not see: mop_housekeeping deletes what has no run any more.)
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
    error text,                         -- why it failed, if it did
    blame text CHECK (blame IN ('configuration', 'place')), -- of that: what failed for its place's sake may be resumed
    weights_sql text,                   -- where its initial weights came from; NULL: drawn from the seed
    weights_md5 text,
    reason text,                        -- why it went no further, where a rule or a person stopped it
    PRIMARY KEY (run_id, mst_key)
);

-- The search plan: a forest of stages. A stage is one iteration of training from its parent's state under given
-- parameters; all configurations that have its beginning in common share it.
CREATE TABLE @extschema@.mop_stage (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,             -- a parent's number is smaller than its children's
    parent integer,                     -- NULL: a path begins
    iteration integer NOT NULL,
    identity text NOT NULL,             -- digest of everything that decides its result (plan/identity.py)
    mst_key integer NOT NULL,           -- the configuration that asked for it first
    compile_params text NOT NULL,       -- in force in this iteration
    fit_params text,
    evaluated boolean NOT NULL,         -- somebody wants its metrics
    source_run bigint,                  -- where it was trained, if that was an earlier run
    source_stage integer,
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);

-- Which stage an iteration of a configuration is.
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

-- Where a stage's model state is: in the rows of its version, in the table of its state_table. A narrow row, for it is
-- written anew with every unit.
CREATE TABLE @extschema@.mop_stage_state (
    run_id bigint NOT NULL,
    stage integer NOT NULL,
    version integer NOT NULL,           -- = units trained since the path began; at first that of the parent, whose it is
    state_table integer,                 -- of the version; NULL: drawn from the seed, the parent's, or no longer needed
    bytes bigint,                       -- of the version
    made_on integer,                    -- the segment whose unit made it; NULL: none did, or one on another server
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
) WITH (fillfactor = 50);

-- States of runs that have ended which later runs may go on from.
CREATE TABLE @extschema@.mop_checkpoint (
    run_id bigint NOT NULL,
    stage integer NOT NULL,
    seconds double precision NOT NULL,  -- of session time: to train it again from the beginning
    used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, stage),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage_state ON DELETE CASCADE
);

-- A state_table is a table mop_state_<run_id>_<state_table> of model states. The states that are written in one stretch
-- of time share one, which is dropped as a whole once no state in it is of use: that frees the disk at once, which
-- VACUUM could not do as long as the call's own transaction is open.
CREATE TABLE @extschema@.mop_state_table (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    state_table integer NOT NULL,
    PRIMARY KEY (run_id, state_table)
);

-- The run's own run on each other server that holds segments of it: sql/13_servers.sql.
CREATE TABLE @extschema@.mop_remote_run (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    server name NOT NULL,               -- the foreign server's name
    remote_run bigint NOT NULL,              -- the run's number there
    PRIMARY KEY (run_id, server)
);

-- What an administrator allows a role (NULL: all that have no row of their own); NULL columns do not limit.
CREATE TABLE @extschema@.mop_limit (
    role name UNIQUE,
    sessions integer CHECK (sessions > 0),                   -- trainers of the role's sessions, all together
    threads integer CHECK (threads > 0),                     -- of a trainer
    trainer_memory_mb integer CHECK (trainer_memory_mb > 0), -- of a trainer
    max_model_mb integer CHECK (max_model_mb > 0),           -- of a model, with its optimizer's variables
    who regrole                         -- the role itself, found by its name; 0: there was none of that name
);

CREATE TABLE @extschema@.mop_segment (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    segment integer NOT NULL,
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    fingerprint text NOT NULL,          -- of the packed rows' versions: tells that nobody has written to them
    server name,                        -- the foreign server that holds it; NULL: this one
    PRIMARY KEY (run_id, dataset, segment)
);

-- The copies of its segments that a run may go on with: the very same rows when it began.
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
    version integer,                    -- train: the version of the model state that it made
    backend_pid integer,
    kernel text,
    rows bigint,
    loss double precision,
    metric double precision,
    queued_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    read_seconds double precision,      -- the model state and, where they were sent, the rows
    train_seconds double precision,     -- the trainer at work
    write_seconds double precision,     -- the new model state
    error text,
    compilations integer,               -- steps and loops that the trainer compiled for this unit
    choice json,                        -- what the choice of its kernel knew: kernels/choice.py
    decision text,                      -- of a failed attempt: why the unit was tried again, or not (run/attempt.py)
    PRIMARY KEY (run_id, stage, kind, dataset, segment, attempt),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);

-- What evaluations give: loss and metrics of all rows of a dataset. Replicas have theirs together, as those of mst_key 1.
CREATE TABLE @extschema@.mop_metric (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    loss double precision NOT NULL,
    metric double precision,            -- the first that was asked for
    metrics json NOT NULL,              -- all of them by name
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, stage, dataset),
    FOREIGN KEY (run_id, stage) REFERENCES @extschema@.mop_stage ON DELETE CASCADE
);

-- The sums of segments that have been evaluated while others of their dataset have not.
CREATE TABLE @extschema@.mop_partial (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    stage integer NOT NULL,
    dataset text NOT NULL,
    segment integer NOT NULL,
    sums double precision[] NOT NULL,   -- rows, then what mop_udf/kernels/scores.py adds up
    PRIMARY KEY (run_id, stage, dataset, segment)
);

-- What a search procedure proposed and was told, in order: told the same again, it goes on as if nothing had happened.
CREATE TABLE @extschema@.mop_search_log (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    number integer NOT NULL,
    event json NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, number)
);

-- What training has cost, by net, kernel and device, in the last runs of each role that told: plan/cost_history.py. Not
-- dumped: it is of this machine, and there again after a run.
CREATE TABLE @extschema@.mop_cost (
    owner integer NOT NULL REFERENCES @extschema@.mop_owner,
    net text NOT NULL,                  -- digest of what decides the seconds of a mini-batch
    part text NOT NULL CHECK (part IN ('model', 'head')), -- head: what is left after frozen layers
    version text NOT NULL,              -- of Keras and its framework
    device text NOT NULL,
    kernel text NOT NULL,
    architecture text NOT NULL,         -- digest
    optimizer text NOT NULL,
    loss text NOT NULL,
    batch_size integer NOT NULL,
    shape text NOT NULL,                -- of a row
    batch_seconds double precision[] NOT NULL,   -- the least of each run, the latest first
    compile_seconds double precision[] NOT NULL, -- the most of each run
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (owner, net, part, version, device, kernel)
);
CREATE INDEX mop_cost_architecture ON @extschema@.mop_cost (owner, architecture);

-- What people want of a run that goes on: read and removed by its coordinator.
CREATE TABLE @extschema@.mop_control_request (
    request bigserial PRIMARY KEY,
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    content json NOT NULL
);

-- Calls that go on without their client (59_jobs.sql), the last ones of each role; not dumped: what was asked stays with
-- the runs.
CREATE TABLE @extschema@.mop_job (
    job bigserial PRIMARY KEY,
    owner integer NOT NULL REFERENCES @extschema@.mop_owner,
    command text NOT NULL,
    status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'finished', 'failed', 'cancelled')),
    session_pid integer NOT NULL,       -- the backend that runs it, and since when that backend lives
    session_start timestamptz NOT NULL,
    submitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    error text,
    messages text[] NOT NULL DEFAULT '{}', -- lines of INFO, NOTICE, WARNING: the last 200
    runs bigint[] NOT NULL DEFAULT '{}' -- those that another session has gone on with since
);
CREATE INDEX mop_job_owner ON @extschema@.mop_job (owner);

SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run_run_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_configuration', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_stage', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_request', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_search_log', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_segment', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_unit', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_metric', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_output', '');
-- Of these a dump has no oids: PostgreSQL puts the text behind COPY's SELECT ... FROM the table. Who is gone is nobody.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_owner', $$WHERE false UNION ALL
    SELECT o.owner, coalesce(a.rolname, o.role), CASE WHEN a.oid IS NULL THEN 0::regrole END
    FROM @extschema@.mop_owner o LEFT JOIN pg_catalog.pg_roles a ON a.oid = o.who$$);
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_owner_owner_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_limit', $$WHERE false UNION ALL
    SELECT coalesce(a.rolname, l.role), l.sessions, l.threads, l.trainer_memory_mb, l.max_model_mb, NULL::regrole
    FROM @extschema@.mop_limit l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who
    WHERE l.role IS NULL OR l.who = 0::oid OR a.oid IS NOT NULL$$);
-- model states are not dumped: a run goes on where its packed rows are, and only there

-- No handler: servers of it only hold where worker sessions connect to, and user mappings as whom.
CREATE FOREIGN DATA WRAPPER pg_mop NO HANDLER NO VALIDATOR;

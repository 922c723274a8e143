-- The catalog: runs, their configurations, segments, units and model states.
--
-- Users may not write to the tables: the sessions of a run, which are the caller's, write by the functions of
-- 12_journal.sql. Row security keeps what a role reads to its own runs. The views show a role its own runs and those
-- of the roles that it is a member of.

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
-- owner, not even who may read all tables: row security without a policy. It is not dumped: every database has its own.
CREATE TABLE @extschema@.mop_secret (secret bytea NOT NULL);
INSERT INTO @extschema@.mop_secret
SELECT pg_catalog.sha256(pg_catalog.decode(pg_catalog.replace(pg_catalog.concat(pg_catalog.gen_random_uuid(),
    pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid()), '-', ''), 'hex'));
ALTER TABLE @extschema@.mop_secret ENABLE ROW LEVEL SECURITY;

-- Whose runs are whose. A role is what its oid says, whatever it is called: who takes the name of one that is gone, or
-- was renamed, gets nothing of it. A dump has names in place of oids, those that the roles have when it is made.
CREATE TABLE @extschema@.mop_owner (
    owner serial PRIMARY KEY,
    role name NOT NULL,                 -- what it was called when it came here; shown once it is gone
    who regrole NOT NULL                -- 0: nobody
);
CREATE UNIQUE INDEX mop_owner_who ON @extschema@.mop_owner (who) WHERE who::oid OPERATOR(pg_catalog.<>) 0::oid;

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
    epoch integer NOT NULL DEFAULT 1    -- how many coordinators it has had: sessions of those before count no more
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
    PRIMARY KEY (run_id, mst_key)
);

-- Where a configuration's model state is: in the rows of its version, in the table of its generation. A narrow row,
-- for it is written anew with every unit.
CREATE TABLE @extschema@.mop_model (
    run_id bigint NOT NULL,
    mst_key integer NOT NULL,
    version integer NOT NULL DEFAULT 0, -- = units trained; 0: the start, drawn from the seed or weights alone
    generation integer,                 -- of the version; NULL: drawn from the seed
    kept_generation integer,            -- of the version before, where other replicas still read it
    bytes bigint,                       -- of the version
    PRIMARY KEY (run_id, mst_key),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
) WITH (fillfactor = 50);

-- A generation is a table mop_state_<run_id>_<generation> of model states. The states that are written in one stretch
-- of time share one, which is dropped as a whole once no state in it is of use: that frees the disk at once, which
-- VACUUM could not do as long as the call's own transaction is open.
CREATE TABLE @extschema@.mop_generation (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    generation integer NOT NULL,
    PRIMARY KEY (run_id, generation)
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
    PRIMARY KEY (run_id, dataset, segment)
);

CREATE TABLE @extschema@.mop_unit (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
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
    PRIMARY KEY (run_id, mst_key, iteration, kind, dataset, segment, attempt),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);
-- a unit is done once
CREATE UNIQUE INDEX mop_unit_once ON @extschema@.mop_unit (run_id, mst_key, iteration, kind, dataset, segment)
    WHERE status = 'finished';

-- What evaluations give: loss and metrics of all rows of a dataset. Replicas have theirs together, as mst_key 1.
CREATE TABLE @extschema@.mop_metric (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    loss double precision NOT NULL,
    metric double precision,            -- the first that was asked for
    metrics json NOT NULL,              -- all of them by name
    PRIMARY KEY (run_id, mst_key, iteration, dataset),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);

-- The sums of segments that have been evaluated while others of their dataset have not.
CREATE TABLE @extschema@.mop_partial (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    dataset text NOT NULL,
    segment integer NOT NULL,
    sums double precision[] NOT NULL,   -- rows, then what mop_udf/kernels/scores.py adds up
    PRIMARY KEY (run_id, mst_key, iteration, dataset, segment)
);

ALTER TABLE @extschema@.mop_owner ENABLE ROW LEVEL SECURITY;
CREATE POLICY oneself ON @extschema@.mop_owner FOR SELECT
    USING (who OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(current_user)));
ALTER TABLE @extschema@.mop_run ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_run FOR SELECT
    USING (owner OPERATOR(pg_catalog.=) (SELECT o.owner FROM @extschema@.mop_owner o
        WHERE o.who OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(current_user))));
ALTER TABLE @extschema@.mop_configuration ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_configuration FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_segment ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_segment FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_unit ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_unit FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_generation ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_generation FOR SELECT
    USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_model ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_model FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_metric ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_metric FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));

SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run_run_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_configuration', '');
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
-- How a run's sessions write to the catalog. They are the caller's own, who may not write to its tables: each of these
-- functions is the extension owner's, and touches nothing but runs of the role that calls.
--
-- Which role that is such a function cannot see: in it current_user is the owner, and session_user and the role that
-- was SET say who began the session, not whose function calls in it. So the caller shows a ticket. It is the default of
-- the last argument, which PostgreSQL evaluates where the call is written, and is read of a view, where current_user is
-- the role whose rights are in force there. A ticket is good for its role in its transaction of its session alone, so
-- that it is of no use to whoever comes to see one.

-- `backend` tells another session of the role that this one exists.
CREATE VIEW @extschema@.mop_tickets AS
SELECT to_regrole(quote_ident(current_user))::oid || ' ' || encode(sha256(
           s.secret || 'caller' || oidsend(to_regrole(quote_ident(current_user))) || int4send(pg_backend_pid())
           || timestamptz_send(now())), 'hex') AS ticket,
       pg_backend_pid() || ' ' || (extract(epoch FROM now()) * 1000000)::bigint || ' ' || encode(sha256(
           s.secret || 'backend' || oidsend(to_regrole(quote_ident(current_user))) || int4send(pg_backend_pid())
           || int8send((extract(epoch FROM now()) * 1000000)::bigint)), 'hex') AS backend
FROM @extschema@.mop_secret s;

CREATE FUNCTION @extschema@.mop_ticket() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT t.ticket FROM @extschema@.mop_tickets t);
END
$$;

-- The role that a ticket was given to. This, mop_backend, mop_own and mop_reservation are for functions of the
-- extension's owner alone, which have set search_path.
CREATE FUNCTION @extschema@.mop_caller(ticket text) RETURNS oid LANGUAGE plpgsql STABLE AS $$
DECLARE
    role oid;
BEGIN
    IF ticket ~ '^[0-9]{1,10} [0-9a-f]{64}$' THEN
        role := split_part(ticket, ' ', 1);
    END IF;
    IF ticket = (SELECT role || ' ' || encode(sha256(
                            s.secret || 'caller' || oidsend(role) || int4send(pg_backend_pid())
                            || timestamptz_send(now())), 'hex')
                 FROM @extschema@.mop_secret s) THEN
        RETURN role;
    END IF;
    RAISE EXCEPTION 'this is no ticket of this transaction' USING ERRCODE = '42501',
        HINT = 'Leave the argument out.';
END
$$;

-- The session of which another one of the role says (mop_tickets.backend) that it is there, and since when. It must
-- still be: process ids are used again.
CREATE FUNCTION @extschema@.mop_backend(said text, role oid, OUT pid integer, OUT start timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    parts text[] := string_to_array(said, ' ');
BEGIN
    IF said ~ '^[0-9]{1,9} [0-9]{1,18} [0-9a-f]{64}$' AND parts[3] = (
            SELECT encode(sha256(s.secret || 'backend' || oidsend(role) || int4send(parts[1]::integer)
                                 || int8send(parts[2]::bigint)), 'hex') FROM @extschema@.mop_secret s) THEN
        PERFORM pg_stat_clear_snapshot();
        SELECT a.pid, a.backend_start INTO pid, start FROM pg_stat_activity a
        WHERE a.pid = parts[1]::integer AND extract(epoch FROM a.backend_start) * 1000000 <= parts[2]::bigint;
    END IF;
    IF pid IS NULL THEN
        RAISE EXCEPTION 'there is no such session of the role' USING ERRCODE = '42501';
    END IF;
END
$$;

-- Raises unless the run is the calling role's and, where it is given, in this epoch. `lock`: until the transaction's
-- end nobody takes it over: who does waits, or has been waited for and is seen.
CREATE FUNCTION @extschema@.mop_own(run bigint, ticket text, run_epoch integer DEFAULT NULL, lock boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
BEGIN
    -- as in mop_caller, of the run's role: with every unit some times
    IF lock THEN
        SELECT r.epoch INTO reached FROM @extschema@.mop_secret s, @extschema@.mop_run r
        JOIN @extschema@.mop_owner o USING (owner)
        WHERE r.run_id = run AND ticket = o.who::oid || ' ' || encode(sha256(s.secret || 'caller' || oidsend(o.who)
            || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') FOR KEY SHARE OF r;
    ELSE
        SELECT r.epoch INTO reached FROM @extschema@.mop_secret s, @extschema@.mop_run r
        JOIN @extschema@.mop_owner o USING (owner)
        WHERE r.run_id = run AND ticket = o.who::oid || ' ' || encode(sha256(s.secret || 'caller' || oidsend(o.who)
            || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex');
    END IF;
    IF reached IS NULL THEN
        RAISE EXCEPTION 'there is no run % of role "%"', run, pg_get_userbyid(@extschema@.mop_caller(ticket))
            USING ERRCODE = '42501';
    ELSIF reached <> run_epoch THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
END
$$;

-- The role that is called so: where a row is written by hand, or comes from a dump, which has no oids.
CREATE FUNCTION @extschema@.mop_find_role() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    renamed boolean := true;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        renamed := NEW.role IS DISTINCT FROM OLD.role;
        IF renamed AND NEW.who IS NOT DISTINCT FROM OLD.who THEN
            NEW.who := NULL;
        END IF;
    END IF;
    IF NEW.who IS NULL AND NEW.role IS NOT NULL THEN
        NEW.who := coalesce(to_regrole(quote_ident(NEW.role)), 0::regrole);
    END IF;
    IF renamed AND TG_TABLE_NAME = 'mop_limit' THEN
        -- a role that is gone, or is called otherwise now, does not keep its name from others
        DELETE FROM @extschema@.mop_limit l WHERE l.role = NEW.role AND l.who <> 0::oid
        AND NOT EXISTS (SELECT 1 FROM pg_roles a WHERE a.oid = l.who);
        UPDATE @extschema@.mop_limit l SET role = a.rolname FROM pg_roles a
        WHERE l.role = NEW.role AND a.oid = l.who AND a.rolname <> l.role;
    END IF;
    RETURN NEW;
END
$$;

-- The least of what an administrator allows the login, the role that it has SET and the role whose rights are in force.
-- (Where a row's role did not exist when it was written, the name counts.)
CREATE FUNCTION @extschema@.mop_limits(ticket text DEFAULT @extschema@.mop_ticket(), OUT sessions integer,
    OUT threads integer, OUT trainer_memory_mb integer, OUT max_model_mb integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH limits AS (
        SELECT l.*, a.rolname FROM @extschema@.mop_limit l
        JOIN pg_roles a ON l.who = a.oid OR l.who = 0::oid AND l.role = a.rolname
        WHERE a.rolname IN (session_user, current_setting('role')) OR a.oid = @extschema@.mop_caller(ticket)
        UNION ALL
        SELECT l.*, NULL FROM @extschema@.mop_limit l WHERE l.role IS NULL
    )
    SELECT min(l.sessions), min(l.threads), min(l.trainer_memory_mb), min(l.max_model_mb) FROM limits l
    WHERE l.rolname IS NOT NULL OR NOT EXISTS (SELECT 1 FROM limits o WHERE o.rolname = session_user)
$$;

-- process ids of the calling role's sessions, of all databases
CREATE FUNCTION @extschema@.mop_backends(OUT pid integer) RETURNS SETOF integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot(); -- a transaction sees for ever those of its first look
    RETURN QUERY SELECT a.pid FROM pg_stat_activity a WHERE a.usename = session_user;
END
$$;

-- --- runs ------------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.mop_open_run(run json, configurations json, segments json,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(ticket);
    coordinator record := @extschema@.mop_backend(run ->> 'coordinator', caller);
    id bigint;
BEGIN
    INSERT INTO @extschema@.mop_owner (role, who) VALUES (pg_get_userbyid(caller), caller)
    ON CONFLICT (who) WHERE who::oid <> 0::oid DO UPDATE SET role = excluded.role, who = excluded.who
    WHERE mop_owner.role <> excluded.role;
    INSERT INTO @extschema@.mop_run (owner, function, source_table, validation_table, model_output_table, seed,
        scheduler, num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid,
        coordinator_start, sessions)
    SELECT (SELECT o.owner FROM @extschema@.mop_owner o WHERE o.who = caller), r.function, r.source_table,
        r.validation_table, r.model_output_table, r.seed,
        r.scheduler, r.num_iterations, r.metrics_iterations, r.configurations, r.segments, r.parameters,
        coordinator.pid, coordinator.start, r.sessions
    FROM json_to_record(run) AS r(function text, source_table text, validation_table text, model_output_table text,
        seed bigint, scheduler text, num_iterations integer, metrics_iterations integer[], configurations integer,
        segments integer, parameters json, sessions integer)
    RETURNING mop_run.run_id INTO id;
    INSERT INTO @extschema@.mop_configuration (run_id, mst_key, model_id, compile_params, fit_params, model_arch, error,
        blame, weights_sql, weights_md5)
    SELECT id, c.mst_key, c.model_id, c.compile_params, c.fit_params, c.model_arch, c.error,
        CASE WHEN c.error IS NOT NULL THEN 'configuration' END, c.weights_sql, c.weights_md5
    FROM json_to_recordset(configurations) AS c(mst_key integer, model_id integer, compile_params text,
        fit_params text, model_arch text, error text, weights_sql text, weights_md5 text);
    INSERT INTO @extschema@.mop_model (run_id, mst_key)
    SELECT c.run_id, c.mst_key FROM @extschema@.mop_configuration c WHERE c.run_id = id;
    INSERT INTO @extschema@.mop_segment (run_id, dataset, segment, rows, bytes, fingerprint)
    SELECT id, s.dataset, s.segment, s.rows, s.bytes, s.fingerprint
    FROM json_to_recordset(segments) AS s(dataset text, segment integer, rows bigint, bytes bigint, fingerprint text);
    PERFORM @extschema@.mop_new_generation(id, 1, ticket);
    RETURN id;
END
$$;

-- Takes a run over from a coordinator that has gone: its sessions' units end before this returns, or count no more.
-- Gives the run's new epoch, without which no session begins or takes anything.
CREATE FUNCTION @extschema@.mop_reopen_run(run bigint, coordinator text,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(ticket);
    backend record := @extschema@.mop_backend(coordinator, caller);
    reached integer;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    PERFORM 1 FROM @extschema@.mop_run r WHERE r.run_id = run FOR UPDATE;
    IF EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = run AND r.coordinator_pid <> backend.pid
               AND @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'running') THEN
        RAISE EXCEPTION 'run % is running', run USING ERRCODE = '55006';
    END IF;
    -- first the models, as a unit does
    PERFORM 1 FROM @extschema@.mop_model m WHERE m.run_id = run ORDER BY m.mst_key FOR UPDATE;
    UPDATE @extschema@.mop_unit u SET status = 'cancelled', finished_at = clock_timestamp()
    WHERE u.run_id = run AND u.status = 'running';
    UPDATE @extschema@.mop_configuration c SET error = NULL, blame = NULL WHERE c.run_id = run AND c.blame = 'place';
    UPDATE @extschema@.mop_run r SET status = 'running', error = NULL, finished_at = NULL,
        coordinator_pid = backend.pid, coordinator_start = backend.start, epoch = r.epoch + 1
    WHERE r.run_id = run RETURNING r.epoch INTO reached;
    RETURN reached;
END
$$;

-- In this and the following functions an epoch that is NULL may be any.
CREATE FUNCTION @extschema@.mop_close_run(run bigint, run_epoch integer, outcome text, message text,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket, run_epoch, true);
    UPDATE @extschema@.mop_unit u SET status = 'cancelled', finished_at = clock_timestamp()
    WHERE u.run_id = run AND u.status = 'running';
    UPDATE @extschema@.mop_run r SET status = outcome, error = message, finished_at = clock_timestamp()
    WHERE r.run_id = run;
END
$$;

-- What lets a transaction note that the output of a run is written, which at repeatable read does not see the run.
CREATE FUNCTION @extschema@.mop_output_seal(run bigint, ticket text DEFAULT @extschema@.mop_ticket()) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    RETURN (SELECT encode(sha256(s.secret || 'output' || int8send(run)), 'hex') FROM @extschema@.mop_secret s);
END
$$;

-- in the caller's transaction: the run's output is written once that commits
CREATE FUNCTION @extschema@.mop_note_output(run bigint, seal text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT encode(sha256(s.secret || 'output' || int8send(run)), 'hex') FROM @extschema@.mop_secret s)
            IS DISTINCT FROM seal THEN
        RAISE EXCEPTION 'this is no seal of run %', run USING ERRCODE = '42501';
    END IF;
    INSERT INTO @extschema@.mop_output VALUES (run) ON CONFLICT DO NOTHING;
END
$$;

-- the advisory lock by which a session says that it makes a table: a number that nobody else can know
CREATE FUNCTION @extschema@.mop_reservation(place oid, output_name name, pid integer) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT ('x' || left(encode(sha256(s.secret || 'reservation' || oidsend(place) || int4send(pid)
                                      || convert_to(output_name, 'UTF8')), 'hex'), 16))::bit(64)::bigint
    FROM @extschema@.mop_secret s
$$;

-- Keeps others from making the table until this transaction ends, or gives false: somebody else does so, or begins to
-- in the same instant. Who may not make it keeps nobody. (No row, which would need a transaction id: that of a
-- procedure's locks lasts as long as it trains.)
CREATE FUNCTION @extschema@.mop_reserve(output_schema text, output_name name,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place oid := to_regnamespace(quote_ident(output_schema));
BEGIN
    IF has_schema_privilege(@extschema@.mop_caller(ticket), place, 'CREATE') IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for schema "%"', output_schema USING ERRCODE = '42501';
    END IF;
    PERFORM pg_try_advisory_xact_lock(@extschema@.mop_reservation(place, output_name, pg_backend_pid()));
    RETURN NOT EXISTS (
        SELECT 1 FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.objsubid = 1
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND (l.classid::bigint << 32 | l.objid::bigint) = @extschema@.mop_reservation(place, output_name, l.pid));
END
$$;

-- drops the states that nobody needs any more, and closes the calling role's runs whose coordinator has gone
CREATE FUNCTION @extschema@.mop_housekeeping(ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller integer := (SELECT o.owner FROM @extschema@.mop_owner o WHERE o.who = @extschema@.mop_caller(ticket));
    run bigint;
BEGIN
    DELETE FROM @extschema@.mop_output o WHERE o.run_id IN (
        SELECT w.run_id FROM @extschema@.mop_output w WHERE NOT EXISTS (
            SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = w.run_id) FOR UPDATE SKIP LOCKED);
    FOR run IN SELECT r.run_id FROM @extschema@.mop_run r JOIN @extschema@.mop_output o USING (run_id)
               WHERE r.owner = caller AND r.status <> 'running'
               AND EXISTS (SELECT 1 FROM @extschema@.mop_generation g WHERE g.run_id = r.run_id)
    LOOP
        BEGIN
            DELETE FROM @extschema@.mop_generation g WHERE g.run_id = run;
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call will try again
        END;
    END LOOP;
    FOR run IN SELECT r.run_id FROM @extschema@.mop_run r
               WHERE r.owner = caller AND r.status = 'running' AND @extschema@.mop_status(
                   r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'failed'
               FOR NO KEY UPDATE SKIP LOCKED -- somebody takes it over
    LOOP
        PERFORM pg_stat_clear_snapshot(); -- its new coordinator may have connected after the first look
        CONTINUE WHEN EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = run AND @extschema@.mop_status(
                                  r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'running');
        BEGIN
            PERFORM @extschema@.mop_close_run(run, NULL, 'failed', 'the session that ran it has ended',
                                              ticket);
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call will try again
        END;
    END LOOP;
END
$$;

-- one of the calling role's runs that is not running, or a superuser's choice; `all_of_it`: or its states alone
CREATE FUNCTION @extschema@.mop_drop(run_id bigint, all_of_it boolean, ticket text DEFAULT @extschema@.mop_ticket())
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = @extschema@.mop_caller(ticket)), false) THEN
        PERFORM @extschema@.mop_own($1, ticket);
    ELSIF NOT EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = $1) THEN
        RAISE EXCEPTION 'there is no run %', $1 USING ERRCODE = '22023';
    END IF;
    PERFORM 1 FROM @extschema@.mop_run r WHERE r.run_id = $1 FOR UPDATE; -- nobody takes it over now
    IF EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = $1 AND @extschema@.mop_status(
                   r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'running') THEN
        RAISE EXCEPTION 'run % is running', $1 USING ERRCODE = '55006', HINT = (
            SELECT 'SELECT pg_cancel_backend(' || r.coordinator_pid || '); ends it.'
            FROM @extschema@.mop_run r WHERE r.run_id = $1);
    END IF;
    DELETE FROM @extschema@.mop_generation g WHERE g.run_id = $1;
    IF all_of_it THEN
        DELETE FROM @extschema@.mop_output o WHERE o.run_id = $1;
        DELETE FROM @extschema@.mop_run r WHERE r.run_id = $1;
    END IF;
END
$$;

CREATE FUNCTION @extschema@.mop_drop_run(run_id bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_drop($1, true)
$$;

CREATE FUNCTION @extschema@.mop_drop_states(run_id bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_drop($1, false)
$$;

CREATE FUNCTION @extschema@.mop_set_sessions(run_id bigint, sessions integer) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_want_sessions($1, $2)
$$;

CREATE FUNCTION @extschema@.mop_want_sessions(run_id bigint, sessions integer,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF sessions IS NULL OR sessions NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a run has from 1 to 1000 worker sessions, not %', coalesce(sessions::text, 'NULL')
            USING ERRCODE = '22023';
    END IF;
    IF NOT coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = @extschema@.mop_caller(ticket)), false) THEN
        PERFORM @extschema@.mop_own($1, ticket);
    END IF;
    UPDATE @extschema@.mop_run r SET sessions = $2 WHERE r.run_id = $1 AND @extschema@.mop_status(
        r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % is not running', $1 USING ERRCODE = '55000';
    END IF;
END
$$;

-- --- units -----------------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.mop_begin_unit(run bigint, run_epoch integer, mst_key integer, iteration integer,
    segment integer, kind text, dataset text, attempt integer, queued_at double precision,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket, run_epoch, true);
    INSERT INTO @extschema@.mop_unit (run_id, mst_key, iteration, segment, kind, dataset, attempt, status, backend_pid,
        queued_at, started_at)
    VALUES ($1, $3, $4, $5, $6, $7, $8, 'running', pg_backend_pid(), to_timestamp($9), clock_timestamp());
END
$$;

-- an attempt failed; its row is made here where the session went before it could
CREATE FUNCTION @extschema@.mop_fail_unit(run bigint, run_epoch integer, mst_key integer, iteration integer,
    segment integer, kind text, dataset text, attempt integer, queued_at double precision, message text,
    ticket text DEFAULT @extschema@.mop_ticket())
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket, run_epoch, true);
    UPDATE @extschema@.mop_unit u SET status = 'failed', finished_at = clock_timestamp(), error = message
    WHERE (u.run_id, u.mst_key, u.iteration, u.segment, u.kind, u.dataset, u.attempt) = ($1, $3, $4, $5, $6, $7, $8)
    AND u.status <> 'finished';
    IF NOT FOUND THEN
        INSERT INTO @extschema@.mop_unit (run_id, mst_key, iteration, segment, kind, dataset, attempt, status,
            queued_at, finished_at, error)
        VALUES ($1, $3, $4, $5, $6, $7, $8, 'failed', to_timestamp($9), clock_timestamp(), message)
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Notes a unit's result; fails where the run has been taken from it. A unit of training, whose new state has been put
-- into generation `target`, moves its model on to the next version; `keeps`: the one before stays.
CREATE FUNCTION @extschema@.mop_finish_unit(run bigint, unit_mst_key integer, unit_iteration integer,
    unit_segment integer, unit_kind text, unit_dataset text, unit_attempt integer, made_version integer,
    target integer, size bigint, keeps boolean, used_kernel text, trained_rows bigint, unit_loss double precision,
    unit_metric double precision, seconds_read double precision, seconds_trained double precision,
    seconds_written double precision, compiled integer, chosen text,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    IF unit_kind = 'train' THEN
        UPDATE @extschema@.mop_model m SET version = made_version, generation = target, bytes = size,
            kept_generation = CASE WHEN keeps THEN m.generation END
        WHERE m.run_id = run AND m.mst_key = unit_mst_key AND m.version = made_version - 1;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'model % of run % is not at version %', unit_mst_key, run, made_version - 1
                USING ERRCODE = '55000';
        END IF;
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'finished', finished_at = clock_timestamp(), version = made_version,
        kernel = used_kernel, rows = trained_rows, loss = unit_loss, metric = unit_metric, read_seconds = seconds_read,
        train_seconds = seconds_trained, write_seconds = seconds_written, compilations = compiled,
        choice = chosen::json
    WHERE (u.run_id, u.mst_key, u.iteration, u.segment, u.kind, u.dataset, u.attempt) = ($1, $2, $3, $4, $5, $6, $7)
    AND u.status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this unit of run % is no longer running', run USING ERRCODE = '55000';
    END IF;
END
$$;

-- Adds a segment's evaluation. Where it is the dataset's last one, gives the sums of all segments, else NULL.
CREATE FUNCTION @extschema@.mop_put_sums(run bigint, key integer, at_iteration integer, of_dataset text,
                                         of_segment integer, own double precision[],
                                         ticket text DEFAULT @extschema@.mop_ticket()) RETURNS double precision[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    others integer;
    total double precision[];
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    SELECT count(*) - 1 INTO others FROM @extschema@.mop_segment s WHERE s.run_id = run AND s.dataset = of_dataset;
    IF others <= 0 THEN
        RETURN own;
    END IF;
    -- one after the other, so that there is a last one
    PERFORM 1 FROM @extschema@.mop_model m WHERE m.run_id = run AND m.mst_key = key FOR NO KEY UPDATE;
    INSERT INTO @extschema@.mop_partial VALUES (run, key, at_iteration, of_dataset, of_segment, own);
    IF (SELECT count(*) FROM @extschema@.mop_partial p
        WHERE (p.run_id, p.mst_key, p.iteration, p.dataset) = (run, key, at_iteration, of_dataset)) <= others THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(one.value ORDER BY one.place) INTO total FROM (
        -- in the order of the segments, whichever ended first: the same sums every time
        SELECT v.place, sum(v.value ORDER BY p.segment) AS value
        FROM @extschema@.mop_partial p, unnest(p.sums) WITH ORDINALITY AS v(value, place)
        WHERE (p.run_id, p.mst_key, p.iteration, p.dataset) = (run, key, at_iteration, of_dataset)
        GROUP BY v.place) AS one;
    DELETE FROM @extschema@.mop_partial p
    WHERE (p.run_id, p.mst_key, p.iteration, p.dataset) = (run, key, at_iteration, of_dataset);
    RETURN total;
END
$$;

CREATE FUNCTION @extschema@.mop_note_metrics(run bigint, key integer, at_iteration integer, of_dataset text,
    loss double precision, metric double precision, metrics text,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    INSERT INTO @extschema@.mop_metric VALUES (run, key, at_iteration, of_dataset, $5, $6, $7::json);
END
$$;

CREATE FUNCTION @extschema@.mop_fail_configuration(run bigint, run_epoch integer, key integer, message text,
    blamed text, ticket text DEFAULT @extschema@.mop_ticket())
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket, run_epoch, true);
    UPDATE @extschema@.mop_configuration c SET error = message, blame = blamed WHERE c.run_id = run AND c.mst_key = key;
END
$$;

-- --- model states ----------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.mop_generation_name(run bigint, generation integer) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'mop_state_' || run || '_' || generation
$$;

CREATE FUNCTION @extschema@.mop_new_generation(run bigint, generation integer,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = ''
SET default_table_access_method = 'heap' AS $$
DECLARE
    name text := quote_ident(@extschema@.mop_generation_name(run, generation));
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    IF EXISTS (SELECT 1 FROM @extschema@.mop_generation g WHERE (g.run_id, g.generation) = (run, $2)) THEN
        RETURN;
    END IF;
    IF generation <> (SELECT coalesce(max(g.generation), 0) + 1 FROM @extschema@.mop_generation g WHERE g.run_id = run)
       OR (SELECT count(*) FROM @extschema@.mop_generation g WHERE g.run_id = run) >= 50 THEN
        RAISE EXCEPTION 'run % cannot have a generation %', run, generation USING ERRCODE = '54000';
    END IF;
    INSERT INTO @extschema@.mop_generation VALUES (run, generation);
    EXECUTE 'CREATE TABLE @extschema@.' || name || ' (mst_key integer, version integer, part integer, '
            'data bytea NOT NULL, PRIMARY KEY (mst_key, version, part)) WITH (autovacuum_enabled = false, '
            'toast.autovacuum_enabled = false)';
    -- floats do not compress
    EXECUTE 'ALTER TABLE @extschema@.' || name || ' ALTER COLUMN data SET STORAGE EXTERNAL';
    -- a member of the extension goes with it, and is not dumped
    EXECUTE 'ALTER EXTENSION pg_mop ADD TABLE @extschema@.' || name;
END
$$;

CREATE FUNCTION @extschema@.mop_generation_gone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    IF TG_RELID <> '@extschema@.mop_generation'::regclass THEN
        RAISE EXCEPTION 'this is the trigger of mop_generation' USING ERRCODE = '42501';
    END IF;
    name := '@extschema@.' || quote_ident(@extschema@.mop_generation_name(OLD.run_id, OLD.generation));
    IF to_regclass(name) IS NOT NULL THEN
        EXECUTE 'ALTER EXTENSION pg_mop DROP TABLE ' || name;
        EXECUTE 'DROP TABLE ' || name;
    END IF;
    RETURN OLD;
END
$$;

-- drops those of the run's generations in the list that hold no model's state and that nobody reads: which
CREATE FUNCTION @extschema@.mop_drop_generations(run bigint, list integer[],
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS SETOF integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one integer;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    FOR one IN SELECT g.generation FROM @extschema@.mop_generation g WHERE g.run_id = run AND g.generation = ANY (list)
               AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_model m WHERE m.run_id = run
                               AND g.generation IN (m.generation, m.kept_generation))
    LOOP
        BEGIN
            DELETE FROM @extschema@.mop_generation g WHERE g.run_id = run AND g.generation = one;
            RETURN NEXT one;
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- later
        END;
    END LOOP;
END
$$;

-- moves the states of models that train no more to generation `target`, so that those where they are can be dropped
CREATE FUNCTION @extschema@.mop_move_states(run bigint, keys integer[], target integer,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    model record;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    FOR model IN SELECT m.* FROM @extschema@.mop_model m WHERE m.run_id = run AND m.mst_key = ANY (keys)
                 AND m.generation < target AND m.kept_generation IS NULL ORDER BY m.mst_key FOR UPDATE
    LOOP
        EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_generation_name(run, target))
                || ' SELECT * FROM @extschema@.' || quote_ident(@extschema@.mop_generation_name(run, model.generation))
                || ' WHERE mst_key = $1 AND version = $2' USING model.mst_key, model.version;
        UPDATE @extschema@.mop_model m SET generation = target WHERE m.run_id = run AND m.mst_key = model.mst_key;
    END LOOP;
END
$$;

-- weights from which a configuration starts: version 0
CREATE FUNCTION @extschema@.mop_put_weights(run bigint, key integer, weights bytea,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_generation_name(run, 1))
            || ' VALUES ($1, 0, 0, $2)' USING key, weights;
    UPDATE @extschema@.mop_model m SET generation = 1, bytes = octet_length(weights)
    WHERE m.run_id = run AND m.mst_key = key AND m.version = 0;
END
$$;

-- The configuration of a unit's model. One that is to be trained is locked for this transaction; it must be at
-- `at_version`.
CREATE FUNCTION @extschema@.mop_take_model(run bigint, run_epoch integer, key integer, at_version integer,
    to_train boolean, ticket text DEFAULT @extschema@.mop_ticket(),
    OUT model_id integer, OUT compile_params text, OUT fit_params text, OUT model_arch text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    version integer;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket, run_epoch);
    IF to_train THEN
        PERFORM 1 FROM @extschema@.mop_model m WHERE m.run_id = run AND m.mst_key = key FOR NO KEY UPDATE;
        -- after the lock, for which this may have waited while the run was taken over
        PERFORM @extschema@.mop_own(run, ticket, run_epoch);
    END IF;
    SELECT m.version, c.model_id, c.compile_params, c.fit_params, c.model_arch
    INTO version, model_id, compile_params, fit_params, model_arch
    FROM @extschema@.mop_configuration c JOIN @extschema@.mop_model m USING (run_id, mst_key)
    WHERE c.run_id = run AND c.mst_key = key;
    IF NOT FOUND OR to_train AND version IS DISTINCT FROM at_version THEN
        RAISE EXCEPTION 'model % of run % is not at version %', key, run, at_version USING ERRCODE = '55000';
    END IF;
END
$$;

-- the parts of a model state in order: of the model's version, or of the one before where that is kept
CREATE FUNCTION @extschema@.mop_read_state(run bigint, key integer, at_version integer,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS SETOF bytea
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place integer;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    SELECT CASE at_version WHEN m.version THEN m.generation WHEN m.version - 1 THEN m.kept_generation END INTO place
    FROM @extschema@.mop_model m WHERE m.run_id = run AND m.mst_key = key;
    IF place IS NOT NULL THEN
        RETURN QUERY EXECUTE 'SELECT data FROM @extschema@.' || quote_ident(@extschema@.mop_generation_name(run, place))
            || ' WHERE mst_key = $1 AND version = $2 ORDER BY part' USING key, at_version;
    END IF;
END
$$;

CREATE FUNCTION @extschema@.mop_put_state(run bigint, key integer, new_version integer, target integer,
                                          number integer, part bytea,
                                          ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_generation_name(run, target))
            || ' VALUES ($1, $2, $3, $4)' USING key, new_version, number, part;
END
$$;

-- DROP EXTENSION leaves no process behind: idle sessions that are kept for a next call end, and their trainers with them
CREATE FUNCTION @extschema@.mop_end_idle_sessions() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (SELECT pg_has_role(e.extowner, 'USAGE') FROM pg_extension e WHERE e.extname = 'pg_mop') THEN
        RETURN;  -- who may not drop it
    END IF;
    PERFORM pg_terminate_backend(a.pid) FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.application_name LIKE 'pg\_mop run %' AND a.state = 'idle'
    AND ((SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) OR a.usename = current_user);
END
$$;

-- whether a run of the calling role has its output tables committed
CREATE FUNCTION @extschema@.mop_has_output(run bigint, ticket text DEFAULT @extschema@.mop_ticket()) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    RETURN EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = run);
END
$$;
-- What people read of the catalog.

-- A role sees its own runs and those of the roles it is a member of; a superuser also those of roles that are gone:
-- WHERE owner IN (SELECT ... pg_has_role(...)), in each of these views.

-- what a run's or unit's status is in truth: nobody can note it when the calling session is killed
CREATE FUNCTION @extschema@.mop_status(status text, coordinator_pid integer, coordinator_start timestamptz, gone text)
RETURNS text LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN $1 = 'running' AND NOT EXISTS (
                    SELECT 1 FROM pg_stat_activity a WHERE a.pid = $2
                    -- (a role by itself sees since when its own sessions live, not others' that have the pid now)
                    AND a.backend_start = $3) THEN $4 ELSE $1 END
$$;

CREATE VIEW @extschema@.mop_runs WITH (security_barrier) AS
SELECT run_id, (SELECT coalesce(a.rolname, 'unknown (' || o.role || ')')::name FROM @extschema@.mop_owner o
                LEFT JOIN pg_roles a ON a.oid = o.who WHERE o.owner = r.owner) AS owner,
       @extschema@.mop_status(status, coordinator_pid, coordinator_start, 'failed') AS status, function,
       source_table, model_output_table, seed, scheduler, num_iterations, configurations, segments, started_at,
       finished_at, error, validation_table,
       (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM @extschema@.mop_generation g
        JOIN pg_class c ON c.relnamespace = '@extschema@'::regnamespace
        AND c.relname = 'mop_state_' || g.run_id || '_' || g.generation WHERE g.run_id = r.run_id) AS state_bytes
FROM @extschema@.mop_run r
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- what holds disk although nobody works on it, and the commands that end that
CREATE VIEW @extschema@.mop_abandoned_runs WITH (security_barrier) AS
SELECT run_id, owner, status, model_output_table, finished_at, state_bytes,
       CASE WHEN NOT written.yes THEN 'SELECT @extschema@.mop_resume(' || run_id || ');' END AS to_go_on,
       'SELECT @extschema@.mop_drop_' || CASE WHEN written.yes THEN 'states(' ELSE 'run(' END || run_id || ');'
           AS to_drop
FROM @extschema@.mop_runs r CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = r.run_id) AS yes
) AS written
WHERE state_bytes > 0 AND status <> 'running';

CREATE VIEW @extschema@.mop_units WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration, u.segment, u.kind, u.attempt,
       CASE WHEN u.status <> 'running' THEN u.status
            ELSE @extschema@.mop_status(u.status, r.coordinator_pid, r.coordinator_start, 'cancelled') END AS status,
       u.backend_pid, u.kernel, u.rows,
       u.loss, u.queued_at, u.started_at, u.finished_at, u.read_seconds, u.train_seconds, u.write_seconds, u.error,
       u.dataset, u.metric, u.compilations
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- which kernel trained a unit, and the times by which it was chosen (seconds; of a batch, and to compile)
CREATE VIEW @extschema@.mop_kernel_choices WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration, u.segment, u.kernel, u.compilations,
       (u.choice -> 'batch_seconds' ->> 'plain')::double precision AS plain_seconds,
       (u.choice -> 'batch_seconds' ->> 'loop')::double precision AS loop_seconds,
       (u.choice -> 'batch_seconds' ->> 'xla')::double precision AS xla_seconds,
       (u.choice -> 'compile_seconds' ->> 'plain')::double precision AS plain_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'loop')::double precision AS loop_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'xla')::double precision AS xla_compile_seconds,
       u.choice ->> 'forced' AS forced, u.choice -> 'refused' AS refused
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE u.kind = 'train' AND u.status = 'finished'
AND r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- a row for the loss and for each metric of each evaluation
CREATE VIEW @extschema@.mop_metrics WITH (security_barrier) AS
SELECT m.run_id, m.mst_key, m.iteration, m.dataset, v.name, v.value
FROM @extschema@.mop_metric m JOIN @extschema@.mop_run r USING (run_id) CROSS JOIN LATERAL (
    SELECT 'loss' AS name, m.loss AS value
    UNION ALL SELECT e.key, e.value::double precision FROM json_each_text(m.metrics) AS e) AS v
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

CREATE VIEW @extschema@.mop_visit_order WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration,
       (row_number() OVER (PARTITION BY u.run_id, u.mst_key, u.iteration ORDER BY u.version))::integer AS position,
       u.segment
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE u.kind = 'train' AND u.status = 'finished'
AND r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));

-- one row for each configuration; the seconds are the whole run's
CREATE VIEW @extschema@.mop_progress WITH (security_barrier) AS
WITH work AS (
    SELECT c.run_id, c.mst_key, c.error,
           r.num_iterations * (SELECT count(*) FROM @extschema@.mop_segment s
                               WHERE s.run_id = c.run_id AND s.dataset = 'training')
           + cardinality(r.metrics_iterations) * (SELECT count(*) FROM @extschema@.mop_segment s
                                                  WHERE s.run_id = c.run_id) AS units_total,
           u.units_done, u.units_running, u.iteration, u.last_loss
    FROM @extschema@.mop_configuration c
    JOIN @extschema@.mop_run r USING (run_id)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE status = 'finished') AS units_done,
               count(*) FILTER (WHERE status = 'running') AS units_running,
               max(iteration) AS iteration,
               (array_agg(loss ORDER BY version DESC)
                FILTER (WHERE kind = 'train' AND status = 'finished'))[1] AS last_loss
        FROM @extschema@.mop_unit WHERE run_id = c.run_id AND mst_key = c.mst_key) u
), whole AS (
    SELECT run_id, sum(units_done) AS done,
           sum(CASE WHEN error IS NULL THEN units_total - units_done ELSE 0 END) AS left
    FROM work GROUP BY run_id
)
SELECT w.run_id, w.units_done, w.units_total,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::double precision
           AS seconds_elapsed,
       CASE WHEN s.status <> 'running' THEN 0
            WHEN whole.done = 0 THEN NULL
            ELSE extract(epoch FROM clock_timestamp() - r.started_at) * whole.left / whole.done
       END::double precision AS seconds_left,
       w.mst_key, w.iteration, w.last_loss,
       CASE WHEN w.error IS NOT NULL THEN 'failed'
            WHEN w.units_done = w.units_total THEN 'finished'
            WHEN s.status <> 'running' THEN s.status
            WHEN w.units_running > 0 THEN 'running'
            ELSE 'waiting' END AS status
FROM work w JOIN whole USING (run_id) JOIN @extschema@.mop_run r USING (run_id)
     CROSS JOIN LATERAL @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS s(status)
WHERE r.owner IN (SELECT o.owner FROM @extschema@.mop_owner o WHERE pg_has_role(o.who, 'MEMBER'));
-- What worker sessions run. Users have no reason to call these.

CREATE FUNCTION @extschema@.mop_transition(state bigint, epoch integer, buffer integer, columns bytea[], shapes text[])
RETURNS bigint LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import aggregate
return aggregate.transition(plpy, state, epoch, buffer, columns, shapes)
$$;

CREATE FUNCTION @extschema@.mop_final(state bigint) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import aggregate
return aggregate.final(plpy, state)
$$;

-- trains (or evaluates) the current unit's model on the rows it is given; the report as JSON
CREATE AGGREGATE @extschema@.mop_sub_epoch(epoch integer, buffer integer, columns bytea[], shapes text[]) (
    SFUNC = @extschema@.mop_transition, STYPE = bigint, INITCOND = '0', FINALFUNC = @extschema@.mop_final
);

CREATE FUNCTION @extschema@.mop_start_trainer(options text) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import unit
unit.start_trainer(plpy, options)
$$;

CREATE FUNCTION @extschema@.mop_run_unit(unit text) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import unit as work
work.run_unit(plpy, unit)
$$;
-- What PostgreSQL calls by itself.

CREATE TRIGGER generation_gone AFTER DELETE ON @extschema@.mop_generation
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_generation_gone();

CREATE EVENT TRIGGER pg_mop_end_idle_sessions ON ddl_command_start WHEN TAG IN ('DROP EXTENSION')
    EXECUTE FUNCTION @extschema@.mop_end_idle_sessions();

CREATE TRIGGER find_role BEFORE INSERT OR UPDATE ON @extschema@.mop_owner
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_find_role();
CREATE TRIGGER find_role BEFORE INSERT OR UPDATE ON @extschema@.mop_limit
    FOR EACH ROW EXECUTE FUNCTION @extschema@.mop_find_role();
-- Packing training and validation data into buffers (contract: preprocessors).

CREATE FUNCTION @extschema@.training_preprocessor_dl(
    source_table varchar,
    output_table varchar,
    dependent_varname varchar,
    independent_varname varchar,
    buffer_size integer DEFAULT NULL,
    normalizing_const real DEFAULT 1.0,
    num_classes integer[] DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    dependent_dtype text DEFAULT 'int16'
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import preprocess
preprocess.training_preprocessor_dl(plpy, *args)
$$;

CREATE FUNCTION @extschema@.validation_preprocessor_dl(
    source_table varchar,
    output_table varchar,
    dependent_varname varchar,
    independent_varname varchar,
    training_preprocessor_table varchar,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import preprocess
preprocess.validation_preprocessor_dl(plpy, *args)
$$;

-- the bytes of buffers, for people who look into them

CREATE FUNCTION @extschema@.convert_array_to_bytea(var real[])
RETURNS bytea LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_array_to_bytea(plpy, var, 'real')
$$;

CREATE FUNCTION @extschema@.convert_array_to_bytea(var smallint[])
RETURNS bytea LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_array_to_bytea(plpy, var, 'smallint')
$$;

CREATE FUNCTION @extschema@.convert_bytea_to_real_array(var bytea)
RETURNS real[] LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_bytea_to_array(plpy, var, 'real')
$$;

CREATE FUNCTION @extschema@.convert_bytea_to_smallint_array(var bytea)
RETURNS smallint[] LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_bytea_to_array(plpy, var, 'smallint')
$$;

CREATE AGGREGATE @extschema@.agg_array_concat(real[]) (
    SFUNC = pg_catalog.array_cat,
    STYPE = real[]
);

CREATE AGGREGATE @extschema@.agg_array_concat(smallint[]) (
    SFUNC = pg_catalog.array_cat,
    STYPE = smallint[]
);
CREATE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar,
    model_arch json,
    model_weights bytea DEFAULT NULL,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import architectures
architectures.load_keras_model(plpy, *args)
$$;

CREATE FUNCTION @extschema@.delete_keras_model(keras_model_arch_table varchar, model_id integer)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import architectures
architectures.delete_keras_model(plpy, *args)
$$;
-- Custom losses and metrics: for superusers, as they run code.

CREATE FUNCTION @extschema@.load_custom_function(
    object_table varchar,
    object bytea,
    name text,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.load_custom_function(plpy, *args)
$$;

CREATE FUNCTION @extschema@.delete_custom_function(object_table varchar, id integer)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.delete_custom_function(plpy, *args)
$$;

CREATE FUNCTION @extschema@.delete_custom_function(object_table varchar, name text)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.delete_custom_function(plpy, *args)
$$;

CREATE FUNCTION @extschema@.load_top_k_accuracy_function(object_table varchar, k integer)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.load_top_k_accuracy_function(plpy, *args)
$$;

CREATE FUNCTION @extschema@.top_k_categorical_acc_pickled(n integer, fn_name varchar)
RETURNS bytea LANGUAGE plpython3u VOLATILE STRICT AS $$
#python
from pg_mop.api.madlib import objects
return objects.top_k_categorical_acc_pickled(*args)
$$;
CREATE FUNCTION @extschema@.load_model_selection_table(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list integer[],
    compile_params_list varchar[],
    fit_params_list varchar[],
    object_table varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import configurations
configurations.load_model_selection_table(plpy, *args)
$$;

CREATE FUNCTION @extschema@.generate_model_configs(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list integer[],
    compile_params_grid varchar,
    fit_params_grid varchar,
    search_type varchar DEFAULT 'grid',
    num_configs integer DEFAULT NULL,
    random_state integer DEFAULT NULL,
    object_table varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import configurations
configurations.generate_model_configs(plpy, *args)
$$;
CREATE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table varchar,
    model_output_table varchar,
    model_selection_table varchar,
    num_iterations integer,
    use_gpus boolean,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start boolean DEFAULT FALSE,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    use_caching boolean DEFAULT FALSE
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import fit_multiple
fit_multiple.madlib_keras_fit_multiple_model(plpy, *args)
$$;

-- The same as a procedure: it holds neither a snapshot nor a transaction while units run.
CREATE PROCEDURE @extschema@.mop_fit_multiple_model(
    source_table varchar,
    model_output_table varchar,
    model_selection_table varchar,
    num_iterations integer,
    use_gpus boolean,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start boolean DEFAULT FALSE,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    use_caching boolean DEFAULT FALSE
) LANGUAGE plpython3u AS $$
#python
from pg_mop.api.madlib import fit_multiple
fit_multiple.mop_fit_multiple_model(plpy, *args)
$$;
-- Training of one model (contract: madlib_keras_fit).

CREATE FUNCTION @extschema@.madlib_keras_fit(
    source_table varchar,
    model varchar,
    model_arch_table varchar,
    model_id integer,
    compile_params varchar,
    fit_params varchar,
    num_iterations integer,
    use_gpus boolean DEFAULT FALSE,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start boolean DEFAULT NULL,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    object_table varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import fit
fit.madlib_keras_fit(plpy, *args)
$$;
CREATE FUNCTION @extschema@.mop_resume(run_id bigint) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import runs
runs.mop_resume(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_replay(run_id bigint, output_table varchar) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import runs
runs.mop_replay(plpy, *args)
$$;
CREATE FUNCTION @extschema@.madlib_keras_evaluate(
    model_table varchar,
    test_table varchar,
    output_table varchar,
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import evaluate
evaluate.madlib_keras_evaluate(plpy, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict(plpy, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict(plpy, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict(plpy, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict_byom(plpy, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict_byom(plpy, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict_byom(plpy, *args)
$$;
-- Models out of the database and into it; the GPUs of the server.

CREATE FUNCTION @extschema@.mop_export_model(model_table varchar, mst_key integer)
RETURNS bytea LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import files
return files.mop_export_model(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_import_model(
    keras_model_arch_table varchar,
    model bytea,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS integer LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import files
return files.mop_import_model(plpy, *args)
$$;

CREATE FUNCTION @extschema@.gpu_configuration(output_table text, source text)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import gpus
gpus.gpu_configuration(plpy, *args)
$$;

-- with one argument, the table; or a word that asks for help
CREATE FUNCTION @extschema@.gpu_configuration(output_table text DEFAULT '')
RETURNS varchar LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import gpus
from pg_mop.api.common import help
words = ('', 'usage', 'help', '?', 'example', 'examples')
if (args[0] if args[0] is not None else 'NULL').strip().lower() in words:
    return help.answer(plpy, 'gpu_configuration', args[0])
gpus.gpu_configuration(plpy, args[0], None)
$$;
-- Every function explains itself: f(), f('usage'), f('example').

DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['training_preprocessor_dl', 'validation_preprocessor_dl', 'load_keras_model',
        'delete_keras_model', 'load_custom_function', 'delete_custom_function', 'load_top_k_accuracy_function',
        'load_model_selection_table', 'generate_model_configs', 'madlib_keras_fit_multiple_model',
        'mop_fit_multiple_model', 'madlib_keras_fit', 'madlib_keras_evaluate', 'madlib_keras_predict',
        'madlib_keras_predict_byom', 'mop_export_model', 'mop_import_model']
    LOOP
        EXECUTE pg_catalog.format($create$
CREATE FUNCTION %s.%I(message varchar DEFAULT '')
RETURNS varchar LANGUAGE plpython3u VOLATILE AS $body$
#python
from pg_mop.api.common import help
return help.answer(plpy, '%s', message)
$body$
$create$, '@extschema@', name, name);
    END LOOP;
END
$do$;
-- (PostgreSQL reserves role names that begin with pg_.) GRANT mop_user TO analyst; is all that a user needs besides rights on his own tables.
GRANT USAGE ON SCHEMA @extschema@ TO mop_user;

DO $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT p.oid::pg_catalog.regprocedure AS name, p.prorettype IN ('pg_catalog.trigger'::pg_catalog.regtype,
               'pg_catalog.event_trigger'::pg_catalog.regtype) AS is_trigger,
               p.proname IN ('mop_caller', 'mop_own', 'mop_backend', 'mop_reservation') AS is_internal
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        JOIN pg_catalog.pg_proc p ON p.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e'
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', member.name);
        -- whoever may execute a trigger's function may make it a trigger of his own table
        IF NOT member.is_trigger AND NOT member.is_internal THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s TO mop_user', member.name);
        END IF;
    END LOOP;
END
$$;

GRANT SELECT ON @extschema@.mop_runs, @extschema@.mop_progress, @extschema@.mop_units, @extschema@.mop_visit_order,
    @extschema@.mop_kernel_choices, @extschema@.mop_abandoned_runs, @extschema@.mop_metrics, @extschema@.mop_tickets
    TO mop_user;
-- row security shows a role its own; nobody but the extension's owner writes
GRANT SELECT ON @extschema@.mop_run, @extschema@.mop_configuration, @extschema@.mop_segment, @extschema@.mop_unit,
    @extschema@.mop_model, @extschema@.mop_generation, @extschema@.mop_metric, @extschema@.mop_owner TO mop_user;

-- How a run's sessions write to the catalog. They are the caller's own, who may not write to its tables: each of these
-- functions is the extension owner's, and touches nothing but runs of the role that calls.
--
-- Which role that is such a function cannot see: in it current_user is the owner, and session_user and the role that
-- was SET say who began the session, not whose function calls in it. So the caller shows a token. It is the default of
-- the last argument, which PostgreSQL evaluates where the call is written, and is read of a view, where current_user is
-- the role whose rights are in force there. A token is good for its role in its transaction of its session alone, so
-- that it is of no use to whoever comes to see one.

-- `backend` tells another session of the role that this one exists. (Where tables are on segments, what is asked of the
-- session itself must not be asked for their rows: the secret is fetched first, here and below.)
CREATE VIEW @extschema@.mop_tokens AS
SELECT @extschema@.mop_role(current_user) || ' ' || encode(@extschema@.mop_sha256(
           (SELECT s.secret FROM @extschema@.mop_secret s) || 'caller' || oidsend(@extschema@.mop_role(current_user))
           || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') AS token,
       pg_backend_pid() || ' ' || (extract(epoch FROM now()) * 1000000)::bigint || ' ' || encode(@extschema@.mop_sha256(
           (SELECT s.secret FROM @extschema@.mop_secret s) || 'backend' || oidsend(@extschema@.mop_role(current_user))
           || int4send(pg_backend_pid()) || int8send((extract(epoch FROM now()) * 1000000)::bigint)), 'hex') AS backend;

CREATE FUNCTION @extschema@.mop_token() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT t.token FROM @extschema@.mop_tokens t);
END
$$;

-- The role that a token was given to. This, mop_owner_of, mop_backend, mop_own and mop_reservation are for functions
-- of the extension's owner alone, which have set search_path.
CREATE FUNCTION @extschema@.mop_caller(token text) RETURNS oid LANGUAGE plpgsql STABLE AS $$
DECLARE
    role oid;
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    IF token ~ '^[0-9]{1,10} [0-9a-f]{64}$' THEN
        role := split_part(token, ' ', 1);
    END IF;
    IF token = role || ' ' || encode(@extschema@.mop_sha256(secret || 'caller' || oidsend(role)
            || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') THEN
        RETURN role;
    END IF;
    RAISE EXCEPTION 'this is no token of this transaction' USING ERRCODE = '42501',
        HINT = 'Leave the argument out.';
END
$$;

-- the number of the role, NULL where it has none yet
CREATE FUNCTION @extschema@.mop_owner_of(token text) RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
BEGIN
    RETURN (SELECT o.owner FROM @extschema@.mop_owner o WHERE o.who = caller);
END
$$;

-- The session of which another one of the role says (mop_tokens.backend) that it is there, and since when. It must
-- still be: process ids are used again.
CREATE FUNCTION @extschema@.mop_backend(said text, role oid, OUT pid integer, OUT start timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    parts text[] := string_to_array(said, ' ');
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    IF said ~ '^[0-9]{1,9} [0-9]{1,18} [0-9a-f]{64}$' AND parts[3] = encode(@extschema@.mop_sha256(
            secret || 'backend' || oidsend(role) || int4send(parts[1]::integer) || int8send(parts[2]::bigint)),
            'hex') THEN
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
CREATE FUNCTION @extschema@.mop_own(run bigint, token text, run_fencing_token integer DEFAULT NULL, lock boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    reached integer;
    role oid;
    secret bytea;
BEGIN
    -- as in mop_caller, of the run's role: with every unit some times
    SELECT r.fencing_token, o.who::oid, s.secret INTO reached, role, secret
    FROM @extschema@.mop_run r JOIN @extschema@.mop_owner o USING (owner), @extschema@.mop_secret s
    WHERE r.run_id = run;
    IF token = role || ' ' || encode(@extschema@.mop_sha256(secret || 'caller' || oidsend(role)
            || int4send(pg_backend_pid()) || timestamptz_send(now())), 'hex') THEN
        IF lock THEN
            reached := @extschema@.mop_lock_run_shared(run);
        END IF;
    ELSE
        reached := NULL;
    END IF;
    IF reached IS NULL THEN
        RAISE EXCEPTION 'there is no run % of role "%"', run, pg_get_userbyid(@extschema@.mop_caller(token))
            USING ERRCODE = '42501';
    ELSIF reached <> run_fencing_token THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
END
$$;

-- The functions for users take numbers as double precision, to which PostgreSQL turns every number by itself: so that any
-- driver's type will do, and calls that give 2 as smallint or numeric find them. An argument that is to be an integer:
CREATE FUNCTION @extschema@.mop_integer(name text, value double precision) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF value <> trunc(value) OR abs(value) > 9007199254740992 THEN
        RAISE EXCEPTION '% must be an integer, not %', name, value USING ERRCODE = '22023';
    END IF;
    RETURN value::bigint;
END
$$;

-- What a run's or unit's status is in truth: nobody can note it when the calling session is killed.
-- (Of a row it is asked in a view of its own, mop_seen_run: a function over rows may be called on segments, which do
-- not see the coordinator's sessions.)
CREATE FUNCTION @extschema@.mop_status(status text, coordinator_pid integer, coordinator_start timestamptz, gone text)
RETURNS text LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN $1 = 'running' AND NOT EXISTS (
                    SELECT 1 FROM pg_stat_activity a WHERE a.pid = $2
                    -- (a role by itself sees since when its own sessions live, not others' that have the pid now)
                    AND a.backend_start = $3
                    -- a session that has ended its statement since could not say so: its role had lost the right
                    AND NOT coalesce(a.state LIKE 'idle%' AND a.application_name NOT LIKE 'pg\_mop%' AND a.state_change > (
                        SELECT max(r.started_at) FROM @extschema@.mop_run r WHERE r.status = 'running'
                        AND r.coordinator_pid = $2 AND r.coordinator_start = $3), false)) THEN $4 ELSE $1 END
$$;

-- The least of what an administrator allows the login, the role that it has SET and the role whose rights are in force.
-- (Where a row's role did not exist when it was written, the name counts.)
CREATE FUNCTION @extschema@.mop_limits(token text DEFAULT @extschema@.mop_token(), OUT sessions integer,
    OUT threads integer, OUT trainer_memory_mb integer, OUT max_model_mb integer)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH limits AS (
        SELECT l.*, a.rolname FROM @extschema@.mop_limit l
        JOIN pg_roles a ON l.who = a.oid OR l.who = 0::oid AND l.role = a.rolname
        WHERE a.rolname IN (session_user, current_setting('role')) OR a.oid = (SELECT @extschema@.mop_caller($1))
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

-- The number of the calling role, which gets one with its first run. Nobody waits for who has the row locked.
CREATE FUNCTION @extschema@.mop_enroll(token text DEFAULT @extschema@.mop_token()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    number integer := (SELECT o.owner FROM @extschema@.mop_owner o
                       WHERE o.who = caller AND o.role = pg_get_userbyid(caller));
BEGIN
    FOR attempt IN 1 .. 2 LOOP
        EXIT WHEN number IS NOT NULL;
        UPDATE @extschema@.mop_owner o SET role = pg_get_userbyid(caller), who = caller WHERE o.who = caller
        RETURNING o.owner INTO number;
        CONTINUE WHEN number IS NOT NULL;
        BEGIN
            number := nextval('@extschema@.mop_owner_owner_seq');
            INSERT INTO @extschema@.mop_owner (owner, role, who) VALUES (number, pg_get_userbyid(caller), caller);
        EXCEPTION WHEN unique_violation THEN  -- it has got one in this instant
            IF attempt = 2 THEN
                RAISE;
            END IF;
            number := NULL;
        END;
    END LOOP;
    RETURN number;
END
$$;

CREATE FUNCTION @extschema@.mop_open_run(run json, segments json,
    token text DEFAULT @extschema@.mop_token()) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    coordinator record;
    number integer;
    -- (a default is taken on a segment of Greenplum: with RETURNING that takes 0.25 s)
    id bigint := nextval('@extschema@.mop_run_run_id_seq');
BEGIN
    SELECT b.pid, b.start INTO coordinator FROM @extschema@.mop_backend(run ->> 'coordinator', caller) AS b;
    number := @extschema@.mop_enroll(token);
    INSERT INTO @extschema@.mop_run (run_id, owner, function, source_table, validation_table, model_output_table, seed,
        scheduler, num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid,
        coordinator_start, sessions, expected_seconds)
    SELECT id, number, r.function, r.source_table, r.validation_table, r.model_output_table, r.seed,
        r.scheduler, r.num_iterations,
        -- (JSON's arrays become PostgreSQL's by themselves since version 10)
        ARRAY(SELECT i::integer FROM json_array_elements_text(r.metrics_iterations) AS i), r.configurations,
        r.segments, r.parameters, coordinator.pid, coordinator.start, r.sessions,
        r.expected_seconds
    FROM json_to_record(run) AS r(function text, source_table text, validation_table text, model_output_table text,
        seed bigint, scheduler text, num_iterations integer, metrics_iterations json, configurations integer,
        segments integer, parameters json, sessions integer, expected_seconds double precision);
    INSERT INTO @extschema@.mop_segment (run_id, dataset, segment, rows, bytes, fingerprint, server)
    SELECT id, s.dataset, s.segment, s.rows, s.bytes, s.fingerprint, s.server
    FROM json_to_recordset(segments) AS s(dataset text, segment integer, rows bigint, bytes bigint, fingerprint text,
        server name);
    INSERT INTO @extschema@.mop_copy (run_id, dataset, segment, fingerprint, server)
    SELECT id, s.dataset, s.segment, c.fingerprint, c.server
    FROM json_to_recordset(segments) AS s(dataset text, segment integer, copies json),
        json_to_recordset(s.copies) AS c(fingerprint text, server name);
    PERFORM @extschema@.mop_new_state_table(id, 1, token);
    RETURN id;
END
$$;

-- Adds to a run: configurations, the stages that they ask for, and which stage each of their iterations is.
CREATE FUNCTION @extschema@.mop_ask(run bigint, run_fencing_token integer, configurations json, stages json, requests json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    INSERT INTO @extschema@.mop_configuration (run_id, mst_key, model_id, compile_params, fit_params, model_arch, error,
        blame, weights_sql, weights_md5)
    SELECT run, c.mst_key, c.model_id, c.compile_params, c.fit_params, c.model_arch, c.error,
        CASE WHEN c.error IS NOT NULL THEN 'configuration' END, c.weights_sql, c.weights_md5
    FROM json_to_recordset(configurations) AS c(mst_key integer, model_id integer, compile_params text,
        fit_params text, model_arch text, error text, weights_sql text, weights_md5 text);
    FOR attempt IN 1 .. 2 LOOP
        BEGIN
            -- a stage that is there is to be evaluated now
            UPDATE @extschema@.mop_stage t SET evaluated = true
            FROM json_to_recordset(stages) AS s(stage integer, evaluated boolean)
            WHERE t.run_id = run AND t.stage = s.stage AND s.evaluated AND NOT t.evaluated;
            INSERT INTO @extschema@.mop_stage (run_id, stage, parent, iteration, identity, mst_key, compile_params,
                fit_params, evaluated)
            SELECT run, s.stage, s.parent, s.iteration, s.identity, s.mst_key, s.compile_params, s.fit_params,
                s.evaluated
            FROM json_to_recordset(stages) AS s(stage integer, parent integer, iteration integer, identity text,
                mst_key integer, compile_params text, fit_params text, evaluated boolean)
            WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage t WHERE (t.run_id, t.stage) = (run, s.stage));
            INSERT INTO @extschema@.mop_stage_state (run_id, stage, version)
            SELECT run, s.stage, s.version FROM json_to_recordset(stages) AS s(stage integer, version integer)
            WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage_state m WHERE (m.run_id, m.stage) = (run, s.stage));
            INSERT INTO @extschema@.mop_request (run_id, mst_key, iteration, stage)
            SELECT run, r.mst_key, r.iteration, r.stage
            FROM json_to_recordset(requests) AS r(mst_key integer, iteration integer, stage integer)
            WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_request q WHERE q.run_id = run AND q.mst_key = r.mst_key
                              AND q.iteration = r.iteration);
            EXIT;
        EXCEPTION WHEN unique_violation THEN  -- it is asked by another session in this instant, whose answer got lost
            IF attempt = 2 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END
$$;

-- A configuration goes no further than `iterations`, for a reason.
CREATE FUNCTION @extschema@.mop_withdraw(run bigint, run_fencing_token integer, key integer, iterations integer, why text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    DELETE FROM @extschema@.mop_request r WHERE r.run_id = run AND r.mst_key = key AND r.iteration > iterations;
    UPDATE @extschema@.mop_configuration c SET reason = why WHERE c.run_id = run AND c.mst_key = key;
END
$$;

-- A run has grown much: for those who look at it.
CREATE FUNCTION @extschema@.mop_note_growth(run bigint, run_fencing_token integer, token text DEFAULT @extschema@.mop_token())
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    PERFORM @extschema@.mop_count_rows();
END
$$;

-- adds an event to the log of a search
CREATE FUNCTION @extschema@.mop_log_search(run bigint, run_fencing_token integer, first integer, events json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    INSERT INTO @extschema@.mop_search_log (run_id, number, event)
    SELECT run, first + (e.place - 1)::integer, e.event
    FROM json_array_elements(events) WITH ORDINALITY AS e(event, place);
END
$$;

-- Whether a run of a function trains anything: others evaluate or predict, and are dropped when they end.
CREATE FUNCTION @extschema@.mop_trains(function text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT $1 NOT IN ('madlib_keras_evaluate', 'madlib_keras_predict', 'madlib_keras_predict_byom')
$$;

-- what people want of a run that goes on
CREATE FUNCTION @extschema@.mop_add_control_request(run_id bigint, content json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    its @extschema@.mop_run;
    of text;
    settings json;
BEGIN
    PERFORM @extschema@.mop_own($1, token);
    SELECT r.* INTO its FROM @extschema@.mop_run r WHERE r.run_id = $1;
    of := its.function;
    settings := its.parameters -> 'settings';
    IF @extschema@.mop_status(its.status, its.coordinator_pid, its.coordinator_start, 'failed')
       IS DISTINCT FROM 'running' THEN
        RAISE EXCEPTION 'run % is not running', $1 USING ERRCODE = '55000';
    ELSIF EXISTS (SELECT 1 FROM @extschema@.mop_control_request w WHERE w.run_id = $1 AND (w.content -> 'end') IS NOT NULL) THEN
        RAISE EXCEPTION 'run % takes no more requests', $1 USING ERRCODE = '55000',
            DETAIL = 'All that it was to train is trained, or its time is up.';
    END IF;
    IF NOT @extschema@.mop_trains(of) THEN
        RAISE EXCEPTION 'run % is of %, which trains nothing', $1, of USING ERRCODE = '0A000';
    END IF;
    -- replicas train one model together; and who trains one configuration has no others
    IF of = 'madlib_keras_fit' AND ((content -> 'add') IS NOT NULL OR settings ->> 'fit_strategy' = 'averaging')
       OR of = 'mop_more' AND (content -> 'add') IS NOT NULL THEN
        RAISE EXCEPTION 'run % is of %, which trains one model', $1, of USING ERRCODE = '0A000',
            HINT = 'SELECT pg_cancel_backend(' || its.coordinator_pid || '); ends it.';
    END IF;
    IF octet_length($2::text) > 1000000 THEN
        RAISE EXCEPTION 'that is too long for a request' USING ERRCODE = '54000';
    END IF;
    -- what a run reads must be right, or it would end by it
    IF json_typeof(content) IS DISTINCT FROM 'object' OR json_typeof(content -> 'by') IS DISTINCT FROM 'string'
       OR ((content -> 'stop') IS NULL) = ((content -> 'add') IS NULL) THEN
        RAISE EXCEPTION 'this is no request' USING ERRCODE = '22023', HINT = 'Use mop_stop_trial or mop_add_trial.';
    ELSIF (content -> 'stop') IS NOT NULL THEN
        IF NOT EXISTS (SELECT 1 FROM @extschema@.mop_configuration c
                       WHERE c.run_id = $1 AND c.mst_key::text = content ->> 'stop') THEN
            RAISE EXCEPTION 'run % has no mst_key %', $1, coalesce(content ->> 'stop', 'NULL')
                USING ERRCODE = '22023', HINT = format('SELECT mst_key, status FROM %s.mop_trials WHERE '
                                                       'run_id = %s;', '@extschema@', $1);
        END IF;
        content := json_build_object('stop', (content ->> 'stop')::integer, 'by', content ->> 'by');
    ELSE
        IF json_typeof(content -> 'add') <> 'array' OR json_array_length(content -> 'add') <> 3
           OR (content #>> '{add,0}' ~ '^-?[0-9]{1,9}$') IS NOT TRUE OR (content #>> '{add,1}') IS NULL THEN
            RAISE EXCEPTION 'a configuration needs a model_id and compile_params' USING ERRCODE = '22023';
        ELSIF content ->> 'iterations' !~ '^[1-9][0-9]{0,4}$' THEN
            RAISE EXCEPTION 'iterations must be from 1 to 99999, or NULL, not %', content ->> 'iterations'
                USING ERRCODE = '22023';
        END IF;
        content := json_build_object(
            'add', json_build_array((content #>> '{add,0}')::integer, content #>> '{add,1}', content #>> '{add,2}'),
            'iterations', (content ->> 'iterations')::integer, 'by', content ->> 'by');
    END IF;
    INSERT INTO @extschema@.mop_control_request (run_id, content) VALUES ($1, content);
END
$$;

-- takes the requests of a run, in the order in which they came; `last`: where there are none, none is taken any more
CREATE FUNCTION @extschema@.mop_take_control_requests(run bigint, run_fencing_token integer, last boolean,
    token text DEFAULT @extschema@.mop_token()) RETURNS SETOF json
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    RETURN QUERY WITH taken AS (DELETE FROM @extschema@.mop_control_request w WHERE w.run_id = run
                                AND (w.content -> 'end') IS NULL RETURNING w.request, w.content)
        SELECT t.content FROM taken t ORDER BY t.request;
    IF last AND NOT FOUND AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_control_request w WHERE w.run_id = run) THEN
        INSERT INTO @extschema@.mop_control_request (run_id, content) VALUES (run, '{"end": true}');
    END IF;
END
$$;

-- Takes a run over from a coordinator that has gone: its sessions' units end before this returns, or count no more.
-- Gives the run's new epoch, without which no session begins or takes anything.
CREATE FUNCTION @extschema@.mop_reopen_run(run bigint, coordinator text,
    token text DEFAULT @extschema@.mop_token()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    backend record;
    its @extschema@.mop_run;
    reached integer;
BEGIN
    SELECT b.pid, b.start INTO backend FROM @extschema@.mop_backend(coordinator, caller) AS b;
    PERFORM @extschema@.mop_own(run, token);
    PERFORM @extschema@.mop_lock_run_exclusive(run);
    SELECT r.* INTO its FROM @extschema@.mop_run r WHERE r.run_id = run;
    IF its.coordinator_pid <> backend.pid AND @extschema@.mop_status(
            its.status, its.coordinator_pid, its.coordinator_start, 'failed') = 'running' THEN
        RAISE EXCEPTION 'run % is running', run USING ERRCODE = '55006';
    END IF;
    -- first the models, as a unit does
    PERFORM @extschema@.mop_lock_stages_exclusive(run);
    -- (whose session has gone, perhaps long ago)
    UPDATE @extschema@.mop_unit u SET status = 'cancelled', finished_at = (
        SELECT max(greatest(o.started_at, o.finished_at)) FROM @extschema@.mop_unit o WHERE o.run_id = run)
    WHERE u.run_id = run AND u.status = 'running';
    UPDATE @extschema@.mop_configuration c SET error = NULL, blame = NULL WHERE c.run_id = run AND c.blame = 'place';
    UPDATE @extschema@.mop_job j SET runs = j.runs || run
    WHERE j.session_pid = its.coordinator_pid AND j.session_start = its.coordinator_start AND run <> ALL (j.runs);
    DELETE FROM @extschema@.mop_control_request w WHERE w.run_id = run AND (w.content -> 'end') IS NOT NULL;
    UPDATE @extschema@.mop_run r SET status = 'running', error = NULL, finished_at = NULL,
        coordinator_pid = backend.pid, coordinator_start = backend.start, fencing_token = r.fencing_token + 1
    WHERE r.run_id = run RETURNING r.fencing_token INTO reached;
    RETURN reached;
END
$$;

-- In this and the following functions an epoch that is NULL may be any.
CREATE FUNCTION @extschema@.mop_close_run(run bigint, run_fencing_token integer, outcome text, message text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    its @extschema@.mop_run;
    ended timestamptz := clock_timestamp();
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    SELECT r.* INTO its FROM @extschema@.mop_run r WHERE r.run_id = run;
    IF @extschema@.mop_status('running', its.coordinator_pid, its.coordinator_start, 'failed') <> 'running' THEN
        -- its session has gone, perhaps long ago
        ended := coalesce((SELECT max(greatest(u.started_at, u.finished_at)) FROM @extschema@.mop_unit u
                           WHERE u.run_id = run), its.started_at);
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'cancelled', finished_at = ended
    WHERE u.run_id = run AND u.status = 'running';
    DELETE FROM @extschema@.mop_control_request w WHERE w.run_id = run AND (w.content -> 'end') IS NOT NULL;
    UPDATE @extschema@.mop_run r SET status = outcome, error = message, finished_at = ended
    WHERE r.run_id = run;
END
$$;

-- What lets a transaction note that the output of a run is written, which at repeatable read does not see the run.
CREATE FUNCTION @extschema@.mop_output_token(run bigint, token text DEFAULT @extschema@.mop_token()) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN encode(@extschema@.mop_sha256(secret || 'output' || int8send(run)), 'hex');
END
$$;

-- in the caller's transaction: the run's output is written once that commits
CREATE FUNCTION @extschema@.mop_note_output(run bigint, token text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    IF encode(@extschema@.mop_sha256(secret || 'output' || int8send(run)), 'hex') IS DISTINCT FROM token THEN
        RAISE EXCEPTION 'this is no token of run %', run USING ERRCODE = '42501';
    END IF;
    INSERT INTO @extschema@.mop_output VALUES (run);
EXCEPTION WHEN unique_violation THEN
    NULL;  -- it is noted
END
$$;

-- the advisory lock by which a session says that it makes a table: a number that nobody else can know
CREATE FUNCTION @extschema@.mop_reservation(place oid, output_name name, pid integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    secret bytea := (SELECT s.secret FROM @extschema@.mop_secret s);
BEGIN
    RETURN ('x' || left(encode(@extschema@.mop_sha256(
        secret || 'reservation' || oidsend(place) || int4send(pid) || convert_to(output_name, 'UTF8')), 'hex'),
        16))::bit(64)::bigint;
END
$$;

-- Keeps others from making the table until this transaction ends, or gives false: somebody else does so, or begins to
-- in the same instant. Who may not make it keeps nobody. (No row, which would need a transaction id: that of a
-- procedure's locks lasts as long as it trains.)
CREATE FUNCTION @extschema@.mop_reserve(output_schema text, output_name name,
    token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    place oid := (SELECT n.oid FROM pg_namespace n WHERE n.nspname = output_schema);
BEGIN
    IF has_schema_privilege(@extschema@.mop_caller(token), place, 'CREATE') IS NOT TRUE THEN
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
CREATE FUNCTION @extschema@.mop_housekeeping(token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller integer := @extschema@.mop_owner_of(token);
    run bigint;
    its @extschema@.mop_run;
BEGIN
    PERFORM @extschema@.mop_forget_outputs();
    FOR run IN SELECT r.run_id FROM @extschema@.mop_run r JOIN @extschema@.mop_output o USING (run_id)
               WHERE r.owner = caller AND r.status <> 'running'
               AND EXISTS (SELECT 1 FROM @extschema@.mop_state_table g WHERE g.run_id = r.run_id)
               AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_checkpoint c WHERE c.run_id = r.run_id)
    LOOP
        BEGIN
            PERFORM @extschema@.mop_delete_state_tables(run);
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call will try again
        END;
    END LOOP;
    FOR run IN SELECT l.run_id FROM @extschema@.mop_lock_lost_runs_exclusive(caller) AS l(run_id) LOOP
        PERFORM pg_stat_clear_snapshot(); -- its new coordinator may have connected after the first look
        SELECT r.* INTO its FROM @extschema@.mop_run r WHERE r.run_id = run;
        CONTINUE WHEN @extschema@.mop_status(
            its.status, its.coordinator_pid, its.coordinator_start, 'failed') = 'running';
        BEGIN
            PERFORM @extschema@.mop_close_run(run, NULL, 'failed',
                                              'the session that ran it has ended; mop_resume goes on with it', token);
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call will try again
        END;
    END LOOP;
    -- of what trains nothing, nobody goes on with it
    FOR run IN SELECT r.run_id FROM @extschema@.mop_run r
               WHERE r.owner = caller AND r.status <> 'running' AND NOT @extschema@.mop_trains(r.function)
    LOOP
        BEGIN
            PERFORM @extschema@.mop_drop(run, true, token);
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call will try again
        END;
    END LOOP;
END
$$;

-- one of the calling role's runs that is not running, or a superuser's choice; `all_of_it`: or its states alone
CREATE FUNCTION @extschema@.mop_drop(run_id bigint, all_of_it boolean, token text DEFAULT @extschema@.mop_token())
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    its @extschema@.mop_run;
BEGIN
    IF NOT coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller), false) THEN
        PERFORM @extschema@.mop_own($1, token);
    ELSIF NOT EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = $1) THEN
        RAISE EXCEPTION 'there is no run %', $1 USING ERRCODE = '22023';
    END IF;
    PERFORM @extschema@.mop_lock_run_exclusive($1); -- nobody takes it over now
    SELECT r.* INTO its FROM @extschema@.mop_run r WHERE r.run_id = $1;
    IF @extschema@.mop_status(its.status, its.coordinator_pid, its.coordinator_start, 'failed') = 'running' THEN
        RAISE EXCEPTION 'run % is running', $1 USING ERRCODE = '55006',
            HINT = 'SELECT pg_cancel_backend(' || its.coordinator_pid || '); ends it.';
    END IF;
    PERFORM @extschema@.mop_delete_state_tables($1);
    DELETE FROM @extschema@.mop_checkpoint c WHERE c.run_id = $1;
    IF all_of_it THEN
        DELETE FROM @extschema@.mop_output o WHERE o.run_id = $1;
        PERFORM @extschema@.mop_delete_run($1);
    END IF;
END
$$;

CREATE FUNCTION @extschema@.mop_drop_run(run_id double precision) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_drop(@extschema@.mop_integer('run_id', $1), true)
$$;

CREATE FUNCTION @extschema@.mop_drop_states(run_id double precision) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_drop(@extschema@.mop_integer('run_id', $1), false)
$$;

CREATE FUNCTION @extschema@.mop_want_sessions(run_id bigint, sessions integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    its @extschema@.mop_run;
BEGIN
    IF sessions IS NULL OR sessions NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a run has from 1 to 1000 worker sessions, not %', coalesce(sessions::text, 'NULL')
            USING ERRCODE = '22023';
    END IF;
    IF NOT coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller), false) THEN
        PERFORM @extschema@.mop_own($1, token);
    END IF;
    SELECT r.* INTO its FROM @extschema@.mop_run r WHERE r.run_id = $1;
    IF @extschema@.mop_status(its.status, its.coordinator_pid, its.coordinator_start, 'failed')
       IS DISTINCT FROM 'running' THEN
        RAISE EXCEPTION 'run % is not running', $1 USING ERRCODE = '55000';
    END IF;
    UPDATE @extschema@.mop_run r SET sessions = $2 WHERE r.run_id = $1 AND r.status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % is not running', $1 USING ERRCODE = '55000';
    END IF;
END
$$;

CREATE FUNCTION @extschema@.mop_set_sessions(run_id double precision, sessions double precision) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_want_sessions(@extschema@.mop_integer('run_id', $1),
                                         @extschema@.mop_integer('sessions', $2)::integer)
$$;

-- --- units -----------------------------------------------------------------------------------------

-- units on a segment that go together: an element of each array belongs to one
CREATE FUNCTION @extschema@.mop_begin_units(run bigint, run_fencing_token integer, of_segment integer, of_kind text,
    of_dataset text, stages integer[], iterations integer[], attempts integer[], queued double precision[],
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own integer := pg_backend_pid();
    told timestamptz := now();
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    -- (nobody needs to wait for the disk that has the begun units: with the server they are gone, too)
    PERFORM @extschema@.mop_commit_soon();
    -- (one by one: what is joined with a list goes through all segments of Greenplum)
    FOR i IN 1 .. coalesce(array_length(stages, 1), 0) LOOP
        PERFORM @extschema@.mop_put_unit(run, stages[i], iterations[i], of_segment, of_kind, of_dataset, attempts[i], own,
                                         to_timestamp(queued[i]), told); -- the same for units that go together
    END LOOP;
END
$$;

-- An attempt failed; `reason`: the decision about it. Its row is made here where the session went before it could.
CREATE FUNCTION @extschema@.mop_fail_unit(run bigint, run_fencing_token integer, stage integer, iteration integer,
    segment integer, kind text, dataset text, attempt integer, queued_at double precision, message text,
    reason text DEFAULT NULL, token text DEFAULT @extschema@.mop_token())
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    IF NOT EXISTS (SELECT 1 FROM @extschema@.mop_unit u
                   WHERE (u.run_id, u.stage, u.segment, u.kind, u.dataset, u.attempt) = ($1, $3, $5, $6, $7, $8)) THEN
        BEGIN
            INSERT INTO @extschema@.mop_unit (run_id, stage, iteration, segment, kind, dataset, attempt, status,
                queued_at)
            VALUES ($1, $3, $4, $5, $6, $7, $8, 'running', to_timestamp($9));
        EXCEPTION WHEN unique_violation THEN
            NULL;  -- it has been made in this instant
        END;
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'failed', finished_at = clock_timestamp(), error = message,
        decision = reason
    WHERE (u.run_id, u.stage, u.segment, u.kind, u.dataset, u.attempt) = ($1, $3, $5, $6, $7, $8)
    AND u.status <> 'finished';
END
$$;

-- Notes the results of units on a segment that went together, each with its stage and attempt; fails where the run has
-- been taken from one. A unit of training, whose new state has been put into a state_table, moves its stage's state on to
-- the next version; nobody needs those of the stages that it releases.
CREATE FUNCTION @extschema@.mop_finish_units(run bigint, of_segment integer, of_kind text, of_dataset text,
    results json, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    told timestamptz := clock_timestamp();
    its record;  -- a list of each of what `results` have
    changed bigint;
    late integer;
    released integer[];
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    -- (lists by places: what is joined with a list goes through all segments of Greenplum)
    SELECT array_agg(r.stage) AS stage, array_agg(r.attempt) AS attempt, array_agg(r.version) AS version,
        array_agg(r.state_table) AS state_table, array_agg(r.bytes) AS bytes, array_agg(r.kernel) AS kernel,
        array_agg(r.rows) AS rows, array_agg(r.loss) AS loss, array_agg(r.metric) AS metric,
        array_agg(r.read_seconds) AS read_seconds, array_agg(r.train_seconds) AS train_seconds,
        array_agg(r.write_seconds) AS write_seconds, array_agg(r.compilations) AS compilations,
        array_agg(r.choice) AS choice INTO its
    FROM json_to_recordset(results) AS r(stage integer, attempt integer, version integer, state_table integer,
        bytes bigint, kernel text, rows bigint, loss double precision, metric double precision,
        read_seconds double precision, train_seconds double precision, write_seconds double precision,
        compilations integer, choice json);
    IF of_kind = 'train' THEN
        UPDATE @extschema@.mop_stage_state m SET version = m.version + 1, made_on = of_segment,
            state_table = its.state_table[@extschema@.mop_place_of(m.stage, its.stage)],
            bytes = its.bytes[@extschema@.mop_place_of(m.stage, its.stage)]
        WHERE m.run_id = run AND m.stage = ANY (its.stage)
        AND m.version = its.version[@extschema@.mop_place_of(m.stage, its.stage)] - 1;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed <> array_length(its.stage, 1) THEN
            late := (SELECT n FROM generate_subscripts(its.stage, 1) AS n
                     WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run
                         AND m.stage = its.stage[n] AND m.version = its.version[n] AND m.made_on = of_segment)
                     ORDER BY 1 LIMIT 1);
            RAISE EXCEPTION 'stage % of run % is not at version %', its.stage[coalesce(late, 1)], run,
                its.version[coalesce(late, 1)] - 1 USING ERRCODE = '55000';
        END IF;
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'finished', finished_at = told,
        version = its.version[@extschema@.mop_place_of(u.stage, its.stage)],
        kernel = its.kernel[@extschema@.mop_place_of(u.stage, its.stage)],
        rows = its.rows[@extschema@.mop_place_of(u.stage, its.stage)],
        loss = its.loss[@extschema@.mop_place_of(u.stage, its.stage)],
        metric = its.metric[@extschema@.mop_place_of(u.stage, its.stage)],
        read_seconds = its.read_seconds[@extschema@.mop_place_of(u.stage, its.stage)],
        train_seconds = its.train_seconds[@extschema@.mop_place_of(u.stage, its.stage)],
        write_seconds = its.write_seconds[@extschema@.mop_place_of(u.stage, its.stage)],
        compilations = its.compilations[@extschema@.mop_place_of(u.stage, its.stage)],
        choice = its.choice[@extschema@.mop_place_of(u.stage, its.stage)]
    WHERE (u.run_id, u.segment, u.kind, u.dataset) = ($1, $2, $3, $4) AND u.stage = ANY (its.stage)
    AND u.attempt = its.attempt[@extschema@.mop_place_of(u.stage, its.stage)] AND u.status = 'running';
    GET DIAGNOSTICS changed = ROW_COUNT;
    IF changed <> array_length(its.stage, 1) THEN
        RAISE EXCEPTION 'this unit of run % is no longer running', run USING ERRCODE = '55000';
    END IF;
    IF of_kind = 'train' THEN
        released := ARRAY(SELECT e.value::integer FROM json_array_elements(results) AS r,
                                 json_array_elements_text(r.value -> 'release') AS e);
        IF released <> '{}' THEN
            UPDATE @extschema@.mop_stage_state m SET state_table = NULL WHERE m.run_id = run AND m.stage = ANY (released);
        END IF;
    END IF;
END
$$;

-- Keeps what the run's units have cost, for later runs of the role: of each of `nets` (see plan/cost_history.py) what the
-- units of some of its `stages` have measured. Of the last 9 runs, and of the 5,000 last rows.
CREATE FUNCTION @extschema@.mop_note_costs(run bigint, run_fencing_token integer, nets json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number integer;
    own record;
    measured record;
    told timestamptz := clock_timestamp();  -- (a table on all segments of Greenplum takes no volatile function)
    oldest timestamptz;
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    number := (SELECT r.owner FROM @extschema@.mop_run r WHERE r.run_id = run);
    FOR own IN
        SELECT n.net, n.architecture, n.optimizer, n.loss, n.batch_size, n.shape,
               ARRAY(SELECT e.value::integer FROM json_array_elements_text(n.stages) AS e) AS stages
        FROM json_to_recordset(nets) AS n(net text, architecture text, optimizer text, loss text, batch_size integer,
            shape text, stages json)
    LOOP
        FOR measured IN
            SELECT CASE WHEN (u.choice ->> 'prefix') IS NULL THEN 'model' ELSE 'head' END AS part,
                   u.choice ->> 'version' AS version, u.choice ->> 'device' AS device, k.key AS kernel,
                   min(k.value::double precision) AS batch,
                   max(coalesce((u.choice -> 'compile_seconds' ->> k.key)::double precision, 0)) AS compile
            FROM @extschema@.mop_unit u, json_each_text(u.choice -> 'batch_seconds') AS k
            WHERE u.run_id = run AND u.stage = ANY (own.stages) AND u.kind = 'train' AND u.status = 'finished'
            AND (u.choice ->> 'device') IS NOT NULL
            GROUP BY 1, 2, 3, 4
        LOOP
            UPDATE @extschema@.mop_cost c SET noted_at = told,
                batch_seconds = (measured.batch || c.batch_seconds)[1:9],
                compile_seconds = (measured.compile || c.compile_seconds)[1:9]
            WHERE (c.owner, c.net, c.part, c.version, c.device, c.kernel)
                = (number, own.net, measured.part, measured.version, measured.device, measured.kernel);
            CONTINUE WHEN FOUND;
            BEGIN
                INSERT INTO @extschema@.mop_cost (owner, net, part, version, device, kernel, architecture, optimizer,
                    loss, batch_size, shape, batch_seconds, compile_seconds, noted_at)
                VALUES (number, own.net, measured.part, measured.version, measured.device, measured.kernel,
                    own.architecture, own.optimizer, own.loss, own.batch_size, own.shape, ARRAY[measured.batch],
                    ARRAY[measured.compile], told);
            EXCEPTION WHEN unique_violation THEN
                NULL;  -- another run of the role has told in this instant
            END;
        END LOOP;
    END LOOP;
    oldest := (SELECT c.noted_at FROM @extschema@.mop_cost c WHERE c.owner = number
               ORDER BY c.noted_at DESC OFFSET 5000 LIMIT 1);
    IF oldest IS NOT NULL THEN
        DELETE FROM @extschema@.mop_cost c WHERE c.owner = number AND c.noted_at <= oldest;
    END IF;
END
$$;

-- Adds a segment's evaluations of stages: `counts` of the numbers `own` are each one's, in order. Those of which it is
-- the dataset's last one are `complete`: the sums of all segments follow, each number with its stage and segment.
CREATE FUNCTION @extschema@.mop_put_sums(run bigint, of_stages integer[], of_dataset text, of_segment integer,
    counts integer[], own double precision[], token text DEFAULT @extschema@.mop_token(),
    OUT complete integer[], OUT whose integer[], OUT segments integer[], OUT value double precision[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    others integer;
    before integer := 0;
    one integer;
    its double precision[];
    there integer[];  -- of a unit that is done again
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    SELECT count(*) - 1 INTO others FROM @extschema@.mop_segment s WHERE s.run_id = run AND s.dataset = of_dataset;
    IF others <= 0 THEN
        complete := of_stages;
        RETURN;
    END IF;
    -- one after the other, so that there is a last one; all before anything is written, and in the order of
    -- mop_take_states
    FOR one IN SELECT e.stage FROM unnest(of_stages) AS e (stage) ORDER BY 1 LOOP
        PERFORM @extschema@.mop_lock_stage_exclusive(run, one);
    END LOOP;
    there := ARRAY(SELECT p.stage FROM @extschema@.mop_partial p
                   WHERE (p.run_id, p.dataset, p.segment) = (run, of_dataset, of_segment) AND p.stage = ANY (of_stages));
    FOR i IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        one := of_stages[i];
        its := own[before + 1 : before + counts[i]];
        before := before + counts[i];
        IF one = ANY (there) THEN
            UPDATE @extschema@.mop_partial p SET sums = its
            WHERE (p.run_id, p.stage, p.dataset, p.segment) = (run, one, of_dataset, of_segment);
        ELSE
            INSERT INTO @extschema@.mop_partial (run_id, stage, dataset, segment, sums)
            VALUES (run, one, of_dataset, of_segment, its);
        END IF;
    END LOOP;
    -- (nothing is grouped or summed up among rows: for that Greenplum would have processes of its own)
    whose := ARRAY(SELECT p.stage FROM @extschema@.mop_partial p
                   WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (of_stages));
    -- (an array of no rows is NULL on Greenplum)
    complete := ARRAY(SELECT e.stage FROM unnest(whose) AS e (stage) GROUP BY 1 HAVING count(*) > others ORDER BY 1);
    whose := NULL;
    IF array_length(complete, 1) > 0 THEN  -- of a unit that is done again they may be noted
        whose := ARRAY(SELECT x.stage FROM @extschema@.mop_metric x
                       WHERE (x.run_id, x.dataset) = (run, of_dataset) AND x.stage = ANY (complete));
        complete := ARRAY(SELECT e.stage FROM unnest(complete) AS e (stage)
                          WHERE e.stage <> ALL (coalesce(whose, '{}')) ORDER BY 1);
        whose := NULL;
    END IF;
    IF array_length(complete, 1) IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(v.stage), array_agg(v.segment), array_agg(v.value) INTO whose, segments, value FROM (
        SELECT p.stage, p.segment, unnest(p.sums) AS value FROM @extschema@.mop_partial p
        WHERE (p.run_id, p.dataset) = (run, of_dataset) AND p.stage = ANY (complete)) AS v;
    PERFORM @extschema@.mop_forget_sums(run, complete, of_dataset);
END
$$;

CREATE FUNCTION @extschema@.mop_note_metrics(run bigint, of_stages integer[], of_dataset text,
    losses double precision[], of_metric double precision[], all_metrics text[],
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR i IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        INSERT INTO @extschema@.mop_metric (run_id, stage, dataset, loss, metric, metrics)
        VALUES (run, of_stages[i], of_dataset, losses[i], of_metric[i], all_metrics[i]::json);
    END LOOP;
END
$$;

CREATE FUNCTION @extschema@.mop_fail_configurations(run bigint, run_fencing_token integer, keys integer[], message text,
    blamed text, token text DEFAULT @extschema@.mop_token())
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    UPDATE @extschema@.mop_configuration c SET error = message, blame = blamed
    WHERE c.run_id = run AND c.mst_key = ANY (keys);
END
$$;

-- --- model states ----------------------------------------------------------------------------------

CREATE FUNCTION @extschema@.mop_state_table_name(run bigint, state_table integer) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'mop_state_' || run || '_' || state_table
$$;

-- Takes from everybody but its owner what rights on a relation there are, as by default privileges of the owner's; views may
-- still be read.
CREATE FUNCTION @extschema@.mop_take_rights(relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
BEGIN
    -- (by name, whatever rights the server knows: PostgreSQL 17 has one more)
    FOR one IN SELECT a.grantee, string_agg(DISTINCT a.privilege_type, ', ') AS rights
               FROM pg_class c, aclexplode(c.relacl) a
               WHERE c.oid = relation AND a.grantee <> c.relowner AND (c.relkind <> 'v' OR a.privilege_type <> 'SELECT')
               GROUP BY 1
    LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s CASCADE', one.rights, relation,
                       CASE one.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(one.grantee)) END);
    END LOOP;
END
$$;

CREATE FUNCTION @extschema@.mop_new_state_table(run bigint, state_table integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET default_tablespace = '' AS $$
DECLARE
    name text := quote_ident(@extschema@.mop_state_table_name(run, state_table));
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    IF EXISTS (SELECT 1 FROM @extschema@.mop_state_table g WHERE (g.run_id, g.state_table) = (run, $2)) THEN
        RETURN;
    END IF;
    IF state_table <> (SELECT coalesce(max(g.state_table), 0) + 1 FROM @extschema@.mop_state_table g WHERE g.run_id = run)
       OR (SELECT count(*) FROM @extschema@.mop_state_table g WHERE g.run_id = run) >= 50 THEN
        RAISE EXCEPTION 'run % cannot have a state_table %', run, state_table USING ERRCODE = '54000';
    END IF;
    INSERT INTO @extschema@.mop_state_table VALUES (run, state_table);
    PERFORM @extschema@.mop_make_state_table(name);
    PERFORM @extschema@.mop_take_rights(('@extschema@.' || name)::regclass);
    -- floats do not compress
    EXECUTE 'ALTER TABLE @extschema@.' || name || ' ALTER COLUMN data SET STORAGE EXTERNAL';
    -- a member of the extension goes with it, and is not dumped
    EXECUTE 'ALTER EXTENSION pg_mop ADD TABLE @extschema@.' || name;
END
$$;

-- drops those of the run's state_tables in the list that hold no model's state and that nobody reads: which
CREATE FUNCTION @extschema@.mop_drop_state_tables(run bigint, list integer[],
    token text DEFAULT @extschema@.mop_token()) RETURNS SETOF integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one integer;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR one IN SELECT g.state_table FROM @extschema@.mop_state_table g WHERE g.run_id = run AND g.state_table = ANY (list)
               AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run
                               AND m.state_table = g.state_table)
    LOOP
        BEGIN
            PERFORM @extschema@.mop_delete_state_tables(run, one);
            RETURN NEXT one;
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- later
        END;
    END LOOP;
END
$$;

-- moves the states of stages that train no more to state_table `target`, so that those where they are can be dropped
CREATE FUNCTION @extschema@.mop_move_states(run bigint, stages integer[], target integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one integer;
    model record;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOREACH one IN ARRAY ARRAY(
        SELECT m.stage FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = ANY (stages)
        AND m.state_table < target ORDER BY m.stage)
    LOOP
        PERFORM @extschema@.mop_lock_stage_exclusive(run, one);
    END LOOP;
    FOR model IN SELECT m.* FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = ANY (stages)
                 AND m.state_table < target ORDER BY m.stage
    LOOP
        EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, target))
                || ' SELECT * FROM @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, model.state_table))
                || ' WHERE stage = $1 AND version = $2' USING model.stage, model.version;
        UPDATE @extschema@.mop_stage_state m SET state_table = target WHERE m.run_id = run AND m.stage = model.stage;
    END LOOP;
END
$$;

-- nobody needs the states of these stages any more
CREATE FUNCTION @extschema@.mop_release_states(run bigint, run_fencing_token integer, stages integer[],
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    UPDATE @extschema@.mop_stage_state m SET state_table = NULL WHERE m.run_id = run AND m.stage = ANY (stages);
END
$$;

-- --- states that later runs go on from ---------------------------------------------------------------

-- The states of a run that has been trained to its end are kept as checkpoints.
CREATE FUNCTION @extschema@.mop_keep_checkpoints(run bigint, run_fencing_token integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    spent double precision[];  -- by stage: what it has taken to train it and all before it
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    spent := array_fill(0::double precision, ARRAY[(
        SELECT max(s.stage) FROM @extschema@.mop_stage s WHERE s.run_id = run)]);
    -- (a parent's number is smaller; most of what was planned may never have been trained)
    FOR one IN
        SELECT s.stage, s.parent, coalesce(u.seconds, 0) AS seconds FROM @extschema@.mop_stage s LEFT JOIN (
            SELECT t.run_id, t.stage, sum(t.train_seconds + t.write_seconds) AS seconds FROM @extschema@.mop_unit t
            WHERE t.kind = 'train' AND t.status = 'finished' AND (t.run_id = run OR t.run_id IN (
                SELECT f.source_run FROM @extschema@.mop_stage f WHERE f.run_id = run))
            GROUP BY t.run_id, t.stage) u
        ON u.run_id = coalesce(s.source_run, run) AND u.stage = coalesce(s.source_stage, s.stage)
        WHERE s.run_id = run AND (u.stage IS NOT NULL OR s.source_run IS NOT NULL) ORDER BY s.stage
    LOOP
        spent[one.stage] := one.seconds + CASE WHEN one.parent IS NULL THEN 0 ELSE spent[one.parent] END;
    END LOOP;
    INSERT INTO @extschema@.mop_checkpoint (run_id, stage, seconds)
    SELECT run, m.stage, spent[m.stage] FROM @extschema@.mop_stage_state m
    WHERE m.run_id = run AND m.state_table IS NOT NULL
    AND m.stage NOT IN (SELECT c.stage FROM @extschema@.mop_checkpoint c WHERE c.run_id = run);
EXCEPTION WHEN unique_violation THEN
    NULL;  -- another session has done it in this instant, whose answer got lost
END
$$;

-- Drops checkpoints of the calling role, those of least benefit first, until they take no more than so many bytes. The
-- benefit is the seconds that it takes to train them again, for each byte, and less the longer nobody used them (Nectar,
-- OSDI 2010, section 3.3). A run whose output is not committed keeps its own.
-- Whatever another call reads just now it leaves to the next one: it hardly waits, and gives way in a deadlock.
CREATE FUNCTION @extschema@.mop_evict(budget bigint, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    caller integer := @extschema@.mop_owner_of(token);
    victim record;
    late record;
    newest integer;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM @extschema@.mop_state_table g JOIN @extschema@.mop_run r USING (run_id)
                   WHERE r.owner = caller AND r.status <> 'running') THEN
        RETURN;  -- (what follows takes Greenplum's segments a dozen processes)
    END IF;
    BEGIN  -- one session at a time
        PERFORM @extschema@.mop_lock_owner_exclusive(caller);
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RETURN;  -- another does it
    END;
    FOR victim IN
        WITH kept AS (
            SELECT c.run_id, c.stage, sum(m.bytes) OVER (ORDER BY NOT EXISTS (
                       SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = c.run_id) DESC,
                       c.seconds / (m.bytes + 1) / (60 + extract(epoch FROM clock_timestamp() - c.used_at)) DESC,
                       c.run_id, c.stage) AS total,
                   EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = c.run_id) AS written
            FROM @extschema@.mop_checkpoint c JOIN @extschema@.mop_stage_state m USING (run_id, stage)
            JOIN @extschema@.mop_run r USING (run_id)
            WHERE r.owner = caller AND r.status <> 'running' AND m.state_table IS NOT NULL
        )
        SELECT k.run_id, k.stage FROM kept k WHERE k.total > budget AND k.written
    LOOP
        BEGIN
            DELETE FROM @extschema@.mop_checkpoint c WHERE (c.run_id, c.stage) = (victim.run_id, victim.stage);
            UPDATE @extschema@.mop_stage_state m SET state_table = NULL
            WHERE (m.run_id, m.stage) = (victim.run_id, victim.stage);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            NULL;  -- another call takes it over just now
        END;
    END LOOP;
    -- the tables follow: one with nothing of use goes, one with little of use is written anew
    FOR late IN
        SELECT g.run_id, g.state_table,
               (SELECT array_agg(m.stage) FROM @extschema@.mop_stage_state m
                WHERE m.run_id = g.run_id AND m.state_table = g.state_table) AS stages,
               (SELECT sum(m.bytes) FROM @extschema@.mop_stage_state m
                WHERE m.run_id = g.run_id AND m.state_table = g.state_table) AS bytes
        FROM @extschema@.mop_state_table g JOIN @extschema@.mop_run r USING (run_id)
        JOIN @extschema@.mop_output w USING (run_id)
        WHERE r.owner = caller AND r.status <> 'running'
    LOOP
        BEGIN
            CONTINUE WHEN late.stages IS NOT NULL AND (
                SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
                WHERE c.relname = @extschema@.mop_state_table_name(late.run_id, late.state_table)
                AND c.relnamespace = (
                    SELECT o.relnamespace FROM pg_class o WHERE o.oid = '@extschema@.mop_run'::regclass)
                ) <= greatest(1 << 22, 3 * late.bytes);
            IF late.stages IS NOT NULL THEN
                newest := (SELECT max(g.state_table) + 1 FROM @extschema@.mop_state_table g WHERE g.run_id = late.run_id);
                CONTINUE WHEN newest IS NULL;  -- somebody has dropped the run's states
                PERFORM @extschema@.mop_new_state_table(late.run_id, newest, token);
                PERFORM @extschema@.mop_move_states(late.run_id, late.stages, newest, token);
            END IF;
            PERFORM @extschema@.mop_delete_state_tables(late.run_id, late.state_table);
        EXCEPTION WHEN lock_not_available OR deadlock_detected OR program_limit_exceeded OR unique_violation THEN
            NULL;  -- the next call will try again
        END;
    END LOOP;
END
$$;

-- Takes stages over that earlier runs of the role have trained: [{"stage", "run", "of" (the stage there), "state"
-- (whether the state is needed), "scored" (whether all metrics are known)}, ...]. All of them, or none and false: where
-- one is no longer there.
CREATE FUNCTION @extschema@.mop_adopt(run bigint, run_fencing_token integer, stages json,
    token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    target integer;
    alike text[];
    missing bigint := json_array_length(stages);
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    target := (SELECT max(g.state_table) FROM @extschema@.mop_state_table g WHERE g.run_id = run);
    -- They are not dropped meanwhile: the runs, then the checkpoints, as mop_drop and mop_forget_checkpoints have them,
    -- and all before any table is read.
    PERFORM @extschema@.mop_lock_run_shared(l.run) FROM (
        SELECT DISTINCT a.run FROM json_to_recordset(stages) AS a(run bigint) ORDER BY 1) AS l;
    PERFORM @extschema@.mop_lock_checkpoints_exclusive(array_agg(a.run), array_agg(a.of))
    FROM json_to_recordset(stages) AS a(run bigint, "of" integer, state boolean) WHERE a.state;
    FOR one IN
        SELECT a.stage, a.of, a.run AS of_run, a.state, a.scored, m.version, m.state_table, m.bytes, m.made_on,
               coalesce(t.source_run, t.run_id) AS origin_run, coalesce(t.source_stage, t.stage) AS origin_stage
        FROM json_to_recordset(stages) AS a(stage integer, run bigint, "of" integer, state boolean,
            scored boolean)
        JOIN @extschema@.mop_stage s ON s.run_id = $1 AND s.stage = a.stage
        JOIN @extschema@.mop_stage t ON t.run_id = a.run AND t.stage = a.of AND t.identity = s.identity
        JOIN @extschema@.mop_stage_state m ON m.run_id = a.run AND m.stage = a.of
        JOIN @extschema@.mop_run theirs ON theirs.run_id = a.run
        JOIN @extschema@.mop_run mine ON mine.run_id = $1 AND mine.owner = theirs.owner
        WHERE NOT a.state OR m.state_table IS NOT NULL
        ORDER BY a.stage
    LOOP
        IF one.state THEN
            CONTINUE WHEN @extschema@.mop_copy_state(
                @extschema@.mop_state_table_name(one.of_run, one.state_table), one.of, one.version,
                @extschema@.mop_state_table_name(run, target), one.stage) = 0;
            UPDATE @extschema@.mop_checkpoint c SET used_at = clock_timestamp()
            WHERE (c.run_id, c.stage) = (one.of_run, one.of);
        END IF;
        UPDATE @extschema@.mop_stage_state m SET version = one.version,
            state_table = CASE WHEN one.state THEN target END, bytes = CASE WHEN one.state THEN one.bytes END,
            made_on = one.made_on
        WHERE m.run_id = run AND m.stage = one.stage;
        UPDATE @extschema@.mop_stage s SET source_run = one.origin_run, source_stage = one.origin_stage
        WHERE s.run_id = run AND s.stage = one.stage;
        IF one.scored THEN  -- (nobody else writes them: the run's model is locked)
            alike := ARRAY[
                CASE WHEN @extschema@.mop_same_segments(run, one.of_run, 'training') THEN 'training' END,
                CASE WHEN @extschema@.mop_same_segments(run, one.of_run, 'validation') THEN 'validation' END];
            INSERT INTO @extschema@.mop_metric (run_id, stage, dataset, loss, metric, metrics)
            SELECT run, one.stage, x.dataset, x.loss, x.metric, x.metrics FROM @extschema@.mop_metric x
            WHERE x.run_id = one.of_run AND x.stage = one.of AND x.dataset = ANY (alike)
            AND x.dataset NOT IN (SELECT o.dataset FROM @extschema@.mop_metric o
                                  WHERE o.run_id = run AND o.stage = one.stage);
        END IF;
        missing := missing - 1;
    END LOOP;
    IF missing > 0 THEN
        RAISE EXCEPTION 'a checkpoint has just been dropped' USING ERRCODE = 'P0002';
    END IF;
    RETURN true;
EXCEPTION WHEN undefined_table OR lock_not_available OR no_data_found THEN
    RETURN false;
END
$$;

-- whether a dataset of two runs is of the same rows
CREATE FUNCTION @extschema@.mop_same_segments(run bigint, other bigint, of_dataset text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg((s.segment, s.fingerprint)::text ORDER BY s.segment) FILTER (WHERE s.run_id = $1)
           IS NOT DISTINCT FROM
           array_agg((s.segment, s.fingerprint)::text ORDER BY s.segment) FILTER (WHERE s.run_id = $2)
    FROM @extschema@.mop_segment s WHERE s.run_id IN ($1, $2) AND s.dataset = $3
$$;

CREATE FUNCTION @extschema@.mop_forget_checkpoints(run bigint, token text DEFAULT @extschema@.mop_token())
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller integer := @extschema@.mop_owner_of(token);
    runs bigint[];
    stages integer[];
BEGIN
    IF run IS NOT NULL THEN
        PERFORM @extschema@.mop_own(run, token);
    END IF;
    SELECT array_agg(c.run_id ORDER BY c.run_id, c.stage), array_agg(c.stage ORDER BY c.run_id, c.stage)
    INTO runs, stages
    FROM @extschema@.mop_checkpoint c JOIN @extschema@.mop_run r USING (run_id)
    JOIN @extschema@.mop_output o USING (run_id)
    WHERE r.owner = caller AND r.status <> 'running' AND (run IS NULL OR c.run_id = run);
    PERFORM @extschema@.mop_lock_checkpoints_exclusive(runs, stages);
    FOR i IN 1 .. coalesce(cardinality(runs), 0) LOOP
        DELETE FROM @extschema@.mop_checkpoint c WHERE (c.run_id, c.stage) = (runs[i], stages[i]);
        IF FOUND THEN
            UPDATE @extschema@.mop_stage_state m SET state_table = NULL WHERE (m.run_id, m.stage) = (runs[i], stages[i]);
        END IF;
    END LOOP;
    PERFORM @extschema@.mop_evict(1::bigint << 60, token);
END
$$;

-- Drops the checkpoints of the calling role's runs, or of one of them.
CREATE FUNCTION @extschema@.mop_drop_checkpoints(run_id double precision DEFAULT NULL) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_forget_checkpoints(@extschema@.mop_integer('run_id', $1))
$$;

-- weights from which a path starts: version 0 of its first stage
CREATE FUNCTION @extschema@.mop_put_weights(run bigint, of_stages integer[], weights bytea,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target integer;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    -- a path that begins late finds the first one gone
    target := (SELECT max(g.state_table) FROM @extschema@.mop_state_table g WHERE g.run_id = run);
    EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, target))
            || ' SELECT unnest($1), 0, 0, $2' USING of_stages, weights;
    UPDATE @extschema@.mop_stage_state m SET state_table = target, bytes = octet_length(weights)
    WHERE m.run_id = run AND m.stage = ANY (of_stages) AND m.version = 0;
END
$$;

-- What stages train, by what parameters; and where their states at `versions` are, as far as they have such of their
-- own. Those that are to be trained are locked for this transaction; they must be at these versions.
CREATE FUNCTION @extschema@.mop_take_states(run bigint, run_fencing_token integer, stages integer[], versions integer[],
    to_train boolean, token text DEFAULT @extschema@.mop_token())
RETURNS TABLE (stage integer, model_id integer, mst_key integer, compile_params text, fit_params text, model_arch text,
    version integer, state_table integer, bytes bigint, made_on integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    at integer;
    left_over integer[] := stages;
    reached integer;
    found integer[];
    models integer[];
    keys integer[];
    there integer[];
    state_tables integer[];
    sizes bigint[];
    segments integer[];
    compiled text[];
    fitted text[];
    architectures text[];
BEGIN
    PERFORM @extschema@.mop_own_once(run, token);
    IF to_train THEN
        -- in the order in which mop_lock_stages_exclusive locks all of them
        FOR at IN SELECT e.stage FROM unnest(stages) AS e (stage) ORDER BY 1 LOOP
            PERFORM @extschema@.mop_lock_stage_exclusive(run, at);
        END LOOP;
    END IF;
    -- after the locks, for which this may have waited while the run was taken over; all by one query, since each is a
    -- look at a segment of Greenplum, and not in a loop, for which that has processes of its own
    SELECT max(r.fencing_token), array_agg(s.stage), array_agg(m.version), array_agg(m.state_table), array_agg(m.bytes),
           array_agg(m.made_on), array_agg(c.model_id), array_agg(c.mst_key), array_agg(s.compile_params),
           array_agg(s.fit_params), array_agg(c.model_arch)
    INTO reached, found, there, state_tables, sizes, segments, models, keys, compiled, fitted, architectures
    FROM @extschema@.mop_run r JOIN @extschema@.mop_stage s USING (run_id)
    JOIN @extschema@.mop_stage_state m USING (run_id, stage) JOIN @extschema@.mop_configuration c USING (run_id, mst_key)
    WHERE r.run_id = run AND s.stage = ANY (stages);
    IF reached <> run_fencing_token THEN
        RAISE EXCEPTION 'run % has been taken over by another session', run USING ERRCODE = '55000';
    END IF;
    FOR i IN 1 .. coalesce(array_length(found, 1), 0) LOOP
        at := (SELECT n FROM generate_subscripts(stages, 1) AS n WHERE stages[n] = found[i]);
        CONTINUE WHEN to_train AND there[i] IS DISTINCT FROM versions[at];
        left_over := array_remove(left_over, found[i]);
        stage := found[i];
        model_id := models[i];
        mst_key := keys[i];
        compile_params := compiled[i];
        fit_params := fitted[i];
        model_arch := architectures[i];
        version := there[i];
        state_table := CASE WHEN there[i] = versions[at] THEN state_tables[i] END;
        bytes := sizes[i];
        made_on := segments[i];
        RETURN NEXT;
    END LOOP;
    IF left_over IS DISTINCT FROM '{}' OR stages = '{}' THEN  -- (without a row nothing says in which epoch the run is)
        at := (SELECT n FROM generate_subscripts(stages, 1) AS n WHERE stages[n] = left_over[1]);
        RAISE EXCEPTION 'stage % of run % is not at version %', left_over[1], run, versions[at]
            USING ERRCODE = '55000';
    END IF;
    PERFORM @extschema@.mop_has_seen(run, token);
END
$$;

-- The parts of stages' model states, those of one in order. A stage that has not been trained yet is in its parent's
-- state; of what has no state there is no row.
CREATE FUNCTION @extschema@.mop_read_states(run bigint, of_stages integer[], at_versions integer[],
    token text DEFAULT @extschema@.mop_token()) RETURNS TABLE (stage integer, data bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    its @extschema@.mop_stage_state;
    state_tables integer[] := '{}';
    wanted integer[] := '{}';
    stages integer[] := '{}';
    versions integer[] := '{}';
    own record;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    -- (one by one: of a run that it has not met the planner expects one row, and would look at all)
    FOR i IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        SELECT m.* INTO its FROM @extschema@.mop_stage_state m
        WHERE m.run_id = run AND m.stage = of_stages[i] AND m.version = at_versions[i] AND m.state_table IS NOT NULL;
        IF NOT FOUND THEN
            SELECT m.* INTO its FROM @extschema@.mop_stage_state m
            WHERE m.run_id = run AND m.version = at_versions[i] AND m.state_table IS NOT NULL
            AND m.stage = (SELECT s.parent FROM @extschema@.mop_stage s WHERE s.run_id = run AND s.stage = of_stages[i]);
        END IF;
        CONTINUE WHEN NOT FOUND;
        state_tables := state_tables || its.state_table;
        wanted := wanted || of_stages[i];
        stages := stages || its.stage;
        versions := versions || its.version;
    END LOOP;
    FOR own IN  -- of each state_table's table by one query
        SELECT f.state_table, array_agg(f.wanted) AS wanted, array_agg(f.stage) AS stages, array_agg(f.version) AS versions
        FROM unnest(state_tables, wanted, stages, versions) AS f (state_table, wanted, stage, version) GROUP BY 1
    LOOP
        RETURN QUERY EXECUTE 'SELECT e.wanted, s.data FROM unnest($1, $2, $3) AS e (wanted, stage, version) '
            'JOIN @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, own.state_table))
            || ' AS s USING (stage, version) ORDER BY e.wanted, s.part' USING own.wanted, own.stages, own.versions;
    END LOOP;
END
$$;

CREATE FUNCTION @extschema@.mop_put_state(run bigint, of_stage integer, new_version integer, target integer,
                                          number integer, part bytea,
                                          token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, target))
            || ' VALUES ($1, $2, $3, $4)' USING of_stage, new_version, number, part;
END
$$;

-- States of one part each, small ones, at once.
CREATE FUNCTION @extschema@.mop_put_states(run bigint, of_stages integer[], new_versions integer[], target integer,
                                           parts bytea[], token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, target))
            || ' SELECT e.stage, e.version, 0, e.data FROM unnest($1, $2, $3) AS e (stage, version, data)'
        USING of_stages, new_versions, parts;
END
$$;

-- One part of what a session has predicted for a partition, which is where the states are: under stage 0, at the number
-- of the partition. NULL: there are no more.
CREATE FUNCTION @extschema@.mop_read_predictions(run bigint, of_segment integer, number integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS bytea
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found bytea;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    EXECUTE 'SELECT data FROM @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, 1))
        || ' WHERE stage = 0 AND version = $1 AND part = $2' INTO found USING of_segment, number;
    RETURN found;
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
CREATE FUNCTION @extschema@.mop_has_output(run bigint, token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = run);
END
$$;

-- Runs: how a coordinator opens, takes over and closes one, and how users drop runs and set their number of sessions.

-- Returns the true status of a run, unit or job, for a killed session cannot record its end: `gone` if the status is
-- 'running' and the coordinator's session has ended. (Views of runs read mop_seen_run instead: Greenplum may evaluate a
-- function over rows on segments, which do not see the coordinator's sessions.)
CREATE FUNCTION @extschema@.mop_status(status text, coordinator_pid integer, coordinator_start timestamptz, gone text)
RETURNS text LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN $1 = 'running' AND NOT EXISTS (
                    SELECT 1 FROM pg_stat_activity a WHERE a.pid = $2
                    -- (a role sees the start of its own sessions only, so another role's reused process id differs)
                    AND a.backend_start = $3
                    -- an idle session ended its statement but could not record that: its role lost the right
                    AND NOT coalesce(a.state LIKE 'idle%' AND a.application_name NOT LIKE 'pg\_mop%'
                        AND a.state_change > (
                            SELECT max(r.started_at) FROM @extschema@.mop_run r WHERE r.status = 'running'
                            AND r.coordinator_pid = $2 AND r.coordinator_start = $3), false)) THEN $4 ELSE $1 END
$$;

-- Returns whether runs of this function train. Runs that evaluate or predict are dropped when they end.
CREATE FUNCTION @extschema@.mop_trains(function text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT $1 NOT IN ('madlib_keras_evaluate', 'madlib_keras_predict', 'madlib_keras_predict_byom')
$$;

-- A coordinator calls this at its start: it creates the run with its segments, their copies and a first state table.
CREATE FUNCTION @extschema@.mop_open_run(run json, segments json,
    token text DEFAULT @extschema@.mop_token()) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    coordinator record;
    number integer;
    -- (Greenplum evaluates a column's default on a segment, and RETURNING would take 0.25 s)
    id bigint := nextval('@extschema@.mop_run_run_id_seq');
BEGIN
    SELECT b.pid, b.start INTO coordinator FROM @extschema@.mop_backend(run ->> 'coordinator', caller) AS b;
    number := @extschema@.mop_enroll(token);
    INSERT INTO @extschema@.mop_run (run_id, owner, function, source_table, validation_table, model_output_table, seed,
        scheduler, num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid,
        coordinator_start, sessions, expected_seconds, prediction)
    SELECT id, number, r.function, r.source_table, r.validation_table, r.model_output_table, r.seed,
        r.scheduler, r.num_iterations,
        -- (json_to_record converts arrays since PostgreSQL 10 only)
        ARRAY(SELECT i::integer FROM json_array_elements_text(r.metrics_iterations) AS i), r.configurations,
        r.segments, r.parameters, coordinator.pid, coordinator.start, r.sessions,
        r.expected_seconds, r.prediction
    FROM json_to_record(run) AS r(function text, source_table text, validation_table text, model_output_table text,
        seed bigint, scheduler text, num_iterations integer, metrics_iterations json, configurations integer,
        segments integer, parameters json, sessions integer, expected_seconds double precision, prediction json);
    INSERT INTO @extschema@.mop_segment (run_id, dataset, segment, rows, bytes, fingerprint, server)
    SELECT id, s.dataset, s.segment, s.rows, s.bytes, s.fingerprint, s.server
    FROM json_to_recordset(segments) AS s(dataset text, segment integer, rows bigint, bytes bigint, fingerprint text,
        server name);
    INSERT INTO @extschema@.mop_copy (run_id, dataset, segment, fingerprint, server)
    SELECT id, s.dataset, s.segment, c.fingerprint, c.server
    FROM json_to_recordset(segments) AS s(dataset text, segment integer, copies json),
        json_to_recordset(s.copies) AS c(fingerprint text, server name);
    PERFORM @extschema@.mop_new_state_table(id, 1, token);
    IF @extschema@.mop_trains(run ->> 'function') THEN
        PERFORM @extschema@.mop_audit_act(caller, CASE WHEN (run #>> '{parameters,tables,replay_of}') IS NULL THEN 'run'
            ELSE 'replay' END, id, json_build_object('function', left(run ->> 'function', 63),
            'source_table', left(run ->> 'source_table', 200), 'model_output_table', left(run ->> 'model_output_table', 200),
            'configurations', (run ->> 'configurations')::bigint, 'num_iterations', (run ->> 'num_iterations')::bigint,
            'replay_of', left(run #>> '{parameters,tables,replay_of}', 20)), coordinator.pid);
    END IF;
    RETURN id;
END
$$;

-- A coordinator calls this to take a run over from a lost coordinator: it returns the run's new fencing token. Units of
-- earlier sessions commit before it returns, or fail afterwards.
CREATE FUNCTION @extschema@.mop_reopen_run(run bigint, coordinator text,
    token text DEFAULT @extschema@.mop_token()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    backend record;
    lost @extschema@.mop_run;
    reached integer;
BEGIN
    SELECT b.pid, b.start INTO backend FROM @extschema@.mop_backend(coordinator, caller) AS b;
    PERFORM @extschema@.mop_own(run, token);
    PERFORM @extschema@.mop_lock_run_exclusive(run);
    SELECT r.* INTO lost FROM @extschema@.mop_run r WHERE r.run_id = run;
    IF lost.coordinator_pid <> backend.pid AND @extschema@.mop_status(
            lost.status, lost.coordinator_pid, lost.coordinator_start, 'failed') = 'running' THEN
        RAISE EXCEPTION 'run % is running', run USING ERRCODE = '55006';
    END IF;
    -- the stages before the units' rows, as a unit locks them
    PERFORM @extschema@.mop_lock_stages_exclusive(run);
    -- (the coordinator may be lost for long, so the last unit's time counts)
    UPDATE @extschema@.mop_unit u SET status = 'cancelled', decision = 'retried: the run was resumed', finished_at = (
        SELECT max(greatest(o.started_at, o.finished_at)) FROM @extschema@.mop_unit o WHERE o.run_id = run)
    WHERE u.run_id = run AND u.status = 'running';
    UPDATE @extschema@.mop_configuration c SET error = NULL, blame = NULL WHERE c.run_id = run AND c.blame = 'infrastructure';
    UPDATE @extschema@.mop_job j SET runs = j.runs || run
    WHERE j.session_pid = lost.coordinator_pid AND j.session_start = lost.coordinator_start AND run <> ALL (j.runs);
    DELETE FROM @extschema@.mop_control_request w WHERE w.run_id = run AND (w.content -> 'end') IS NOT NULL;
    DELETE FROM @extschema@.mop_turn t WHERE t.run_id = run;
    UPDATE @extschema@.mop_run r SET status = 'running', error = NULL, finished_at = NULL,
        coordinator_pid = backend.pid, coordinator_start = backend.start, fencing_token = r.fencing_token + 1
    WHERE r.run_id = run RETURNING r.fencing_token INTO reached;
    PERFORM @extschema@.mop_audit_act(caller, 'resume', run, NULL, backend.pid);
    RETURN reached;
END
$$;

-- A coordinator or housekeeping ends a run with this status and error. An ended run stays as it is, except that a finished run
-- fails while its output is not written. In all functions, a fencing token NULL skips the comparison.
CREATE FUNCTION @extschema@.mop_close_run(run bigint, run_fencing_token integer, outcome text, message text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    closed @extschema@.mop_run;
    ended timestamptz := clock_timestamp();
    lost boolean;
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    SELECT r.* INTO closed FROM @extschema@.mop_run r WHERE r.run_id = run;
    IF closed.status <> 'running' AND (closed.status <> 'finished' OR outcome = 'finished' OR EXISTS (
            SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = run)) THEN
        RETURN;
    END IF;
    lost := @extschema@.mop_status('running', closed.coordinator_pid, closed.coordinator_start, 'failed') <> 'running';
    IF lost THEN
        -- the coordinator may be lost for long, so the last unit's time counts
        ended := coalesce((SELECT max(greatest(u.started_at, u.finished_at)) FROM @extschema@.mop_unit u
                           WHERE u.run_id = run), closed.started_at);
    END IF;
    UPDATE @extschema@.mop_unit u SET status = 'cancelled', decision = 'not retried: the run has ended', finished_at = ended
    WHERE u.run_id = run AND u.status = 'running';
    DELETE FROM @extschema@.mop_control_request w WHERE w.run_id = run AND (w.content -> 'end') IS NOT NULL;
    DELETE FROM @extschema@.mop_turn t WHERE t.run_id = run;
    UPDATE @extschema@.mop_run r SET status = outcome, error = message, finished_at = ended
    WHERE r.run_id = run;
    PERFORM @extschema@.mop_count_whole(run, outcome);
    IF @extschema@.mop_trains(closed.function) THEN
        -- (the login is that of whoever closes the run of a lost session)
        PERFORM @extschema@.mop_audit_act(@extschema@.mop_caller(token), 'end', run, CASE
            WHEN lost THEN json_build_object('status', outcome, 'lost', true) ELSE json_build_object('status', outcome) END);
    END IF;
END
$$;

-- Each call of a training function starts with this: it drops states that nobody needs, and closes those runs of the
-- calling role whose coordinator is lost. It skips locked runs.
CREATE FUNCTION @extschema@.mop_housekeeping(token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller integer := @extschema@.mop_owner_of(token);
    run bigint;
    lost @extschema@.mop_run;
BEGIN
    PERFORM @extschema@.mop_forget_outputs();
    PERFORM @extschema@.mop_sum_up_counts(caller);
    FOR run IN SELECT r.run_id FROM @extschema@.mop_run r JOIN @extschema@.mop_output o USING (run_id)
               WHERE r.owner = caller AND r.status <> 'running'
               AND EXISTS (SELECT 1 FROM @extschema@.mop_state_table g WHERE g.run_id = r.run_id)
               AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_checkpoint c WHERE c.run_id = r.run_id)
    LOOP
        BEGIN
            PERFORM @extschema@.mop_delete_state_tables(run);
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call tries again
        END;
    END LOOP;
    FOR run IN SELECT l.run_id FROM @extschema@.mop_lock_lost_runs_exclusive(caller) AS l(run_id) LOOP
        PERFORM pg_stat_clear_snapshot(); -- a new coordinator may have connected since the query above
        SELECT r.* INTO lost FROM @extschema@.mop_run r WHERE r.run_id = run;
        CONTINUE WHEN @extschema@.mop_status(
            lost.status, lost.coordinator_pid, lost.coordinator_start, 'failed') = 'running';
        BEGIN
            PERFORM @extschema@.mop_close_run(run, NULL, 'failed',
                                              'the session that ran it has ended; mop_resume goes on with it', token);
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call tries again
        END;
    END LOOP;
    -- no call continues an ended evaluation or prediction
    FOR run IN SELECT r.run_id FROM @extschema@.mop_run r
               WHERE r.owner = caller AND r.status <> 'running' AND NOT @extschema@.mop_trains(r.function)
    LOOP
        BEGIN
            PERFORM @extschema@.mop_drop(run, true, token);
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- the next call tries again
        END;
    END LOOP;
END
$$;

-- Drops a run of the calling role that is not running, with `all_of_it`; otherwise only its states and checkpoints. A
-- superuser may drop every run.
CREATE FUNCTION @extschema@.mop_drop(run_id bigint, all_of_it boolean, token text DEFAULT @extschema@.mop_token())
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    dropped @extschema@.mop_run;
BEGIN
    IF NOT coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller), false) THEN
        PERFORM @extschema@.mop_own($1, token);
    ELSIF NOT EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = $1) THEN
        RAISE EXCEPTION 'there is no run %', $1 USING ERRCODE = '22023';
    END IF;
    PERFORM @extschema@.mop_lock_run_exclusive($1); -- so no session takes it over
    SELECT r.* INTO dropped FROM @extschema@.mop_run r WHERE r.run_id = $1;
    IF @extschema@.mop_status(
            dropped.status, dropped.coordinator_pid, dropped.coordinator_start, 'failed') = 'running' THEN
        RAISE EXCEPTION 'run % is running', $1 USING ERRCODE = '55006',
            HINT = 'SELECT pg_cancel_backend(' || dropped.coordinator_pid || '); ends it.';
    END IF;
    IF @extschema@.mop_trains(dropped.function) THEN
        PERFORM @extschema@.mop_audit_act(caller, CASE WHEN all_of_it THEN 'drop run' ELSE 'drop states' END, $1,
            json_build_object('owner', (SELECT o.role FROM @extschema@.mop_owner o WHERE o.owner = dropped.owner),
                              'model_output_table', left(dropped.model_output_table, 200)));
    END IF;
    PERFORM @extschema@.mop_delete_state_tables($1);
    DELETE FROM @extschema@.mop_checkpoint c WHERE c.run_id = $1;
    IF all_of_it THEN
        DELETE FROM @extschema@.mop_output o WHERE o.run_id = $1;
        PERFORM @extschema@.mop_delete_run($1);
    END IF;
END
$$;

-- Users drop a run with this.
CREATE FUNCTION @extschema@.mop_drop_run(run_id double precision) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_drop(@extschema@.mop_integer('run_id', $1), true)
$$;

-- Users drop only the states of a run with this.
CREATE FUNCTION @extschema@.mop_drop_states(run_id double precision) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_drop(@extschema@.mop_integer('run_id', $1), false)
$$;

-- Sets the number of worker sessions of a running run, for mop_set_sessions.
CREATE FUNCTION @extschema@.mop_want_sessions(run_id bigint, sessions integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    changed @extschema@.mop_run;
BEGIN
    IF sessions IS NULL OR sessions NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a run has from 1 to 1000 worker sessions, not %', coalesce(sessions::text, 'NULL')
            USING ERRCODE = '22023';
    END IF;
    IF NOT coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller), false) THEN
        PERFORM @extschema@.mop_own($1, token);
    END IF;
    SELECT r.* INTO changed FROM @extschema@.mop_run r WHERE r.run_id = $1;
    IF @extschema@.mop_status(changed.status, changed.coordinator_pid, changed.coordinator_start, 'failed')
       IS DISTINCT FROM 'running' THEN
        RAISE EXCEPTION 'run % is not running', $1 USING ERRCODE = '55000';
    END IF;
    UPDATE @extschema@.mop_run r SET sessions = $2 WHERE r.run_id = $1 AND r.status = 'running';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % is not running', $1 USING ERRCODE = '55000';
    END IF;
    PERFORM @extschema@.mop_audit_act(caller, 'set sessions', $1,
        json_build_object('from', changed.sessions, 'to', sessions));
END
$$;

-- Users change the number of worker sessions of a running run with this.
CREATE FUNCTION @extschema@.mop_set_sessions(run_id double precision, sessions double precision) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_want_sessions(@extschema@.mop_integer('run_id', $1),
                                         @extschema@.mop_integer('sessions', $2)::integer)
$$;

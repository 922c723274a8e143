-- Jobs: calls that outlive their client. The job supervisor, the process that holds a job's session, writes the job's
-- row (pg_mop/run/job_supervisor.py).

-- A job supervisor calls this: it registers the job of the session that `backend` proves, and returns its number.
CREATE FUNCTION @extschema@.mop_open_job(command text, backend text, token text DEFAULT @extschema@.mop_token())
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    session record;
    caller integer := @extschema@.mop_enroll(token);
    number bigint := nextval('@extschema@.mop_job_job_seq');
    since timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO session FROM @extschema@.mop_backend(backend, @extschema@.mop_caller(token));
    -- the text may come from a session of another login that has SET this role
    IF NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = session.pid AND a.usename = session_user) THEN
        RAISE EXCEPTION 'the session is not one of login "%"', session_user USING ERRCODE = '42501';
    END IF;
    INSERT INTO @extschema@.mop_job (job, owner, command, session_pid, session_start, submitted_at)
    VALUES (number, caller, command, session.pid, session.start, since);
    PERFORM @extschema@.mop_audit_act(@extschema@.mop_caller(token), 'submit', NULL, json_build_object('job', number));
    -- the role keeps its last 1,000 jobs; one of several concurrent calls deletes the others
    IF pg_try_advisory_xact_lock('@extschema@.mop_job'::regclass::oid::bigint << 32 | caller) THEN
        DELETE FROM @extschema@.mop_job j WHERE j.job IN (
            SELECT o.job FROM @extschema@.mop_job o WHERE o.owner = caller AND o.status <> 'running'
            ORDER BY o.job DESC OFFSET 1000);
    END IF;
    RETURN number;
END
$$;

-- A job supervisor adds messages to its job, which keeps the last 200, and records the outcome and problem of an ended
-- job. (The session identifies the job, too: after DROP EXTENSION another job may have its number.)
CREATE FUNCTION @extschema@.mop_note_job(job bigint, session_pid integer, messages text[], outcome text, problem text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    all_messages text[];
    ended timestamptz := CASE WHEN outcome IS NOT NULL THEN clock_timestamp() END;
BEGIN
    SELECT j.messages || $3 INTO all_messages FROM @extschema@.mop_job j JOIN @extschema@.mop_owner o USING (owner)
    WHERE j.job = $1 AND j.session_pid = $2 AND o.who = caller AND j.status = 'running';
    IF FOUND THEN  -- (only one job supervisor writes the row of a job)
        UPDATE @extschema@.mop_job j SET
            messages = all_messages[greatest(1, cardinality(all_messages) - 199):cardinality(all_messages)],
            status = coalesce(outcome, 'running'), error = problem, finished_at = ended
        WHERE j.job = $1 AND j.status = 'running';
    END IF;
END
$$;

-- Users run a command in a separate session, as the same role and with the same search_path and settings pg_mop.*;
-- returns the number of the job.
CREATE FUNCTION @extschema@.mop_submit(command text) RETURNS bigint
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.jobs.mop_submit(plpy, *args) $$;

-- Cancels the command of a job of the calling role, or for a superuser of any job; false if none is running. For
-- mop_cancel.
CREATE FUNCTION @extschema@.mop_cancel_job(job bigint, token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    cancelled record;
BEGIN
    SELECT j.* INTO cancelled FROM @extschema@.mop_job j JOIN @extschema@.mop_owner o USING (owner) WHERE j.job = $1
    AND (o.who = caller OR (SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no job % of role "%"', $1, pg_get_userbyid(caller) USING ERRCODE = '42501',
            HINT = 'SELECT job, status, command FROM @extschema@.mop_jobs;';
    END IF;
    PERFORM pg_stat_clear_snapshot();
    IF @extschema@.mop_status(
            cancelled.status, cancelled.session_pid, cancelled.session_start, 'failed') <> 'running' THEN
        RETURN false;
    END IF;
    -- (the command has not started, or has ended and its end is not recorded yet)
    IF EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = cancelled.session_pid AND a.state LIKE 'idle%') THEN
        RETURN false;
    END IF;
    PERFORM @extschema@.mop_audit_act(caller, 'cancel', NULL, json_build_object('job', job));
    RETURN pg_cancel_backend(cancelled.session_pid);
END
$$;

-- Users cancel a job with this, as with pg_cancel_backend; false if its command is not running.
CREATE FUNCTION @extschema@.mop_cancel(job double precision) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_cancel_job(@extschema@.mop_integer('job', $1))
$$;

-- Users wait with this until a job has ended or the timeout has passed; returns the job's status. Without a timeout it
-- raises an error if the job waits for this transaction.
CREATE FUNCTION @extschema@.mop_wait(job double precision, timeout interval DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own bigint := @extschema@.mop_integer('job', job);
    until timestamptz := clock_timestamp() + timeout;
    reached text;
    before text := 'running';
    looks integer := 0;
    held integer;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read%committed' THEN
        RAISE EXCEPTION 'this transaction does not see commits of other sessions, such as the end of job %', own
            USING ERRCODE = '25001', HINT = 'COMMIT; and SET default_transaction_isolation = ''read committed'';';
    END IF;
    IF timeout IS NULL AND EXISTS (SELECT 1 FROM @extschema@.mop_jobs j WHERE j.job = own AND j.status = 'running'
                                   AND j.session_pid = pg_backend_pid()) THEN
        RAISE EXCEPTION 'job % would wait for itself', own USING ERRCODE = '55006',
            HINT = 'Submit commands that depend on each other as one job.';
    END IF;
    LOOP
        reached := (SELECT j.status FROM @extschema@.mop_jobs j WHERE j.job = own);
        IF reached IS NULL THEN
            RAISE EXCEPTION 'there is no job % that role "%" may see', own, current_user USING ERRCODE = '42501',
                HINT = 'SELECT job, status, command FROM @extschema@.mop_jobs;';
        END IF;
        -- (the session may have ended between the reads of its row and of pg_stat_activity: the next loop reads both)
        EXIT WHEN reached <> 'running' AND reached = before OR clock_timestamp() >= until;
        IF reached = 'running' THEN
            -- (rarely, since pg_blocking_pids stops all lock requests; PostgreSQL 9.4 does not have it)
            IF timeout IS NULL AND looks % 10 = 5 AND current_setting('server_version_num')::integer >= 90600 THEN
                held := (SELECT j.session_pid FROM @extschema@.mop_jobs j WHERE j.job = own);
                IF pg_backend_pid() = ANY (pg_blocking_pids(held)) THEN
                    RAISE EXCEPTION 'job % waits for a lock that this transaction holds', own USING ERRCODE = '55006',
                        DETAIL = 'It will not end before this transaction has.',
                        HINT = 'COMMIT; and wait then, or wait with a timeout: SELECT @extschema@.mop_wait(' || own
                               || ', ''1 min'');';
                END IF;
            END IF;
            looks := looks + 1;
            PERFORM pg_sleep(least(0.1, coalesce(extract(epoch FROM until - clock_timestamp()), 0.1)));
        END IF;
        before := reached;
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
    RETURN reached;
END
$$;

-- Calls that outlive their client. A job's row is written by the process that holds its session (pg_mop/run/job_supervisor.py).

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
    -- what tells of a session may have been had in one that another login lent the role to
    IF NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = session.pid AND a.usename = session_user) THEN
        RAISE EXCEPTION 'the session is not one of login "%"', session_user USING ERRCODE = '42501';
    END IF;
    INSERT INTO @extschema@.mop_job (job, owner, command, session_pid, session_start, submitted_at)
    VALUES (number, caller, command, session.pid, session.start, since);
    -- the log has an end (to which one of several that begin at a time cuts it)
    IF pg_try_advisory_xact_lock('@extschema@.mop_job'::regclass::oid::bigint << 32 | caller) THEN
        DELETE FROM @extschema@.mop_job j WHERE j.job IN (
            SELECT o.job FROM @extschema@.mop_job o WHERE o.owner = caller AND o.status <> 'running'
            ORDER BY o.job DESC OFFSET 1000);
    END IF;
    RETURN number;
END
$$;

-- Adds messages to the job of a session, of which the last ones stay, and says how it has ended (outcome, problem), if
-- it has. (The number alone may be another job's, after DROP EXTENSION.)
CREATE FUNCTION @extschema@.mop_note_job(job bigint, session_pid integer, messages text[], outcome text, problem text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    said text[];
    ended timestamptz := CASE WHEN outcome IS NOT NULL THEN clock_timestamp() END;
BEGIN
    SELECT j.messages || $3 INTO said FROM @extschema@.mop_job j JOIN @extschema@.mop_owner o USING (owner)
    WHERE j.job = $1 AND j.session_pid = $2 AND o.who = caller AND j.status = 'running';
    IF FOUND THEN  -- (one job supervisor alone writes of a job)
        UPDATE @extschema@.mop_job j SET messages = said[greatest(1, cardinality(said) - 199):cardinality(said)],
            status = coalesce(outcome, 'running'), error = problem, finished_at = ended
        WHERE j.job = $1 AND j.status = 'running';
    END IF;
END
$$;

-- Runs a command in a session of its own, as the same role with the same search_path and settings pg_mop.*; the number
-- of the job.
CREATE FUNCTION @extschema@.mop_submit(command text) RETURNS bigint LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import jobs
return jobs.mop_submit(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_cancel_job(job bigint, token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    its record;
BEGIN
    SELECT j.* INTO its FROM @extschema@.mop_job j JOIN @extschema@.mop_owner o USING (owner) WHERE j.job = $1
    AND (o.who = caller OR (SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller));
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no job % of role "%"', $1, pg_get_userbyid(caller) USING ERRCODE = '42501',
            HINT = 'SELECT job, status, command FROM @extschema@.mop_jobs;';
    END IF;
    PERFORM pg_stat_clear_snapshot();
    IF @extschema@.mop_status(its.status, its.session_pid, its.session_start, 'failed') <> 'running' THEN
        RETURN false;
    END IF;
    -- (its command has come to its end, which is not noted yet, or has not begun)
    IF EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = its.session_pid AND a.state LIKE 'idle%') THEN
        RETURN false;
    END IF;
    RETURN pg_cancel_backend(its.session_pid);
END
$$;

-- Cancels a job as pg_cancel_backend does; false where nothing of its command runs.
CREATE FUNCTION @extschema@.mop_cancel(job double precision) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_cancel_job(@extschema@.mop_integer('job', $1))
$$;

-- Waits until a job has ended, or until so long has passed: its status. Without a timeout it does not wait for a job
-- that waits for it.
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
        RAISE EXCEPTION 'this transaction does not see what others commit, such as the end of job %', own
            USING ERRCODE = '25001', HINT = 'COMMIT; and SET default_transaction_isolation = ''read committed'';';
    END IF;
    IF timeout IS NULL AND EXISTS (SELECT 1 FROM @extschema@.mop_jobs j WHERE j.job = own AND j.status = 'running'
                                   AND j.session_pid = pg_backend_pid()) THEN
        RAISE EXCEPTION 'job % would wait for itself', own USING ERRCODE = '55006',
            HINT = 'What is to come after its other commands comes after them in one job.';
    END IF;
    LOOP
        reached := (SELECT j.status FROM @extschema@.mop_jobs j WHERE j.job = own);
        IF reached IS NULL THEN
            RAISE EXCEPTION 'there is no job % that role "%" may see', own, current_user USING ERRCODE = '42501',
                HINT = 'SELECT job, status, command FROM @extschema@.mop_jobs;';
        END IF;
        -- (its session may have ended between what is noted and the look at sessions: the next look sees both)
        EXIT WHEN reached <> 'running' AND reached = before OR clock_timestamp() >= until;
        IF reached = 'running' THEN
            -- (seldom: it stops all who ask for locks; before PostgreSQL 9.6 nobody tells)
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

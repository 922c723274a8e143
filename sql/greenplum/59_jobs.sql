-- Jobs (postgresql/59_jobs.sql) are not there yet: who calls is told so.

CREATE FUNCTION @extschema@.mop_submit(command text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'mop_submit is not supported on Greenplum yet' USING ERRCODE = '0A000',
        HINT = 'Let a client that stays run it, such as psql by nohup; what has lost its client goes on by '
               'SELECT @extschema@.mop_resume(run_id);';
END
$$;

CREATE FUNCTION @extschema@.mop_cancel(job bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'mop_cancel is not supported on Greenplum yet' USING ERRCODE = '0A000',
        HINT = 'SELECT pg_cancel_backend(pid), with the pid of pg_stat_activity, cancels a call.';
END
$$;

CREATE FUNCTION @extschema@.mop_wait(job bigint, timeout interval DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'mop_wait is not supported on Greenplum yet' USING ERRCODE = '0A000',
        HINT = 'SELECT line FROM @extschema@.mop_watch; tells how runs go on.';
END
$$;

-- Control requests of users to a running run (mop_stop_trial, mop_add_trial, mop_add_server); its coordinator takes them.

-- mop_stop_trial, mop_add_trial and mop_add_server call this: it checks a control request and adds it to a running run of the calling
-- role.
CREATE FUNCTION @extschema@.mop_add_control_request(run_id bigint, content json,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    addressed @extschema@.mop_run;
    of_function text;
    settings json;
BEGIN
    PERFORM @extschema@.mop_own($1, token);
    SELECT r.* INTO addressed FROM @extschema@.mop_run r WHERE r.run_id = $1;
    of_function := addressed.function;
    settings := addressed.parameters -> 'settings';
    IF @extschema@.mop_status(addressed.status, addressed.coordinator_pid, addressed.coordinator_start, 'failed')
       IS DISTINCT FROM 'running' THEN
        RAISE EXCEPTION 'run % is not running', $1 USING ERRCODE = '55000';
    ELSIF EXISTS (SELECT 1 FROM @extschema@.mop_control_request w
                  WHERE w.run_id = $1 AND (w.content -> 'end') IS NOT NULL) THEN
        RAISE EXCEPTION 'run % takes no more requests', $1 USING ERRCODE = '55000',
            DETAIL = 'All its configurations are trained, or its time limit is over.';
    END IF;
    IF NOT @extschema@.mop_trains(of_function) THEN
        RAISE EXCEPTION 'run % is of %, which trains nothing', $1, of_function USING ERRCODE = '0A000';
    END IF;
    -- replicas train one model together; mop_more trains one configuration
    IF of_function = 'madlib_keras_fit'
           AND ((content -> 'add') IS NOT NULL OR settings ->> 'fit_strategy' = 'averaging')
       OR of_function = 'mop_more' AND (content -> 'add') IS NOT NULL THEN
        RAISE EXCEPTION 'run % is of %, which trains one model', $1, of_function USING ERRCODE = '0A000',
            HINT = 'SELECT pg_cancel_backend(' || addressed.coordinator_pid || '); ends it.';
    END IF;
    IF (addressed.parameters #> '{tables,replay_of}') IS NOT NULL THEN
        RAISE EXCEPTION 'run % is a replay, which follows its log', $1 USING ERRCODE = '0A000',
            HINT = 'SELECT pg_cancel_backend(' || addressed.coordinator_pid || '); ends it.';
    END IF;
    IF octet_length($2::text) > 1000000 THEN
        RAISE EXCEPTION 'the control request is longer than 1000000 bytes' USING ERRCODE = '54000';
    END IF;
    -- an invalid request would end the run that reads it
    IF json_typeof(content) IS DISTINCT FROM 'object' OR json_typeof(content -> 'by') IS DISTINCT FROM 'string'
       OR 1 <> ((content -> 'stop') IS NOT NULL)::integer + ((content -> 'add') IS NOT NULL)::integer
               + ((content -> 'server') IS NOT NULL)::integer THEN
        RAISE EXCEPTION 'invalid control request' USING ERRCODE = '22023',
            HINT = 'Use mop_stop_trial, mop_add_trial or mop_add_server.';
    ELSIF (content -> 'server') IS NOT NULL THEN
        IF json_typeof(content -> 'server') <> 'string' THEN
            RAISE EXCEPTION 'a server is named by a text' USING ERRCODE = '22023';
        END IF;
        content := json_build_object('server', content ->> 'server', 'by', content ->> 'by');
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
    PERFORM @extschema@.mop_audit_act(@extschema@.mop_caller(token),
        CASE WHEN (content -> 'stop') IS NOT NULL THEN 'stop trial'
             WHEN (content -> 'server') IS NOT NULL THEN 'add server' ELSE 'add trial' END, $1,
        CASE WHEN (content -> 'stop') IS NOT NULL THEN json_build_object('mst_key', content -> 'stop')
             WHEN (content -> 'server') IS NOT NULL THEN json_build_object('server', content -> 'server')
             ELSE json_build_object('model_id', content #> '{add,0}', 'iterations', content -> 'iterations') END);
END
$$;

-- The coordinator removes and returns the control requests of its run in their order. With `last`, if no request is
-- waiting, the run accepts no more requests.
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

-- Where work is done on Greenplum: mop_place has a row on each of the cluster's segments. A function over the row of a
-- place is called there, in the process that the session has there; what it keeps in our modules stays until the session
-- ends. The places are the numbers that packed tables have as __dist_key__.
CREATE TABLE @extschema@.mop_place (place integer NOT NULL) DISTRIBUTED BY (place);
GRANT SELECT ON @extschema@.mop_place TO PUBLIC;

-- finds the smallest number that is on each segment: when the extension is made, and after the cluster has grown
CREATE FUNCTION @extschema@.mop_find_places() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM @extschema@.mop_place;
    INSERT INTO @extschema@.mop_place SELECT n FROM generate_series(0, 100 * (
        SELECT count(*)::integer FROM gp_segment_configuration s WHERE s.role = 'p' AND s.content >= 0)) AS n;
    DELETE FROM @extschema@.mop_place p USING (
        SELECT o.gp_segment_id AS segment, min(o.place) AS least FROM @extschema@.mop_place o GROUP BY 1) l
    WHERE p.gp_segment_id = l.segment AND p.place > l.least;
END
$$;

SELECT @extschema@.mop_find_places();

-- In which generation a stage's model state is, as mop_read_state finds it, and the segment of the packed table at whose
-- place it was made (NULL: of weights, or not known); a generation that is NULL: there is no state.
CREATE FUNCTION @extschema@.mop_find_state(run bigint, of_stage integer, at_version integer,
    ticket text DEFAULT @extschema@.mop_ticket(), OUT stage integer, OUT generation integer, OUT segment integer)
RETURNS record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    -- (each query of one table: together they take longer to plan)
    stage := of_stage;
    generation := (SELECT m.generation FROM @extschema@.mop_model m
                   WHERE m.run_id = run AND m.stage = of_stage AND m.version = at_version);
    IF generation IS NULL THEN
        stage := (SELECT s.parent FROM @extschema@.mop_stage s WHERE s.run_id = run AND s.stage = of_stage);
        generation := (SELECT m.generation FROM @extschema@.mop_model m
                       WHERE m.run_id = run AND m.stage = mop_find_state.stage AND m.version = at_version);
    END IF;
    segment := (SELECT u.segment FROM @extschema@.mop_unit u WHERE u.run_id = run AND u.stage = mop_find_state.stage
                AND u.kind = 'train' AND u.version = at_version AND u.status = 'finished');
END
$$;

-- Gives a state to the session's trainer at a place, as of the stage `to_stage`: how many parts it has. `from_place`: where
-- it is; what it does not have is looked for on all segments. A part that is there goes straight, one that is elsewhere
-- by a parameter that is read first.
CREATE FUNCTION @extschema@.mop_give_state(run bigint, of_stage integer, at_version integer, generation integer,
    from_place integer, to_place integer, to_stage integer,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source text := format('FROM @extschema@.%I s WHERE s.stage = %s AND s.version = %s',
                          @extschema@.mop_generation_name(run, generation), of_stage, at_version);
    somewhere text;
    one record;
    given integer := 0;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    IF from_place = to_place THEN
        EXECUTE format('SELECT @extschema@.mop_at_state(%s, t.data) FROM (SELECT s.data %s AND s.place = %s '
                       'ORDER BY s.part) t', to_stage, source, from_place);
        GET DIAGNOSTICS given = ROW_COUNT;
    END IF;
    FOREACH somewhere IN ARRAY ARRAY[' AND s.place = ' || from_place, ''] LOOP
        EXIT WHEN given > 0;
        FOR one IN EXECUTE format('SELECT s.place, s.part %s%s ORDER BY s.part', source, somewhere) LOOP
            EXECUTE format('SELECT @extschema@.mop_at_state(%s, (SELECT s.data %s AND s.place = %s AND s.part = %s)) '
                           'FROM @extschema@.mop_place p WHERE p.place = %s',
                           to_stage, source, one.place, one.part, to_place);
            given := given + 1;
        END LOOP;
    END LOOP;
    RETURN given;
END
$$;

-- Writes the state that the session's trainer at a place has made of its model `number`, there: its bytes.
CREATE FUNCTION @extschema@.mop_keep_state(run bigint, of_stage integer, new_version integer, target integer,
    number integer, at_place integer, ticket text DEFAULT @extschema@.mop_ticket()) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
    size bigint;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    FOR part IN EXECUTE format(
        'INSERT INTO @extschema@.%I (stage, version, part, data, place) SELECT %s, %s, (t.s).part, (t.s).data, t.place '
        'FROM (SELECT p.place, @extschema@.mop_at_save(%s) AS s FROM @extschema@.mop_place p WHERE p.place = %s) t '
        'RETURNING octet_length(data) AS bytes',
        @extschema@.mop_generation_name(run, target), of_stage, new_version, number, at_place)
    LOOP
        size := coalesce(size, 0) + part.bytes;
    END LOOP;
    IF size IS NULL THEN
        RAISE EXCEPTION 'the trainer has given no state of stage %', of_stage USING ERRCODE = 'XX000';
    END IF;
    RETURN size;
END
$$;

-- Starts the session's trainer at a place, unless it runs, within the limits of the calling role.
CREATE FUNCTION @extschema@.mop_start_at(at_place integer, options text, look_again boolean,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(ticket);
    allowed record;
    started boolean;
BEGIN
    SELECT l.* INTO allowed FROM @extschema@.mop_limits(ticket) l;
    EXECUTE format('SELECT @extschema@.mop_at_start(%L, %L, %L) FROM @extschema@.mop_place p WHERE p.place = %s',
        options, json_build_object('sessions', allowed.sessions, 'threads', allowed.threads, 'trainer_memory_mb',
            allowed.trainer_memory_mb, 'max_model_mb', allowed.max_model_mb, 'role', caller::bigint)::text,
        look_again, at_place) INTO started;
    IF started IS NULL THEN
        RAISE EXCEPTION 'there is no place %', at_place USING ERRCODE = '22023';
    END IF;
END
$$;

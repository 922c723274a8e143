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

-- Where the parts of a stage's model state are, in order: as mop_read_state finds them.
CREATE FUNCTION @extschema@.mop_find_state(run bigint, of_stage integer, at_version integer,
    ticket text DEFAULT @extschema@.mop_ticket(), OUT stage integer, OUT generation integer, OUT part integer,
    OUT place integer) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    its record;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    SELECT m.stage, m.generation INTO its FROM @extschema@.mop_model m
    WHERE m.run_id = run AND m.version = at_version AND m.generation IS NOT NULL AND m.stage IN (of_stage, (
        SELECT s.parent FROM @extschema@.mop_stage s WHERE s.run_id = run AND s.stage = of_stage));
    IF FOUND THEN
        RETURN QUERY EXECUTE 'SELECT $1, $2, t.part, t.place FROM @extschema@.'
            || quote_ident(@extschema@.mop_generation_name(run, its.generation))
            || ' t WHERE t.stage = $1 AND t.version = $3 ORDER BY t.part' USING its.stage, its.generation, at_version;
    END IF;
END
$$;

-- Gives a part of a state to the session's trainer at a place, as of the stage `to_stage`: there, or by a parameter that
-- is read first.
CREATE FUNCTION @extschema@.mop_give_state(run bigint, of_stage integer, at_version integer, generation integer,
    part integer, from_place integer, to_place integer, to_stage integer,
    ticket text DEFAULT @extschema@.mop_ticket()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source text := format('FROM @extschema@.%I s WHERE s.place = %s AND s.stage = %s AND s.version = %s AND s.part = %s',
                          @extschema@.mop_generation_name(run, generation), from_place, of_stage, at_version, part);
    given integer;
BEGIN
    PERFORM @extschema@.mop_own(run, ticket);
    IF from_place = to_place THEN
        EXECUTE format('SELECT @extschema@.mop_at_state(%s, s.data) %s', to_stage, source);
    ELSE
        EXECUTE format('SELECT @extschema@.mop_at_state(%s, (SELECT s.data %s)) FROM @extschema@.mop_place p '
                       'WHERE p.place = %s', to_stage, source, to_place);
    END IF;
    GET DIAGNOSTICS given = ROW_COUNT;
    IF given <> 1 THEN
        RAISE EXCEPTION 'a part of the state of stage % is missing', of_stage USING ERRCODE = 'XX001';
    END IF;
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

-- Where work is done on Greenplum: mop_place has a row on each of the cluster's segments. A function over the row of a
-- place is called there, in the process that the session has there; what it keeps in our modules stays until the session
-- ends. The places are the numbers that packed tables have as __dist_key__.
CREATE TABLE @extschema@.mop_place (place integer NOT NULL) DISTRIBUTED BY (place);

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

-- Lets the session's process at a place share the fork server, and what is kept of compilations, of the first of the segments
-- on its host.
CREATE FUNCTION @extschema@.mop_share_host(at_place integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    segment integer := (SELECT p.gp_segment_id FROM @extschema@.mop_place p WHERE p.place = at_place);
    directory text := (SELECT f.datadir FROM gp_segment_configuration f WHERE f.role = 'p' AND f.content >= 0
                       AND f.hostname = (SELECT s.hostname FROM gp_segment_configuration s
                                         WHERE s.role = 'p' AND s.content = segment)
                       ORDER BY f.content LIMIT 1);
BEGIN
    EXECUTE format('SELECT %s.mop_at_host(%L) FROM %s.mop_place p WHERE p.place = %s', '@extschema@', directory,
                   '@extschema@', at_place);
END
$$;

-- In which state_tables stages' model states are, as mop_read_states finds them, with their sizes, and the segments of the
-- packed table at whose places they were made (NULL: of weights); of what has no state there is no row.
CREATE FUNCTION @extschema@.mop_find_states(run bigint, of_stages integer[], at_versions integer[],
    token text DEFAULT @extschema@.mop_token(), OUT wanted integer, OUT stage integer, OUT version integer,
    OUT state_table integer, OUT bytes bigint, OUT segment integer)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- (each query of one table: together they take longer to plan; and of all stages: each asks a segment)
    models @extschema@.mop_stage_state[];
    parents @extschema@.mop_stage[];
    theirs integer[];
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    models := ARRAY(SELECT m FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = ANY (of_stages)
                    AND m.version = ANY (at_versions) AND m.state_table IS NOT NULL);
    parents := ARRAY(SELECT s FROM @extschema@.mop_stage s WHERE s.run_id = run AND s.stage = ANY (of_stages)
                     AND s.parent IS NOT NULL);
    IF array_length(parents, 1) > 0 THEN
        theirs := ARRAY(SELECT s.parent FROM unnest(parents) AS s);  -- (known before its segment is asked)
        models := models || ARRAY(SELECT m FROM @extschema@.mop_stage_state m WHERE m.run_id = run
            AND m.stage = ANY (theirs) AND m.version = ANY (at_versions) AND m.state_table IS NOT NULL);
    END IF;
    FOR place IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        wanted := of_stages[place];
        version := at_versions[place];
        stage := NULL;
        -- its own, or its parent's
        SELECT m.stage, m.state_table, m.bytes, m.made_on INTO stage, state_table, bytes, segment FROM unnest(models) AS m
        WHERE m.version = at_versions[place] AND (m.stage = of_stages[place] OR m.stage = (
            SELECT s.parent FROM unnest(parents) AS s WHERE s.stage = of_stages[place]))
        ORDER BY m.stage <> of_stages[place] LIMIT 1;
        CONTINUE WHEN stage IS NULL;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Gives a state to the session's trainer at a place, as of the stage `to_stage`: how many parts it has. `from_place`: where
-- it is; what it does not have is looked for on all segments. A part that is there goes straight, one that is elsewhere
-- by a parameter that is read first. `alone`: it has one part, as far as is known.
CREATE FUNCTION @extschema@.mop_give_state(run bigint, of_stage integer, at_version integer, state_table integer,
    from_place integer, to_place integer, to_stage integer, alone boolean, token text DEFAULT @extschema@.mop_token())
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source text := format('FROM %s.%I s WHERE s.stage = %s AND s.version = %s', '@extschema@',
                          @extschema@.mop_state_table_name(run, state_table), of_stage, at_version);
    -- (to be told the place and the number of a part)
    from_there text := format('SELECT %s.mop_at_state(%s, (SELECT s.data %s AND s.place = %%s AND s.part = %%s)) '
                              'FROM %s.mop_place p WHERE p.place = %s', replace('@extschema@', '%', '%%'), to_stage,
                              replace(source, '%', '%%'), replace('@extschema@', '%', '%%'), to_place);
    somewhere text;
    parts integer[];
    places integer[];
    was_there boolean;
    given integer := 0;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    IF from_place = to_place THEN
        EXECUTE format('SELECT %s.mop_at_state(%s, t.data) FROM (SELECT s.data %s AND s.place = %s '
                       'ORDER BY s.part) t', '@extschema@', to_stage, source, from_place);
        GET DIAGNOSTICS given = ROW_COUNT;
    ELSIF alone THEN
        EXECUTE format(from_there, from_place, 0) INTO was_there;
        given := coalesce(was_there, false)::integer;
    END IF;
    FOREACH somewhere IN ARRAY ARRAY[' AND s.place = ' || from_place, ''] LOOP
        EXIT WHEN given > 0;
        -- (not in a loop over rows, for which Greenplum has processes of its own)
        EXECUTE format('SELECT array_agg(s.part), array_agg(s.place) %s%s', source, somewhere) INTO parts, places;
        FOR i IN 1 .. coalesce(array_length(parts, 1), 0) LOOP
            -- (the parts of one state are at one place, from 0 on)
            EXECUTE format(from_there, places[1], i - 1) INTO was_there;
            IF was_there IS NOT TRUE THEN
                RAISE EXCEPTION 'part % of the state of stage % is missing', i - 1, of_stage USING ERRCODE = 'XX001';
            END IF;
            given := given + 1;
        END LOOP;
    END LOOP;
    RETURN given;
END
$$;

-- Gives small states to the session's trainer at a place, as of the stages `wanted`: those that were there. What is
-- elsewhere comes by way of the coordinator, all of it at once.
CREATE FUNCTION @extschema@.mop_give_states(run bigint, wanted integer[], of_stages integer[], at_versions integer[],
    state_tables integer[], from_places integer[], to_place integer, token text DEFAULT @extschema@.mop_token())
RETURNS integer[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    rows text;
    count integer;
    theirs integer[];
    parts bytea[];
    stages integer[] := '{}';
    datas bytea[] := '{}';
    given integer[] := '{}';
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR one IN
        SELECT g.state_table, g.place, sum(array_length(g.wanted, 1)) AS count,
               string_agg(format('s.stage = %s AND s.version = %s', g.stage, g.version), ' OR ') AS conditions,
               string_agg(format('WHEN s.stage = %s AND s.version = %s THEN %L::integer[]', g.stage, g.version, g.wanted),
                          ' ') AS cases
        FROM (SELECT state_tables[i] AS state_table, from_places[i] AS place, of_stages[i] AS stage,
                     at_versions[i] AS version, array_agg(wanted[i]) AS wanted
              FROM generate_series(1, array_length(wanted, 1)) AS i GROUP BY 1, 2, 3, 4) g GROUP BY 1, 2
    LOOP
        rows := format('(SELECT unnest(CASE %s END) AS wanted, s.data FROM (SELECT s.stage, s.version, s.data '
                       'FROM %s.%I s WHERE s.place = %s AND (%s)) s) u', one.cases, '@extschema@',
                       @extschema@.mop_state_table_name(run, one.state_table), one.place, one.conditions);
        IF one.place = to_place THEN
            -- (no join, and no cursor: what is called at a place must be in a plan of one slice, in the process that
            -- writes)
            EXECUTE 'SELECT @extschema@.mop_at_state(u.wanted, u.data) FROM ' || rows;
            GET DIAGNOSTICS count = ROW_COUNT;
            CONTINUE WHEN count = 0;  -- (they may be elsewhere by now: mop_give_state looks for each)
            IF count <> one.count THEN  -- (they are small: of one part each)
                RAISE EXCEPTION 'of % states at place % there are %', one.count, to_place, count
                    USING ERRCODE = '40001';
            END IF;
            given := given || ARRAY(SELECT wanted[i] FROM generate_series(1, array_length(wanted, 1)) AS i
                                    WHERE state_tables[i] = one.state_table AND from_places[i] = one.place);
        ELSE
            EXECUTE 'SELECT array_agg(u.wanted), array_agg(u.data) FROM ' || rows INTO theirs, parts;
            stages := stages || coalesce(theirs, '{}');
            datas := datas || coalesce(parts, '{}');
        END IF;
    END LOOP;
    IF stages <> '{}' THEN
        EXECUTE format('SELECT %s.mop_at_states($1, $2) FROM %s.mop_place p WHERE p.place = %s', '@extschema@',
                       '@extschema@', to_place) USING stages, datas;
    END IF;
    RETURN given || stages;
END
$$;

-- Writes the states that the session's trainer at a place has made of its models `numbers`, there: their bytes.
CREATE FUNCTION @extschema@.mop_keep_states(run bigint, of_stages integer[], new_versions integer[], target integer,
    numbers integer[], at_place integer, token text DEFAULT @extschema@.mop_token()) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
    sizes bigint[] := array_fill(NULL::bigint, ARRAY[array_length(numbers, 1)]);
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR part IN EXECUTE format(
        'INSERT INTO %s.%I (stage, version, part, data, place) '
        'SELECT t.stage, t.version, (t.s).part, (t.s).data, t.place FROM (SELECT v.place, v.stage, v.version, '
        '%s.mop_at_save(v.number) AS s FROM (SELECT p.place, unnest(%L::integer[]) AS stage, '
        'unnest(%L::integer[]) AS version, unnest(%L::integer[]) AS number FROM %s.mop_place p '
        'WHERE p.place = %s) v) t RETURNING stage, octet_length(data) AS bytes', '@extschema@',
        @extschema@.mop_state_table_name(run, target), '@extschema@', of_stages, new_versions, numbers, '@extschema@',
        at_place)
    LOOP
        FOR i IN 1 .. array_length(numbers, 1) LOOP
            IF of_stages[i] = part.stage THEN
                sizes[i] := coalesce(sizes[i], 0) + part.bytes;
            END IF;
        END LOOP;
    END LOOP;
    IF array_length(array_remove(sizes, NULL), 1) IS DISTINCT FROM array_length(numbers, 1) THEN
        RAISE EXCEPTION 'the trainer has not given the states of all of stages %', of_stages USING ERRCODE = 'XX000';
    END IF;
    RETURN sizes;
END
$$;

-- Gives the session's trainer at a place the custom functions of models: [[compile_params, digests], ...].
CREATE FUNCTION @extschema@.mop_give_objects(at_place integer, functions text, models text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpython3u VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#python
from pg_mop.backend import trainers
its = plpy.execute(plpy.prepare("""SELECT @extschema@.mop_caller($1) AS role""", ["text"]), [token])[0]
trainers.give_objects(plpy, at_place, functions, models, int(its["role"]))
$$;

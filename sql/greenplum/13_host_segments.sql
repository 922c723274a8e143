-- Host segments: mop_host_segment has one row on each segment of the cluster, and `dist_key` is its number, which
-- packed tables have as __dist_key__. A function over this row runs on that segment, in the session's process there.
-- Our Python modules in that process keep their data, such as the trainer, until the session ends.
CREATE TABLE @extschema@.mop_host_segment (dist_key integer NOT NULL) DISTRIBUTED BY (dist_key);

-- Finds the smallest number that Greenplum distributes to each segment: at CREATE EXTENSION, and after the cluster has
-- grown.
CREATE FUNCTION @extschema@.mop_find_host_segments() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM @extschema@.mop_host_segment;
    INSERT INTO @extschema@.mop_host_segment SELECT n FROM generate_series(0, 100 * (
        SELECT count(*)::integer FROM gp_segment_configuration s WHERE s.role = 'p' AND s.content >= 0)) AS n;
    DELETE FROM @extschema@.mop_host_segment p USING (
        SELECT o.gp_segment_id AS segment, min(o.dist_key) AS least FROM @extschema@.mop_host_segment o GROUP BY 1) l
    WHERE p.gp_segment_id = l.segment AND p.dist_key > l.least;
END
$$;

SELECT @extschema@.mop_find_host_segments();

-- Lets the session's process on a host segment use the fork server and the compilation cache of the first segment on
-- its host.
CREATE FUNCTION @extschema@.mop_share_host(at_key integer) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    segment integer := (SELECT p.gp_segment_id FROM @extschema@.mop_host_segment p WHERE p.dist_key = at_key);
    directory text := (SELECT f.datadir FROM gp_segment_configuration f WHERE f.role = 'p' AND f.content >= 0
                       AND f.hostname = (SELECT s.hostname FROM gp_segment_configuration s
                                         WHERE s.role = 'p' AND s.content = segment)
                       ORDER BY f.content LIMIT 1);
BEGIN
    EXECUTE format('SELECT %s.mop_at_host(%L) FROM %s.mop_host_segment p WHERE p.dist_key = %s', '@extschema@',
                   directory, '@extschema@', at_key);
END
$$;

-- A unit calls this: it returns the state tables of stages' model states, as mop_read_states finds them, their sizes,
-- and the segments of the packed table whose units made them (NULL for weights). A stage without any state has no row.
CREATE FUNCTION @extschema@.mop_find_states(run bigint, of_stages integer[], at_versions integer[],
    token text DEFAULT @extschema@.mop_token(), OUT wanted integer, OUT stage integer, OUT version integer,
    OUT state_table integer, OUT bytes bigint, OUT segment integer)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- (each query reads one table, since a join takes longer to plan, and all stages, since each query visits a
    -- segment)
    models @extschema@.mop_stage_state[];
    parents @extschema@.mop_stage[];
    numbers integer[];
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    models := ARRAY(SELECT m FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = ANY (of_stages)
                    AND m.version = ANY (at_versions) AND m.state_table IS NOT NULL);
    parents := ARRAY(SELECT s FROM @extschema@.mop_stage s WHERE s.run_id = run AND s.stage = ANY (of_stages)
                     AND s.parent IS NOT NULL);
    IF array_length(parents, 1) > 0 THEN
        numbers := ARRAY(SELECT s.parent FROM unnest(parents) AS s);  -- (a constant for the next query's planner)
        models := models || ARRAY(SELECT m FROM @extschema@.mop_stage_state m WHERE m.run_id = run
            AND m.stage = ANY (numbers) AND (m.version = ANY (at_versions) OR 0 = ANY (at_versions))
            AND m.state_table IS NOT NULL);
    END IF;
    FOR i IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        wanted := of_stages[i];
        stage := NULL;
        -- the stage's state, or its parent's
        SELECT m.stage, m.version, m.state_table, m.bytes, m.made_on INTO stage, version, state_table, bytes, segment
        FROM unnest(models) AS m
        WHERE m.version = at_versions[i] AND m.stage = of_stages[i]
           OR (m.version = at_versions[i] OR at_versions[i] = 0)  -- 0: it inherits from the last stage of a path
              AND m.stage = (SELECT s.parent FROM unnest(parents) AS s WHERE s.stage = of_stages[i])
        ORDER BY m.stage <> of_stages[i] LIMIT 1;
        CONTINUE WHEN stage IS NULL;
        RETURN NEXT;
    END LOOP;
END
$$;

-- A unit gives a state to the session's trainer on host segment `to_key`, as the state of stage `to_stage`; returns the
-- number of parts. The state is expected on host segment `from_key`, else all segments are searched. A part on the
-- trainer's own segment goes to it directly, another part as a parameter. `alone`: the state probably has one part.
CREATE FUNCTION @extschema@.mop_give_state(run bigint, of_stage integer, at_version integer, state_table integer,
    from_key integer, to_key integer, to_stage integer, alone boolean, token text DEFAULT @extschema@.mop_token())
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source text := format('FROM %s.%I s WHERE s.stage = %s AND s.version = %s', '@extschema@',
                          @extschema@.mop_state_table_name(run, state_table), of_stage, at_version);
    -- (the dist_key and the number of a part follow)
    from_elsewhere text := format('SELECT %s.mop_at_state(%s, (SELECT s.data %s AND s.dist_key = %%s '
                                  'AND s.part = %%s)) FROM %s.mop_host_segment p WHERE p.dist_key = %s',
                                  replace('@extschema@', '%', '%%'), to_stage, replace(source, '%', '%%'),
                                  replace('@extschema@', '%', '%%'), to_key);
    searched text;
    parts integer[];
    dist_keys integer[];
    was_found boolean;
    given integer := 0;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    IF from_key = to_key THEN
        EXECUTE format('SELECT %s.mop_at_state(%s, t.data) FROM (SELECT s.data %s AND s.dist_key = %s '
                       'ORDER BY s.part) t', '@extschema@', to_stage, source, from_key);
        GET DIAGNOSTICS given = ROW_COUNT;
    ELSIF alone THEN
        EXECUTE format(from_elsewhere, from_key, 0) INTO was_found;
        given := coalesce(was_found, false)::integer;
    END IF;
    FOREACH searched IN ARRAY ARRAY[' AND s.dist_key = ' || from_key, ''] LOOP
        EXIT WHEN given > 0;
        -- (no loop over rows, since Greenplum would start processes for it)
        EXECUTE format('SELECT array_agg(s.part), array_agg(s.dist_key) %s%s', source, searched) INTO parts, dist_keys;
        FOR i IN 1 .. coalesce(array_length(parts, 1), 0) LOOP
            -- (all parts of a state are on one segment, numbered from 0)
            EXECUTE format(from_elsewhere, dist_keys[1], i - 1) INTO was_found;
            IF was_found IS NOT TRUE THEN
                RAISE EXCEPTION 'part % of the state of stage % is missing', i - 1, of_stage USING ERRCODE = 'XX001';
            END IF;
            given := given + 1;
        END LOOP;
    END LOOP;
    RETURN given;
END
$$;

-- A unit gives small states to the session's trainer on host segment `to_key`, as the states of stages `wanted`;
-- returns the stages that it found. States on other segments pass through the coordinator, all at once.
CREATE FUNCTION @extschema@.mop_give_states(run bigint, wanted integer[], of_stages integer[], at_versions integer[],
    state_tables integer[], from_keys integer[], to_key integer, token text DEFAULT @extschema@.mop_token())
RETURNS integer[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    source record;
    rows text;
    count integer;
    found integer[];
    parts bytea[];
    stages integer[] := '{}';
    datas bytea[] := '{}';
    given integer[] := '{}';
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR source IN
        SELECT g.state_table, g.dist_key, sum(array_length(g.wanted, 1)) AS count,
               string_agg(format('s.stage = %s AND s.version = %s', g.stage, g.version), ' OR ') AS conditions,
               string_agg(format('WHEN s.stage = %s AND s.version = %s THEN %L::integer[]', g.stage, g.version,
                                 g.wanted), ' ') AS cases
        FROM (SELECT state_tables[i] AS state_table, from_keys[i] AS dist_key, of_stages[i] AS stage,
                     at_versions[i] AS version, array_agg(wanted[i]) AS wanted
              FROM generate_series(1, array_length(wanted, 1)) AS i GROUP BY 1, 2, 3, 4) g GROUP BY 1, 2
    LOOP
        rows := format('(SELECT unnest(CASE %s END) AS wanted, s.data FROM (SELECT s.stage, s.version, s.data '
                       'FROM %s.%I s WHERE s.dist_key = %s AND (%s)) s) u', source.cases, '@extschema@',
                       @extschema@.mop_state_table_name(run, source.state_table), source.dist_key, source.conditions);
        IF source.dist_key = to_key THEN
            -- (no join and no cursor: the trainer belongs to the session's writer process, which runs plans of one
            -- slice)
            EXECUTE 'SELECT @extschema@.mop_at_state(u.wanted, u.data) FROM ' || rows;
            GET DIAGNOSTICS count = ROW_COUNT;
            CONTINUE WHEN count = 0;  -- (the states may have moved: mop_give_state searches for each)
            IF count <> source.count THEN  -- (small states have one part each)
                RAISE EXCEPTION 'host segment % has % of % model states', to_key, count, source.count
                    USING ERRCODE = '40001';
            END IF;
            given := given || ARRAY(SELECT wanted[i] FROM generate_series(1, array_length(wanted, 1)) AS i
                                    WHERE state_tables[i] = source.state_table AND from_keys[i] = source.dist_key);
        ELSE
            EXECUTE 'SELECT array_agg(u.wanted), array_agg(u.data) FROM ' || rows INTO found, parts;
            stages := stages || coalesce(found, '{}');
            datas := datas || coalesce(parts, '{}');
        END IF;
    END LOOP;
    IF stages <> '{}' THEN
        EXECUTE format('SELECT %s.mop_at_states($1, $2) FROM %s.mop_host_segment p WHERE p.dist_key = %s',
                       '@extschema@', '@extschema@', to_key) USING stages, datas;
    END IF;
    RETURN given || stages;
END
$$;

-- A unit writes the new states of the trainer's models `numbers` on the trainer's host segment; returns their bytes.
CREATE FUNCTION @extschema@.mop_keep_states(run bigint, of_stages integer[], new_versions integer[], target integer,
    numbers integer[], at_key integer, token text DEFAULT @extschema@.mop_token()) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
    sizes bigint[] := array_fill(NULL::bigint, ARRAY[array_length(numbers, 1)]);
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR part IN EXECUTE format(
        'INSERT INTO %s.%I (stage, version, part, data, dist_key) '
        'SELECT t.stage, t.version, (t.s).part, (t.s).data, t.dist_key FROM (SELECT v.dist_key, v.stage, v.version, '
        '%s.mop_at_save(v.number) AS s FROM (SELECT p.dist_key, unnest(%L::integer[]) AS stage, '
        'unnest(%L::integer[]) AS version, unnest(%L::integer[]) AS number FROM %s.mop_host_segment p '
        'WHERE p.dist_key = %s) v) t RETURNING stage, octet_length(data) AS bytes', '@extschema@',
        @extschema@.mop_state_table_name(run, target), '@extschema@', of_stages, new_versions, numbers, '@extschema@',
        at_key)
    LOOP
        FOR i IN 1 .. array_length(numbers, 1) LOOP
            IF of_stages[i] = part.stage THEN
                sizes[i] := coalesce(sizes[i], 0) + part.bytes;
            END IF;
        END LOOP;
    END LOOP;
    IF array_length(array_remove(sizes, NULL), 1) IS DISTINCT FROM array_length(numbers, 1) THEN
        RAISE EXCEPTION 'the trainer did not return the states of all stages %', of_stages USING ERRCODE = 'XX000';
    END IF;
    RETURN sizes;
END
$$;

-- A unit gives the custom functions of models to the session's trainer on a host segment: [[compile_params, digests],
-- ...].
CREATE FUNCTION @extschema@.mop_give_objects(at_key integer, functions text, models text,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpython3u VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#python
from pg_mop.backend import trainers
caller = plpy.execute(plpy.prepare("""SELECT @extschema@.mop_caller($1) AS role""", ["text"]), [token])[0]["role"]
trainers.give_objects(plpy, at_key, functions, models, int(caller))
$$;

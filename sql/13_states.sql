-- Model states: the tables that hold them, and how sessions write and read them.

-- Returns the name of a state table.
CREATE FUNCTION @extschema@.mop_state_table_name(run bigint, state_table integer) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'mop_state_' || run || '_' || state_table
$$;

-- Revokes all rights on a relation from all roles but its owner, such as rights from default privileges; SELECT on a
-- view remains.
CREATE FUNCTION @extschema@.mop_take_rights(relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    granted record;
BEGIN
    -- (by name, since PostgreSQL 17 has one right more)
    FOR granted IN SELECT a.grantee, string_agg(DISTINCT a.privilege_type, ', ') AS rights
                   FROM pg_class c, aclexplode(c.relacl) a
                   WHERE c.oid = relation AND a.grantee <> c.relowner
                   AND (c.relkind <> 'v' OR a.privilege_type <> 'SELECT')
                   GROUP BY 1
    LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s CASCADE', granted.rights, relation,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC'
                            ELSE quote_ident(pg_get_userbyid(granted.grantee)) END);
    END LOOP;
END
$$;

-- A coordinator calls this: it creates the next state table of a run.
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
    IF state_table <> (SELECT coalesce(max(g.state_table), 0) + 1 FROM @extschema@.mop_state_table g
                       WHERE g.run_id = run)
       OR (SELECT count(*) FROM @extschema@.mop_state_table g WHERE g.run_id = run) >= 50 THEN
        RAISE EXCEPTION 'run % cannot have a state_table %', run, state_table USING ERRCODE = '54000';
    END IF;
    INSERT INTO @extschema@.mop_state_table VALUES (run, state_table);
    PERFORM @extschema@.mop_make_state_table(name);
    PERFORM @extschema@.mop_take_rights(('@extschema@.' || name)::regclass);
    -- floats do not compress
    EXECUTE 'ALTER TABLE @extschema@.' || name || ' ALTER COLUMN data SET STORAGE EXTERNAL';
    -- a member is dropped with the extension, and is not dumped by pg_dump
    EXECUTE 'ALTER EXTENSION pg_mop ADD TABLE @extschema@.' || name;
END
$$;

-- A coordinator calls this: it drops those of the listed state tables that hold no stage's state and are not being
-- read, and returns their numbers.
CREATE FUNCTION @extschema@.mop_drop_state_tables(run bigint, list integer[],
    token text DEFAULT @extschema@.mop_token()) RETURNS SETOF integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unused integer;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOR unused IN SELECT g.state_table FROM @extschema@.mop_state_table g
                  WHERE g.run_id = run AND g.state_table = ANY (list)
                  AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_stage_state m WHERE m.run_id = run
                                  AND m.state_table = g.state_table)
    LOOP
        BEGIN
            PERFORM @extschema@.mop_delete_state_tables(run, unused);
            RETURN NEXT unused;
        EXCEPTION WHEN lock_not_available THEN
            NULL;  -- a later call drops it
        END;
    END LOOP;
END
$$;

-- Compaction calls this: it moves the states of stages that no longer train to state table `target`, so that their
-- old state tables can be dropped.
CREATE FUNCTION @extschema@.mop_move_states(run bigint, stages integer[], target integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moved integer;
    state record;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    FOREACH moved IN ARRAY ARRAY(
        SELECT m.stage FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = ANY (stages)
        AND m.state_table < target ORDER BY m.stage)
    LOOP
        PERFORM @extschema@.mop_lock_stage_exclusive(run, moved);
    END LOOP;
    FOR state IN SELECT m.* FROM @extschema@.mop_stage_state m WHERE m.run_id = run AND m.stage = ANY (stages)
                 AND m.state_table < target ORDER BY m.stage
    LOOP
        EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, target))
                || ' SELECT * FROM @extschema@.'
                || quote_ident(@extschema@.mop_state_table_name(run, state.state_table))
                || ' WHERE stage = $1 AND version = $2' USING state.stage, state.version;
        UPDATE @extschema@.mop_stage_state m SET state_table = target WHERE m.run_id = run AND m.stage = state.stage;
    END LOOP;
END
$$;

-- A coordinator calls this when the states of these stages are no longer needed.
CREATE FUNCTION @extschema@.mop_release_states(run bigint, run_fencing_token integer, stages integer[],
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    UPDATE @extschema@.mop_stage_state m SET state_table = NULL WHERE m.run_id = run AND m.stage = ANY (stages);
END
$$;

-- A coordinator stores the initial weights of paths: version 0 of their first stages.
CREATE FUNCTION @extschema@.mop_put_weights(run bigint, of_stages integer[], weights bytea,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_put_weights_part(run, of_stages, 0, weights, token);
END
$$;

-- The same for one part of weights that are in parts; part 0 is the first.
CREATE FUNCTION @extschema@.mop_put_weights_part(run bigint, of_stages integer[], number integer, weights bytea,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    target integer;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    -- compaction may have dropped the first state table already
    target := (SELECT max(g.state_table) FROM @extschema@.mop_state_table g WHERE g.run_id = run);
    EXECUTE 'INSERT INTO @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, target))
            || ' SELECT unnest($1), 0, $2, $3' USING of_stages, number, weights;
    UPDATE @extschema@.mop_stage_state m SET state_table = target,
        bytes = CASE WHEN number = 0 THEN 0 ELSE m.bytes END + octet_length(weights)
    WHERE m.run_id = run AND m.stage = ANY (of_stages) AND m.version = 0;
END
$$;

-- A worker session reads the model states of stages: all parts of a stage together, in their order. An untrained
-- stage has its parent's state, which may be the last one of another path; a stage without any state has no row.
CREATE FUNCTION @extschema@.mop_read_states(run bigint, of_stages integer[], at_versions integer[],
    token text DEFAULT @extschema@.mop_token()) RETURNS TABLE (stage integer, data bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state @extschema@.mop_stage_state;
    state_tables integer[] := '{}';
    wanted integer[] := '{}';
    stages integer[] := '{}';
    versions integer[] := '{}';
    source record;
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    -- (one by one: for a new run the planner expects one row, and a join would read all its stages)
    FOR i IN 1 .. coalesce(array_length(of_stages, 1), 0) LOOP
        SELECT m.* INTO state FROM @extschema@.mop_stage_state m
        WHERE m.run_id = run AND m.stage = of_stages[i] AND m.version = at_versions[i] AND m.state_table IS NOT NULL;
        IF NOT FOUND THEN
            SELECT m.* INTO state FROM @extschema@.mop_stage_state m
            WHERE m.run_id = run AND m.state_table IS NOT NULL
            AND m.stage = (SELECT s.parent FROM @extschema@.mop_stage s
                           WHERE s.run_id = run AND s.stage = of_stages[i])
            AND (m.version = at_versions[i] OR at_versions[i] = 0);  -- 0: it inherits from the last stage of a path
        END IF;
        CONTINUE WHEN NOT FOUND;
        state_tables := state_tables || state.state_table;
        wanted := wanted || of_stages[i];
        stages := stages || state.stage;
        versions := versions || state.version;
    END LOOP;
    FOR source IN  -- one query for each table
        SELECT f.state_table, array_agg(f.wanted) AS wanted, array_agg(f.stage) AS stages,
               array_agg(f.version) AS versions
        FROM unnest(state_tables, wanted, stages, versions) AS f (state_table, wanted, stage, version) GROUP BY 1
    LOOP
        RETURN QUERY EXECUTE 'SELECT e.wanted, s.data FROM unnest($1, $2, $3) AS e (wanted, stage, version) '
            'JOIN @extschema@.' || quote_ident(@extschema@.mop_state_table_name(run, source.state_table))
            || ' AS s USING (stage, version) ORDER BY e.wanted, s.part'
            USING source.wanted, source.stages, source.versions;
    END LOOP;
END
$$;

-- A worker session writes one part of a new model state.
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

-- A worker session writes several small states, one part each, with one statement.
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

-- Returns one part of the predictions that a session stored for a segment, or NULL after the last part. They are
-- stored in state table 1 as stage 0, with the segment's number as version.
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

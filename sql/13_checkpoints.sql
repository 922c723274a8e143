-- Checkpoints: model states of ended runs that later runs of the role continue.
--
-- PostgreSQL's planner expects a row or two of a run that it does not know yet. Functions that join all rows of a run avoid
-- nested loops, whose time would grow with the square of the run.

-- A coordinator calls this at the end of its training: the states that the run still has become checkpoints.
CREATE FUNCTION @extschema@.mop_keep_checkpoints(run bigint, run_fencing_token integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $$
DECLARE
    trained record;
    spent double precision[];  -- by stage: the seconds of its training and of all stages before it
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    spent := array_fill(0::double precision, ARRAY[(
        SELECT max(s.stage) FROM @extschema@.mop_stage s WHERE s.run_id = run)]);
    -- (a parent's number is smaller; most planned stages may never have been trained)
    FOR trained IN
        SELECT s.stage, s.parent, coalesce(u.seconds, 0) AS seconds FROM @extschema@.mop_stage s LEFT JOIN (
            SELECT t.run_id, t.stage, sum(t.train_seconds + t.write_seconds) AS seconds FROM @extschema@.mop_unit t
            WHERE t.kind = 'train' AND t.status = 'finished' AND (t.run_id = run OR t.run_id IN (
                SELECT f.source_run FROM @extschema@.mop_stage f WHERE f.run_id = run))
            GROUP BY t.run_id, t.stage
            UNION ALL
            SELECT t.run_id, t.stage, sum(t.train_seconds) FROM @extschema@.mop_taken_unit t WHERE t.run_id = run
            GROUP BY t.run_id, t.stage) u
        ON u.run_id = coalesce(s.source_run, run) AND u.stage = coalesce(s.source_stage, s.stage)
        WHERE s.run_id = run AND (u.stage IS NOT NULL OR s.source_run IS NOT NULL) ORDER BY s.stage
    LOOP
        spent[trained.stage] := trained.seconds
            + CASE WHEN trained.parent IS NULL THEN 0 ELSE spent[trained.parent] END;
    END LOOP;
    INSERT INTO @extschema@.mop_checkpoint (run_id, stage, seconds)
    SELECT run, m.stage, spent[m.stage] FROM @extschema@.mop_stage_state m
    WHERE m.run_id = run AND m.state_table IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_checkpoint c WHERE c.run_id = run AND c.stage = m.stage);
EXCEPTION WHEN unique_violation THEN
    NULL;  -- an earlier session, whose answer was lost, commits the same rows now
END
$$;

-- Calls of the role run this after housekeeping: it drops checkpoints of the lowest benefit until the rest fits into
-- `budget` bytes. The benefit is the seconds that repeated training takes, per byte, and declines with the time since
-- the last use (Nectar, OSDI 2010, section 3.3). Checkpoints of a run with uncommitted output remain. It leaves
-- checkpoints that another call reads to the next call: it waits 100 ms at most, and yields in a deadlock.
CREATE FUNCTION @extschema@.mop_evict(budget bigint, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET enable_nestloop = off AS $$
DECLARE
    caller integer := @extschema@.mop_owner_of(token);
    victim record;
    source record;
    newest integer;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM @extschema@.mop_state_table g JOIN @extschema@.mop_run r USING (run_id)
                   WHERE r.owner = caller AND r.status <> 'running') THEN
        RETURN;  -- (the following queries start a dozen processes on Greenplum's segments)
    END IF;
    BEGIN  -- one session at a time
        PERFORM @extschema@.mop_lock_owner_exclusive(caller);
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RETURN;  -- another session evicts
    END;
    FOR victim IN
        WITH kept AS (
            SELECT c.run_id, c.stage, sum(m.bytes) OVER (ORDER BY NOT EXISTS (
                       SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = c.run_id) DESC,
                       c.seconds / (m.bytes + 1) / (60 + extract(epoch FROM clock_timestamp() - c.used_at)) DESC,
                       c.run_id, c.stage) AS total,
                   EXISTS (SELECT 1 FROM @extschema@.mop_output o WHERE o.run_id = c.run_id) AS written
            FROM @extschema@.mop_checkpoint c JOIN @extschema@.mop_stage_state m USING (run_id, stage)
            JOIN @extschema@.mop_run r USING (run_id)
            WHERE r.owner = caller AND r.status <> 'running' AND m.state_table IS NOT NULL
        )
        SELECT k.run_id, k.stage FROM kept k WHERE k.total > budget AND k.written
    LOOP
        BEGIN
            DELETE FROM @extschema@.mop_checkpoint c WHERE (c.run_id, c.stage) = (victim.run_id, victim.stage);
            UPDATE @extschema@.mop_stage_state m SET state_table = NULL
            WHERE (m.run_id, m.stage) = (victim.run_id, victim.stage);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            NULL;  -- another call takes it over now
        END;
    END LOOP;
    -- tables without a needed state are dropped; tables with few of them are rewritten
    FOR source IN
        SELECT g.run_id, g.state_table,
               (SELECT array_agg(m.stage) FROM @extschema@.mop_stage_state m
                WHERE m.run_id = g.run_id AND m.state_table = g.state_table) AS stages,
               (SELECT sum(m.bytes) FROM @extschema@.mop_stage_state m
                WHERE m.run_id = g.run_id AND m.state_table = g.state_table) AS bytes
        FROM @extschema@.mop_state_table g JOIN @extschema@.mop_run r USING (run_id)
        JOIN @extschema@.mop_output w USING (run_id)
        WHERE r.owner = caller AND r.status <> 'running'
    LOOP
        BEGIN
            CONTINUE WHEN source.stages IS NOT NULL AND (
                SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
                WHERE c.relname = @extschema@.mop_state_table_name(source.run_id, source.state_table)
                AND c.relnamespace = (
                    SELECT o.relnamespace FROM pg_class o WHERE o.oid = '@extschema@.mop_run'::regclass)
                ) <= greatest(1 << 22, 3 * source.bytes);
            IF source.stages IS NOT NULL THEN
                newest := (SELECT max(g.state_table) + 1 FROM @extschema@.mop_state_table g
                           WHERE g.run_id = source.run_id);
                CONTINUE WHEN newest IS NULL;  -- a user has dropped the run's states
                PERFORM @extschema@.mop_new_state_table(source.run_id, newest, token);
                PERFORM @extschema@.mop_move_states(source.run_id, source.stages, newest, token);
            END IF;
            PERFORM @extschema@.mop_delete_state_tables(source.run_id, source.state_table);
        EXCEPTION WHEN lock_not_available OR deadlock_detected OR program_limit_exceeded OR unique_violation THEN
            NULL;  -- the next call tries again
        END;
    END LOOP;
END
$$;

-- A coordinator takes over stages that earlier runs of the role trained: [{"stage", "run", "of" (the stage of that
-- run), "state" (whether the state is needed), "scored" (whether all metrics are known)}, ...]. It takes over all of
-- them, or returns false and none of them if one no longer exists. A run of another role that shares has its alias here
-- (postgresql/13_sharing.sql); to that role nothing shows that its stages were taken over.
CREATE FUNCTION @extschema@.mop_adopt(run bigint, run_fencing_token integer, stages json,
    token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted record;
    adopted record;
    target integer;
    alike text[];
    missing bigint := json_array_length(stages);
    taken bigint := 0;
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    stages := @extschema@.mop_reveal(run, stages, @extschema@.mop_caller(token));
    target := (SELECT max(g.state_table) FROM @extschema@.mop_state_table g WHERE g.run_id = run);
    -- Locks keep the checkpoints: first the runs, then the checkpoints, in the order of mop_drop and
    -- mop_forget_checkpoints, and before any table is read. Nothing of another role is locked, since it could see that, and
    -- would wait: mop_note_taken looks whether its run was still there.
    PERFORM @extschema@.mop_lock_run_shared(l.run) FROM (
        SELECT DISTINCT a.run FROM json_to_recordset(stages) AS a(run bigint, shared boolean)
        WHERE NOT a.shared ORDER BY 1) AS l;
    PERFORM @extschema@.mop_lock_checkpoints_exclusive(array_agg(a.run), array_agg(a.of))
    FROM json_to_recordset(stages) AS a(run bigint, "of" integer, state boolean, shared boolean)
    WHERE a.state AND NOT a.shared;
    FOR wanted IN
        SELECT a.* FROM json_to_recordset(stages) AS a(stage integer, run bigint, "of" integer, state boolean,
            scored boolean, shared boolean)
        ORDER BY a.stage
    LOOP
        -- (one by one: for a new run the planner expects a row or two, and a join would read all its stages for each)
        SELECT wanted.stage, wanted.of, wanted.run AS of_run, wanted.state, wanted.scored, wanted.shared, m.version,
               m.state_table, m.bytes, m.made_on, coalesce(t.source_run, t.run_id) AS origin_run,
               coalesce(t.source_stage, t.stage) AS origin_stage INTO adopted
        FROM @extschema@.mop_stage s, @extschema@.mop_stage t, @extschema@.mop_stage_state m, @extschema@.mop_run theirs,
            @extschema@.mop_run mine
        WHERE (s.run_id, s.stage) = (run, wanted.stage) AND (t.run_id, t.stage) = (wanted.run, wanted.of)
        AND (m.run_id, m.stage) = (wanted.run, wanted.of) AND theirs.run_id = wanted.run AND mine.run_id = run
        AND t.identity = s.identity AND (mine.owner = theirs.owner OR wanted.shared)
        AND (NOT wanted.state OR m.state_table IS NOT NULL);
        CONTINUE WHEN NOT FOUND;
        IF adopted.state THEN
            CONTINUE WHEN @extschema@.mop_copy_state(
                @extschema@.mop_state_table_name(adopted.of_run, adopted.state_table), adopted.of, adopted.version,
                @extschema@.mop_state_table_name(run, target), adopted.stage) = 0;
            UPDATE @extschema@.mop_checkpoint c SET used_at = clock_timestamp()
            WHERE (c.run_id, c.stage) = (adopted.of_run, adopted.of) AND NOT adopted.shared;
        END IF;
        UPDATE @extschema@.mop_stage_state m SET version = adopted.version,
            state_table = CASE WHEN adopted.state THEN target END,
            bytes = CASE WHEN adopted.state THEN adopted.bytes END, made_on = adopted.made_on
        WHERE m.run_id = run AND m.stage = adopted.stage;
        IF adopted.shared THEN
            PERFORM @extschema@.mop_note_taken(run, adopted.stage, adopted.of_run, adopted.of, @extschema@.mop_caller(token));
            taken := taken + 1;
        ELSE
            UPDATE @extschema@.mop_stage s SET source_run = adopted.origin_run, source_stage = adopted.origin_stage
            WHERE s.run_id = run AND s.stage = adopted.stage;
        END IF;
        IF adopted.scored THEN  -- (no other session writes these metrics: the run is locked)
            alike := ARRAY[
                CASE WHEN @extschema@.mop_same_segments(run, adopted.of_run, 'training') THEN 'training' END,
                CASE WHEN @extschema@.mop_same_segments(run, adopted.of_run, 'validation') THEN 'validation' END];
            INSERT INTO @extschema@.mop_metric (run_id, stage, dataset, loss, metric, metrics)
            SELECT run, adopted.stage, x.dataset, x.loss, x.metric, x.metrics FROM @extschema@.mop_metric x
            WHERE x.run_id = adopted.of_run AND x.stage = adopted.of AND x.dataset = ANY (alike)
            AND (NOT adopted.shared OR @extschema@.mop_sound_metrics(x.loss, x.metric, x.metrics))
            AND x.dataset NOT IN (SELECT o.dataset FROM @extschema@.mop_metric o
                                  WHERE o.run_id = run AND o.stage = adopted.stage);
            -- (another role may have taken its metrics back, or written others)
            CONTINUE WHEN adopted.shared AND (
                SELECT count(*) FROM @extschema@.mop_metric o WHERE o.run_id = run AND o.stage = adopted.stage) <> (
                SELECT count(DISTINCT s.dataset) FROM @extschema@.mop_segment s WHERE s.run_id = run);
        END IF;
        missing := missing - 1;
    END LOOP;
    IF missing > 0 THEN
        RAISE EXCEPTION 'a checkpoint has just been dropped' USING ERRCODE = 'P0002';
    ELSIF taken > 0 THEN
        PERFORM @extschema@.mop_audit_act(@extschema@.mop_caller(token), 'take over stages', run,
            json_build_object('stages', taken));
    END IF;
    RETURN true;
EXCEPTION WHEN undefined_table OR lock_not_available OR no_data_found THEN
    RETURN false;
END
$$;

-- Returns whether a dataset of two runs consists of the same rows.
CREATE FUNCTION @extschema@.mop_same_segments(run bigint, other bigint, of_dataset text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg((s.segment, s.fingerprint)::text ORDER BY s.segment) FILTER (WHERE s.run_id = $1)
           IS NOT DISTINCT FROM
           array_agg((s.segment, s.fingerprint)::text ORDER BY s.segment) FILTER (WHERE s.run_id = $2)
    FROM @extschema@.mop_segment s WHERE s.run_id IN ($1, $2) AND s.dataset = $3
$$;

-- Drops the checkpoints of one run of the calling role, or with NULL of all of them, for mop_drop_checkpoints.
CREATE FUNCTION @extschema@.mop_forget_checkpoints(run bigint, token text DEFAULT @extschema@.mop_token())
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller integer := @extschema@.mop_owner_of(token);
    runs bigint[];
    stages integer[];
BEGIN
    IF run IS NOT NULL THEN
        PERFORM @extschema@.mop_own(run, token);
    END IF;
    SELECT array_agg(c.run_id ORDER BY c.run_id, c.stage), array_agg(c.stage ORDER BY c.run_id, c.stage)
    INTO runs, stages
    FROM @extschema@.mop_checkpoint c JOIN @extschema@.mop_run r USING (run_id)
    JOIN @extschema@.mop_output o USING (run_id)
    WHERE r.owner = caller AND r.status <> 'running' AND (run IS NULL OR c.run_id = run);
    PERFORM @extschema@.mop_lock_checkpoints_exclusive(runs, stages);
    FOR i IN 1 .. coalesce(cardinality(runs), 0) LOOP
        DELETE FROM @extschema@.mop_checkpoint c WHERE (c.run_id, c.stage) = (runs[i], stages[i]);
        IF FOUND THEN
            UPDATE @extschema@.mop_stage_state m SET state_table = NULL
            WHERE (m.run_id, m.stage) = (runs[i], stages[i]);
        END IF;
    END LOOP;
    PERFORM @extschema@.mop_evict(1::bigint << 60, token);
    PERFORM @extschema@.mop_audit_act(@extschema@.mop_caller(token), 'drop checkpoints', run,
        json_build_object('checkpoints', coalesce(cardinality(runs), 0)));
END
$$;

-- Users drop the checkpoints of all their runs, or of one run, with this.
CREATE FUNCTION @extschema@.mop_drop_checkpoints(run_id double precision DEFAULT NULL) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_forget_checkpoints(@extschema@.mop_integer('run_id', $1))
$$;

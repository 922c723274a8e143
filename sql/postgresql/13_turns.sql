-- Turns: runs of several sessions share the cores of this server. Each run asks before its workers begin commands. A run
-- that may not go on keeps its sessions and trainers, and waits: its last command has committed, so nothing is lost.
--
-- The order: runs that have waited for a minute; then by priority; then roles by the core-seconds that they have had,
-- divided by their share (stride scheduling: Waldspurger and Weihl, 1995); then those runs of a role that would be
-- late otherwise, by deadline; then the runs of a role by core-seconds. A role, and a run within its role, that has cores keeps
-- its place until it is a second of the whole server ahead.

-- The competing runs in this order, where the server has so many cores. `others`: how many times as long a run takes since
-- other roles compete; `all_runs`: the same for its role's runs, too. Runs of lower priority do not count.
CREATE FUNCTION @extschema@.mop_turn_order(total integer, OUT place bigint, OUT run_id bigint, OUT owner integer,
    OUT priority integer, OUT share double precision, OUT wanted integer, OUT cores integer, OUT role_cores bigint,
    OUT role_pass double precision, OUT pass double precision, OUT urgent boolean, OUT waits_since timestamptz,
    OUT left_seconds double precision, OUT others double precision, OUT all_runs double precision) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY WITH competing AS (
        SELECT c.*, p.pass AS role_pass, coalesce(c.waits_since < clock_timestamp() - interval '1 minute', false) AS starves,
               count(*) OVER of_role AS role_runs, sum(c.cores) OVER of_role AS role_cores,
               min(c.share) OVER of_role AS role_share
        FROM @extschema@.mop_competing c JOIN @extschema@.mop_role_turn p USING (owner)
        WINDOW of_role AS (PARTITION BY c.owner, c.priority)
    ), crowded AS (
        SELECT c.*, sum(c.role_share / c.role_runs) OVER up / c.role_share AS others,
               c.role_runs * sum(c.role_share / c.role_runs) OVER up / c.role_share AS all_runs
        FROM competing c WINDOW up AS (ORDER BY c.priority DESC)
    ), judged AS (
        -- urgent: it would be late if it went on as now and took a quarter longer than is expected, but not if it went before
        -- its role's others. Without a prediction nobody can tell.
        SELECT c.*, coalesce(
            c.deadline > clock_timestamp() AND c.left_seconds IS NOT NULL
            AND c.deadline >= clock_timestamp() + least(1e9, c.left_seconds * c.others) * interval '1 second'
            AND c.deadline < clock_timestamp() + least(1e9, 1.25 * c.left_seconds * c.all_runs) * interval '1 second',
            false) AS urgent
        FROM crowded c
    )
    SELECT row_number() OVER (ORDER BY c.starves DESC, c.priority DESC,
               c.role_pass - CASE WHEN c.role_cores > 0 THEN total / c.role_share ELSE 0 END, c.owner,
               c.urgent DESC, CASE WHEN c.urgent THEN c.deadline END,
               c.pass - CASE WHEN c.cores > 0 THEN total ELSE 0 END, c.run_id),
           c.run_id, c.owner, c.priority, c.role_share, least(c.wanted, total), least(c.cores, total), c.role_cores,
           c.role_pass, c.pass, c.urgent, c.waits_since, c.left_seconds, c.others, c.all_runs
    FROM judged c;
END
$$;

-- A coordinator asks for cores: `wanted` now, of which its commands in progress use `busy`. `total`: of this server;
-- `threads`: of a worker; `of_priority`: of the call, at the first time; `seconds_left`: see mop_turn. Returns the cores that
-- the run may use, whether no other run asks, and how many cores the others want: the rest is free for more threads. It fails
-- with 55P03 where another transaction holds the run's row for long.
--
-- The account is written when something changes, and every few seconds: a call's open snapshot keeps all versions of the rows.
CREATE FUNCTION @extschema@.mop_take_turn(run bigint, run_fencing_token integer, wanted integer, busy integer,
    total integer, threads integer, of_priority integer, of_deadline timestamptz DEFAULT NULL,
    seconds_left double precision DEFAULT NULL, token text DEFAULT @extschema@.mop_token(), OUT cores integer,
    OUT alone boolean, OUT others integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine @extschema@.mop_turn;
    other record;
    now_here timestamptz := clock_timestamp();
    spent double precision;
    free integer := total;
    in_use integer := 0;
    waiting timestamptz;
    is_ahead boolean := false;
    least_pass double precision;
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token);
    IF (wanted BETWEEN 0 AND total AND busy BETWEEN 0 AND total AND total BETWEEN 1 AND 4096 AND threads BETWEEN 1 AND total
            AND of_priority BETWEEN -100 AND 100) IS NOT TRUE THEN
        RAISE EXCEPTION 'a run wants some of the cores of a server, with a priority from -100 to 100' USING ERRCODE = '22023';
    END IF;
    IF seconds_left < 0 OR seconds_left = 'NaN' OR NOT isfinite(of_deadline) THEN
        RAISE EXCEPTION 'a run has a deadline, and a number of seconds to train' USING ERRCODE = '22023';
    ELSIF seconds_left > 1e9 THEN
        seconds_left := 1e9; -- 30 years: others compute times from it
    END IF;
    -- nothing depends on these rows after a crash, and no run waits long for them
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '100ms', true);
    PERFORM pg_stat_clear_snapshot(); -- of the sessions, which tells whether the other coordinators live
    SELECT t.* INTO mine FROM @extschema@.mop_turn t WHERE t.run_id = run;
    IF mine.run_id IS NULL OR mine.charged_at < now_here - interval '10 seconds' THEN
        -- a newcomer, or a run that has not asked for long (and is not charged for that): it begins where the others are
        INSERT INTO @extschema@.mop_role_turn (owner) SELECT r.owner FROM @extschema@.mop_run r WHERE r.run_id = run
        ON CONFLICT DO NOTHING;
        INSERT INTO @extschema@.mop_turn AS t (run_id, owner, priority, share, wanted, cores, charged_at, waits_since, deadline,
            left_seconds)
        SELECT run, r.owner, least(of_priority, l.max_priority),
            greatest(1e-6, least(1e6, coalesce(l.share, 1))), mop_take_turn.wanted, 0, now_here,
            now_here, of_deadline, seconds_left
        FROM @extschema@.mop_run r, @extschema@.mop_limits(token) AS l WHERE r.run_id = run
        ON CONFLICT (run_id) DO UPDATE SET wanted = EXCLUDED.wanted, cores = 0, charged_at = now_here, waits_since = now_here
        RETURNING * INTO mine;
        least_pass := (SELECT min(p.pass) FROM @extschema@.mop_competing c JOIN @extschema@.mop_role_turn p USING (owner)
                   WHERE c.owner <> mine.owner);
        UPDATE @extschema@.mop_role_turn o
        SET pass = coalesce(greatest(least_pass, least(o.pass, least_pass + total / mine.share)), 0)
        WHERE o.owner = mine.owner AND NOT EXISTS (
            SELECT 1 FROM @extschema@.mop_competing c WHERE c.owner = mine.owner AND c.run_id <> run);
        UPDATE @extschema@.mop_turn t SET pass = coalesce((
            SELECT min(c.pass) FROM @extschema@.mop_competing c WHERE c.owner = mine.owner AND c.run_id <> run), 0)
        WHERE t.run_id = run RETURNING * INTO mine;
    END IF;
    alone := true;
    others := 0;
    FOR other IN SELECT o.run_id, o.wanted, o.cores FROM @extschema@.mop_turn_order(total) AS o ORDER BY o.place
    LOOP
        IF other.run_id = run THEN
            cores := least(mop_take_turn.wanted, free);
            is_ahead := true;
        ELSE
            alone := false;
            others := least(total, others + greatest(other.wanted, other.cores));
            -- What others still use is theirs until their commands end. (But nobody waits for those behind it for ever.)
            IF NOT is_ahead OR mine.waits_since IS NULL OR mine.waits_since > now_here - interval '1 minute' THEN
                in_use := in_use + other.cores;
            END IF;
            free := greatest(0, free - other.wanted);
        END IF;
    END LOOP;
    cores := least(coalesce(cores, 0), greatest(0, total - in_use));
    IF cores < wanted THEN
        cores := cores - cores % threads; -- cores that are too few for a worker are of no use
    END IF;
    IF cores = 0 AND wanted > 0 AND busy = 0 THEN
        waiting := coalesce(mine.waits_since, now_here);
    END IF;
    IF greatest(cores, busy) <> mine.cores OR wanted <> mine.wanted OR waiting IS DISTINCT FROM mine.waits_since
            OR mine.charged_at < now_here - interval '3 seconds' THEN
        spent := mine.cores * greatest(0, extract(epoch FROM now_here - mine.charged_at));
        UPDATE @extschema@.mop_turn t SET cores = greatest(mop_take_turn.cores, mop_take_turn.busy),
            wanted = mop_take_turn.wanted, waits_since = waiting, charged_at = now_here, used = t.used + spent,
            pass = t.pass + spent, left_seconds = seconds_left
        WHERE t.run_id = run;
        IF spent > 0 THEN
            UPDATE @extschema@.mop_role_turn o SET pass = o.pass + spent / mine.share WHERE o.owner = mine.owner;
        END IF;
    END IF;
END
$$;

-- How many runs have cores now, for mop_queue: a role sees how many are before it, not whose they are.
CREATE FUNCTION @extschema@.mop_runs_with_cores() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*)::integer FROM @extschema@.mop_competing c WHERE c.cores > 0
$$;

-- When a run of the caller's roles is expected to have cores, if it waits, and to end; NULL where that is unknown. It waits
-- until a run before it ends or has had its share, and for a minute at most.
CREATE FUNCTION @extschema@.mop_turn_outlook(run bigint, token text DEFAULT @extschema@.mop_token(), OUT turn_at timestamptz,
    OUT ends_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    total integer;
    mine record;
    after double precision;
BEGIN
    IF NOT coalesce((SELECT pg_has_role(caller, o.who, 'MEMBER') FROM @extschema@.mop_run r
                     JOIN @extschema@.mop_owner o USING (owner) WHERE r.run_id = run), false) THEN
        RETURN;
    END IF;
    total := (SELECT greatest(1, sum(c.cores)) FROM @extschema@.mop_competing c);
    SELECT o.* INTO mine FROM @extschema@.mop_turn_order(total) AS o WHERE o.run_id = run;
    IF mine.waits_since IS NOT NULL THEN
        after := (
            SELECT min(CASE WHEN o.priority > mine.priority THEN o.left_seconds * o.all_runs
                            WHEN o.priority < mine.priority THEN 0.5
                            WHEN o.owner <> mine.owner
                                THEN (mine.role_pass - o.role_pass + total / o.share) * o.share / o.role_cores
                            WHEN o.urgent AND NOT mine.urgent THEN o.left_seconds * o.others
                            ELSE (mine.pass - o.pass + total) / o.cores END)
            FROM @extschema@.mop_turn_order(total) AS o WHERE o.run_id <> run AND o.cores > 0);
        -- (60 without a number)
        turn_at := greatest(clock_timestamp(), least(clock_timestamp() + greatest(0, least(after, 60)) * interval '1 second',
                                                     mine.waits_since + interval '1 minute'));
    END IF;
    IF mine.left_seconds IS NOT NULL THEN
        ends_at := coalesce(turn_at, clock_timestamp())
                   + least(1e9, mine.left_seconds * mine.all_runs) * interval '1 second';
    END IF;
END
$$;

-- Sets the priority of a running run, for mop_set_priority.
CREATE FUNCTION @extschema@.mop_want_priority(run_id bigint, priority integer,
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    super boolean := coalesce((SELECT a.rolsuper FROM pg_roles a WHERE a.oid = caller), false);
    most integer := (SELECT l.max_priority FROM @extschema@.mop_limits(token) AS l);
    old integer := (SELECT t.priority FROM @extschema@.mop_turn t WHERE t.run_id = $1);
BEGIN
    IF priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION 'a priority is a number from -100 to 100, not %', coalesce(priority::text, 'NULL')
            USING ERRCODE = '22023';
    END IF;
    IF NOT super THEN
        PERFORM @extschema@.mop_own($1, token);
    END IF;
    IF priority > most AND NOT super THEN
        RAISE EXCEPTION 'priority % is more than the % that role "%" may have', priority, most, pg_get_userbyid(caller)
            USING ERRCODE = '42501', DETAIL = 'The table mop_limit sets the role''s highest priority (max_priority).',
                  HINT = format('SELECT @extschema@.mop_set_priority(%s, %s);', $1, most);
    END IF;
    UPDATE @extschema@.mop_turn t SET priority = $2 FROM @extschema@.mop_competing c
    WHERE t.run_id = $1 AND c.run_id = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'run % is not running, or shares no cores of this server', $1 USING ERRCODE = '55000',
            HINT = 'SELECT * FROM @extschema@.mop_queue; lists the runs that are.';
    END IF;
    PERFORM @extschema@.mop_audit_act(caller, 'set priority', $1, json_build_object('from', old, 'to', priority));
END
$$;

-- Users change the priority of a running run with this.
CREATE FUNCTION @extschema@.mop_set_priority(run_id double precision, priority double precision) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_want_priority(@extschema@.mop_integer('run_id', $1),
                                         @extschema@.mop_integer('priority', $2)::integer)
$$;

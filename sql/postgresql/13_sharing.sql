-- Training that roles share: stages that a run of one role has trained, taken over by a run of another one. The twin is
-- greenplum/13_sharing.sql.
--
-- Two roles share only if each has said so (mop_share_training), for a role that both are members of, and only stages of
-- packed tables of which both may read every row. That is decided here, with the rights of the extension's owner, and first:
-- a role that may not read all rows gets its answer before any run of another role is looked for. Other roles' runs have
-- aliases, negative numbers that mean nothing to anybody else.

-- Returns whether a role belongs to a group, as mop_seen_run decides it.
CREATE FUNCTION @extschema@.mop_belongs(member oid, of_group oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (SELECT count(*) FROM pg_roles a WHERE a.oid IN ($1, $2)) = CASE WHEN $1 = $2 THEN 1 ELSE 2 END
       AND pg_has_role($1, $2,
           CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)
$$;

-- Returns the group with whose members a role shares now, or NULL.
CREATE FUNCTION @extschema@.mop_group_of(member oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.of_group::oid FROM @extschema@.mop_sharing s JOIN @extschema@.mop_owner o USING (owner)
    WHERE o.who = $1 AND @extschema@.mop_belongs($1, s.of_group)
$$;

-- Returns a packed table and its partitions, of all levels.
CREATE FUNCTION @extschema@.mop_tables_within(packed oid) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE tree (relation) AS (
        SELECT $1 UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.relation)
    SELECT t.relation FROM tree t ORDER BY 1
$$;

-- Returns whether a role may read every row of a packed table of this server, and sees that for sure: a plain table without
-- row security, for whomever it may be. Reads no rows.
CREATE FUNCTION @extschema@.mop_may_read_all(caller oid, packed oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((
        SELECT has_table_privilege($1, c.oid, 'SELECT') AND has_schema_privilege($1, c.relnamespace, 'USAGE')
           AND EXISTS (SELECT 1 FROM pg_attribute a
                       WHERE a.attrelid = c.oid AND a.attname = '__dist_key__' AND NOT a.attisdropped)
        FROM pg_class c WHERE c.oid = $2), false)
       AND NOT EXISTS (
        SELECT 1 FROM @extschema@.mop_tables_within($2) t LEFT JOIN pg_class c ON c.oid = t
        WHERE c.oid IS NULL OR c.relkind NOT IN ('r', 'p') OR c.relrowsecurity OR c.relpersistence = 't')
$$;

-- Returns whether nothing hangs on these tables that PostgreSQL could execute for a query of the tables. Anybody's query
-- evaluates functions of the table's owner, if they are IMMUTABLE, with the rights of whoever asks: the planner simplifies
-- the expressions of indexes and of statistics. What else has expressions (constraints, defaults, generated columns, rules,
-- keys of partitions) and what else can have functions of a user (types, access methods) is refused, too: packed tables
-- have none of that.
CREATE FUNCTION @extschema@.mop_bare(relations oid[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (SELECT 1 FROM pg_class c LEFT JOIN pg_am m ON m.oid = c.relam WHERE c.oid = ANY ($1)
                       AND (c.relhasrules OR c.relam <> 0 AND m.amname IS DISTINCT FROM 'heap'))
       AND NOT EXISTS (SELECT 1 FROM pg_index x WHERE x.indrelid = ANY ($1)
                       AND (x.indexprs IS NOT NULL OR x.indpred IS NOT NULL))
       AND NOT EXISTS (SELECT 1 FROM pg_statistic_ext x WHERE x.stxrelid = ANY ($1))
       AND NOT EXISTS (SELECT 1 FROM pg_constraint x WHERE x.conrelid = ANY ($1) AND x.contype = 'c')
       AND NOT EXISTS (SELECT 1 FROM pg_attrdef x WHERE x.adrelid = ANY ($1))
       AND NOT EXISTS (SELECT 1 FROM pg_partitioned_table x WHERE x.partrelid = ANY ($1) AND x.partexprs IS NOT NULL)
       AND NOT EXISTS (SELECT 1 FROM pg_attribute a LEFT JOIN pg_type t ON t.oid = a.atttypid
                       WHERE a.attrelid = ANY ($1) AND NOT a.attisdropped
                       AND t.typnamespace IS DISTINCT FROM 'pg_catalog'::regnamespace)
$$;

-- Returns a digest of all rows of a packed table, each by its place and by the transaction that wrote it, and of the table's
-- columns; NULL: the role may not read them all, the table is no bare one, or somebody changes it now.
--
-- The owner of the extension reads a table of a user here, since a digest by the user's session would be a claim, and no
-- proof that the session sees the rows. No code of any user may run with the owner's rights. So only plain, bare tables are
-- read (mop_bare), only their system columns, and all of that is locked before it is looked at, until the rows are read: the
-- schemas against ALTER SCHEMA, the tables against ALTER TABLE, CREATE INDEX (also CONCURRENTLY) and CREATE STATISTICS. An
-- error of its own gives the locks back, so that nobody can hold them.
CREATE FUNCTION @extschema@.mop_digest_of_rows(caller oid, packed oid) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    relations oid[] := ARRAY(SELECT @extschema@.mop_tables_within(packed));
    names text[] := '{}';
    buffers bigint;
    digest text;
    said text := '';
    total bigint := 0;
    result text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR NOT @extschema@.mop_may_read_all(caller, packed)
       OR NOT @extschema@.mop_bare(relations) THEN
        RETURN NULL;
    END IF;
    BEGIN
        <<compared>>
        BEGIN
            PERFORM 1 FROM pg_namespace n WHERE n.oid IN (SELECT c.relnamespace FROM pg_class c WHERE c.oid = ANY (relations))
            ORDER BY n.oid FOR KEY SHARE;
            FOR i IN 1 .. cardinality(relations) LOOP
                names := names || (SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c
                                   JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relations[i]);
                EXIT compared WHEN names[i] IS NULL;
                EXECUTE 'LOCK TABLE ONLY ' || names[i] || ' IN SHARE UPDATE EXCLUSIVE MODE';
                EXIT compared WHEN to_regclass(names[i])::oid IS DISTINCT FROM relations[i];
            END LOOP;
            EXIT compared WHEN relations <> ARRAY(SELECT @extschema@.mop_tables_within(packed))
                OR NOT @extschema@.mop_may_read_all(caller, packed) OR NOT @extschema@.mop_bare(relations);
            FOR i IN 1 .. cardinality(relations) LOOP
                said := concat_ws(' ', said, relations[i], (
                    SELECT string_agg(concat_ws(',', a.attnum, md5(a.attname), a.atttypid, a.xmin), ';' ORDER BY a.attnum)
                    FROM pg_attribute a WHERE a.attrelid = relations[i] AND a.attnum > 0));
                CONTINUE WHEN (SELECT c.relkind FROM pg_class c WHERE c.oid = relations[i]) <> 'r';
                EXECUTE 'SELECT count(*), md5(string_agg(concat_ws('','', tableoid, ctid, xmin), '';'' ORDER BY ctid)) '
                    'FROM ONLY ' || names[i] INTO buffers, digest;
                said := concat_ws(' ', said, buffers, digest);
                total := total + buffers;
            END LOOP;
            result := CASE WHEN total > 0 THEN encode(@extschema@.mop_sha256(convert_to(said, 'UTF8')), 'hex') END;
        END;
        RAISE EXCEPTION 'the locks are given back' USING ERRCODE = 'MOP01';
    EXCEPTION WHEN SQLSTATE 'MOP01' OR lock_not_available OR undefined_table OR deadlock_detected OR program_limit_exceeded THEN
        RETURN result;
    END;
END
$$;

-- Returns the alias of a run for a role.
CREATE FUNCTION @extschema@.mop_alias(run bigint, caller oid) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT -1 - ('x' || substr(encode(@extschema@.mop_sha256(
        (SELECT s.secret FROM @extschema@.mop_secret s) || 'alias' || int8send($1) || oidsend($2)), 'hex'), 1, 15))::bit(60)::bigint
$$;

-- Returns the runs of other roles whose stages a run of the caller may take over now, with their aliases.
CREATE FUNCTION @extschema@.mop_givers(run bigint, caller oid) RETURNS TABLE (giver bigint, alias bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own_group oid := @extschema@.mop_group_of(caller);
    own @extschema@.mop_shared_run;
BEGIN
    SELECT s.* INTO own FROM @extschema@.mop_shared_run s WHERE s.run_id = run;
    IF own_group IS NULL OR own.run_id IS NULL OR NOT @extschema@.mop_may_read_all(caller, own.training)
       OR own.validation IS NOT NULL AND NOT @extschema@.mop_may_read_all(caller, own.validation) THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT r.run_id, @extschema@.mop_alias(r.run_id, caller)
        FROM @extschema@.mop_shared_run s JOIN @extschema@.mop_run r USING (run_id)
        JOIN @extschema@.mop_owner o USING (owner) JOIN @extschema@.mop_sharing g USING (owner)
        WHERE s.training_rows = own.training_rows AND o.who <> caller
        AND (s.validation IS NULL OR s.validation_rows = own.validation_rows)
        AND g.of_group = own_group AND @extschema@.mop_belongs(o.who, own_group);
END
$$;

-- Returns whether a run's role may give a stage: the role has trained it itself, and its units are logged.
CREATE FUNCTION @extschema@.mop_may_give(run bigint, of_stage integer) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT 1 FROM @extschema@.mop_stage s JOIN @extschema@.mop_run r USING (run_id)
        JOIN @extschema@.mop_configuration c USING (run_id, mst_key)
        WHERE s.run_id = $1 AND s.stage = $2
        AND NOT EXISTS (SELECT 1 FROM @extschema@.mop_taken_stage t WHERE (t.run_id, t.stage) =
                        (coalesce(s.source_run, s.run_id), coalesce(s.source_stage, s.stage)))
        AND r.segments - coalesce(array_length(c.held_out, 1), 0) = (
            SELECT count(*) FROM @extschema@.mop_unit u WHERE u.kind = 'train' AND u.status = 'finished'
            AND (u.run_id, u.stage) = (coalesce(s.source_run, s.run_id), coalesce(s.source_stage, s.stage))))
$$;

-- Returns the stages of a run whose paths begin with given weights: with those of a configuration, or of a trial of another
-- run. Such weights may be private, and that a run knows their digest is no proof that its role may read them.
CREATE FUNCTION @extschema@.mop_stages_from_weights(run bigint) RETURNS SETOF integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $$
    WITH RECURSIVE begun AS (
        SELECT c.mst_key, c.weights_md5 IS NOT NULL OR c.weights_sql IS NOT NULL AS given FROM @extschema@.mop_configuration c
        WHERE c.run_id = $1 AND (c.weights_md5 IS NOT NULL OR c.weights_sql IS NOT NULL
                                 OR json_typeof(c.member -> 'inherits') = 'object')),
    found (stage) AS (
        SELECT w.stage FROM (
            SELECT s.stage FROM begun b JOIN @extschema@.mop_stage s ON s.run_id = $1 AND s.mst_key = b.mst_key
            WHERE b.given OR s.parent IS NULL
            UNION SELECT s.stage FROM begun b JOIN @extschema@.mop_request q ON q.run_id = $1 AND q.mst_key = b.mst_key
            JOIN @extschema@.mop_stage s ON (s.run_id, s.stage) = ($1, q.stage) WHERE b.given OR s.parent IS NULL) w
        UNION SELECT s.stage FROM found f JOIN @extschema@.mop_stage s ON s.run_id = $1 AND s.parent = f.stage)
    SELECT f.stage FROM found f
$$;

-- Returns those of the identities that a run may ask other roles for: not those of its own stages that begin with weights.
CREATE FUNCTION @extschema@.mop_may_want(run bigint, identities text[]) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT i FROM unnest($2) i EXCEPT
    SELECT s.identity FROM @extschema@.mop_stages_from_weights($1) w JOIN @extschema@.mop_stage s
    ON (s.run_id, s.stage) = ($1, w)
$$;

-- Returns whether a number of JSON is a finite double precision. (Its text is looked at before it is read, since a number such
-- as 1e999999999 cannot be read as any type. The smallest double precision is 4.9e-324.)
CREATE FUNCTION @extschema@.mop_is_double(number text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN octet_length($1) > 100 OR $1 !~ '^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]{1,3})?$' THEN false
        ELSE abs($1::numeric) <= 1.7976931348623157e308 AND ($1::numeric = 0 OR abs($1::numeric) >= 4.95e-324) END
$$;

-- Returns whether the loss, the first metric, and all metrics that another role's run has noted can be those of an evaluation:
-- finite numbers. (Escapes in names are refused, because not all of them can be read.)
CREATE FUNCTION @extschema@.mop_sound_metrics(loss double precision, metric double precision, metrics json) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN abs($1) < 'Infinity' AND abs(coalesce($2, 0)) < 'Infinity' AND octet_length($3::text) <= 10000
                     AND position('\' IN $3::text) = 0 AND json_typeof($3) = 'object'
        THEN NOT EXISTS (SELECT 1 FROM json_each($3) e
                         WHERE json_typeof(e.value) <> 'number' OR NOT @extschema@.mop_is_double(e.value::text)) ELSE false END
$$;

-- Sets the group with whose members the caller's runs share from now on, for mop_share_training; NULL: none.
CREATE FUNCTION @extschema@.mop_put_sharing(group_role text, token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    number integer := @extschema@.mop_enroll(token);
    wanted oid := CASE WHEN octet_length(group_role) < 64 THEN @extschema@.mop_role(group_role::name) END;
    before oid := (SELECT s.of_group::oid FROM @extschema@.mop_sharing s WHERE s.owner = number);
BEGIN
    IF group_role IS NOT NULL AND wanted IS NULL THEN
        RAISE EXCEPTION 'role "%" does not exist', left(group_role, 63) USING ERRCODE = '42704',
            HINT = 'Name a role that you and the others are members of; NULL ends the sharing.';
    ELSIF wanted IS NOT NULL AND NOT @extschema@.mop_belongs(caller, wanted) THEN
        RAISE EXCEPTION 'role "%" is not a member of role "%"', pg_get_userbyid(caller), group_role USING ERRCODE = '42501',
            HINT = format('GRANT %I TO %I;', group_role, pg_get_userbyid(caller));
    END IF;
    IF before IS DISTINCT FROM wanted THEN
        DELETE FROM @extschema@.mop_shared_run s USING @extschema@.mop_run r WHERE r.run_id = s.run_id AND r.owner = number;
        DELETE FROM @extschema@.mop_sharing s WHERE s.owner = number;
    END IF;
    IF wanted IS NOT NULL THEN
        INSERT INTO @extschema@.mop_sharing AS s (owner, of_group) VALUES (number, wanted) ON CONFLICT (owner) DO UPDATE
        SET of_group = EXCLUDED.of_group, since = CASE WHEN s.of_group = EXCLUDED.of_group THEN s.since ELSE EXCLUDED.since END;
    END IF;
    PERFORM @extschema@.mop_audit_act(caller, CASE WHEN wanted IS NULL THEN 'end sharing' ELSE 'share training' END, NULL,
        CASE WHEN wanted IS NOT NULL THEN json_build_object('group', pg_get_userbyid(wanted)) END);
END
$$;

-- Roles share what their runs train with the members of a group that want the same, from now on; NULL ends that.
CREATE FUNCTION @extschema@.mop_share_training(group_role text) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_put_sharing($1)
$$;

-- What the caller has said; `in_force` is false where it is no member any more.
CREATE VIEW @extschema@.mop_my_sharing WITH (security_barrier) AS
SELECT pg_get_userbyid(s.of_group)::name AS group_role, s.since, @extschema@.mop_belongs(o.who, s.of_group) AS in_force
FROM @extschema@.mop_sharing s JOIN @extschema@.mop_owner o USING (owner)
WHERE o.who = (SELECT @extschema@.mop_role(current_user));

-- A coordinator calls this for a run that may share: it notes the rows of its packed tables, if the role shares and may read
-- all of them. Returns whether the run shares. A run that goes on with another coordinator is what it was.
CREATE FUNCTION @extschema@.mop_share_run(run bigint, run_fencing_token integer, training oid, validation oid,
    token text DEFAULT @extschema@.mop_token()) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    caller oid := @extschema@.mop_caller(token);
    digests text[];
BEGIN
    PERFORM @extschema@.mop_own(run, token, run_fencing_token, true);
    IF @extschema@.mop_group_of(caller) IS NULL THEN
        RETURN false;
    ELSIF run_fencing_token IS DISTINCT FROM 1 THEN
        RETURN EXISTS (SELECT 1 FROM @extschema@.mop_shared_run s WHERE s.run_id = run);
    END IF;
    digests := ARRAY[@extschema@.mop_digest_of_rows(caller, training),
        CASE WHEN validation IS NOT NULL THEN @extschema@.mop_digest_of_rows(caller, validation) END];
    IF digests[1] IS NULL OR validation IS NOT NULL AND digests[2] IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO @extschema@.mop_shared_run (run_id, training, training_rows, validation, validation_rows)
    VALUES (run, training, digests[1], validation, digests[2]) ON CONFLICT (run_id) DO NOTHING;
    RETURN true;
END
$$;

-- A coordinator asks with this for stages that runs of other roles have trained completely: the columns of
-- Stages.known_stages (catalog/stages.py). `beside`: aliases of runs that go on, or went on when this one began.
CREATE FUNCTION @extschema@.mop_known_shared(run bigint, identities text[], beside bigint[],
    token text DEFAULT @extschema@.mop_token())
RETURNS TABLE (identity text, run_id bigint, stage integer, state boolean, origin_run bigint, origin_stage integer,
    parent_run bigint, parent_stage integer, scores bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $$
#variable_conflict use_column
DECLARE
    caller oid := @extschema@.mop_caller(token);
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN QUERY
        WITH givers AS (SELECT g.giver, g.alias FROM @extschema@.mop_givers(run, caller) g),
        given AS (SELECT g.giver, w.stage FROM givers g, @extschema@.mop_stages_from_weights(g.giver) AS w(stage)),
        alike AS (
            SELECT g.giver, d.dataset FROM givers g, unnest(ARRAY['training', 'validation']) AS d(dataset)
            WHERE @extschema@.mop_same_segments(run, g.giver, d.dataset)),
        scored AS (
            SELECT x.run_id, x.stage, count(*) AS scores FROM alike a JOIN @extschema@.mop_metric x
            ON (x.run_id, x.dataset) = (a.giver, a.dataset)
            WHERE @extschema@.mop_sound_metrics(x.loss, x.metric, x.metrics) GROUP BY 1, 2)
        SELECT s.identity, g.alias, s.stage,
               m.state_table IS NOT NULL AND (c.stage IS NOT NULL
                   OR (r.status = 'running' OR g.alias = ANY (beside)) AND m.made_on IS NOT NULL),
               @extschema@.mop_alias(coalesce(s.source_run, s.run_id), caller), coalesce(s.source_stage, s.stage),
               CASE WHEN p.stage IS NOT NULL THEN @extschema@.mop_alias(coalesce(p.source_run, p.run_id), caller) END,
               coalesce(p.source_stage, p.stage), coalesce(n.scores, 0)
        FROM givers g JOIN @extschema@.mop_stage s ON s.run_id = g.giver
        JOIN @extschema@.mop_run r ON r.run_id = g.giver
        LEFT JOIN @extschema@.mop_stage p ON (p.run_id, p.stage) = (s.run_id, s.parent)
        JOIN @extschema@.mop_stage_state m ON (m.run_id, m.stage) = (s.run_id, s.stage)
        LEFT JOIN @extschema@.mop_checkpoint c ON (c.run_id, c.stage) = (s.run_id, s.stage)
        JOIN @extschema@.mop_configuration q ON (q.run_id, q.mst_key) = (s.run_id, s.mst_key)
        LEFT JOIN scored n ON (n.run_id, n.stage) = (s.run_id, s.stage)
        WHERE s.identity IN (SELECT @extschema@.mop_may_want(run, identities)) AND r.function <> 'remote_run'
        AND (s.run_id, s.stage) NOT IN (SELECT n.giver, n.stage FROM given n)
        AND m.version = s.iteration * (r.segments - coalesce(array_length(q.held_out, 1), 0))
        AND @extschema@.mop_may_give(s.run_id, s.stage);
END
$$;

-- A coordinator asks with this for runs of other roles that began before its run, go on with at least its priority, and share
-- what they train: their aliases.
CREATE FUNCTION @extschema@.mop_shared_beside(run bigint, priority integer, token text DEFAULT @extschema@.mop_token())
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN QUERY SELECT g.alias FROM @extschema@.mop_givers(run, @extschema@.mop_caller(token)) g
        JOIN @extschema@.mop_run r ON r.run_id = g.giver
        WHERE r.run_id < run AND r.parameters -> 'settings' ->> 'reuse' = 'true'
        AND CASE WHEN r.parameters -> 'settings' ->> 'priority' ~ '^-?[0-9]{1,3}$'  -- (a member may have written anything)
                 THEN (r.parameters -> 'settings' ->> 'priority')::integer >= priority ELSE false END
        AND @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') = 'running' ORDER BY 1;
END
$$;

-- The stages that these runs (aliases) want and train themselves: the columns of Stages.stages_beside, without the fit
-- parameters of their configurations.
CREATE FUNCTION @extschema@.mop_shared_stages_beside(run bigint, runs bigint[], identities text[],
    token text DEFAULT @extschema@.mop_token())
RETURNS TABLE (identity text, run_id bigint, evaluated boolean, ends boolean, trained boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    RETURN QUERY
        SELECT DISTINCT s.identity, g.alias, s.evaluated, NOT EXISTS (
                   SELECT 1 FROM @extschema@.mop_stage n JOIN @extschema@.mop_request w USING (run_id, stage)
                   WHERE n.run_id = s.run_id AND n.parent = s.stage),
               m.version = s.iteration * (r.segments - coalesce(array_length(c.held_out, 1), 0))
        FROM @extschema@.mop_givers(run, @extschema@.mop_caller(token)) g
        JOIN @extschema@.mop_run r ON r.run_id = g.giver
        JOIN @extschema@.mop_stage s ON s.run_id = g.giver
        JOIN @extschema@.mop_request q ON (q.run_id, q.stage) = (s.run_id, s.stage)
        JOIN @extschema@.mop_configuration c ON (c.run_id, c.mst_key) = (q.run_id, q.mst_key)
        JOIN @extschema@.mop_stage_state m ON (m.run_id, m.stage) = (s.run_id, s.stage)
        WHERE g.alias = ANY (runs) AND s.identity IN (SELECT @extschema@.mop_may_want(run, identities))
        AND s.stage NOT IN (SELECT @extschema@.mop_stages_from_weights(g.giver))
        AND c.error IS NULL AND s.source_run IS NULL;
END
$$;

-- Returns the list of stages that mop_adopt got, with the numbers of the runs whose aliases are in it, and with `shared`:
-- whether the run is another role's. It leaves out what mop_adopt may not take: a run of another role by its number (nobody
-- may lock it), and what that role does not share (any more), or not with a role that sees the rows as they are now.
CREATE FUNCTION @extschema@.mop_reveal(of_run bigint, stages json, caller oid) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own @extschema@.mop_shared_run;
    same boolean := false;
BEGIN
    IF EXISTS (SELECT 1 FROM json_to_recordset(stages) AS a(run bigint) WHERE a.run < 0) THEN
        SELECT s.* INTO own FROM @extschema@.mop_shared_run s WHERE s.run_id = of_run;
        same := own.training_rows = @extschema@.mop_digest_of_rows(caller, own.training) AND (own.validation IS NULL
            OR own.validation_rows = @extschema@.mop_digest_of_rows(caller, own.validation));
    END IF;
    RETURN (
        SELECT coalesce(json_agg(row_to_json(f)), '[]') FROM (
            SELECT a.stage, a.run, a.of, a.state, a.scored, false AS shared
            FROM json_to_recordset(stages) AS a(stage integer, run bigint, "of" integer, state boolean, scored boolean)
            JOIN @extschema@.mop_run theirs ON theirs.run_id = a.run
            JOIN @extschema@.mop_run mine ON mine.run_id = of_run AND mine.owner = theirs.owner
            UNION ALL
            SELECT a.stage, g.giver, a.of, a.state, a.scored, true
            FROM json_to_recordset(stages) AS a(stage integer, run bigint, "of" integer, state boolean, scored boolean)
            JOIN (SELECT h.giver, h.alias, ARRAY(SELECT @extschema@.mop_stages_from_weights(h.giver)) AS private
                  FROM @extschema@.mop_givers(of_run, caller) h OFFSET 0) g ON g.alias = a.run
            WHERE same AND @extschema@.mop_may_give(g.giver, a.of) AND a.of <> ALL (g.private)
            AND a.stage NOT IN (SELECT @extschema@.mop_stages_from_weights(of_run))) f);
END
$$;

-- Notes a stage that mop_adopt has taken over from another role's run: the run keeps the log of its units, and is its own
-- source, so that nothing names the other run. (Who gave what, only superusers see, in mop_taken_stage.) The other run is not
-- locked: if it has been dropped meanwhile, what was copied may be incomplete, and an error undoes the takeover.
CREATE FUNCTION @extschema@.mop_note_taken(of_run bigint, of_stage integer, giver bigint, given integer, caller oid)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE @extschema@.mop_stage s SET source_run = of_run, source_stage = of_stage
    WHERE s.run_id = of_run AND s.stage = of_stage;
    INSERT INTO @extschema@.mop_taken_stage (run_id, stage, of_group, giver, giver_run, giver_stage)
    SELECT of_run, of_stage, @extschema@.mop_group_of(caller), r.owner, giver, given
    FROM @extschema@.mop_run r WHERE r.run_id = giver ON CONFLICT DO NOTHING;
    INSERT INTO @extschema@.mop_taken_unit (run_id, stage, segment, version, kernel, rows, loss, train_seconds, threads, kernels,
        divided_by)
    SELECT of_run, of_stage, u.segment, u.version, u.kernel, u.rows, u.loss, u.train_seconds, u.threads, u.choice -> 'order',
        nullif((u.choice ->> 'devices')::integer, 1)
    FROM @extschema@.mop_stage s JOIN @extschema@.mop_unit u
    ON (u.run_id, u.stage) = (coalesce(s.source_run, s.run_id), coalesce(s.source_stage, s.stage))
    WHERE s.run_id = giver AND s.stage = given AND u.kind = 'train' AND u.status = 'finished' ON CONFLICT DO NOTHING;
    IF NOT @extschema@.mop_may_give(giver, given) THEN
        RAISE EXCEPTION 'a run has just been dropped' USING ERRCODE = 'P0002';
    END IF;
END
$$;

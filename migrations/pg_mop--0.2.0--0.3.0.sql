-- Evaluations become sums that are merged, with several metrics. Runs belong to roles, which OIDs identify instead of names.
--
-- Functions, views and triggers come with the last update script (CONTRIBUTING.md, Releases).

\echo Use "ALTER EXTENSION pg_mop UPDATE" to load this file. \quit

-- The views stay, and with them users' views of them and grants. Without their queries they depend on no table; the last
-- update script gives them their queries again.
DO $do$
DECLARE
    shown record;
BEGIN
    FOR shown IN
        SELECT c.oid::pg_catalog.regclass AS name, pg_catalog.string_agg(pg_catalog.format(
            'NULL::%s AS %I', pg_catalog.format_type(a.atttypid, a.atttypmod), a.attname), ', ' ORDER BY a.attnum)
            AS columns
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relkind = 'v' AND c.relnamespace = '@extschema@'::pg_catalog.regnamespace AND EXISTS (
            SELECT 1 FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
            WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e'
            AND e.extname = 'pg_mop')
        GROUP BY c.oid
    LOOP
        EXECUTE pg_catalog.format('CREATE OR REPLACE VIEW %s AS SELECT %s WHERE false', shown.name, shown.columns);
    END LOOP;
END
$do$;

-- tables

CREATE TABLE @extschema@.mop_secret (secret bytea NOT NULL);
INSERT INTO @extschema@.mop_secret
SELECT pg_catalog.sha256(pg_catalog.decode(pg_catalog.replace(pg_catalog.concat(pg_catalog.gen_random_uuid(),
    pg_catalog.gen_random_uuid(), pg_catalog.gen_random_uuid()), '-', ''), 'hex'));
ALTER TABLE @extschema@.mop_secret ENABLE ROW LEVEL SECURITY;

CREATE TABLE @extschema@.mop_owner (
    owner serial PRIMARY KEY,
    role name NOT NULL,                 -- its name at its first run; shown after the role was dropped
    who regrole NOT NULL                -- 0: a dropped role
);
CREATE UNIQUE INDEX mop_owner_who ON @extschema@.mop_owner (who) WHERE who::oid OPERATOR(pg_catalog.<>) 0::oid;

-- runs of dropped roles belong to no role: reusing a dropped role's name grants nothing
INSERT INTO @extschema@.mop_owner (role, who)
SELECT r.owner, coalesce(pg_catalog.to_regrole(pg_catalog.quote_ident(r.owner)), 0::regrole)
FROM @extschema@.mop_run r GROUP BY r.owner ORDER BY min(r.run_id);
DELETE FROM @extschema@.mop_output o
WHERE NOT EXISTS (SELECT 1 FROM @extschema@.mop_run r WHERE r.run_id = o.run_id AND r.owner = o.owner);
ALTER TABLE @extschema@.mop_output DROP CONSTRAINT mop_output_pkey, DROP COLUMN owner, ADD PRIMARY KEY (run_id);
CREATE FUNCTION @extschema@.mop_owner_number(name) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT o.owner FROM @extschema@.mop_owner o WHERE o.role OPERATOR(pg_catalog.=) $1
$$;
DROP POLICY own_runs ON @extschema@.mop_run;
ALTER TABLE @extschema@.mop_run ALTER COLUMN owner DROP DEFAULT,
    ALTER COLUMN owner TYPE integer USING @extschema@.mop_owner_number(owner),
    ADD FOREIGN KEY (owner) REFERENCES @extschema@.mop_owner;
DROP FUNCTION @extschema@.mop_owner_number(name);
ALTER TABLE @extschema@.mop_owner ENABLE ROW LEVEL SECURITY;
CREATE POLICY oneself ON @extschema@.mop_owner FOR SELECT
    USING (who OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(current_user)));
CREATE POLICY own_runs ON @extschema@.mop_run FOR SELECT
    USING (owner OPERATOR(pg_catalog.=) (SELECT o.owner FROM @extschema@.mop_owner o
        WHERE o.who OPERATOR(pg_catalog.=) pg_catalog.to_regrole(pg_catalog.quote_ident(current_user))));

ALTER TABLE @extschema@.mop_limit ADD COLUMN who regrole;
ALTER TABLE @extschema@.mop_limit REPLICA IDENTITY FULL; -- for publications of all tables
UPDATE @extschema@.mop_limit SET who = coalesce(pg_catalog.to_regrole(pg_catalog.quote_ident(role)), 0::regrole)
WHERE role IS NOT NULL;

-- A dump contains names instead of these tables' OIDs: pg_dump appends this text to its SELECT ... FROM the table.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_owner', $$WHERE false UNION ALL
    SELECT o.owner, coalesce(a.rolname, o.role), CASE WHEN a.oid IS NULL THEN 0::regrole END
    FROM @extschema@.mop_owner o LEFT JOIN pg_catalog.pg_roles a ON a.oid = o.who$$);
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_owner_owner_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_limit', $$WHERE false UNION ALL
    SELECT coalesce(a.rolname, l.role), l.sessions, l.threads, l.trainer_memory_mb, l.max_model_mb, NULL::regrole
    FROM @extschema@.mop_limit l LEFT JOIN pg_catalog.pg_roles a ON a.oid = l.who
    WHERE l.role IS NULL OR l.who = 0::oid OR a.oid IS NOT NULL$$);

CREATE TABLE @extschema@.mop_metric (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    loss double precision NOT NULL,
    metric double precision,
    metrics json NOT NULL,
    PRIMARY KEY (run_id, mst_key, iteration, dataset),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);
CREATE TABLE @extschema@.mop_partial (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    dataset text NOT NULL,
    segment integer NOT NULL,
    sums double precision[] NOT NULL,
    PRIMARY KEY (run_id, mst_key, iteration, dataset, segment)
);
ALTER TABLE @extschema@.mop_metric ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_metric FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_metric', '');

-- Complete evaluations become means over the segments' rows. Incomplete ones have no sums, so their units are repeated.
CREATE TEMPORARY TABLE mop_evaluated ON COMMIT DROP AS
SELECT u.run_id, r.averaging, CASE WHEN r.averaging THEN 1 ELSE u.mst_key END AS mst_key, u.iteration, u.dataset,
       sum(u.loss * u.rows) / sum(u.rows) AS loss, sum(u.metric * u.rows) / sum(u.rows) AS metric,
       count(*) = (SELECT count(*) FROM @extschema@.mop_segment s WHERE s.run_id = u.run_id AND s.dataset = u.dataset)
           AS whole
FROM @extschema@.mop_unit u JOIN (
    SELECT run_id, function = 'madlib_keras_fit'
           AND coalesce(parameters #>> '{settings,fit_strategy}' = 'averaging', false) AS averaging
    FROM @extschema@.mop_run) AS r USING (run_id)
WHERE u.kind = 'evaluate' AND u.status = 'finished' AND u.rows > 0 GROUP BY 1, 2, 3, 4, 5;
INSERT INTO @extschema@.mop_metric
SELECT e.run_id, e.mst_key, e.iteration, e.dataset, e.loss, e.metric, CASE WHEN e.metric IS NULL THEN '{}'
       ELSE pg_catalog.json_build_object(pg_catalog.substring(
           c.compile_params, 'metrics *= *[[(]? *[''"]?([A-Za-z0-9_]+)'), e.metric) END
FROM mop_evaluated e JOIN @extschema@.mop_configuration c USING (run_id, mst_key) WHERE e.whole;
UPDATE @extschema@.mop_unit u SET status = 'cancelled' FROM mop_evaluated e
WHERE NOT e.whole AND u.kind = 'evaluate' AND u.status = 'finished' AND (e.averaging OR u.mst_key = e.mst_key)
    AND (u.run_id, u.iteration, u.dataset) = (e.run_id, e.iteration, e.dataset);
DROP TABLE mop_evaluated;

-- Functions of 0.2.0 without a successor, or with another result. (An update from 0.1.0 has none of them.)

DROP FUNCTION IF EXISTS @extschema@.mop_caller(), @extschema@.mop_own(bigint, integer, boolean), @extschema@.mop_limits(),
    @extschema@.mop_open_run(json, json, json), @extschema@.mop_reopen_run(bigint, integer),
    @extschema@.mop_close_run(bigint, integer, text, text), @extschema@.mop_note_output(bigint),
    @extschema@.mop_housekeeping(), @extschema@.mop_drop_as_caller(bigint, boolean),
    @extschema@.mop_set_sessions_as_caller(bigint, integer),
    @extschema@.mop_begin_unit(bigint, integer, integer, integer, integer, text, text, integer, double precision),
    @extschema@.mop_fail_unit(bigint, integer, integer, integer, integer, text, text, integer, double precision, text),
    @extschema@.mop_finish_unit(bigint, integer, integer, integer, text, text, integer, integer, integer, bigint,
        boolean, text, bigint, double precision, double precision, double precision, double precision,
        double precision, integer, text),
    @extschema@.mop_fail_configuration(bigint, integer, integer, text, text),
    @extschema@.mop_new_generation(bigint, integer), @extschema@.mop_drop_generations(bigint, integer[]),
    @extschema@.mop_move_states(bigint, integer[], integer), @extschema@.mop_put_weights(bigint, integer, bytea),
    @extschema@.mop_take_model(bigint, integer, integer, integer, boolean),
    @extschema@.mop_read_state(bigint, integer, integer),
    @extschema@.mop_put_state(bigint, integer, integer, integer, integer, bytea),
    @extschema@.mop_has_output(bigint), @extschema@.mop_may_see(name);

-- The catalog: runs, their configurations, segments, units and model states, and the views that people read.
--
-- The tables are written by the sessions of a run, which are the caller's: row security keeps every role to its
-- own runs. The views show a role its own runs and those of the roles that it is a member of.

\echo Use "CREATE EXTENSION pg_mop" to load this file. \quit

DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'pg_mop needs a database of encoding UTF8, not %', pg_catalog.getdatabaseencoding();
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = 'mop_user') THEN
        CREATE ROLE mop_user NOLOGIN;
    END IF;
END
$$;

CREATE TABLE @extschema@.mop_run (
    run_id bigserial PRIMARY KEY,
    owner name NOT NULL DEFAULT current_user,
    status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'finished', 'failed', 'cancelled')),
    function text NOT NULL,
    source_table text NOT NULL,
    validation_table text,
    model_output_table text NOT NULL,
    seed bigint NOT NULL,
    scheduler text NOT NULL,
    num_iterations integer NOT NULL,
    metrics_iterations integer[] NOT NULL,
    configurations integer NOT NULL,
    segments integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    error text,
    parameters json NOT NULL,           -- the call's arguments and the settings in force
    coordinator_pid integer NOT NULL,   -- the backend that runs it, and since when that backend lives
    coordinator_start timestamptz,
    output_written boolean NOT NULL DEFAULT false -- set in the caller's transaction: seen once that has committed
);

CREATE TABLE @extschema@.mop_configuration (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    model_id integer NOT NULL,
    compile_params text NOT NULL,
    fit_params text,
    model_arch text NOT NULL,
    version integer NOT NULL DEFAULT 0, -- of the model state = units trained; 0: the start, drawn from the seed
    error text,                         -- why it failed, if it did
    PRIMARY KEY (run_id, mst_key)
);

CREATE TABLE @extschema@.mop_segment (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    segment integer NOT NULL,
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    fingerprint text NOT NULL,          -- of the packed rows' versions: tells that nobody has written to them
    PRIMARY KEY (run_id, dataset, segment)
);

CREATE TABLE @extschema@.mop_unit (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    segment integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('train', 'evaluate')),
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    attempt integer NOT NULL,
    status text NOT NULL CHECK (status IN ('running', 'finished', 'failed', 'cancelled')),
    version integer,                    -- train: the version of the model state that it made
    backend_pid integer,
    kernel text,
    rows bigint,
    loss double precision,
    metric double precision,
    queued_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    read_seconds double precision,      -- the model state and, where they were sent, the rows
    train_seconds double precision,     -- the trainer at work
    write_seconds double precision,     -- the new model state
    error text,
    compilations integer,               -- steps and loops that the trainer compiled for this unit
    choice json,                        -- what the choice of its kernel knew: kernels/choice.py
    PRIMARY KEY (run_id, mst_key, iteration, kind, dataset, segment, attempt),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);
-- a unit is done once
CREATE UNIQUE INDEX mop_unit_once ON @extschema@.mop_unit (run_id, mst_key, iteration, kind, dataset, segment)
    WHERE status = 'finished';

CREATE TABLE @extschema@.mop_state (
    run_id bigint NOT NULL,
    mst_key integer NOT NULL,
    version integer NOT NULL,
    part integer NOT NULL,              -- a state above 256 MB takes several rows
    data bytea NOT NULL,
    PRIMARY KEY (run_id, mst_key, version, part),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);
ALTER TABLE @extschema@.mop_state ALTER COLUMN data SET STORAGE EXTERNAL; -- floats do not compress
ALTER TABLE @extschema@.mop_state SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000);

ALTER TABLE @extschema@.mop_run ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_run USING (owner = current_user) WITH CHECK (owner = current_user);
ALTER TABLE @extschema@.mop_configuration ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_configuration USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_segment ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_segment USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_unit ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_unit USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
ALTER TABLE @extschema@.mop_state ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_state USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));

SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_run_run_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_configuration', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_segment', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_unit', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_state', '');

-- a role sees its own runs and those of the roles it is a member of; a superuser also those of roles that are gone
CREATE FUNCTION @extschema@.mop_may_see(owner name) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT pg_catalog.pg_has_role(r.oid, 'MEMBER') FROM pg_catalog.pg_roles r
                     WHERE r.rolname OPERATOR(pg_catalog.=) $1),
                    (SELECT r.rolsuper FROM pg_catalog.pg_roles r
                     WHERE r.rolname OPERATOR(pg_catalog.=) current_user))
$$;

-- what a run's or unit's status is in truth: nobody can note it when the calling session is killed
CREATE FUNCTION @extschema@.mop_status(status text, coordinator_pid integer, coordinator_start timestamptz, gone text)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN $1 OPERATOR(pg_catalog.=) 'running' AND NOT EXISTS (
                    SELECT 1 FROM pg_catalog.pg_stat_activity a WHERE a.pid OPERATOR(pg_catalog.=) $2
                    -- a role sees since when its own sessions live
                    AND coalesce(a.backend_start, $3) OPERATOR(pg_catalog.=) $3) THEN $4 ELSE $1 END
$$;

CREATE VIEW @extschema@.mop_runs WITH (security_barrier) AS
SELECT run_id, owner, @extschema@.mop_status(status, coordinator_pid, coordinator_start, 'failed') AS status, function,
       source_table, model_output_table, seed, scheduler, num_iterations, configurations, segments, started_at,
       finished_at, error, validation_table
FROM @extschema@.mop_run
WHERE @extschema@.mop_may_see(owner);

CREATE VIEW @extschema@.mop_units WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration, u.segment, u.kind, u.attempt,
       @extschema@.mop_status(u.status, r.coordinator_pid, r.coordinator_start, 'cancelled') AS status, u.backend_pid, u.kernel, u.rows,
       u.loss, u.queued_at, u.started_at, u.finished_at, u.read_seconds, u.train_seconds, u.write_seconds, u.error,
       u.dataset, u.metric, u.compilations
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE @extschema@.mop_may_see(r.owner);

-- which kernel trained a unit, and the times by which it was chosen (seconds; of a batch, and to compile)
CREATE VIEW @extschema@.mop_kernel_choices WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration, u.segment, u.kernel, u.compilations,
       (u.choice -> 'batch_seconds' ->> 'plain')::double precision AS plain_seconds,
       (u.choice -> 'batch_seconds' ->> 'loop')::double precision AS loop_seconds,
       (u.choice -> 'batch_seconds' ->> 'xla')::double precision AS xla_seconds,
       (u.choice -> 'compile_seconds' ->> 'plain')::double precision AS plain_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'loop')::double precision AS loop_compile_seconds,
       (u.choice -> 'compile_seconds' ->> 'xla')::double precision AS xla_compile_seconds,
       u.choice ->> 'forced' AS forced, u.choice -> 'refused' AS refused
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE u.kind = 'train' AND u.status = 'finished' AND @extschema@.mop_may_see(r.owner);

CREATE VIEW @extschema@.mop_visit_order WITH (security_barrier) AS
SELECT u.run_id, u.mst_key, u.iteration,
       (row_number() OVER (PARTITION BY u.run_id, u.mst_key, u.iteration ORDER BY u.version))::integer AS position,
       u.segment
FROM @extschema@.mop_unit u JOIN @extschema@.mop_run r USING (run_id)
WHERE u.kind = 'train' AND u.status = 'finished' AND @extschema@.mop_may_see(r.owner);

-- one row for each configuration; the seconds are the whole run's
CREATE VIEW @extschema@.mop_progress WITH (security_barrier) AS
WITH work AS (
    SELECT c.run_id, c.mst_key, c.error,
           r.num_iterations * (SELECT count(*) FROM @extschema@.mop_segment s
                               WHERE s.run_id = c.run_id AND s.dataset = 'training')
           + cardinality(r.metrics_iterations) * (SELECT count(*) FROM @extschema@.mop_segment s
                                                  WHERE s.run_id = c.run_id) AS units_total,
           u.units_done, u.units_running, u.iteration, u.last_loss
    FROM @extschema@.mop_configuration c
    JOIN @extschema@.mop_run r USING (run_id)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE status = 'finished') AS units_done,
               count(*) FILTER (WHERE status = 'running') AS units_running,
               max(iteration) AS iteration,
               (array_agg(loss ORDER BY version DESC)
                FILTER (WHERE kind = 'train' AND status = 'finished'))[1] AS last_loss
        FROM @extschema@.mop_unit WHERE run_id = c.run_id AND mst_key = c.mst_key) u
), whole AS (
    SELECT run_id, sum(units_done) AS done,
           sum(CASE WHEN error IS NULL THEN units_total - units_done ELSE 0 END) AS left
    FROM work GROUP BY run_id
)
SELECT w.run_id, w.units_done, w.units_total,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::double precision
           AS seconds_elapsed,
       CASE WHEN s.status <> 'running' THEN 0
            WHEN whole.done = 0 THEN NULL
            ELSE extract(epoch FROM clock_timestamp() - r.started_at) * whole.left / whole.done
       END::double precision AS seconds_left,
       w.mst_key, w.iteration, w.last_loss,
       CASE WHEN w.error IS NOT NULL THEN 'failed'
            WHEN w.units_done = w.units_total THEN 'finished'
            WHEN s.status <> 'running' THEN s.status
            WHEN w.units_running > 0 THEN 'running'
            ELSE 'waiting' END AS status
FROM work w JOIN whole USING (run_id) JOIN @extschema@.mop_run r USING (run_id)
     CROSS JOIN LATERAL @extschema@.mop_status(r.status, r.coordinator_pid, r.coordinator_start, 'failed') AS s(status)
WHERE @extschema@.mop_may_see(r.owner);
-- What worker sessions run. Users have no reason to call these.

CREATE FUNCTION @extschema@.mop_transition(state bigint, epoch integer, buffer integer, columns bytea[], shapes text[])
RETURNS bigint LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import aggregate
return aggregate.transition(plpy, GD, state, epoch, buffer, columns, shapes)
$$;

CREATE FUNCTION @extschema@.mop_final(state bigint) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import aggregate
return aggregate.final(plpy, GD, state)
$$;

-- trains (or evaluates) the current unit's model on the rows it is given; the report as JSON
CREATE AGGREGATE @extschema@.mop_sub_epoch(epoch integer, buffer integer, columns bytea[], shapes text[]) (
    SFUNC = @extschema@.mop_transition, STYPE = bigint, INITCOND = '0', FINALFUNC = @extschema@.mop_final
);

CREATE FUNCTION @extschema@.mop_start_trainer(options text) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import unit
unit.start_trainer(plpy, GD, options)
$$;

CREATE FUNCTION @extschema@.mop_run_unit(unit text) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import unit as work
work.run_unit(plpy, GD, unit)
$$;

-- No handler: servers of it only hold where worker sessions connect to, and user mappings as whom.
CREATE FOREIGN DATA WRAPPER pg_mop NO HANDLER NO VALIDATOR;
-- Packing training and validation data into buffers (contract: preprocessors).

CREATE FUNCTION @extschema@.training_preprocessor_dl(
    source_table varchar,
    output_table varchar,
    dependent_varname varchar,
    independent_varname varchar,
    buffer_size integer DEFAULT NULL,
    normalizing_const real DEFAULT 1.0,
    num_classes integer[] DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    dependent_dtype text DEFAULT 'int16'
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import preprocess
preprocess.training_preprocessor_dl(plpy, *args)
$$;

CREATE FUNCTION @extschema@.validation_preprocessor_dl(
    source_table varchar,
    output_table varchar,
    dependent_varname varchar,
    independent_varname varchar,
    training_preprocessor_table varchar,
    buffer_size integer DEFAULT NULL,
    distribution_rules text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import preprocess
preprocess.validation_preprocessor_dl(plpy, *args)
$$;

-- the bytes of buffers, for people who look into them

CREATE FUNCTION @extschema@.convert_array_to_bytea(var real[])
RETURNS bytea LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_array_to_bytea(plpy, var, 'real')
$$;

CREATE FUNCTION @extschema@.convert_array_to_bytea(var smallint[])
RETURNS bytea LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_array_to_bytea(plpy, var, 'smallint')
$$;

CREATE FUNCTION @extschema@.convert_bytea_to_real_array(var bytea)
RETURNS real[] LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_bytea_to_array(plpy, var, 'real')
$$;

CREATE FUNCTION @extschema@.convert_bytea_to_smallint_array(var bytea)
RETURNS smallint[] LANGUAGE plpython3u IMMUTABLE STRICT AS $$
#python
from pg_mop.api.madlib import preprocess
return preprocess.convert_bytea_to_array(plpy, var, 'smallint')
$$;

CREATE AGGREGATE @extschema@.agg_array_concat(real[]) (
    SFUNC = pg_catalog.array_cat,
    STYPE = real[]
);

CREATE AGGREGATE @extschema@.agg_array_concat(smallint[]) (
    SFUNC = pg_catalog.array_cat,
    STYPE = smallint[]
);
CREATE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar,
    model_arch json,
    model_weights bytea DEFAULT NULL,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import architectures
architectures.load_keras_model(plpy, *args)
$$;

CREATE FUNCTION @extschema@.delete_keras_model(keras_model_arch_table varchar, model_id integer)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import architectures
architectures.delete_keras_model(plpy, *args)
$$;
-- Custom losses and metrics: for superusers, as they run code.

CREATE FUNCTION @extschema@.load_custom_function(
    object_table varchar,
    object bytea,
    name text,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.load_custom_function(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.delete_custom_function(object_table varchar, id integer)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.delete_custom_function(plpy, *args)
$$;

CREATE FUNCTION @extschema@.delete_custom_function(object_table varchar, name text)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.delete_custom_function(plpy, *args)
$$;

CREATE FUNCTION @extschema@.load_top_k_accuracy_function(object_table varchar, k integer)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import objects
objects.load_top_k_accuracy_function(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.top_k_categorical_acc_pickled(n integer, fn_name varchar)
RETURNS bytea LANGUAGE plpython3u VOLATILE STRICT AS $$
#python
from pg_mop.api.madlib import objects
return objects.top_k_categorical_acc_pickled(GD, *args)
$$;
CREATE FUNCTION @extschema@.load_model_selection_table(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list integer[],
    compile_params_list varchar[],
    fit_params_list varchar[],
    object_table varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import configurations
configurations.load_model_selection_table(plpy, *args)
$$;

CREATE FUNCTION @extschema@.generate_model_configs(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list integer[],
    compile_params_grid varchar,
    fit_params_grid varchar,
    search_type varchar DEFAULT 'grid',
    num_configs integer DEFAULT NULL,
    random_state integer DEFAULT NULL,
    object_table varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import configurations
configurations.generate_model_configs(plpy, *args)
$$;
CREATE FUNCTION @extschema@.madlib_keras_fit_multiple_model(
    source_table varchar,
    model_output_table varchar,
    model_selection_table varchar,
    num_iterations integer,
    use_gpus boolean,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start boolean DEFAULT FALSE,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    use_caching boolean DEFAULT FALSE
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import fit_multiple
fit_multiple.madlib_keras_fit_multiple_model(plpy, *args)
$$;
-- Training of one model (contract: madlib_keras_fit).

CREATE FUNCTION @extschema@.madlib_keras_fit(
    source_table varchar,
    model varchar,
    model_arch_table varchar,
    model_id integer,
    compile_params varchar,
    fit_params varchar,
    num_iterations integer,
    use_gpus boolean DEFAULT FALSE,
    validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL,
    warm_start boolean DEFAULT NULL,
    name varchar DEFAULT NULL,
    description varchar DEFAULT NULL,
    object_table varchar DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import fit
fit.madlib_keras_fit(plpy, *args)
$$;
CREATE FUNCTION @extschema@.madlib_keras_evaluate(
    model_table varchar,
    test_table varchar,
    output_table varchar,
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import evaluate
evaluate.madlib_keras_evaluate(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT FALSE,
    mst_key integer DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict_byom(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict_byom(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT FALSE,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import predict
predict.madlib_keras_predict_byom(plpy, GD, *args)
$$;
-- Models out of the database and into it; the GPUs of the server.

CREATE FUNCTION @extschema@.mop_export_model(model_table varchar, mst_key integer)
RETURNS bytea LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import files
return files.mop_export_model(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.mop_import_model(
    keras_model_arch_table varchar,
    model bytea,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS integer LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.madlib import files
return files.mop_import_model(plpy, GD, *args)
$$;

CREATE FUNCTION @extschema@.gpu_configuration(output_table text, source text)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import gpus
gpus.gpu_configuration(plpy, GD, *args)
$$;

-- with one argument, the table; or a word that asks for help
CREATE FUNCTION @extschema@.gpu_configuration(output_table text DEFAULT '')
RETURNS varchar LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.runs import gpus
from pg_mop.api.common import help
words = ('', 'usage', 'help', '?', 'example', 'examples')
if (args[0] if args[0] is not None else 'NULL').strip().lower() in words:
    return help.answer(plpy, 'gpu_configuration', args[0])
gpus.gpu_configuration(plpy, GD, args[0], None)
$$;
-- Every function explains itself: f(), f('usage'), f('example').

DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['training_preprocessor_dl', 'validation_preprocessor_dl', 'load_keras_model',
        'delete_keras_model', 'load_custom_function', 'delete_custom_function', 'load_top_k_accuracy_function',
        'load_model_selection_table', 'generate_model_configs', 'madlib_keras_fit_multiple_model', 'madlib_keras_fit',
        'madlib_keras_evaluate', 'madlib_keras_predict', 'madlib_keras_predict_byom', 'mop_export_model',
        'mop_import_model']
    LOOP
        EXECUTE pg_catalog.format($create$
CREATE FUNCTION @extschema@.%I(message varchar DEFAULT '')
RETURNS varchar LANGUAGE plpython3u VOLATILE AS $body$
#python
from pg_mop.api.common import help
return help.answer(plpy, '%s', message)
$body$
$create$, name, name);
    END LOOP;
END
$do$;
-- (PostgreSQL reserves role names that begin with pg_.) GRANT mop_user TO analyst; is all that a user needs besides rights on his own tables.
GRANT USAGE ON SCHEMA @extschema@ TO mop_user;

DO $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT p.oid::pg_catalog.regprocedure AS name
        FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_mop'
        JOIN pg_catalog.pg_proc p ON p.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.deptype = 'e'
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', member.name);
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO mop_user', member.name);
    END LOOP;
END
$$;

GRANT SELECT ON @extschema@.mop_runs, @extschema@.mop_progress, @extschema@.mop_units, @extschema@.mop_visit_order,
    @extschema@.mop_kernel_choices
    TO mop_user;
GRANT SELECT, INSERT, UPDATE, DELETE ON @extschema@.mop_configuration, @extschema@.mop_segment, @extschema@.mop_unit,
    @extschema@.mop_state TO mop_user;
-- run_id comes from the sequence, so that nobody takes the number of another's run
GRANT SELECT, DELETE, INSERT (function, source_table, validation_table, model_output_table, seed, scheduler,
    num_iterations, metrics_iterations, configurations, segments, parameters, coordinator_pid, coordinator_start),
    UPDATE (status, error, finished_at, output_written) ON @extschema@.mop_run TO mop_user;
GRANT USAGE ON SEQUENCE @extschema@.mop_run_run_id_seq TO mop_user;

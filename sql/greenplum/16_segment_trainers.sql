-- Segment trainers: how a unit works with a trainer on a segment.

-- Returns the next statement of a unit (pg_mop/run/unit.py), given the answer to the one before. PL/pgSQL runs the
-- statements, since SPI of PL/Python would begin a subtransaction on all segments for each.
CREATE FUNCTION @extschema@.mop_next_statement(unit text, answer text) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.run import unit as work
return work.next_statement(plpy, unit, answer)
$$;

-- A worker session runs a unit or a chain of units with this, in one transaction.
CREATE OR REPLACE FUNCTION @extschema@.mop_run_unit(unit text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    statement text := @extschema@.mop_next_statement(unit, NULL);
    answer record;
    rows integer;
BEGIN
    WHILE statement IS NOT NULL LOOP
        EXECUTE statement INTO answer;
        GET DIAGNOSTICS rows = ROW_COUNT;
        statement := @extschema@.mop_next_statement(NULL, CASE WHEN rows > 0 THEN row_to_json(answer)::text END);
    END LOOP;
END
$$;

-- mop_start_trainer and units call the following functions over a row of mop_host_segment: they run in the session's
-- process that has the trainer (pg_mop/backend/trainers.py). Only mop_give_objects may call mop_at_objects, since it
-- checks that the functions are a superuser's, and only mop_share_host may call mop_at_host.

-- mop_share_host calls this: the process uses the fork server in this data directory.
CREATE FUNCTION @extschema@.mop_at_host(directory text) RETURNS boolean LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf.pool import server_folder
server_folder.share(directory)
return True
$$;

-- A worker session starts its segment trainer with this.
CREATE FUNCTION @extschema@.mop_at_start(options text, look_again boolean)
RETURNS text LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_start(plpy, *args) $$;

-- A worker session gives its trainer back with this, before its next unit is on another segment.
CREATE FUNCTION @extschema@.mop_at_leave() RETURNS integer
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_leave(plpy) $$;

-- A chain asks with this whether the trainer holds, or can keep, the rows of its segments.
CREATE FUNCTION @extschema@.mop_at_keep(segments text) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_keep(plpy, segments) $$;

-- mop_give_objects calls this: the process keeps custom functions for the next unit.
CREATE FUNCTION @extschema@.mop_at_objects(names text[], pickles bytea[]) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_objects(plpy, names, pickles) $$;

-- mop_pool reads the pool of a host with this: a row of it is a JSON array.
CREATE FUNCTION @extschema@.mop_at_pool() RETURNS SETOF text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.trainers.mop_at_pool(plpy) $$;

-- mop_end_trainers ends the idle trainers in the pool of a host with this.
CREATE FUNCTION @extschema@.mop_at_end_trainers() RETURNS integer
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.trainers.mop_at_end_trainers(plpy) $$;

-- A unit sends its specification to the trainer with this.
CREATE FUNCTION @extschema@.mop_at_begin(unit text) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_begin(plpy, unit) $$;

-- A unit sends one part of a state to the trainer with this.
CREATE FUNCTION @extschema@.mop_at_state(stage integer, part bytea) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_state(plpy, stage, part) $$;

-- A unit sends parts of several states to the trainer with this.
CREATE FUNCTION @extschema@.mop_at_states(stages integer[], parts bytea[]) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_states(plpy, stages, parts) $$;

-- A unit waits for the trainer's report with this.
CREATE FUNCTION @extschema@.mop_at_end() RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python mop_udf.aggregate.final(plpy, None) $$;

-- A unit gets the loss and metrics of summed evaluations from the trainer with this.
CREATE FUNCTION @extschema@.mop_at_score(number integer, sums double precision[]) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_score(plpy, number, sums) $$;

-- Returns a value as text that reproduces it exactly. (The processes of a later statement do not have the session's SET
-- values.)
CREATE FUNCTION @extschema@.mop_exact_text(value anyelement) RETURNS text LANGUAGE plpgsql STABLE
SET extra_float_digits = 3 AS $$
BEGIN
    RETURN value::text;
END
$$;

-- madlib_keras_predict sends rows to this (pg_mop/inference/at_segments.py).
CREATE FUNCTION @extschema@.mop_at_predict(step integer, told text, weights bytea, row_id text, inputs bytea[],
    OUT id text, OUT class_name text, OUT class_value text, OUT prob double precision, OUT rank integer)
RETURNS SETOF record LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.inference.at_segments.predict(plpy, *args) $$;

-- A unit reads the parts of a new state from the trainer with this.
CREATE FUNCTION @extschema@.mop_at_save(number integer, OUT part integer, OUT data bytea) RETURNS SETOF record
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.backend.trainers.at_save(plpy, number) $$;

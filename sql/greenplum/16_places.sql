-- What a unit is on Greenplum: statements that pg_mop/run/unit.py gives one after the other, each with the answer to
-- the one before. (SPI of PL/Python begins a subtransaction for each, on all segments.)
CREATE FUNCTION @extschema@.mop_next_statement(unit text, answer text) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.run import unit as work
return work.next_statement(plpy, unit, answer)
$$;

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

-- What mop_start_trainer and a unit call at a place, in the process of the session that has the trainer:
-- pg_mop/backend/trainers.py. (mop_at_objects is for mop_give_objects alone, which knows that they are a superuser's,
-- and mop_at_host for mop_share_host.)

CREATE FUNCTION @extschema@.mop_at_host(directory text) RETURNS boolean LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import server_folder
server_folder.share(directory)
return True
$$;

CREATE FUNCTION @extschema@.mop_at_start(options text, look_again boolean)
RETURNS boolean LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import trainers
return trainers.at_start(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_at_objects(names text[], pickles bytea[]) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import trainers
return trainers.at_objects(plpy, names, pickles)
$$;

CREATE FUNCTION @extschema@.mop_at_begin(unit text) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import trainers
return trainers.at_begin(plpy, unit)
$$;

CREATE FUNCTION @extschema@.mop_at_state(stage integer, part bytea) RETURNS boolean LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import trainers
return trainers.at_state(plpy, stage, part)
$$;

CREATE FUNCTION @extschema@.mop_at_states(stages integer[], parts bytea[]) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import trainers
return trainers.at_states(plpy, stages, parts)
$$;

CREATE FUNCTION @extschema@.mop_at_end() RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import aggregate
return aggregate.final(plpy, None)
$$;

CREATE FUNCTION @extschema@.mop_at_score(number integer, sums double precision[]) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import trainers
return trainers.at_score(plpy, number, sums)
$$;

-- a value as text that gives it again (processes that come with a statement do not know what has been set before)
CREATE FUNCTION @extschema@.mop_exact_text(value anyelement) RETURNS text LANGUAGE plpgsql STABLE
SET extra_float_digits = 3 AS $$
BEGIN
    RETURN value::text;
END
$$;

-- what madlib_keras_predict gives the rows to: pg_mop/inference/at_segments.py
CREATE FUNCTION @extschema@.mop_at_predict(step integer, told text, weights bytea, row_id text, inputs bytea[],
    OUT id text, OUT class_name text, OUT class_value text, OUT prob double precision, OUT rank integer)
RETURNS SETOF record LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.inference import at_segments
return at_segments.predict(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_at_save(number integer, OUT part integer, OUT data bytea) RETURNS SETOF record
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.backend import trainers
return trainers.at_save(plpy, number)
$$;

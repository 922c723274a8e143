-- What mop_start_trainer and mop_run_unit call at a place, in the process of the session that has the trainer:
-- pg_mop/execute/trainers.py. (mop_at_objects is for mop_give_objects alone, which knows that they are a superuser's.)

CREATE FUNCTION @extschema@.mop_at_start(options text, look_again boolean)
RETURNS boolean LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import trainers
return trainers.at_start(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_at_room(options text, dataset text, nbytes bigint, keep text)
RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import trainers
return trainers.at_room(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_at_objects(names text[], pickles bytea[]) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import trainers
return trainers.at_objects(plpy, names, pickles)
$$;

CREATE FUNCTION @extschema@.mop_at_begin(unit text) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import trainers
return trainers.at_begin(plpy, unit)
$$;

CREATE FUNCTION @extschema@.mop_at_state(stage integer, part bytea) RETURNS boolean LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import trainers
return trainers.at_state(plpy, stage, part)
$$;

CREATE FUNCTION @extschema@.mop_at_states(stages integer[], parts bytea[]) RETURNS boolean
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import trainers
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
from pg_mop.execute import trainers
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
from pg_mop.execute import trainers
return trainers.at_save(plpy, number)
$$;

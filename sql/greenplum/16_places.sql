-- What mop_start_trainer and mop_run_unit call at a place, in the process of the session that has the trainer:
-- pg_mop/execute/trainers.py. (mop_at_start is for mop_start_at alone, which knows the limits, and mop_at_objects for
-- mop_give_objects, which knows that they are a superuser's.)

CREATE FUNCTION @extschema@.mop_at_start(options text, limits text, look_again boolean)
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

CREATE FUNCTION @extschema@.mop_at_save(number integer, OUT part integer, OUT data bytea) RETURNS SETOF record
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.execute import trainers
return trainers.at_save(plpy, number)
$$;

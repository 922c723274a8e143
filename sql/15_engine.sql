-- What worker sessions run. Users have no reason to call these.

CREATE FUNCTION @extschema@.mop_transition(state bigint, epoch integer, buffer integer, columns bytea[], shapes text[])
RETURNS bigint LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import aggregate
return aggregate.transition(plpy, state, epoch, buffer, columns, shapes)
$$;

CREATE FUNCTION @extschema@.mop_final(state bigint) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from mop_udf import aggregate
return aggregate.final(plpy, state)
$$;

-- trains (or evaluates) the current unit's model on the rows it is given; the report as JSON
CREATE AGGREGATE @extschema@.mop_sub_epoch(epoch integer, buffer integer, columns bytea[], shapes text[]) (
    SFUNC = @extschema@.mop_transition, STYPE = bigint, INITCOND = '0', FINALFUNC = @extschema@.mop_final
);

CREATE FUNCTION @extschema@.mop_start_trainer(options text) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.run import unit
unit.start_trainer(plpy, options)
$$;

CREATE FUNCTION @extschema@.mop_run_unit(unit text) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.run import unit as work
work.run_unit(plpy, unit)
$$;

-- Functions that worker sessions call to run units. Users have no reason to call them.

-- The aggregate's transition function: it sends one packed buffer to the trainer.
CREATE FUNCTION @extschema@.mop_transition(state bigint, epoch integer, buffer integer, columns bytea[], shapes text[])
RETURNS bigint
LANGUAGE plpython3u VOLATILE AS $$ #python mop_udf.aggregate.transition(plpy, state, epoch, buffer, columns, shapes) $$;

-- The aggregate's final function: it waits for the trainer's report.
CREATE FUNCTION @extschema@.mop_final(state bigint) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python mop_udf.aggregate.final(plpy, state) $$;

-- Trains or evaluates the current unit's model on its input rows, and returns the trainer's report as JSON.
CREATE AGGREGATE @extschema@.mop_sub_epoch(epoch integer, buffer integer, columns bytea[], shapes text[]) (
    SFUNC = @extschema@.mop_transition, STYPE = bigint, INITCOND = '0', FINALFUNC = @extschema@.mop_final
);

-- A worker session leases or starts its trainer with this: it returns the digests of the trainer's compiled models, as
-- JSON.
CREATE FUNCTION @extschema@.mop_start_trainer(options text) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.run.unit.start_trainer(plpy, options) $$;

-- An idle worker session gives its trainer back with this, so that another trainer may have its part of a device's memory.
CREATE FUNCTION @extschema@.mop_leave_trainer() RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python mop_udf.aggregate.session(plpy).give_back() $$;

-- A worker session runs a unit or a chain of units with this, in one transaction.
CREATE FUNCTION @extschema@.mop_run_unit(unit text) RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.run import unit as work
work.run_unit(plpy, unit)
$$;

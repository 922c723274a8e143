-- Functions that run on segments: they pack rows, and report the hosts' cores and GPUs.

-- Packing converts a column of some rows into a buffer's bytes with this.
CREATE FUNCTION @extschema@.mop_pack_rows(rows bytea[], dims integer[], wire text, element text,
    factor double precision, col text) RETURNS bytea
LANGUAGE plpython3u IMMUTABLE AS $$ #python pg_mop.packing.segments.pack_rows(plpy, *args) $$;

-- Packing converts class codes into one-hot vectors with this.
CREATE FUNCTION @extschema@.mop_one_hot(codes integer[], width integer) RETURNS bytea
LANGUAGE plpython3u IMMUTABLE AS $$ #python pg_mop.packing.segments.one_hot(codes, width) $$;

-- Returns the cores and GPUs of the segment's host, as JSON.
CREATE FUNCTION @extschema@.mop_machine() RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
import json
from pg_mop.backend import settings
return json.dumps({"cores": settings.cores(), "gpus": settings.gpus()})
$$;

-- Returns a line for each GPU of the segment's host.
CREATE FUNCTION @extschema@.mop_gpus(source text) RETURNS text[]
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.gpus.gpus_here(plpy, source) $$;

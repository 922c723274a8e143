-- What runs on segments while rows are packed, and what their hosts say of themselves.

CREATE FUNCTION @extschema@.mop_pack_rows(rows bytea[], dims integer[], wire text, element text, factor double precision,
    col text) RETURNS bytea LANGUAGE plpython3u IMMUTABLE AS $$
#python
from pg_mop.packing import segments
return segments.pack_rows(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_one_hot(codes integer[], width integer) RETURNS bytea LANGUAGE plpython3u IMMUTABLE AS $$
#python
from pg_mop.packing import segments
return segments.one_hot(codes, width)
$$;

CREATE FUNCTION @extschema@.mop_machine() RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
import json
from pg_mop.backend import settings
return json.dumps({"cores": settings.cores(), "gpus": settings.gpus()})
$$;

CREATE FUNCTION @extschema@.mop_gpus(source text) RETURNS text[] LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import gpus
return gpus.gpus_here(plpy, source)
$$;

-- Model spaces: base models, and mutators that change them.

-- Users make a table with a model space with this; it returns the number of members.
CREATE FUNCTION @extschema@.mop_space(
    space text,
    arch_table text,
    base double precision[],
    mutators text,
    adapt text DEFAULT NULL,
    object_table text DEFAULT NULL
) RETURNS numeric LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.spaces.mop_space(plpy, *args) $$;

CREATE FUNCTION @extschema@.mop_space(
    space text,
    arch_table text,
    base double precision[],
    mutators json,
    adapt text DEFAULT NULL,
    object_table text DEFAULT NULL
) RETURNS numeric LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.spaces.mop_space(plpy, *args) $$;

CREATE FUNCTION @extschema@.mop_space(
    space text,
    arch_table text,
    base double precision[],
    mutators jsonb,
    adapt text DEFAULT NULL,
    object_table text DEFAULT NULL
) RETURNS numeric LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.spaces.mop_space(plpy, *args) $$;

-- Users count the members of a space with this.
CREATE FUNCTION @extschema@.mop_space_size(space text) RETURNS numeric
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.spaces.mop_space_size(plpy, *args) $$;

-- Users look at random members of a space with this; those that do not fit together are left out.
CREATE FUNCTION @extschema@.mop_space_sample(
    space text,
    n double precision DEFAULT 10,
    seed double precision DEFAULT 0
) RETURNS TABLE(member numeric, model_id integer, choices jsonb, model_arch json, parameters bigint, primitives jsonb)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.spaces.mop_space_sample(plpy, space, n, seed) $$;

-- Users read a space with this: the layers of its base models, with their choice points.
CREATE FUNCTION @extschema@.mop_space_show(space text, format text DEFAULT 'text') RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.search.spaces.mop_space_show(plpy, *args) $$;

-- Users look at the family tree of a search with this: who was made from whom, what was changed and inherited.
CREATE FUNCTION @extschema@.mop_family(run_id double precision) RETURNS text
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.families.mop_family(plpy, *args) $$;

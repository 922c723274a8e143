-- Ordinary tables: packing them, architectures for them (docs/tables.md).

-- Users pack a table, view or query with ordinary columns with this.
CREATE FUNCTION @extschema@.mop_pack(
    source text,
    output text,
    target text DEFAULT NULL,
    id text DEFAULT NULL,
    "exclude" text DEFAULT NULL,
    kind text DEFAULT NULL,
    transform text DEFAULT NULL,
    fitted_on text DEFAULT NULL,
    max_categories double precision DEFAULT NULL,
    on_null text DEFAULT NULL,
    buffer_size double precision DEFAULT NULL,
    weight text DEFAULT NULL,
    grouped_by text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.pack.mop_pack(plpy, *args) $$;

-- Users append nets that fit a packed table to an architecture table with this; it returns their model_ids.
CREATE FUNCTION @extschema@.mop_architecture(arch_table text, packed_table text, layers text DEFAULT NULL)
RETURNS SETOF integer LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.table_nets.mop_architecture(plpy, *args) $$;

-- Users split a table, view or query into views with this.
CREATE FUNCTION @extschema@.mop_split(
    source text,
    output text,
    valid double precision DEFAULT 0.2,
    test double precision DEFAULT 0.2,
    method text DEFAULT 'random',
    by text DEFAULT NULL,
    id text DEFAULT NULL,
    seed double precision DEFAULT 0
) RETURNS TABLE(part text, view_name text, row_count bigint)
LANGUAGE plpython3u VOLATILE
AS $$ #python pg_mop.api.tables.split.mop_split(plpy, source, output, valid, test, method, by, id, seed) $$;

-- The steps of mop_train call this: mop_split, with a comment for the views, and the query of each part.
CREATE FUNCTION @extschema@.mop_split_for(source text, output text, valid double precision, test double precision,
    method text, by text, id text, remark text) RETURNS TABLE(part text, row_count bigint, query text)
LANGUAGE plpython3u VOLATILE
AS $$ #python pg_mop.api.tables.split.mop_split_for(plpy, source, output, valid, test, method, by, id, remark) $$;

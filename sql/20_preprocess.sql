-- Packing training and validation data into buffers (docs/contract/preprocess.md).

-- Users pack a training table into buffers with this.
CREATE FUNCTION @extschema@.training_preprocessor_dl(
    source_table varchar,
    output_table varchar,
    dependent_varname varchar,
    independent_varname varchar,
    buffer_size double precision DEFAULT NULL,
    normalizing_const double precision DEFAULT 1.0,
    num_classes double precision[] DEFAULT NULL,
    distribution_rules text DEFAULT NULL,
    dependent_dtype text DEFAULT 'int16'
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.preprocess.training_preprocessor_dl(plpy, *args) $$;

-- Users pack a validation table with this, in the same way as an earlier training table.
CREATE FUNCTION @extschema@.validation_preprocessor_dl(
    source_table varchar,
    output_table varchar,
    dependent_varname varchar,
    independent_varname varchar,
    training_preprocessor_table varchar,
    buffer_size double precision DEFAULT NULL,
    distribution_rules text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.preprocess.validation_preprocessor_dl(plpy, *args) $$;

-- Conversions between arrays and the bytes of buffers, for users who inspect buffers.

-- Returns the bytes of an array, as a buffer contains them.
CREATE FUNCTION @extschema@.convert_array_to_bytea(var real[])
RETURNS bytea
LANGUAGE plpython3u IMMUTABLE STRICT AS $$ #python pg_mop.api.madlib.preprocess.convert_array_to_bytea(plpy, var, 'real') $$;

CREATE FUNCTION @extschema@.convert_array_to_bytea(var smallint[])
RETURNS bytea
LANGUAGE plpython3u IMMUTABLE STRICT
AS $$ #python pg_mop.api.madlib.preprocess.convert_array_to_bytea(plpy, var, 'smallint') $$;

-- Returns the real numbers in a buffer's bytes.
CREATE FUNCTION @extschema@.convert_bytea_to_real_array(var bytea)
RETURNS real[]
LANGUAGE plpython3u IMMUTABLE STRICT AS $$ #python pg_mop.api.madlib.preprocess.convert_bytea_to_array(plpy, var, 'real') $$;

-- Returns the smallint numbers in a buffer's bytes.
CREATE FUNCTION @extschema@.convert_bytea_to_smallint_array(var bytea)
RETURNS smallint[]
LANGUAGE plpython3u IMMUTABLE STRICT
AS $$ #python pg_mop.api.madlib.preprocess.convert_bytea_to_array(plpy, var, 'smallint') $$;

-- Concatenates arrays, as MADlib's aggregate of this name does.
CREATE AGGREGATE @extschema@.agg_array_concat(real[]) (
    SFUNC = pg_catalog.array_cat,
    STYPE = real[]
);

CREATE AGGREGATE @extschema@.agg_array_concat(smallint[]) (
    SFUNC = pg_catalog.array_cat,
    STYPE = smallint[]
);

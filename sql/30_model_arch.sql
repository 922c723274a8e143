-- Architecture tables: users load and delete Keras models.

-- Users load a model, and optionally its weights, into an architecture table with this.
CREATE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar,
    model_arch json,
    model_weights bytea DEFAULT NULL,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.architectures.load_keras_model(plpy, *args) $$;

CREATE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar,
    model_arch jsonb,
    model_weights bytea DEFAULT NULL,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.architectures.load_keras_model(plpy, *args) $$;

-- (for untyped literals, which PostgreSQL could resolve neither to json nor to jsonb)
CREATE FUNCTION @extschema@.load_keras_model(
    keras_model_arch_table varchar,
    model_arch text,
    model_weights bytea DEFAULT NULL,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.architectures.load_keras_model(plpy, *args) $$;

-- Users delete a model from an architecture table with this.
CREATE FUNCTION @extschema@.delete_keras_model(keras_model_arch_table varchar, model_id double precision)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.architectures.delete_keras_model(plpy, *args) $$;

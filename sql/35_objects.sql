-- Custom losses and metrics. Only superusers may load them, since they run code.

-- Superusers load a pickled function into an object table with this.
CREATE FUNCTION @extschema@.load_custom_function(
    object_table varchar,
    object bytea,
    name text,
    description text DEFAULT NULL
) RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.objects.load_custom_function(plpy, *args) $$;

-- Superusers delete a custom function, by its number or its name.
CREATE FUNCTION @extschema@.delete_custom_function(object_table varchar, id double precision)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.objects.delete_custom_function(plpy, *args) $$;

CREATE FUNCTION @extschema@.delete_custom_function(object_table varchar, name text)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.objects.delete_custom_function(plpy, *args) $$;

-- Superusers load a top-k accuracy metric into an object table with this.
CREATE FUNCTION @extschema@.load_top_k_accuracy_function(object_table varchar, k double precision)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.objects.load_top_k_accuracy_function(plpy, *args) $$;

-- Returns a pickled top-n accuracy metric with this name.
CREATE FUNCTION @extschema@.top_k_categorical_acc_pickled(n double precision, fn_name varchar)
RETURNS bytea
LANGUAGE plpython3u VOLATILE STRICT AS $$ #python pg_mop.api.madlib.objects.top_k_categorical_acc_pickled(*args) $$;

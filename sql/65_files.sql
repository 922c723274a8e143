-- Export and import of models; the GPUs of the server.

-- Users export a trained model as the bytes of a .keras file with this.
CREATE FUNCTION @extschema@.mop_export_model(model_table varchar, mst_key double precision)
RETURNS bytea LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.files.mop_export_model(plpy, *args) $$;

-- The same in parts: a file may have more than the 1 GB of one value.
CREATE FUNCTION @extschema@.mop_export_parts(model_table varchar, mst_key double precision,
    OUT part integer, OUT data bytea)
RETURNS SETOF record LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.files.mop_export_parts(plpy, *args) $$;

-- Users import the bytes of a .keras file into an architecture table with this; returns the model_id.
CREATE FUNCTION @extschema@.mop_import_model(
    keras_model_arch_table varchar,
    model bytea,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS integer LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.madlib.files.mop_import_model(plpy, *args) $$;

-- Users write the GPUs of the server into a table with this.
CREATE FUNCTION @extschema@.gpu_configuration(output_table text, source text)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.runs.gpus.gpu_configuration(plpy, *args) $$;

-- With one argument: the output table, or a word that requests help.
CREATE FUNCTION @extschema@.gpu_configuration(output_table text DEFAULT '')
RETURNS varchar LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.common import help
from pg_mop.api.runs import gpus
words = ('', 'usage', 'help', '?', 'example', 'examples')
if (args[0] if args[0] is not None else 'NULL').strip().lower() in words:
    return help.answer(plpy, 'gpu_configuration', args[0])
gpus.gpu_configuration(plpy, args[0], None)
$$;

-- Models out of the database and into it; the GPUs of the server.

CREATE FUNCTION @extschema@.mop_export_model(model_table varchar, mst_key double precision)
RETURNS bytea LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import files
return files.mop_export_model(plpy, *args)
$$;

CREATE FUNCTION @extschema@.mop_import_model(
    keras_model_arch_table varchar,
    model bytea,
    name text DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS integer LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import files
return files.mop_import_model(plpy, *args)
$$;

CREATE FUNCTION @extschema@.gpu_configuration(output_table text, source text)
RETURNS void LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import gpus
gpus.gpu_configuration(plpy, *args)
$$;

-- with one argument, the table; or a word that asks for help
CREATE FUNCTION @extschema@.gpu_configuration(output_table text DEFAULT '')
RETURNS varchar LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api import gpus, help
words = ('', 'usage', 'help', '?', 'example', 'examples')
if (args[0] if args[0] is not None else 'NULL').strip().lower() in words:
    return help.answer(plpy, 'gpu_configuration', args[0])
gpus.gpu_configuration(plpy, args[0], None)
$$;

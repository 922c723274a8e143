-- Models whose answers alone are shared with a role (mop_share). These functions read for it what it may not read, with the
-- rights of the table's owner, and return none of it: what they read stays in the memory of the session's process.

-- The place of a version's row (plpy_modules/pg_mop/inference/version_rows.py).
CREATE FUNCTION @extschema@.mop_place_of_version(model oid, number integer, token text DEFAULT @extschema@.mop_token())
RETURNS TABLE(version integer, place text, writer text)
LANGUAGE plpython3u STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp COST 10000 ROWS 1
AS $$ #python pg_mop.inference.version_rows.place_of_version(plpy, *args) $$;

CREATE FUNCTION @extschema@.mop_hand_over(
    model oid,
    number integer,
    is_weights boolean,
    token text DEFAULT @extschema@.mop_token()
) RETURNS void
LANGUAGE plpython3u STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ #python pg_mop.inference.version_rows.mop_hand_over(plpy, *args) $$;

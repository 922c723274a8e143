-- Why a named model answers so (docs/tables.md).

CREATE FUNCTION @extschema@.mop_explain_row(
    model text,
    "row" json,
    label text,
    source text,
    version double precision,
    seed double precision
) RETURNS TABLE(column_name text, value text, contribution double precision, deviation double precision)
LANGUAGE plpython3u STABLE COST 1000000 ROWS 20
AS $$ #python pg_mop.api.tables.explained_answers.mop_explain_answer(plpy, *args) $$;

-- Users see with this what each column of a row of FROM adds to the answer. (The settings: as of mop_predict.)
CREATE FUNCTION @extschema@.mop_explain_answer(
    model text,
    "row" anyelement,
    label text DEFAULT NULL,
    source text DEFAULT NULL,
    version double precision DEFAULT NULL,
    seed double precision DEFAULT 0
) RETURNS TABLE(column_name text, value text, contribution double precision, deviation double precision)
SET extra_float_digits = 3 SET IntervalStyle = 'postgres'
LANGUAGE sql STABLE COST 1000000 ROWS 20 AS $$
    SELECT * FROM @extschema@.mop_explain_row($1, @extschema@.mop_row($1, $2, $5), $3, $4, $5, $6)
$$;

-- Answers for a large table in PostgreSQL's parallel workers (inference/block_answers.py).

-- The rows of a query about the blocks of a table from `first` up to `after`, which are its parameters. (The planner takes no
-- subquery into a worker that depends on another relation's row; a function it takes. A STABLE function has the snapshot of the
-- statement that calls it.)
CREATE FUNCTION @extschema@.mop_answer_blocks(query text, first bigint, after bigint) RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL SAFE COST 1000000 ROWS 10000 AS $$
BEGIN
    RETURN QUERY EXECUTE $1 USING pg_catalog.format('(%s,0)', $2)::pg_catalog.tid, pg_catalog.format('(%s,0)', $3)::pg_catalog.tid;
END
$$;

-- The answers for many rows, whose numbers and texts are arrays, one for each column: three arrays as text. The model is in the
-- memory of the process that runs the statement, whose setting tells the place.
CREATE FUNCTION @extschema@.mop_answer_arrays(place text, numbers double precision[], texts text[]) RETURNS text[]
LANGUAGE plpython3u STABLE PARALLEL SAFE COST 1000000
AS $$ #python pg_mop.inference.block_answers.mop_answer_arrays(plpy, *args) $$;

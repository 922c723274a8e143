-- Training that roles share: the twin is postgresql/13_sharing.sql. On Greenplum roles share nothing.

CREATE FUNCTION @extschema@.mop_share_training(group_role text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'roles cannot share their training on Greenplum' USING ERRCODE = '0A000',
        HINT = 'SET pg_mop.reuse = on; shares it among the runs of one role.';
END
$$;

-- Returns the list of stages that mop_adopt got: those of the caller's own runs alone.
CREATE FUNCTION @extschema@.mop_reveal(of_run bigint, stages json, caller oid) RETURNS json
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(json_agg(row_to_json(f)), '[]') FROM (
        SELECT a.stage, a.run, a.of, a.state, a.scored, false AS shared
        FROM json_to_recordset($2) AS a(stage integer, run bigint, "of" integer, state boolean, scored boolean)
        JOIN @extschema@.mop_run theirs ON theirs.run_id = a.run
        JOIN @extschema@.mop_run mine ON mine.run_id = $1 AND mine.owner = theirs.owner) f
$$;

-- (No stage of another role is taken over.)
CREATE FUNCTION @extschema@.mop_note_taken(of_run bigint, of_stage integer, giver bigint, given integer, caller oid)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END
$$;

-- (Nor are its metrics.)
CREATE FUNCTION @extschema@.mop_sound_metrics(loss double precision, metric double precision, metrics json) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT json_typeof($3) = 'object'
$$;

-- Notes and tags of runs: what people write about them. Roles that see a run read them; the run's owner writes them.

-- mop_note calls this: NULL leaves what is there, an empty text or array removes it.
CREATE FUNCTION @extschema@.mop_put_note(run bigint, given_note text, given_tags text[],
    token text DEFAULT @extschema@.mop_token()) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad text;
    kept text[];
BEGIN
    PERFORM @extschema@.mop_own(run, token);
    IF given_note IS NULL AND given_tags IS NULL THEN
        RAISE EXCEPTION 'neither a note nor tags are given' USING ERRCODE = '22004',
            HINT = format('SELECT %s.mop_note(%s, ''a note'', ARRAY[''a tag'']);', '@extschema@', run);
    ELSIF length(given_note) > 4000 THEN
        RAISE EXCEPTION 'the note has % characters, more than 4000', length(given_note) USING ERRCODE = '54000';
    ELSIF cardinality(given_tags) > 20 THEN
        RAISE EXCEPTION 'there are % tags, more than 20', cardinality(given_tags) USING ERRCODE = '54000';
    END IF;
    SELECT coalesce(t.tag, 'NULL') INTO bad FROM unnest(given_tags) AS t(tag)
    WHERE t.tag IS NULL OR t.tag !~ '^[^[:cntrl:],]{1,50}$' OR t.tag ~ '^\s|\s$' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'tag "%" is not possible', left(bad, 60) USING ERRCODE = '22023',
            DETAIL = 'A tag has 1 to 50 characters, no comma or control character, and no space at its ends.';
    END IF;
    IF given_tags IS NOT NULL THEN  -- each once, in the given order
        -- (on Greenplum the array of an empty query is NULL)
        kept := coalesce(ARRAY(SELECT t.tag FROM unnest(given_tags) WITH ORDINALITY AS t(tag, place) GROUP BY t.tag
                               ORDER BY min(t.place)), '{}');
    END IF;
    LOOP
        UPDATE @extschema@.mop_run_note n SET note = coalesce(given_note, n.note), tags = coalesce(kept, n.tags),
            noted_at = clock_timestamp() WHERE n.run_id = run;
        EXIT WHEN FOUND;
        BEGIN
            INSERT INTO @extschema@.mop_run_note (run_id, note, tags) VALUES (run, coalesce(given_note, ''), coalesce(kept, '{}'));
            EXIT;
        EXCEPTION WHEN unique_violation THEN -- another session has inserted the row meanwhile
            NULL;
        END;
    END LOOP;
    DELETE FROM @extschema@.mop_run_note n WHERE n.run_id = run AND n.note = '' AND n.tags = '{}';
END
$$;

-- Users write a note and tags of a run with this.
CREATE FUNCTION @extschema@.mop_note(run_id double precision, note text DEFAULT NULL, tags text[] DEFAULT NULL) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT @extschema@.mop_put_note(@extschema@.mop_integer('run_id', $1), $2, $3)
$$;

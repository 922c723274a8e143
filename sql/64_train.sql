-- From a table to a named model (docs/tables.md).

-- Users train a model for a table's target with this; it returns a report.
CREATE FUNCTION @extschema@.mop_train(
    source text,
    name text,
    target text DEFAULT NULL,
    id text DEFAULT NULL,
    "exclude" text DEFAULT NULL,
    kind text DEFAULT NULL,
    transform text DEFAULT NULL,
    weight text DEFAULT NULL,
    split text DEFAULT 'random',
    by text DEFAULT NULL,
    valid double precision DEFAULT 0.2,
    test double precision DEFAULT 0.2,
    layers text DEFAULT NULL,
    time_limit interval DEFAULT '5 min',
    max_trials double precision DEFAULT NULL,
    baselines boolean DEFAULT TRUE,
    keep boolean DEFAULT FALSE,
    folds double precision DEFAULT NULL,
    ensemble double precision DEFAULT 8,
    families text DEFAULT NULL,
    refit boolean DEFAULT TRUE,
    metric text DEFAULT NULL
) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.tables import train
return train.mop_train(plpy, *args)
$$;

-- Users train a named model again with this, as its last version was trained; it returns a report.
CREATE FUNCTION @extschema@.mop_retrain(
    name text,
    source text DEFAULT NULL,
    time_limit interval DEFAULT NULL,
    automatic boolean DEFAULT TRUE,
    warm boolean DEFAULT FALSE
) RETURNS text LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.tables import train
return train.mop_retrain(plpy, *args)
$$;

-- Calls of mop_train and mop_retrain at work that the role may see; `model` as the call says it, cut by PostgreSQL to 63 bytes.
-- The session of a call's steps says what the call does in a comment of its present or last statement (api/tables/steps.py). Any
-- session may have such a comment, so no value is trusted.
CREATE VIEW @extschema@.mop_trainings WITH (security_barrier) AS
SELECT substring(a.application_name FROM 11) AS model, a.usename AS owner, a.backend_start AS started_at,
       said[1]::integer AS pid, said[2] AS step, nullif(said[4]::integer, 0) AS trials,
       nullif(said[5], '')::double precision AS best_loss,
       greatest(0, said[3]::double precision - extract(epoch FROM clock_timestamp())::double precision) AS seconds_left
FROM (
    SELECT s.*, regexp_matches(s.query, '^/\* mop_train ([0-9]{1,9}) ([a-z]{1,20}) ([0-9]{1,12}) ([0-9]{1,9}) '
        '(|-?[0-9]+\.[0-9]{9}) \*/') AS said
    FROM pg_catalog.pg_stat_activity s WHERE s.application_name LIKE 'mop\_train %' AND s.datname = current_database()) a;

-- Users compare two versions of a named model on the same rows with this.
CREATE FUNCTION @extschema@.mop_compare(name text, first double precision, second double precision, source text)
RETURNS TABLE(metric text, first_value double precision, second_value double precision, difference double precision)
LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.tables import train
return train.mop_compare(plpy, args[0], args[1], args[2], args[3])
$$;

-- Users train simple models on the same rows with this, to judge a named model.
CREATE FUNCTION @extschema@.mop_baselines(
    model text,
    train text,
    test text,
    version double precision DEFAULT NULL
) RETURNS TABLE(contender text, metric text, value double precision) LANGUAGE plpython3u VOLATILE AS $$
#python
from pg_mop.api.tables import baselines
return baselines.mop_baselines(plpy, *args)
$$;

-- Models with a name, their versions, and their answers (docs/tables.md).

-- Users make a trained model a version of a named model with this; it returns the version.
CREATE FUNCTION @extschema@.mop_deploy(
    name text,
    model_table text,
    mst_key double precision DEFAULT NULL,
    description text DEFAULT NULL
) RETURNS integer LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.named_models.mop_deploy(plpy, *args) $$;

-- Users make the best mean of the models of a table, and of boosted trees and linear models, a version of a named model with
-- this; it returns the version.
CREATE FUNCTION @extschema@.mop_ensemble(
    model_table text,
    validation_table text,
    name text,
    members double precision DEFAULT 8,
    description text DEFAULT NULL,
    trained_on text DEFAULT NULL,
    families text DEFAULT NULL,
    time_limit interval DEFAULT NULL,
    metric text DEFAULT NULL,
    balanced boolean DEFAULT NULL,
    folds boolean DEFAULT NULL
) RETURNS integer LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.ensembles.mop_ensemble(plpy, *args) $$;

-- Users put a version of a named model into use with this.
CREATE FUNCTION @extschema@.mop_use_version(name text, version double precision) RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.named_models.mop_use_version(plpy, *args) $$;

-- Users let another role read a named model with this, or only ask it.
CREATE FUNCTION @extschema@.mop_share(name text, role text, what text DEFAULT 'model') RETURNS void
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.named_models.mop_share(plpy, *args) $$;

CREATE FUNCTION @extschema@.mop_list_models() RETURNS TABLE(
    name text,
    version integer,
    in_use boolean,
    target text,
    kind text,
    metrics jsonb,
    created timestamptz,
    owner text,
    bytes bigint,
    description text,
    computed_by text
) LANGUAGE plpython3u STABLE AS $$ #python pg_mop.api.tables.named_models.mop_list_models(plpy) $$;

-- The versions of all named models that the role may read.
CREATE VIEW @extschema@.mop_models WITH (security_barrier) AS SELECT * FROM @extschema@.mop_list_models();

CREATE FUNCTION @extschema@.mop_list_family_trials() RETURNS TABLE(
    model text,
    version integer,
    family text,
    trial integer,
    params jsonb,
    loss double precision,
    rounds integer,
    seconds double precision,
    weight double precision
) LANGUAGE plpython3u STABLE AS $$ #python pg_mop.api.tables.named_models.mop_list_family_trials(plpy) $$;

-- The trials of other families than nets of all versions that the role may read.
CREATE VIEW @extschema@.mop_family_trials WITH (security_barrier) AS
SELECT * FROM @extschema@.mop_list_family_trials();

-- The settings are those that the values of a row need (backend/caller.py); here PostgreSQL sets them at little cost.
CREATE FUNCTION @extschema@.mop_predict_row(
    model text,
    "row" json,
    version double precision DEFAULT NULL,
    path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS TABLE(prediction text, probability double precision, probabilities jsonb)
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 3 SET bytea_output = 'hex' SET DateStyle = 'ISO, MDY'
SET IntervalStyle = 'postgres' SET quote_all_identifiers = off SET array_nulls = on SET standard_conforming_strings = on
SET transform_null_equals = off
LANGUAGE plpython3u STABLE COST 10000 ROWS 1 AS $$ #python pg_mop.api.tables.answers.answer_for_row(plpy, *args) $$;

-- The two parts of mop_predict for a source: open it, and answer for the next rows; without rows, the source has ended.
CREATE FUNCTION @extschema@.mop_predict_source(model text, source text, keep text, version double precision)
RETURNS integer LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.source_answers.mop_predict_source(plpy, *args) $$;

CREATE FUNCTION @extschema@.mop_predict_rows(opened integer)
RETURNS TABLE(kept jsonb, prediction text, probability double precision, probabilities jsonb)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.source_answers.mop_predict_rows(plpy, *args) $$;

-- The columns that a model was trained on.
CREATE FUNCTION @extschema@.mop_trained_columns(model text, version double precision, path text) RETURNS text[]
LANGUAGE plpython3u STABLE AS $$ #python pg_mop.api.tables.answers.mop_trained_columns(plpy, *args) $$;

-- A large row as JSON, with the columns alone that the model was trained on: a bytea of megabytes beside them costs nothing.
-- (A row of a subquery has no type that names its columns: it becomes JSON as a whole.)
CREATE FUNCTION @extschema@.mop_large_row(model text, "row" anyelement, version double precision) RETURNS json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    columns pg_catalog.text;
    used pg_catalog.json;
BEGIN
    SELECT pg_catalog.string_agg(pg_catalog.format('($1).%I', a.attname), ', ') INTO columns
    FROM pg_catalog.pg_type t JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) t.typrelid
    WHERE t.oid OPERATOR(pg_catalog.=) pg_catalog.pg_typeof($2) AND a.attnum OPERATOR(pg_catalog.>) 0
        AND NOT a.attisdropped
        AND a.attname::pg_catalog.text OPERATOR(pg_catalog.=) ANY (@extschema@.mop_trained_columns($1, $3, pg_catalog.current_setting('search_path')));
    IF columns IS NULL THEN
        RETURN pg_catalog.to_json($2);
    END IF;
    EXECUTE 'SELECT pg_catalog.to_json(used.*) FROM (SELECT ' || columns || ') AS used' INTO used USING $2;
    RETURN used;
END
$$;

-- A row as JSON. (PostgreSQL replaces the call by its expression.)
CREATE FUNCTION @extschema@.mop_row(model text, "row" anyelement, version double precision) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.pg_column_size($2) OPERATOR(pg_catalog.>) 8192
        THEN @extschema@.mop_large_row($1, $2, $3) ELSE pg_catalog.to_json($2) END
$$;

-- Users predict for one row of FROM with this; the row may have any columns.
CREATE FUNCTION @extschema@.mop_predict(model text, "row" anyelement, version double precision DEFAULT NULL)
RETURNS TABLE(prediction text, probability double precision, probabilities jsonb)
SET extra_float_digits = 3 SET IntervalStyle = 'postgres' -- of the texts in the JSON
LANGUAGE sql STABLE COST 10000 ROWS 1 AS $$
    SELECT * FROM @extschema@.mop_predict_row($1, @extschema@.mop_row($1, $2, $3), $3,
        pg_catalog.current_setting('search_path'))
$$;

-- One value of the answer, as text. (The settings: as of mop_predict_row.)
CREATE FUNCTION @extschema@.mop_answer(
    what text,
    model text,
    "row" json,
    label text,
    version double precision,
    path text
) RETURNS text
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 3 SET bytea_output = 'hex' SET DateStyle = 'ISO, MDY'
SET IntervalStyle = 'postgres' SET quote_all_identifiers = off SET array_nulls = on SET standard_conforming_strings = on
SET transform_null_equals = off
LANGUAGE plpython3u STABLE COST 10000 AS $$ #python pg_mop.api.tables.answers.value_for_row(plpy, *args) $$;

-- Users write these three in WHERE and ORDER BY: the probability of a class, the class, and the number for a row of FROM.
CREATE FUNCTION @extschema@.mop_probability(
    model text,
    "row" anyelement,
    label text,
    version double precision DEFAULT NULL
) RETURNS double precision SET extra_float_digits = 3 SET IntervalStyle = 'postgres'
LANGUAGE sql STABLE COST 10000 AS $$
    SELECT @extschema@.mop_answer('mop_probability', $1, @extschema@.mop_row($1, $2, $4), $3, $4,
        pg_catalog.current_setting('search_path'))::pg_catalog.float8
$$;

CREATE FUNCTION @extschema@.mop_class(model text, "row" anyelement, version double precision DEFAULT NULL)
RETURNS text SET extra_float_digits = 3 SET IntervalStyle = 'postgres' LANGUAGE sql STABLE COST 10000 AS $$
    SELECT @extschema@.mop_answer('mop_class', $1, @extschema@.mop_row($1, $2, $3), NULL, $3,
        pg_catalog.current_setting('search_path'))
$$;

CREATE FUNCTION @extschema@.mop_number(model text, "row" anyelement, version double precision DEFAULT NULL)
RETURNS double precision SET extra_float_digits = 3 SET IntervalStyle = 'postgres'
LANGUAGE sql STABLE COST 10000 AS $$
    SELECT @extschema@.mop_answer('mop_number', $1, @extschema@.mop_row($1, $2, $3), NULL, $3,
        pg_catalog.current_setting('search_path'))::pg_catalog.float8
$$;

-- Users predict for all rows of a table, view or query with this; kept columns come back as JSON. (PostgreSQL puts the rows of
-- each part where it puts the results of functions: on disk, beyond work_mem.)
CREATE FUNCTION @extschema@.mop_predict(
    model text,
    source @extschema@.mop_source,
    keep text DEFAULT NULL,
    version double precision DEFAULT NULL
) RETURNS TABLE(kept jsonb, prediction text, probability double precision, probabilities jsonb)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    opened integer := @extschema@.mop_predict_source($1, $2, $3, $4);
BEGIN
    LOOP
        RETURN QUERY SELECT * FROM @extschema@.mop_predict_rows(opened);
        EXIT WHEN NOT FOUND;
    END LOOP;
END
$$;

-- Refuses a text without the argument's name: it may be a value of the data, which must never run as a query. (PostgreSQL
-- prefers type text to the domain, and the arguments are those of the function above: so each such call comes here.)
CREATE FUNCTION @extschema@.mop_predict(
    model text,
    "row" text,
    keep text DEFAULT NULL,
    version double precision DEFAULT NULL
) RETURNS TABLE(kept jsonb, prediction text, probability double precision, probabilities jsonb)
LANGUAGE plpython3u STABLE AS $$ #python pg_mop.api.tables.answers.mop_predict(plpy, *args[:2]) $$;

-- The Python client predicts for few rows with this: it writes nothing. `type`: of the predictions.
CREATE FUNCTION @extschema@.mop_predict_few(model text, source text, version double precision)
RETURNS TABLE(prediction text, probability double precision, probabilities jsonb, type text)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.source_answers.mop_predict_few(plpy, *args) $$;

-- Users write the answers for a table, view or query into a new table with this; it returns the number of rows.
CREATE FUNCTION @extschema@.mop_predict_into(
    model text,
    source text,
    output text,
    keep text DEFAULT NULL,
    version double precision DEFAULT NULL
) RETURNS bigint LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.source_answers.mop_predict_into(plpy, *args) $$;

-- Reports about a named model on rows with known targets.

-- Users measure a named model with this.
CREATE FUNCTION @extschema@.mop_evaluate(model text, source text, version double precision DEFAULT NULL)
RETURNS TABLE(metric text, value double precision)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_evaluate(plpy, *args) $$;

-- Users see which classes are taken for which with this.
CREATE FUNCTION @extschema@.mop_confusion_matrix(model text, source text, version double precision DEFAULT NULL)
RETURNS TABLE(actual text, predicted text, row_count bigint)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_confusion_matrix(plpy, *args) $$;

-- Users see precision and recall of each class with this.
CREATE FUNCTION @extschema@.mop_class_report(model text, source text, version double precision DEFAULT NULL)
RETURNS TABLE(label text, "precision" double precision, recall double precision, f1 double precision, support bigint)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_class_report(plpy, *args) $$;

-- Users see where a model of numbers errs with this.
CREATE FUNCTION @extschema@.mop_regression_report(model text, source text, version double precision DEFAULT NULL)
RETURNS TABLE(lowest double precision, highest double precision, row_count bigint, mean_actual double precision,
    mean_predicted double precision, mae double precision, rmse double precision, bias double precision)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_regression_report(plpy, *args) $$;

-- Users see the ROC curve of a class with this, by default of the second class.
CREATE FUNCTION @extschema@.mop_roc_curve(
    model text,
    source text,
    label text DEFAULT NULL,
    version double precision DEFAULT NULL
) RETURNS TABLE(threshold double precision, false_positive_rate double precision, true_positive_rate double precision)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_roc_curve(plpy, *args) $$;

-- Users compare probabilities of a class with its share of the rows with this.
CREATE FUNCTION @extschema@.mop_calibration(
    model text,
    source text,
    label text DEFAULT NULL,
    version double precision DEFAULT NULL
) RETURNS TABLE(probability double precision, share double precision, row_count bigint)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_calibration(plpy, *args) $$;

-- Users get a named model as one HTML file with this, or its data as JSON; without a source, what is stored.
CREATE FUNCTION @extschema@.mop_model_report(
    model text,
    source text DEFAULT NULL,
    format text DEFAULT 'html',
    version double precision DEFAULT NULL
) RETURNS text LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.model_report.mop_model_report(plpy, *args) $$;

-- Users see what each column is worth to a named model with this.
CREATE FUNCTION @extschema@.mop_importance(
    model text,
    source text,
    version double precision DEFAULT NULL,
    seed double precision DEFAULT 0
) RETURNS TABLE(column_name text, importance double precision, deviation double precision)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_importance(plpy, *args) $$;

-- Users see what became of each column of a packed table or a named model with this.
CREATE FUNCTION @extschema@.mop_feature_info(model text, version double precision DEFAULT NULL) RETURNS TABLE(
    column_name text,
    sql_type text,
    feature text,
    elements integer,
    null_share double precision,
    mean double precision,
    deviation double precision,
    lowest double precision,
    highest double precision,
    top_values jsonb
) LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_feature_info(plpy, *args) $$;

-- Users compare new rows with the training rows of a named model with this.
CREATE FUNCTION @extschema@.mop_drift(model text, source text, version double precision DEFAULT NULL)
RETURNS TABLE(column_name text, stability double precision, null_share_then double precision,
    null_share_now double precision, verdict text)
LANGUAGE plpython3u VOLATILE AS $$ #python pg_mop.api.tables.reports.mop_drift(plpy, *args) $$;

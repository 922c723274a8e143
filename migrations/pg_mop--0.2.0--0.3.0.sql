-- Evaluations as sums that are merged; several metrics; runs belong to roles, not to their names.

\echo Use "ALTER EXTENSION pg_mop UPDATE" to load this file. \quit

DROP VIEW @extschema@.mop_abandoned_runs, @extschema@.mop_runs, @extschema@.mop_units, @extschema@.mop_kernel_choices,
    @extschema@.mop_visit_order, @extschema@.mop_progress;

-- tables

CREATE TABLE @extschema@.mop_metric (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    dataset text NOT NULL CHECK (dataset IN ('training', 'validation')),
    loss double precision NOT NULL,
    metric double precision,
    metrics json NOT NULL,
    PRIMARY KEY (run_id, mst_key, iteration, dataset),
    FOREIGN KEY (run_id, mst_key) REFERENCES @extschema@.mop_configuration ON DELETE CASCADE
);
CREATE TABLE @extschema@.mop_partial (
    run_id bigint NOT NULL REFERENCES @extschema@.mop_run ON DELETE CASCADE,
    mst_key integer NOT NULL,
    iteration integer NOT NULL,
    dataset text NOT NULL,
    segment integer NOT NULL,
    sums double precision[] NOT NULL,
    PRIMARY KEY (run_id, mst_key, iteration, dataset, segment)
);
ALTER TABLE @extschema@.mop_metric ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON @extschema@.mop_metric FOR SELECT USING (run_id IN (SELECT run_id FROM @extschema@.mop_run));
SELECT pg_catalog.pg_extension_config_dump('@extschema@.mop_metric', '');

-- What was evaluated before: means over the segments' rows. Of what was not evaluated to its end there are no sums: its
-- units are to be done again.
CREATE TEMPORARY TABLE mop_evaluated ON COMMIT DROP AS
SELECT u.run_id, r.averaging, CASE WHEN r.averaging THEN 1 ELSE u.mst_key END AS mst_key, u.iteration, u.dataset,
       sum(u.loss * u.rows) / sum(u.rows) AS loss, sum(u.metric * u.rows) / sum(u.rows) AS metric,
       count(*) = (SELECT count(*) FROM @extschema@.mop_segment s WHERE s.run_id = u.run_id AND s.dataset = u.dataset)
           AS whole
FROM @extschema@.mop_unit u JOIN (
    SELECT run_id, function = 'madlib_keras_fit'
           AND coalesce(parameters #>> '{settings,fit_strategy}' = 'averaging', false) AS averaging
    FROM @extschema@.mop_run) AS r USING (run_id)
WHERE u.kind = 'evaluate' AND u.status = 'finished' AND u.rows > 0 GROUP BY 1, 2, 3, 4, 5;
INSERT INTO @extschema@.mop_metric
SELECT run_id, mst_key, iteration, dataset, loss, metric, '{}' FROM mop_evaluated WHERE whole;
UPDATE @extschema@.mop_unit u SET status = 'cancelled' FROM mop_evaluated e
WHERE NOT e.whole AND u.kind = 'evaluate' AND u.status = 'finished' AND (e.averaging OR u.mst_key = e.mst_key)
    AND (u.run_id, u.iteration, u.dataset) = (e.run_id, e.iteration, e.dataset);
DROP TABLE mop_evaluated;

-- functions that went, or whose results changed

#functions

-- From a raw table to answers about its rows, in two statements. `make demo-table` runs this file on the embedded server;
-- you can run it piece by piece in `make psql`.

\set ON_ERROR_STOP on
\set QUIET on
\pset pager off
\pset footer off
SET client_min_messages = warning;
\if :{?keep} \else
DROP EXTENSION IF EXISTS pg_mop CASCADE;  -- the demo begins afresh, with the extension of this very checkout
\endif
CREATE SCHEMA IF NOT EXISTS madlib;
CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA madlib CASCADE;
DROP TABLE IF EXISTS customers, churn, churn_answers CASCADE;
SET pg_mop.seed = 42;
\if :{?limit} \else \set limit '1 min' \endif

\echo
\echo '=== 1. A table as it is: texts, numbers, booleans, NULLs; who has left?'
CREATE TABLE customers (
    id integer PRIMARY KEY, churn text, female boolean, senior_citizen boolean, partner boolean, dependents boolean,
    tenure integer, phone_service boolean, multiple_lines text, internet_service text, online_security text,
    online_backup text, device_protection text, tech_support text, streaming_tv text, streaming_movies text,
    contract text, paperless_billing boolean, payment_method text, monthly_charges numeric, total_charges numeric);
\copy customers FROM PROGRAM 'demo/customers.sh' CSV HEADER
SELECT id, churn, tenure, contract, internet_service, payment_method, monthly_charges FROM customers ORDER BY id LIMIT 5;
SELECT churn, count(*) FROM customers GROUP BY 1 ORDER BY 1;

\echo
\echo '=== 2. Train, choose, measure: one statement. From another session: TABLE madlib.mop_trials;'
\pset format unaligned
\pset tuples_only on
SELECT madlib.mop_train('customers', 'churn', target => 'churn', id => 'id', time_limit => :'limit');
\pset tuples_only off
\pset format aligned

\echo
\echo '=== 3. Answers for rows, in any query'
SELECT c.id, c.contract, c.tenure, c.churn AS actual, p.prediction, round(p.probability::numeric, 3) AS probability
FROM customers c, madlib.mop_predict('churn', c) AS p WHERE c.id % 1000 = 0 ORDER BY c.id LIMIT 6;
\echo '--- a row that no table has: further columns are NULL'
SELECT p.* FROM (SELECT 'Two year' AS contract, 60 AS tenure, 20.5 AS monthly_charges) AS c,
    madlib.mop_predict('churn', c) AS p;
\echo '--- all rows, into a table'
SELECT madlib.mop_predict_into('churn', 'customers', 'churn_answers', keep => 'id') AS answers;
SELECT * FROM churn_answers ORDER BY probability DESC, id LIMIT 3;

\echo
\echo '=== 4. How good is it, on rows that no step has seen?'
SELECT metric, round(value::numeric, 4) AS value FROM madlib.mop_evaluate('churn', 'churn_test');
SELECT label, round("precision"::numeric, 3) AS "precision", round(recall::numeric, 3) AS recall,
    round(f1::numeric, 3) AS f1, support FROM madlib.mop_class_report('churn', 'churn_test');

\echo
\echo '=== 5. Which columns matter? (the loss of accuracy where a column is permuted)'
SELECT column_name, round(importance::numeric, 4) AS importance, round(deviation::numeric, 4) AS deviation
FROM madlib.mop_importance('churn', 'churn_test') ORDER BY importance DESC LIMIT 6;

\echo
\echo '=== 6. The model is a table of yours: rows are versions'
SELECT name, version, in_use, target, bytes FROM madlib.mop_models;

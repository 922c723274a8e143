"""What mop_train tells before and after it trains, and what it does with a source that is a query."""

import json

import pytest

from pg_mop.backend.caller import PINNED

CALL = (
    "SELECT mop_train('{source}', 'm', target => 'y', id => 'id', baselines => false, families => 'linear', "
    "time_limit => '{limit}'{more})"
)


@pytest.fixture(scope="module")
def rows(db):
    """Rows with a target that follows from two columns but for noise."""
    db.run(
        "SET search_path = public, madlib; CREATE TABLE plain AS SELECT i AS id, (i * 37 % 101)::float8 AS a, "
        "(hashint4(i) & 1023)::float8 AS b, (i * 37 % 101 + (hashint4(i + 9) & 63) > 80)::text AS y "
        "FROM generate_series(1, 400) i"
    )
    return db


def train(db, source="plain", limit="20 s", more=""):
    """The messages of a call, and its report. The model is dropped."""
    db.connection.notices.clear()
    report = db.value(CALL.format(source=source.replace("'", "''"), limit=limit, more=more))
    told = "".join(db.connection.notices)
    db.run("DROP TABLE m")
    return told, report


def test_a_timeout_before_the_time_limit_shortens_it_or_is_refused(rows):
    client = rows.another()
    client.run("SET search_path = public, madlib")
    client.error(CALL.format(source="plain", limit="0 s", more=""))  # (Python and its modules are loaded)
    client.run("SET statement_timeout = '3 s'")
    error = client.error(CALL.format(source="plain", limit="1 min", more=""))
    assert error.pgcode == "22023" and error.diag.message_hint == "SET statement_timeout = 0;"
    assert client.value("SELECT count(*) FROM pg_class WHERE relname ~ '^m_'") == 0
    client.run("SET statement_timeout = '10 min'")
    told, _ = train(client, limit="9 min 30 s")
    assert "WARNING:  time_limit is 5" in told and "SET statement_timeout = 0;" in told
    client.run("SET statement_timeout = '1 h'")
    assert "statement_timeout" not in train(client)[0]
    client.close()


def test_an_open_transaction_is_told_before_and_after(rows):
    told, report = train(rows)
    assert "COMMIT" not in told + report and "mop_submit" in told
    rows.run("BEGIN")
    told, report = train(rows)
    rows.run("ROLLBACK")
    assert "COMMIT" in told and "COMMIT" in report.splitlines()[-1]


def test_copies_of_training_rows_in_the_test_part_are_told(rows):
    rows.run("CREATE TABLE copied AS SELECT id + 1000 * k AS id, a, b, y FROM plain, generate_series(0, 3) k")
    told, _ = train(rows, "copied")
    assert "test rows are training rows, too" in told and "SELECT DISTINCT" in told
    # rows of few different values are equal by nature
    few = "SELECT id, a::int / 30 AS a, y FROM plain"
    assert "training rows, too" not in train(rows, "plain")[0] + train(rows, few)[0]


@pytest.mark.parametrize(
    "column",
    [
        "CASE y WHEN 'true' THEN date '2024-01-01' + id END",
        "CASE y WHEN 'true' THEN a + 500 ELSE a END",
        "CASE y WHEN 'true' THEN 'reason ' || id % 5 END",
    ],
)
def test_a_column_that_gives_the_target_away_is_named(rows, column):
    source = f"SELECT *, {column} AS late FROM plain"
    told, _ = train(rows, source, limit="2 min")
    assert 'column "late" alone explains the target' in told and "exclude => 'late'" in told


def test_the_planner_knows_that_a_row_has_one_answer_that_costs(rows):
    found = rows.run(
        "SELECT prorows, procost FROM pg_proc WHERE oid IN ('madlib.mop_predict(text, anyelement, float8)'::regprocedure, "
        "'madlib.mop_predict_row(text, json, float8, text)'::regprocedure)"
    )
    assert len(found) == 2 and all(row["prorows"] == 1 and row["procost"] >= 1000 for row in found)


def test_functions_of_one_row_pin_what_all_functions_pin(rows):
    found = rows.run("SELECT proconfig FROM pg_proc WHERE proname IN ('mop_predict_row', 'mop_answer')")
    pinned = {"search_path": "pg_catalog, pg_temp", **PINNED}
    for row in found:
        assert {k.lower(): v for k, v in (entry.split("=", 1) for entry in row["proconfig"])} == pinned
    assert len(found) == 2


def test_an_honest_table_has_no_such_warning(rows):
    assert "alone explains" not in train(rows)[0]


def test_a_rare_class_is_told_with_the_remedy(rows):
    source = "SELECT id, a, b, id % 40 = 0 AS y FROM plain"
    told, _ = train(rows, source)
    assert 'of the training rows have class "true"' in told and "weight => 'balanced'" in told
    told, report = train(rows, source, more=", weight => 'balanced'")
    assert "of the training rows" not in told and "the prediction counts all classes alike" in report


def test_a_target_over_decades_is_told_with_the_logarithm(rows):
    told, _ = train(rows, "SELECT id, b, -exp(a / 7) AS y FROM plain")
    assert 'target "y" are between' in told and 'ln(-"y")' in told
    assert "are between" not in train(rows, "SELECT id, b, a + 1 AS y FROM plain")[0]


def test_a_query_runs_once_and_its_parts_can_be_read(rows):
    rows.run(
        "CREATE SEQUENCE ran; CREATE FUNCTION slow() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT nextval('public.ran') $$"
    )
    source = "SELECT plain.* FROM plain, (SELECT slow() AS s OFFSET 0) x WHERE s > 0 -- once"
    rows.value(CALL.format(source=source, limit="20 s", more=""))
    assert rows.value("SELECT last_value FROM ran") == 1
    counts = rows.value("SELECT details->'rows' FROM m")
    for part, count in counts.items():
        assert rows.value("SELECT count(*) FROM mop_predict('m', source => %s)", [f"m_{part}"]) == count
    assert rows.value("SELECT count(*) FROM pg_class WHERE relname ~ '^m_'") == 2  # the indexes of m
    rows.run("DROP TABLE m")


def test_a_query_with_too_few_rows_is_refused_and_leaves_nothing(rows):
    error = rows.error(CALL.format(source="SELECT * FROM plain WHERE id < 7", limit="9 s", more=""))
    assert "there are 6 rows" in str(error)
    assert rows.value("SELECT count(*) FROM pg_class WHERE relname ~ '^m_'") == 0


def test_temporary_relations_with_the_names_of_the_steps_are_left_alone(rows):
    client = rows.another()
    client.run("SET search_path = public, madlib; CREATE TEMPORARY TABLE m_rows AS SELECT 1 AS x")
    client.run("CREATE TEMPORARY VIEW m_test AS SELECT * FROM plain WHERE id < 8")
    client.value(CALL.format(source="plain", limit="20 s", more=""))
    measured = client.value("SELECT value FROM mop_evaluate('m', 'm_test') WHERE metric = 'rows'")
    assert measured == client.value("SELECT (details->'rows'->>'test')::int FROM m") > 8
    assert client.value("SELECT count(*) FROM m_rows") == 1 and client.value("SELECT count(*) FROM m_test") == 7
    assert (
        rows.value("SELECT count(*) FROM pg_class WHERE relname ~ '^m_' AND relnamespace = 'public'::regnamespace") == 2
    )
    client.run("DROP TABLE m")
    client.close()


def test_stored_arguments_of_another_type_are_refused_before_any_work(rows):
    rows.value(CALL.format(source="plain", limit="20 s", more=""))
    for forged in (
        {"folds": "2; DROP TABLE plain"},
        {"valid": True},
        {"target": ["y"]},
        {"layers": 3},
        {"keep": "yes"},
    ):
        rows.run(
            "BEGIN; UPDATE m SET details = jsonb_set(details, '{arguments}', details->'arguments' || %s)",
            [json.dumps(forged)],
        )
        assert "no arguments of mop_train that can be read" in str(
            rows.error("SELECT mop_retrain('m', source => 'plain')")
        )
        rows.run("ROLLBACK")
    rows.run("DROP TABLE m")

"""One value is one input of a net: whatever the form of the call, the settings of the session, and the type it has now."""

import pytest

ROWS = 60
# {column: SQL of row i}: each built-in type that has features
TYPES = {
    "small": "(i % 5)::smallint",
    "whole": "i % 7",
    "large": "1000000000000000 + i % 4",
    "exact": "(i % 6 * 0.50)::numeric(6, 2)",
    "single": "(i % 9 * 0.1)::real",
    "double": "i % 11 / 3.0::float8",
    "huge": "1e15::float8 + i % 3",
    "truth": "i % 3 = 0",
    "words": "'w ' || i % 4",
    "varied": "('v' || i % 3)::varchar(9)",
    "fixed": "('f' || i % 3)::char(5)",
    "one": 'chr(97 + i % 3)::"char"',
    "called": "('n' || i % 3)::name",
    "mood": "(ARRAY['sad', 'ok'])[1 + i % 2]::mood",
    "key": "md5((i % 3)::text)::uuid",
    "address": "CASE i % 3 WHEN 0 THEN '10.0.0.1' WHEN 1 THEN '10.1.0.0/16' ELSE '::1' END::inet",
    "net": "('10.' || i % 3 || '.0.0/16')::cidr",
    "card": "('08:00:2b:01:02:0' || i % 3)::macaddr",
    "day": "date '2024-01-01' + i % 90",
    "at": "timestamp '2024-01-01 01:00' + i % 90 * interval '7 hours'",
    "zoned": "timestamptz '2024-01-01 01:00+02' + i % 90 * interval '7 hours'",
    "clock": "time '01:02:03' + i % 20 * interval '1 hour'",
    "zoned_clock": "timetz '01:02:03+05' + i % 20 * interval '1 hour'",
    "span": "make_interval(days => -(i % 4), hours => -(i % 3), secs => 0.5)",
    "singles": "ARRAY[i % 5 * 0.1, 0.3]::real[]",
    "doubles": "ARRAY[i % 5 * 0.1, 0.3]::float8[]",
    "wholes": "ARRAY[i % 5, i % 3]",
    "serial": "array_fill((i % 5 * 0.1)::real, ARRAY[1 + i % 3])",
    "bag": """format('{"a": %s.50, "b": "t%s"}', i % 5, i % 3)::json""",
    "bag_b": """format('{"a": %s.50, "b": "t%s"}', i % 5, i % 3)::jsonb""",
}
AS_CATEGORY = (
    *("whole", "large", "exact", "single", "double", "huge", "truth"),
    *("day", "at", "zoned", "clock", "zoned_clock", "span"),
)
SETTINGS = (
    "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard'; "
    "SET extra_float_digits = -10; SET bytea_output = 'escape'",
    "SET TimeZone = 'America/St_Johns'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'iso_8601'; "
    "SET extra_float_digits = 0; SET quote_all_identifiers = on",
)


@pytest.fixture(scope="module")
def typed(db):
    """The table `typed` with a column of each type, and a model that has all of them, most of them twice."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 7; CREATE TYPE mood AS ENUM ('sad', 'ok')")
    columns = {**TYPES, **{f"{name}_c": TYPES[name] for name in AS_CATEGORY}}
    made = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    db.run(f"CREATE TABLE typed AS SELECT i AS id, {made}, 'c' || i % 3 AS y FROM generate_series(1, {ROWS}) i")
    fields = ", ".join(f'"{name}->a": "number", "{name}->b": "category"' for name in ("bag", "bag_b"))
    kinds = ", ".join(f'"{name}_c": "category"' for name in AS_CATEGORY)
    db.run(f"SELECT mop_pack('typed', 'packed', target => 'y', id => 'id', transform => '{{{fields}, {kinds}}}')")
    db.run("SELECT mop_architecture('nets', 'packed', 'linear')")
    db.run(
        "SELECT madlib_keras_fit('packed', 'fitted', 'nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam(lr=0.05)', metrics=['accuracy']$$, 'batch_size=8, epochs=1', 2)"
    )
    db.run("SELECT mop_deploy('typed_model', 'fitted')")
    return db


def answers(db, source):
    """The answers of both forms for the single row of a query."""
    row = db.run(f"SELECT p.* FROM ({source}) t, mop_predict('typed_model', t) AS p")
    table = db.run("SELECT p.* FROM mop_predict('typed_model', source => %s) AS p", [source])
    return [r["probabilities"] for r in (*row, *table)]


def test_all_types_are_features(typed):
    left = {r["column_name"] for r in typed.run("SELECT column_name FROM mop_feature_info('packed')")}
    assert {*TYPES, *(f"{name}_c" for name in AS_CATEGORY)} - left == {"bag", "bag_b"}  # (their fields are)


def test_a_row_and_a_table_have_the_same_answer_to_the_last_bit(typed):
    for key in range(1, 8):
        row, table = answers(typed, f"SELECT * FROM typed WHERE id = {key}")
        assert row == table


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_settings_of_the_session_change_no_answer(typed, settings):
    sources = [f"SELECT * FROM typed WHERE id = {key}" for key in range(1, 4)]
    wanted = [answers(typed, source) for source in sources]
    other = typed.another()
    other.run(f"SET search_path = public, madlib; SET pg_mop.seed = 7; {settings}")
    assert [answers(other, source) for source in sources] == wanted
    packed = []
    for by, fitted_on in ((typed, "'packed'"), (other, "'packed'"), (typed, "NULL"), (other, "NULL")):
        by.run(f"SELECT mop_pack('typed', 'again', target => 'y', id => 'id', fitted_on => {fitted_on})")
        packed.append(typed.value("SELECT string_agg(md5(t::text), '' ORDER BY buffer_id) FROM again t"))
        typed.run("DROP TABLE again, again_summary")
    other.close()
    assert packed[0] == packed[1] and packed[2] == packed[3]


ALL = (*TYPES, *(f"{name}_c" for name in AS_CATEGORY))
OTHER_TYPES = [
    *((name, cast) for name in ("whole", "whole_c") for cast in ("bigint", "numeric(9, 2)", "float8", "real")),
    *((name, cast) for name in ("large_c", "huge_c") for cast in ("numeric(20, 3)", "float8")),
    *((name, cast) for name in ("exact_c", "single", "single_c") for cast in ("numeric(9, 1)", "float8")),
    *((name, "text") for name in ("net", "card", "key", "mood", "fixed", "one")),
    *(("serial", "numeric[]"), ("singles", "float8[]"), ("doubles", "real[]"), ("bag", "jsonb"), ("bag_b", "json")),
]


def changed(db, column, sql):
    """The answers for row 5, with another value of a column."""
    return answers(
        db, f"SELECT {', '.join(n for n in ALL if n != column)}, {sql} AS {column} FROM typed t WHERE id = 5"
    )


def test_an_equal_value_of_another_type_has_the_same_answer(typed):
    plain = answers(typed, "SELECT * FROM typed WHERE id = 5")[0]
    for column, cast in OTHER_TYPES:
        assert changed(typed, column, f"t.{column}::text::{cast}") == [plain, plain], (column, cast)
    for address in ("'::1'::text", "'::1'::inet", "'::1/128'::text"):
        assert changed(typed, "address", address) == [plain, plain], address


def test_a_moment_of_another_type_is_converted_by_the_zone_of_the_model(typed):
    plain = answers(typed, "SELECT * FROM typed WHERE id = 5")[0]
    other = typed.another()
    other.run("SET search_path = public, madlib; SET TimeZone = 'Asia/Tokyo'")
    for name in ("at", "at_c", "zoned", "zoned_c"):
        assert changed(other, name, f"t.{name} AT TIME ZONE 'UTC'") == [plain, plain], name
    for name in ("day", "day_c"):
        for sql in (f"t.{name}::timestamp", f"t.{name}::timestamp AT TIME ZONE 'UTC'"):
            assert changed(other, name, sql) == [plain, plain], sql
        row, table = changed(other, name, "'5874897-12-31'::date")
        assert row == table
    other.close()


def test_a_zone_that_is_told_is_stored_and_converts(typed):
    moments = "SELECT id, at AT TIME ZONE 'UTC' AS t, y FROM typed"
    local = "SELECT id, at AT TIME ZONE 'UTC' AT TIME ZONE 'Asia/Tokyo' AS t, y FROM typed"
    packed = []
    for source, transform in ((moments, '{"t": {"zone": "Asia/Tokyo"}}'), (local, "{}"), (moments, "{}")):
        typed.run("SELECT mop_pack(%s, 'zoned', target => 'y', id => 'id', transform => %s)", [source, transform])
        packed.append(typed.value("SELECT string_agg(md5(features), '' ORDER BY buffer_id) FROM zoned"))
        if "zone" in transform:
            assert typed.value("SELECT feature FROM mop_feature_info('zoned')").endswith("in Asia/Tokyo")
            for name, rows in (("checked", moments), ("checked_local", local)):
                typed.run(f"SELECT mop_pack(%s, '{name}', fitted_on => 'zoned')", [rows])
            assert typed.value("SELECT a.features = b.features FROM checked a, checked_local b")
        typed.run("DROP TABLE zoned, zoned_summary")
    assert packed[0] == packed[1] != packed[2]
    for transform, fragment in (
        ('{"t": {"zone": "Mars"}}', 'no time zone "Mars"'),
        ('{"id": {"zone": "UTC"}}', "no zone"),
    ):
        error = typed.error("SELECT mop_pack(%s, 'no', target => 'y', transform => %s)", [moments, transform])
        assert fragment in str(error)


def test_numbers_at_the_edge_have_one_answer_in_both_forms(typed):
    for column, sql_type in (("whole", "float8"), ("whole_c", "float8"), ("exact", "float8"), ("single", "numeric")):
        for value in ("NaN", "Infinity", "-1e300", "1e-300"):
            row, table = changed(typed, column, f"'{value}'::{sql_type}")
            assert row == table, (column, value)


def test_predicted_numbers_are_doubles_to_the_last_digit(typed):
    typed.run(
        "CREATE TABLE late AS SELECT i AS id, (i * 37 % 101)::float8 AS x, 1700000000000000 + 1000 * (i * 37 % 101) AS y "
        "FROM generate_series(1, 200) i"
    )
    typed.run("SELECT mop_pack('late', 'late_packed', target => 'y', id => 'id', kind => 'regression')")
    typed.run("SELECT mop_architecture('late_nets', 'late_packed', 'linear')")
    typed.run(
        "SELECT madlib_keras_fit('late_packed', 'late_fitted', 'late_nets', 1, $$loss='mse', optimizer='Adam(lr=0.1)'$$, "
        "'batch_size=16, epochs=1', 4)"
    )
    typed.run("SELECT mop_deploy('late_model', 'late_fitted')")
    row = typed.run("SELECT p.prediction FROM (SELECT * FROM late WHERE id = 3) t, mop_predict('late_model', t) AS p")
    assert typed.value("SELECT mop_predict_into('late_model', 'late', 'late_answers', keep => 'id, y')") == 200
    assert float(row[0]["prediction"]) == typed.value("SELECT prediction FROM late_answers WHERE id = 3")
    real = typed.value("SELECT sqrt(avg((prediction - y) ^ 2)) FROM late_answers")
    told = typed.value("SELECT value FROM mop_evaluate('late_model', 'late') WHERE metric = 'rmse'")
    assert told == pytest.approx(real) and typed.value("SELECT count(DISTINCT prediction) > 90 FROM late_answers")


def test_json_with_a_character_that_text_cannot_have_matters_only_where_it_is_read(typed):
    nul = """'{"a": 1, "b": "t\\u0000"}'::json"""
    source = f"SELECT *, {nul} AS unused FROM typed WHERE id = 5"
    row, table = answers(typed, source)
    assert row == table == answers(typed, "SELECT * FROM typed WHERE id = 5")[0]
    assert typed.value("SELECT mop_predict_into('typed_model', %s, 'with_nul', keep => 'unused')", [source]) == 1
    others = ", ".join(name for name in ALL if name != "bag")
    used = f"SELECT {others}, {nul} AS bag FROM typed WHERE id = 5"
    for call in (
        f"SELECT p.* FROM ({used}) t, mop_predict('typed_model', t) AS p",
        f"SELECT * FROM mop_predict('typed_model', source => $q${used}$q$)",
        f"SELECT * FROM mop_predict('typed_model', source => $q${source}$q$, keep => 'id, unused')",
        f"""SELECT mop_pack($q${used}$q$, 'no', target => 'y', transform => '{{"bag->b": "category"}}')""",
    ):
        error = typed.error(call)
        assert "bag" in str(error) or "unused" in str(error), call


def test_of_a_large_row_the_columns_of_the_model_alone_are_read(typed):
    typed.run(
        "CREATE TYPE shy AS ENUM ('secret'); CREATE FUNCTION refused(shy) RETURNS json LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'it was read'; END $$; CREATE CAST (shy AS json) WITH FUNCTION refused(shy); "
        "CREATE TABLE large AS SELECT *, 'secret'::shy AS own, "
        "(SELECT string_agg(md5(t.id || ' ' || k), '') FROM generate_series(1, 1000) k) AS page FROM typed t; "
        "ALTER TABLE large DROP COLUMN whole_c; ALTER TABLE large ADD COLUMN whole_c int; UPDATE large SET whole_c = id % 7"
    )
    assert "it was read" in str(typed.error("SELECT to_json(t) FROM large t"))
    ask = "SELECT id, p.* FROM {} t, mop_predict('typed_model', t) AS p ORDER BY id"
    assert typed.run(ask.format("large")) == typed.run(ask.format("typed"))
    assert "it was read" in str(typed.error(ask.format("(SELECT id, own FROM large)")))  # (a small row)
    assert typed.value("SELECT count(mop_class('typed_model', t)) FROM large t") == ROWS
    assert typed.error("SELECT mop_class('no_such_model', t) FROM large t").pgcode == "42P01"
    assert typed.value("SELECT mop_class('typed_model', NULL::large)") is None


def test_the_names_of_a_large_row_and_of_types_are_those_of_postgresql(typed):
    typed.run(
        "CREATE TABLE named AS SELECT i AS id, i % 5 AS used, 'r' || i % 3 AS record, i % 5 > 2 AS y "
        "FROM generate_series(1, 200) i"
    )
    typed.run(
        "SELECT mop_train('named', 'named_model', 'y', families => 'linear', baselines => FALSE); "
        "CREATE TABLE named_large AS SELECT *, (SELECT string_agg(md5(k || ' ' || id), '') FROM generate_series(1, 400) k) "
        "AS page FROM named; CREATE SCHEMA sly; CREATE FUNCTION sly.seen(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql "
        "AS $$ BEGIN RAISE 'sly code runs'; END $$; "
        "CREATE DOMAIN sly.text AS pg_catalog.text CHECK (sly.seen(value))"
    )
    ask = "SELECT id, p.* FROM {} t, mop_predict('named_model', t) AS p ORDER BY id"
    assert typed.run(ask.format("named_large")) == typed.run(ask.format("named"))
    typed.run("SET search_path = sly, public, madlib, pg_catalog")
    assert typed.value("SELECT mop_class('named_model', t) FROM named_large t LIMIT 1") in ("true", "false")
    typed.run("SET search_path = public, madlib")


def test_a_number_that_is_too_small_for_a_double_is_0(typed):
    others = ", ".join(name for name in ALL if name != "exact")
    tiny, zero = (
        answers(typed, f"SELECT {others}, {v}::numeric AS exact FROM typed WHERE id = 5") for v in ("1e-400", "0")
    )
    assert tiny == zero and tiny[0] is not None


def test_any_number_of_columns_is_kept(typed):
    made = ", ".join(f"id * {k} AS n{k}" for k in range(1, 121))
    kept = ", ".join(f"n{k}" for k in range(1, 121))
    source = f"SELECT t.*, {made} FROM typed t WHERE id = 3"
    found = typed.value("SELECT kept FROM mop_predict('typed_model', source => %s, keep => %s)", [source, kept])
    assert found == {f"n{k}": 3 * k for k in range(1, 121)}

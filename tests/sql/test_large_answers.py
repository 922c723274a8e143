"""mop_predict_into for large tables: PostgreSQL's parallel workers answer, and the answers are those of one process."""

import re

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually

ROWS = 100_000
COLUMNS = (
    "i AS id, i % 1000 / 10.0 AS x, CASE WHEN i % 7 > 0 THEN (i * 13 % 997)::numeric(10, 2) END AS n, "
    "CASE WHEN i % 11 > 0 THEN 'kind ' || i % 5 END AS kind, i % 3 = 0 AS flag"
)


@pytest.fixture(scope="module")
def large(db):
    """A table with more rows than one process answers alone, and a named model."""
    db.run("SET search_path = public, madlib; SET pg_mop.seed = 7")
    db.run(
        f"CREATE TABLE few AS SELECT {COLUMNS}, CASE WHEN i % 10 > 4 THEN 'it''s \"so\" \\, 100%' ELSE 'NULL' END AS y "
        "FROM generate_series(1, 200) i"
    )
    db.run(
        "SELECT mop_pack('few', 'packed', target => 'y', id => 'id'); SELECT mop_architecture('nets', 'packed', 'small')"
    )
    db.run(
        "SELECT madlib_keras_fit('packed', 'fitted', 'nets', 1, $$loss='categorical_crossentropy', "
        "optimizer='Adam(lr=0.01)', metrics=['accuracy']$$, 'batch_size=32, epochs=1', 1); "
        "SELECT mop_deploy('known', 'fitted')"
    )
    db.run(f"CREATE TABLE many AS SELECT {COLUMNS} FROM generate_series(1, {ROWS}) i; ANALYZE many")
    db.run(
        "LOAD 'auto_explain'; SET auto_explain.log_nested_statements = on; SET auto_explain.log_level = notice; "
        "SET auto_explain.log_analyze = on; SET auto_explain.log_min_duration = 0"
    )
    return db


def answered(db, source, keep="id", name="answers"):
    """The count of rows, and of the workers that took part."""
    db.run(f"DROP TABLE IF EXISTS {name}")
    del db.connection.notices[:]
    count = db.value("SELECT mop_predict_into('known', %s, %s, keep => %s)", [source, name, keep])
    return count, max(map(int, re.findall(r"Workers Launched: (\d+)", "".join(db.connection.notices))), default=0)


def same(db, one="answers", other="others", key="id"):
    """How many rows of two tables are equal, by their key."""
    return db.value(f"SELECT count(*) FROM {one} a JOIN {other} b USING ({key}) WHERE a::text = b::text")


def alike(db, one="answers", other="others"):
    """The same, where probabilities may differ in their last digits."""
    return db.value(
        f"SELECT count(*) FROM {one} a JOIN {other} b USING (id) WHERE a.prediction = b.prediction AND "
        "abs(a.probability - b.probability) < 1e-5 AND abs((a.probabilities->>'NULL')::float8 - "
        "(b.probabilities->>'NULL')::float8) < 1e-5"
    )


def test_workers_one_process_and_a_query_give_the_same_answers(large):
    count, workers = answered(large, "many")
    assert count == ROWS == large.value("SELECT count(DISTINCT id) FROM answers") and workers == 2
    large.run("SET max_parallel_workers_per_gather = 0")
    assert answered(large, "many", name="others") == (ROWS, 0)
    large.run("RESET max_parallel_workers_per_gather")
    assert same(large) == ROWS
    assert answered(large, "SELECT * FROM many", name="others") == (ROWS, 0)
    assert alike(large) == ROWS
    row = large.run("SELECT prediction, probability, probabilities FROM answers LIMIT 1")[0]
    assert set(row["probabilities"]) == {'it\'s "so" \\, 100%', "NULL"}
    assert row["probabilities"][row["prediction"]] == row["probability"]


def test_what_the_caller_has_written_is_answered_too(large):
    large.run(
        f"BEGIN; INSERT INTO many SELECT {COLUMNS} FROM generate_series({ROWS + 1}, {ROWS + 9}) i; "
        "DELETE FROM many WHERE id <= 4; UPDATE many SET kind = 'new' WHERE id = 9"
    )
    count, workers = answered(large, "many")
    assert (count, workers) == (ROWS + 5, 2) and large.value("SELECT count(DISTINCT id) FROM answers") == ROWS + 5
    told = [notice for notice in large.connection.notices if "training rows did not have" in notice]
    assert len(told) == 1 and '"kind"' in told[0] and "new" in told[0]
    large.run("ROLLBACK")


def test_sources_that_workers_cannot_read_are_answered_by_one_process(large):
    large.run("CREATE TEMP TABLE passing AS SELECT * FROM many; CREATE VIEW seen AS SELECT * FROM many")
    for source in ("passing", "seen"):
        assert answered(large, source) == (ROWS, 0), source
    large.run(
        "CREATE TYPE mood AS (m text); CREATE FUNCTION text_of(mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM setval('moods', 1); RETURN ($1).m; END $$; CREATE SEQUENCE moods; "
        "CREATE CAST (mood AS text) WITH FUNCTION text_of(mood) AS ASSIGNMENT; CREATE TABLE moody AS "
        "SELECT id, x, n, ROW(kind)::mood AS kind, flag FROM many"
    )
    assert answered(large, "moody") == (ROWS, 0)
    large.run("DROP TABLE passing, moody; DROP VIEW seen")


def test_policies_hide_rows_and_workers_answer_for_a_role_that_may_only_ask(large):
    large.run(
        "CREATE ROLE asker LOGIN; GRANT mop_user TO asker; CREATE TABLE hidden AS SELECT * FROM many; "
        "GRANT SELECT ON hidden TO asker; GRANT CREATE ON SCHEMA public TO asker; "
        "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; CREATE POLICY half ON hidden USING (id % 2 = 0); "
        "SELECT mop_share('known', 'asker', what => 'answers')"
    )
    asker = large.another("asker")
    asker.run("SET search_path = public, madlib")
    ask = "SELECT mop_predict_into('known', '{}', '{}', keep => 'id')"
    assert asker.value(ask.format("hidden", "of_asker")) == ROWS // 2
    assert asker.value("SELECT count(*) FROM of_asker WHERE id % 2 = 1") == 0
    assert asker.error(ask.format("many", "more_of_asker")).pgcode == "42501"
    large.run("SET ROLE asker; CREATE TABLE own AS SELECT h.* FROM hidden h, generate_series(1, 2)")
    count, workers = answered(large, "own", name="more_of_asker")
    large.run("RESET ROLE")
    assert (count, workers) == (ROWS, 2)
    large.run("DROP TABLE hidden, own, of_asker, more_of_asker; DROP OWNED BY asker; DROP ROLE asker")
    asker.close()


def test_parts_of_a_table_and_columns_of_all_types_are_kept(large):
    large.run(
        "CREATE DOMAIN percent AS numeric CHECK (VALUE >= 0); CREATE TYPE pair AS (a int, b text); "
        'CREATE TABLE parted (id int, x numeric, n numeric, kind text COLLATE "C", flag boolean, d percent, p pair, '
        'a int[], c char(4), o oidvector, "select" text) PARTITION BY RANGE (id); '
        f"CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000) WITH (fillfactor = 20); "
        f"CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (1000) TO ({ROWS + 1}); "
        "INSERT INTO parted SELECT id, x, n, kind, flag, x, ROW(id, kind)::pair, CASE WHEN id % 3 > 0 THEN "
        "array_fill(id, ARRAY[id % 3]) END, left(kind, 2), '1 2', nullif(kind, 'kind 1') FROM many"
    )
    keep = 'id, d, p, a, c, o, "select"'
    count, workers = answered(large, "parted", keep)
    assert count == ROWS and workers == 2
    answered(large, "SELECT * FROM parted", keep, name="others")
    types = "SELECT attname, atttypid, atttypmod, attcollation FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    assert large.run(types, ["answers"]) == large.run(types, ["others"])
    assert alike(large) == ROWS
    for column in ("d", "p", "a", "c", "o", '"select"'):
        assert (
            large.value(
                f"SELECT count(*) FROM answers a JOIN others b USING (id) WHERE a.{column} IS DISTINCT FROM b.{column}"
            )
            == 0
        ), column
    large.run("DROP TABLE parted; DROP TABLE answers, others")


def test_a_lock_that_another_session_waits_for_stops_no_worker(large):
    other = large.another()
    pid = other.value("SELECT pg_backend_pid()")
    large.run("BEGIN; SELECT 1 FROM many LIMIT 1")
    waiting = Calling(other, "ALTER TABLE many ADD later integer")
    assert eventually(lambda: large.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", [pid]))
    assert answered(large, "many")[0] == ROWS
    large.run("COMMIT")
    assert waiting.end() is None
    other.close()


def worker_of(watcher, pid):
    """The process ID of a worker of a session; None where it has none."""
    return watcher.value("SELECT pid FROM pg_stat_activity WHERE leader_pid = %s AND pid <> leader_pid LIMIT 1", [pid])


def test_a_worker_that_is_ended_costs_no_row_and_a_cancel_ends_all(large):
    many = 4 * ROWS
    large.run(f"CREATE TABLE more AS SELECT {COLUMNS} FROM generate_series(1, {many}) i; DROP TABLE IF EXISTS answers")
    caller = large.another()
    caller.run("SET search_path = public, madlib")
    pid = caller.value("SELECT pg_backend_pid()")
    call = Calling(caller, "SELECT mop_predict_into('known', 'more', 'answers', keep => 'id')")
    worker = eventually(lambda: worker_of(large, pid))
    assert large.value("SELECT pg_terminate_backend(%s)", [worker])
    assert call.end() is None
    assert large.run("SELECT count(*) AS all, count(DISTINCT id) AS own FROM answers") == [{"all": many, "own": many}]
    call = Calling(caller, "SELECT mop_predict_into('known', 'more', 'others', keep => 'id')")
    assert eventually(lambda: worker_of(large, pid))
    large.run("SELECT pg_cancel_backend(%s)", [pid])
    assert isinstance(call.end(), psycopg2.errors.QueryCanceled)
    assert eventually(lambda: worker_of(large, pid) is None)
    assert large.value("SELECT to_regclass('others')") is None and caller.value("SELECT 1") == 1
    caller.close()


def test_an_error_of_a_value_is_the_callers_error(large):
    large.run("CREATE TABLE bad AS SELECT id, x, n, kind, flag::text AS flag FROM many")
    assert '"flag" has type text' in str(large.error("SELECT mop_predict_into('known', 'bad', 'no')"))
    large.run("ALTER TABLE bad DROP flag, DROP x")
    assert answered(large, "bad")[0] == ROWS
    assert sum("are missing: x, flag" in notice for notice in large.connection.notices) == 1


def test_no_key_no_answer(large):
    call = "SELECT mop_answer_arrays({}, {}, {}, NULL, NULL)"
    for arguments in (("pg_backend_pid()", 0, "'key'"), (1, 0, "NULL"), ("NULL", "NULL", "NULL")):
        assert large.error(call.format(*arguments)).pgcode == "55000"

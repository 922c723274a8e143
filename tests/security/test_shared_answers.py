"""A role with whom the answers of a model are shared gets them, and nothing else of the model."""

import hashlib
import subprocess

import psycopg2
import pytest

from pg_mop.backend.weights import Reference
from support.cluster import client_program

TRAP = """
CREATE TABLE his.trap (seen text); GRANT INSERT ON his.trap TO public;
CREATE FUNCTION his.snap() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..3 LOOP
        RAISE NOTICE 'sprung as %', current_user;
        BEGIN
            EXECUTE (ARRAY['RESET ROLE', 'SET ROLE postgres', 'RESET SESSION AUTHORIZATION'])[i];
            RAISE NOTICE 'sprung and free';
        EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR invalid_parameter_value THEN
        END;
    END LOOP;
    INSERT INTO his.trap VALUES (current_user);
    PERFORM set_config('pg_mop.seed', '666', false);
    IF session_user = 'ana' AND current_setting('his.deed', true) = 'fail' THEN
        RAISE EXCEPTION 'sprung';
    ELSIF session_user = 'ana' AND current_setting('his.deed', true) = 'sleep' THEN
        PERFORM pg_sleep(600);
    END IF;
    RETURN 'x';
END
$$;
CREATE FUNCTION his.spring() RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN his.snap(); END $$;
"""
SECRETS = ("bitter", "sweet", "acrid")  # the values of a category


@pytest.fixture(scope="module")
def owen(db):
    """Owen's models, which ana may ask: one of classes, one of numbers, and one that a trainer computes."""
    db.run(
        "SET search_path = public, madlib; CREATE ROLE owen LOGIN; CREATE ROLE ana LOGIN; CREATE ROLE mia LOGIN; "
        "GRANT mop_user TO owen, ana, mia; CREATE SCHEMA his AUTHORIZATION owen; GRANT USAGE ON SCHEMA his TO ana, mia; "
        "GRANT CREATE, USAGE ON SCHEMA public TO owen, ana, mia"
    )
    owen = db.another("owen")
    owen.run("SET search_path = his, public, madlib; " + TRAP)
    owen.run(
        "CREATE TABLE beans AS SELECT i AS id, i % 7 AS size, (ARRAY['bitter', 'sweet', 'acrid'])[1 + i % 3] AS taste, "
        "'a bean number ' || i AS note, (i % 7 > 3)::text AS y FROM generate_series(1, 400) i"
    )
    for name, columns, target, kind in (
        ("classes", "size, taste, y", "y", "classification"),
        ("numbers", "size, size + 1.5 AS length, taste", "length", "regression"),
        ("words", "size, note, y", "y", "classification"),
    ):
        owen.run(
            f"SELECT mop_train('SELECT {columns} FROM beans', '{name}', '{target}', kind => '{kind}', max_trials => 1, "
            "baselines => FALSE, layers => 'small')"
        )
        owen.run(f"SELECT mop_share('{name}', 'ana', what => 'answers')")
    owen.run(
        'INSERT INTO classes SELECT (jsonb_populate_record(c, \'{"version": 2, "in_use": false}\')).* FROM classes c'
    )
    yield owen
    owen.close()


@pytest.fixture
def ana(owen):
    owen.run("SELECT mop_share('classes', 'ana', what => 'answers')")
    client = owen.another("ana")
    client.run(
        "SET search_path = public, madlib; CREATE TEMP TABLE mine AS SELECT i AS id, i AS size, 'sweet'::text AS taste, "
        "'a bean'::text AS note FROM generate_series(0, 6) i"
    )
    yield client
    client.close()


ASK = "SELECT (mop_predict('his.classes', t)).prediction FROM (SELECT 6 AS size) t"


def test_every_form_of_an_answer_is_that_of_the_owner(owen, ana):
    for model in ("his.classes", "his.numbers", "his.words"):
        for rows in (
            "SELECT t.id, p.* FROM {} t, mop_predict('{}', t) p ORDER BY 1",
            "SELECT kept, prediction, probability FROM mop_predict('{1}', source => '{0}', keep => 'id') ORDER BY kept->>'id'",
        ):
            table = "pg_temp.mine"
            found = ana.run(rows.format(table, model))
            owen.run(
                "CREATE TEMP TABLE IF NOT EXISTS mine AS SELECT i AS id, i AS size, 'sweet'::text AS taste, "
                "'a bean'::text AS note FROM generate_series(0, 6) i"
            )
            assert found == owen.run(rows.format(table, model)) and len(found) == 7
    assert ana.value("SELECT mop_predict_into('his.classes', 'mine', 'pg_temp.answers', keep => 'id')") == 7
    assert ana.value("SELECT count(*) FROM mine t WHERE mop_class('his.classes', t) = 'true'") == 3
    assert ana.value("SELECT mop_probability('his.classes', t, 'true') > 0.5 FROM mine t WHERE id = 6")
    assert ana.value("SELECT mop_number('his.numbers', t) FROM mine t WHERE id = 6") > 5
    assert ana.value(ASK.replace("t)", "t, 2)")) == ana.value(ASK) == "true"
    assert "has no version 9" in str(ana.error(ASK.replace("t)", "t, 9)")))
    row = f"ROW(6, {chr(39) + 'x' * 9000 + chr(39)}, 'n')"
    assert (
        ana.value(
            "CREATE TYPE pg_temp.large AS (size int, taste text, note text); "
            f"SELECT mop_class('his.classes', {row}::pg_temp.large)"
        )
        == "true"
    )


@pytest.mark.parametrize("sql", [
    "SELECT * FROM his.classes", "SELECT transform FROM his.classes", "SELECT count(*) FROM his.classes",
    "TABLE his.classes", "BEGIN; LOCK his.classes IN ACCESS SHARE MODE", "COPY his.classes TO STDOUT",
    "SELECT mop_export_model('his.classes', NULL)", "SELECT * FROM mop_feature_info('his.classes')",
    "SELECT * FROM mop_drift('his.classes', 'mine')", "SELECT mop_model_report('his.classes')",
    "SELECT * FROM mop_importance('his.classes', 'SELECT *, true AS y FROM mine')",
    "SELECT e.* FROM mine t, mop_explain_answer('his.classes', t, source => 'mine') e",
    "SELECT * FROM mop_evaluate('his.classes', 'SELECT *, true AS y FROM mine')",
    "SELECT mop_deploy('his.classes', 'his.classes')", "SELECT mop_share('his.classes', 'mia')",
    "SELECT mop_use_version('his.classes', 1)", "SELECT mop_pack('mine', 'x', fitted_on => 'his.classes')",
    "SELECT * FROM mop_predict('his.classes', source => 'his.classes_train')",
])  # fmt: skip
def test_nothing_else_is_given(ana, sql):
    ana.value(ASK)  # the session has the model in its memory
    error = ana.error(sql)
    assert error.pgcode in ("42501", "42P01"), error
    assert not any(secret in str(error) for secret in SECRETS), error


def test_what_the_readers_return_has_no_contents(owen, ana):
    oid = owen.value("SELECT 'classes'::regclass::oid::bigint")
    for contents in ("false", "true"):
        assert ana.value(f"SELECT mop_hand_over({oid}, 1, {contents})") in ("", None)
    assert set(ana.run(f"SELECT * FROM mop_place_of_version({oid}, 1)")[0]) == {"version", "place", "writer"}
    token = ana.value("SELECT mop_token()")
    mia = owen.another("mia")
    for call in ("mop_hand_over({}, 1, true)", "mop_place_of_version({}, 1)", "mop_hand_over({}, 1, true, '{}')"):
        error = mia.error(f"SELECT madlib.{call.format(oid, token)}")
        assert error.pgcode == "42501"
    for other in ("pg_authid", "madlib.mop_secret", "his.beans"):
        other = owen.value(f"SELECT '{other}'::regclass::oid::bigint")
        assert "permission denied for the model" in str(ana.error(f"SELECT mop_hand_over({other}, 1, true)"))
    mia.close()


def test_no_message_and_no_plan_has_a_value_of_the_category(owen, ana):
    """A session may print the plans of all its queries, and its own enum may ask which labels are gone."""
    ana.run(
        "SET client_min_messages = debug1; SET debug_print_plan = on; SET debug_print_parse = on; SET debug_pretty_print = off"
    )
    del ana.connection.notices[:]
    ana.run(
        "CREATE TYPE flavour AS ENUM ('salty', 'hot'); CREATE TABLE hers AS SELECT 3 AS size, 'salty'::flavour AS taste"
    )
    ana.run("SELECT p.* FROM hers t, mop_predict('his.classes', t) p")
    ana.run("SELECT * FROM mop_predict('his.classes', source => 'hers')")
    said = "".join(ana.connection.notices)
    assert "salty" in said and not any(secret in said or secret.encode().hex() in said for secret in SECRETS)
    # (a plan has the bytes of a constant as numbers)
    numbers = [" ".join(map(str, secret.encode())) for secret in SECRETS]
    assert not any(number in said for number in numbers)
    ana.run("DROP TABLE hers; DROP TYPE flavour")


def test_the_right_ends_with_the_grant_the_role_and_the_table(owen, ana):
    assert ana.value(ASK) == "true"
    owen.run("SELECT mop_share('classes', 'ana', what => 'nothing')")
    assert ana.error(ASK).pgcode == "42501"
    owen.run("SELECT mop_share('classes', 'ana', what => 'answers')")
    ana.run("BEGIN")
    assert ana.value(ASK) == "true"
    owen.run("REVOKE SELECT ON classes FROM ana")
    assert ana.error(ASK).pgcode == "42501"
    owen.run("SELECT mop_share('classes', 'ana', what => 'answers')")
    assert ana.value(ASK) == "true"
    owen.run(
        "CREATE TABLE classes_2 AS TABLE classes; ALTER TABLE classes RENAME TO older; ALTER TABLE classes_2 RENAME TO classes"
    )
    try:
        assert ana.error(ASK).pgcode == "42501"
        assert ana.value(ASK.replace("classes", "older")) == "true"
    finally:
        owen.run("DROP TABLE classes; ALTER TABLE older RENAME TO classes")
    owen.run("REVOKE USAGE ON SCHEMA his FROM ana")
    try:
        assert ana.error(ASK).pgcode == "42501"
    finally:
        owen.run("GRANT USAGE ON SCHEMA his TO ana")


def test_each_role_of_a_session_asks_by_its_own_right(db, owen, ana):
    db.run("GRANT mia TO ana")
    try:
        assert ana.value(ASK) == "true"
        ana.run("SET ROLE mia")
        assert ana.error(ASK).pgcode == "42501"
        ana.run("RESET ROLE")
        ana.run(
            "CREATE FUNCTION lent() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = madlib AS $$ "
            + ASK
            + " $$"
        )
        mia = db.another("mia")
        assert mia.value("SELECT lent()") == "true"  # as any function of hers
        mia.run(
            "CREATE FUNCTION public.stolen() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = madlib AS $$ "
            + ASK
            + " $$"
        )
        assert ana.error("SELECT public.stolen()").pgcode == "42501"
        mia.close()
    finally:
        ana.run("RESET ROLE; DROP FUNCTION IF EXISTS lent()")
        db.run("REVOKE mia FROM ana")


TRICKS = [
    "CREATE INDEX ON trick ((his.spring() || description))",
    "CREATE STATISTICS his.s ON (his.spring() || description), kind FROM trick",
    "ALTER TABLE trick ENABLE ROW LEVEL SECURITY; ALTER TABLE trick FORCE ROW LEVEL SECURITY; "
    "CREATE POLICY p ON trick USING (his.snap() = 'x')",
]


@pytest.mark.parametrize("deed", ["", "fail", "sleep"])
@pytest.mark.parametrize("trick", TRICKS)
def test_the_owners_table_runs_code_as_its_owner_at_most_and_leaves_nothing(owen, ana, trick, deed):
    """Where the readers are called past the checks of mop_predict, as in the moment between its check and its reading."""
    owen.run("CREATE TABLE trick AS TABLE classes; SELECT mop_share('trick', 'ana', what => 'answers')")
    try:
        oid = owen.value("SELECT 'trick'::regclass::oid::bigint")
        owen.run(trick + "; TRUNCATE his.trap")
        assert "of another role has" in str(ana.error(ASK.replace("classes", "trick")))
        del ana.connection.notices[:]
        ana.run(
            f"SET his.deed = '{deed}'; SET statement_timeout = '{'1s' if deed == 'sleep' else 0}'; BEGIN; SAVEPOINT a"
        )
        for call in (f"mop_hand_over({oid}, 1, true)", f"mop_place_of_version({oid}, 1)"):
            if deed:
                with pytest.raises(psycopg2.Error):
                    ana.run(f"SELECT {call}")
                ana.run("ROLLBACK TO a")
            else:
                ana.run(f"SELECT {call}")
            assert ana.value("SELECT current_user") == "ana"
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                ana.run("SELECT transform FROM his.classes")
            ana.run("ROLLBACK TO a")
        ana.run("ROLLBACK; RESET statement_timeout")
        sprung = {notice.strip() for notice in ana.connection.notices if "sprung" in notice}
        assert sprung == {"NOTICE:  sprung as owen"}
        assert not owen.value("SELECT count(*) FROM his.trap")
        assert ana.value("SELECT current_setting('pg_mop.seed', true)") in (None, "")
        assert ana.value(ASK) == "true"
    finally:
        owen.run("DROP TABLE trick")


def test_weights_in_parts_are_read_for_the_role_too(owen, ana):
    weights = bytes(owen.value("SELECT model_weights FROM classes WHERE in_use"))
    digest = hashlib.md5(hashlib.md5(weights).hexdigest().encode()).hexdigest()
    owen.run("CREATE TABLE large AS TABLE classes; CREATE TABLE large_parts (digest text, part integer, data bytea)")
    owen.run("INSERT INTO large_parts VALUES (%s, 0, %s)", [digest, weights])
    owen.run("UPDATE large SET model_weights = %s", [Reference(digest, len(weights)).encode()])
    owen.run("SELECT mop_share('large', 'ana', what => 'answers')")
    assert ana.value(ASK.replace("classes", "large")) == "true"
    assert ana.error("SELECT * FROM his.large_parts").pgcode == "42501"


def test_a_dump_keeps_the_right(db, owen, ana):
    dump = subprocess.run(
        [client_program("pg_dump"), "--schema", "his", "--schema-only", db.uri()], check=True, capture_output=True
    )
    assert b"GRANT SELECT(tableoid) ON TABLE his.classes TO ana" in dump.stdout


def test_what_is_shared_is_said_and_refused_otherwise(owen):
    owen.run("SELECT mop_share('numbers', 'mia')")
    del owen.connection.notices[:]
    owen.run("SELECT mop_share('numbers', 'mia', what => 'answers')")
    assert "may read model" in owen.connection.notices[-1]
    owen.run("SELECT mop_share('numbers', 'mia', what => 'nothing')")
    assert not owen.value("SELECT has_column_privilege('mia', 'his.numbers', 'tableoid', 'SELECT')")
    for what in ("'all'", "NULL"):
        assert "what" in str(owen.error(f"SELECT mop_share('numbers', 'mia', what => {what})"))

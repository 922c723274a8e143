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
    IF session_user = 'anna' AND current_setting('his.deed', true) = 'fail' THEN
        RAISE EXCEPTION 'sprung';
    ELSIF session_user = 'anna' AND current_setting('his.deed', true) = 'sleep' THEN
        PERFORM pg_sleep(600);
    END IF;
    RETURN 'x';
END
$$;
CREATE FUNCTION his.spring() RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN his.snap(); END $$;
"""
SECRETS = ("bitter", "sweet", "acrid")  # the values of a category


@pytest.fixture(scope="module")
def otto(db):
    """Otto's models, which anna may ask: one of classes, one of numbers, and one that a trainer computes."""
    db.run(
        "SET search_path = public, madlib; CREATE ROLE otto LOGIN; CREATE ROLE anna LOGIN; CREATE ROLE mila LOGIN; "
        "GRANT mop_user TO otto, anna, mila; CREATE SCHEMA his AUTHORIZATION otto; GRANT USAGE ON SCHEMA his TO anna, mila; "
        "GRANT CREATE, USAGE ON SCHEMA public TO otto, anna, mila"
    )
    otto = db.another("otto")
    otto.run("SET search_path = his, public, madlib; " + TRAP)
    otto.run(
        "CREATE TABLE beans AS SELECT i AS id, i % 7 AS size, (ARRAY['bitter', 'sweet', 'acrid'])[1 + i % 3] AS taste, "
        "'a bean number ' || i AS note, (i % 7 > 3)::text AS y FROM generate_series(1, 400) i"
    )
    for name, columns, target, kind, how in (
        ("classes", "size, taste, y", "y", "classification", "'linear'"),
        ("numbers", "size, size + 1.5 AS length, taste", "length", "regression", "'linear'"),
        (
            "words",
            "size, note, y",
            "y",
            "classification",
            "'nets', layers => 'small', max_trials => 1, time_limit => '4 s'",
        ),
    ):
        otto.run(
            f"SELECT mop_train('SELECT {columns} FROM beans', '{name}', '{target}', kind => '{kind}', "
            f"baselines => FALSE, families => {how})"
        )
        otto.run(f"SELECT mop_share('{name}', 'anna', what => 'answers')")
    otto.run(
        'INSERT INTO classes SELECT (jsonb_populate_record(c, \'{"version": 2, "in_use": false}\')).* FROM classes c'
    )
    yield otto
    otto.close()


@pytest.fixture
def anna(otto):
    otto.run("SELECT mop_share('classes', 'anna', what => 'answers')")
    client = otto.another("anna")
    client.run(
        "SET search_path = public, madlib; CREATE TEMP TABLE mine AS SELECT i AS id, i AS size, 'sweet'::text AS taste, "
        "'a bean'::text AS note FROM generate_series(0, 6) i"
    )
    yield client
    client.close()


ASK = "SELECT (mop_predict('his.classes', t)).prediction FROM (SELECT 6 AS size) t"


def test_every_form_of_an_answer_is_that_of_the_owner(otto, anna):
    for model in ("his.classes", "his.numbers", "his.words"):
        for rows in (
            "SELECT t.id, p.* FROM {} t, mop_predict('{}', t) p ORDER BY 1",
            "SELECT kept, prediction, probability FROM mop_predict('{1}', source => '{0}', keep => 'id') ORDER BY kept->>'id'",
        ):
            table = "pg_temp.mine"
            found = anna.run(rows.format(table, model))
            otto.run(
                "CREATE TEMP TABLE IF NOT EXISTS mine AS SELECT i AS id, i AS size, 'sweet'::text AS taste, "
                "'a bean'::text AS note FROM generate_series(0, 6) i"
            )
            assert found == otto.run(rows.format(table, model)) and len(found) == 7
    assert anna.value("SELECT mop_predict_into('his.classes', 'mine', 'pg_temp.answers', keep => 'id')") == 7
    assert anna.value("SELECT count(*) FROM mine t WHERE mop_class('his.classes', t) = 'true'") == 3
    assert anna.value("SELECT mop_probability('his.classes', t, 'true') > 0.5 FROM mine t WHERE id = 6")
    assert anna.value("SELECT mop_number('his.numbers', t) FROM mine t WHERE id = 6") > 5
    assert anna.value(ASK.replace("t)", "t, 2)")) == anna.value(ASK) == "true"
    assert "has no version 9" in str(anna.error(ASK.replace("t)", "t, 9)")))
    row = f"ROW(6, {chr(39) + 'x' * 9000 + chr(39)}, 'n')"
    assert (
        anna.value(
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
    "SELECT mop_deploy('his.classes', 'his.classes')", "SELECT mop_share('his.classes', 'mila')",
    "SELECT mop_use_version('his.classes', 1)", "SELECT mop_pack('mine', 'x', fitted_on => 'his.classes')",
    "SELECT * FROM mop_predict('his.classes', source => 'his.classes_train')",
])  # fmt: skip
def test_nothing_else_is_given(anna, sql):
    anna.value(ASK)  # the session has the model in its memory
    error = anna.error(sql)
    assert error.pgcode in ("42501", "42P01"), error
    assert not any(secret in str(error) for secret in SECRETS), error


def test_what_the_readers_return_has_no_contents(otto, anna):
    oid = otto.value("SELECT 'classes'::regclass::oid::bigint")
    for contents in ("false", "true"):
        assert anna.value(f"SELECT mop_hand_over({oid}, 1, {contents})") in ("", None)
    assert set(anna.run(f"SELECT * FROM mop_place_of_version({oid}, 1)")[0]) == {"version", "place", "writer"}
    token = anna.value("SELECT mop_token()")
    mila = otto.another("mila")
    for call in ("mop_hand_over({}, 1, true)", "mop_place_of_version({}, 1)", "mop_hand_over({}, 1, true, '{}')"):
        error = mila.error(f"SELECT madlib.{call.format(oid, token)}")
        assert error.pgcode == "42501"
    for other in ("pg_authid", "madlib.mop_secret", "his.beans"):
        other = otto.value(f"SELECT '{other}'::regclass::oid::bigint")
        assert "permission denied for the model" in str(anna.error(f"SELECT mop_hand_over({other}, 1, true)"))
    mila.close()


def test_no_message_and_no_plan_has_a_value_of_the_category(otto, anna):
    """A session may print the plans of all its queries, and its own enum may ask which labels are gone."""
    anna.run(
        "SET client_min_messages = debug1; SET debug_print_plan = on; SET debug_print_parse = on; SET debug_pretty_print = off"
    )
    del anna.connection.notices[:]
    anna.run(
        "CREATE TYPE flavour AS ENUM ('salty', 'hot'); CREATE TABLE hers AS SELECT 3 AS size, 'salty'::flavour AS taste"
    )
    anna.run("SELECT p.* FROM hers t, mop_predict('his.classes', t) p")
    anna.run("SELECT * FROM mop_predict('his.classes', source => 'hers')")
    said = "".join(anna.connection.notices)
    assert "salty" in said and not any(secret in said or secret.encode().hex() in said for secret in SECRETS)
    # (a plan has the bytes of a constant as numbers)
    numbers = [" ".join(map(str, secret.encode())) for secret in SECRETS]
    assert not any(number in said for number in numbers)
    anna.run("DROP TABLE hers; DROP TYPE flavour")


def test_the_right_ends_with_the_grant_the_role_and_the_table(otto, anna):
    assert anna.value(ASK) == "true"
    otto.run("SELECT mop_share('classes', 'anna', what => 'nothing')")
    assert anna.error(ASK).pgcode == "42501"
    otto.run("SELECT mop_share('classes', 'anna', what => 'answers')")
    anna.run("BEGIN")
    assert anna.value(ASK) == "true"
    otto.run("REVOKE SELECT ON classes FROM anna")
    assert anna.error(ASK).pgcode == "42501"
    otto.run("SELECT mop_share('classes', 'anna', what => 'answers')")
    assert anna.value(ASK) == "true"
    otto.run(
        "CREATE TABLE classes_2 AS TABLE classes; ALTER TABLE classes RENAME TO older; ALTER TABLE classes_2 RENAME TO classes"
    )
    try:
        assert anna.error(ASK).pgcode == "42501"
        assert anna.value(ASK.replace("classes", "older")) == "true"
    finally:
        otto.run("DROP TABLE classes; ALTER TABLE older RENAME TO classes")
    otto.run("REVOKE USAGE ON SCHEMA his FROM anna")
    try:
        assert anna.error(ASK).pgcode == "42501"
    finally:
        otto.run("GRANT USAGE ON SCHEMA his TO anna")


def test_each_role_of_a_session_asks_by_its_own_right(db, otto, anna):
    db.run("GRANT mila TO anna")
    try:
        assert anna.value(ASK) == "true"
        anna.run("SET ROLE mila")
        assert anna.error(ASK).pgcode == "42501"
        anna.run("RESET ROLE")
        anna.run(
            "CREATE FUNCTION lent() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = madlib AS $$ "
            + ASK
            + " $$"
        )
        mila = db.another("mila")
        assert mila.value("SELECT lent()") == "true"  # as any function of hers
        mila.run(
            "CREATE FUNCTION public.stolen() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = madlib AS $$ "
            + ASK
            + " $$"
        )
        assert anna.error("SELECT public.stolen()").pgcode == "42501"
        mila.close()
    finally:
        anna.run("RESET ROLE; DROP FUNCTION IF EXISTS lent()")
        db.run("REVOKE mila FROM anna")


TRICKS = [
    "CREATE INDEX ON trick ((his.spring() || description))",
    "CREATE STATISTICS his.s ON (his.spring() || description), kind FROM trick",
]


@pytest.mark.parametrize("deed", ["", "fail", "sleep"])
@pytest.mark.parametrize("trick", TRICKS)
def test_the_owners_table_runs_code_as_its_owner_at_most_and_leaves_nothing(otto, anna, trick, deed):
    """Where the readers are called past the checks of mop_predict, as in the moment between its check and its reading."""
    otto.run("CREATE TABLE trick AS TABLE classes; SELECT mop_share('trick', 'anna', what => 'answers')")
    try:
        oid = otto.value("SELECT 'trick'::regclass::oid::bigint")
        otto.run(trick + "; TRUNCATE his.trap")
        assert "of another role has" in str(anna.error(ASK.replace("classes", "trick")))
        del anna.connection.notices[:]
        anna.run(
            f"SET his.deed = '{deed}'; SET statement_timeout = '{'1s' if deed == 'sleep' else 0}'; BEGIN; SAVEPOINT a"
        )
        for call in (f"mop_hand_over({oid}, 1, true)", f"mop_place_of_version({oid}, 1)"):
            if deed:
                with pytest.raises(psycopg2.Error):
                    anna.run(f"SELECT {call}")
                anna.run("ROLLBACK TO a")
            else:
                anna.run(f"SELECT {call}")
            assert anna.value("SELECT current_user") == "anna"
            anna.run("CREATE TEMP TABLE left_over (); SET ROLE anna; RESET ROLE")  # nothing restricts the session
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                anna.run("SELECT transform FROM his.classes")
            anna.run("ROLLBACK TO a")
        anna.run("ROLLBACK; RESET statement_timeout")
        sprung = {notice.strip() for notice in anna.connection.notices if "sprung" in notice}
        assert sprung == {"NOTICE:  sprung as otto"}
        assert not otto.value("SELECT count(*) FROM his.trap")
        assert anna.value("SELECT current_setting('pg_mop.seed', true)") in (None, "")
        assert anna.value(ASK) == "true"
    finally:
        otto.run("DROP TABLE trick")


def test_weights_in_parts_are_read_for_the_role_too(otto, anna):
    weights = bytes(otto.value("SELECT model_weights FROM classes WHERE in_use"))
    digest = hashlib.md5(hashlib.md5(weights).hexdigest().encode()).hexdigest()
    otto.run("CREATE TABLE large AS TABLE classes; CREATE TABLE large_parts (digest text, part integer, data bytea)")
    otto.run("INSERT INTO large_parts VALUES (%s, 0, %s)", [digest, weights])
    otto.run("UPDATE large SET model_weights = %s", [Reference(digest, len(weights)).encode()])
    otto.run("SELECT mop_share('large', 'anna', what => 'answers')")
    assert anna.value(ASK.replace("classes", "large")) == "true"
    assert anna.error("SELECT * FROM his.large_parts").pgcode == "42501"


def test_a_dump_keeps_the_right(db, otto, anna):
    dump = subprocess.run(
        [client_program("pg_dump"), "--schema", "his", "--schema-only", db.uri()], check=True, capture_output=True
    )
    assert b"GRANT SELECT(tableoid) ON TABLE his.classes TO anna" in dump.stdout


def test_what_is_shared_is_said_and_refused_otherwise(otto):
    otto.run("SELECT mop_share('numbers', 'mila')")
    del otto.connection.notices[:]
    otto.run("SELECT mop_share('numbers', 'mila', what => 'answers')")
    assert "nevertheless" in otto.connection.notices[-1]
    otto.run("SELECT mop_share('numbers', 'mila', what => 'nothing')")
    assert not otto.value("SELECT has_column_privilege('mila', 'his.numbers', 'tableoid', 'SELECT')")
    for what in ("'all'", "NULL"):
        assert "what" in str(otto.error(f"SELECT mop_share('numbers', 'mila', what => {what})"))


def test_only_models_without_row_security_are_read_for_others(otto, anna):
    otto.run("CREATE TABLE plain AS SELECT 42 AS version, TRUE AS in_use; GRANT SELECT (tableoid) ON plain TO anna")
    place = "SELECT * FROM mop_place_of_version('{}'::regclass, NULL)"
    assert anna.error(place.format("his.plain")).pgcode == "42501"
    otto.run("ALTER TABLE classes ENABLE ROW LEVEL SECURITY")
    try:
        assert anna.error(place.format("his.classes")).pgcode == "42501"
        assert "permission denied" in str(anna.error("SELECT mop_class('his.classes', t) FROM mine t"))
        assert "row security" in str(otto.error("SELECT mop_share('classes', 'mila', what => 'answers')"))
    finally:
        otto.run("ALTER TABLE classes DISABLE ROW LEVEL SECURITY")
    assert anna.value("SELECT count(mop_class('his.classes', t)) FROM mine t") == 7


def test_nobody_takes_his_own_model_from_himself(otto):
    for what in ("model", "answers", "nothing"):
        assert "owns" in str(otto.error(f"SELECT mop_share('classes', 'otto', what => '{what}')"))
    assert otto.value("SELECT count(*) FROM classes") == 2


def test_the_client_asks_a_model_that_the_role_may_only_ask(otto, anna):
    pandas, client = pytest.importorskip("pandas"), pytest.importorskip("pg_mop_client")
    with client.Selection(anna.uri(), progress=False) as selection:
        model = selection.model("his.classes")
        rows = pandas.DataFrame({"size": [6, 0], "taste": ["sweet", None]})
        assert list(model.predict(rows).prediction) == ["true", "false"]
        with pytest.raises(client.ClientError):
            selection.model("his.beans")

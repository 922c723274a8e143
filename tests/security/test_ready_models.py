"""A session that has asked a model sees at its next question whatever would change the answer, or the right to it."""

import pytest

TRAP = (
    "CREATE TABLE trap (seen text); GRANT INSERT ON trap TO public; CREATE FUNCTION spring() RETURNS text IMMUTABLE LANGUAGE "
    "plpgsql AS $$ BEGIN RETURN public.snap(); END $$; CREATE FUNCTION snap() RETURNS text LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO public.trap VALUES (current_user); RETURN 'x'; END $$"
)


@pytest.fixture(scope="module")
def beans(db):
    """Two versions of owen's model, of which the second one answers the opposite; ana may ask it, and so may mia."""
    db.run(
        "SET search_path = public, madlib; CREATE ROLE owen LOGIN; CREATE ROLE ana LOGIN; CREATE ROLE mia; GRANT mia TO ana; "
        "GRANT mop_user TO owen, ana, mia; GRANT CREATE, USAGE ON SCHEMA public TO owen; CREATE SCHEMA hers; "
        "GRANT ALL ON SCHEMA hers TO ana, owen; CREATE TABLE beans AS "
        "SELECT i AS id, i % 7 AS size, (i % 7 > 3)::text AS y FROM generate_series(1, 400) i; GRANT SELECT ON beans TO public"
    )
    owen = db.another("owen")
    owen.run("SET search_path = public, madlib; " + TRAP)
    for name, target in (("model", "y"), ("opposite", "CASE y WHEN ''true'' THEN ''false'' ELSE ''true'' END AS y")):
        owen.run(
            f"SELECT mop_train('SELECT size, {target} FROM beans', '{name}', 'y', baselines => FALSE, families => 'linear')"
        )
    owen.run("UPDATE opposite SET version = 2, in_use = FALSE; INSERT INTO model SELECT * FROM opposite")
    owen.run("SELECT mop_use_version('model', 1); SELECT mop_share('model', 'ana'); SELECT mop_share('model', 'mia')")
    yield owen
    owen.close()


@pytest.fixture
def ana(beans):
    """A session of ana that has asked the model."""
    beans.run("SELECT mop_use_version('model', 1)")
    client = beans.another("ana")
    client.run("SET search_path = hers, public, madlib")
    assert answer(client) == "true"
    yield client
    client.run("ROLLBACK")
    client.close()


def question(model="model", size=6, version="NULL"):
    return f"SELECT (madlib.mop_predict('{model}', t, {version})).prediction FROM (SELECT {size} AS size) t"


def answer(client, *arguments):
    return client.value(question(*arguments))


def test_the_version_in_use_is_that_of_the_statement(beans, ana):
    beans.run("SELECT mop_use_version('model', 2)")
    assert answer(ana) == "false" and answer(ana, "model", 6, 1) == "true"
    beans.run("BEGIN; SELECT mop_use_version('model', 1)")
    assert answer(beans) == "true" and answer(ana) == "false"
    beans.run("ROLLBACK")
    assert answer(beans) == "false" and answer(ana) == "false"


def test_a_right_that_is_revoked_ends_the_answers(beans, ana):
    beans.run("REVOKE SELECT ON model FROM ana, mia")
    try:
        assert "permission denied" in str(ana.error(question()))
        ana.run("DISCARD PLANS")
        assert "permission denied" in str(ana.error(question()))
    finally:
        beans.run("GRANT SELECT ON model TO ana, mia")
    assert answer(ana) == "true"


def test_a_right_that_is_revoked_ends_the_answers_of_an_open_transaction(beans, ana):
    for level in ("READ COMMITTED", "SERIALIZABLE"):
        ana.run(f"BEGIN ISOLATION LEVEL {level}")
        assert answer(ana) == answer(ana) == "true"
        beans.run("REVOKE SELECT ON model FROM ana, mia")
        try:
            assert "permission denied" in str(ana.error(question()))
        finally:
            beans.run("GRANT SELECT ON model TO ana, mia")
        ana.run("ROLLBACK")


def test_each_role_of_a_session_has_its_own_rights(beans, ana):
    ana.run("SET ROLE mia")
    assert answer(ana) == "true"
    beans.run("REVOKE SELECT ON model FROM mia")
    try:
        assert "permission denied" in str(ana.error(question()))
        ana.run("RESET ROLE")
        assert answer(ana) == "true"
        ana.run("SET ROLE mia")
        assert "permission denied" in str(ana.error(question()))
    finally:
        beans.run("GRANT SELECT ON model TO mia")


@pytest.mark.parametrize("ending", ["ROLLBACK", "ROLLBACK TO a"])
def test_the_name_means_what_it_means_now(beans, ana, ending):
    """Another table of the name comes first in search_path, within a transaction and after it."""
    ana.run(
        "BEGIN; SAVEPOINT a; CREATE TABLE hers.model AS SELECT * FROM public.model; UPDATE hers.model SET in_use = NOT in_use"
    )
    assert answer(ana) == "false" and answer(ana, "public.model") == "true"
    ana.run(ending)
    assert answer(ana) == "true"
    ana.run("ROLLBACK; CREATE TEMP TABLE model AS SELECT * FROM public.model; UPDATE model SET in_use = NOT in_use")
    assert answer(ana) == "false"
    ana.run("DISCARD ALL")
    ana.run("SET search_path = hers, public, madlib")
    assert answer(ana) == "true"
    ana.run("SET search_path = hers")
    assert "does not exist" in str(ana.error(question()))


def test_a_new_table_of_the_name_and_one_that_is_dropped(beans, ana):
    beans.run("CREATE TABLE other AS SELECT * FROM model; GRANT SELECT ON other TO ana")
    assert answer(ana, "other") == "true"
    beans.run(
        "BEGIN; DROP TABLE other; CREATE TABLE other AS SELECT * FROM model; UPDATE other SET in_use = NOT in_use; "
        "GRANT SELECT ON other TO ana; COMMIT"
    )
    assert answer(ana, "other") == "false"
    beans.run("DROP TABLE other")
    assert "does not exist" in str(ana.error(question("other")))


TRICKS = {
    "policy": "ALTER TABLE forged ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON forged USING (spring() = 'x')",
    "index predicate": "CREATE INDEX ON forged (version) WHERE description = spring()",
    "child": "CREATE TABLE forged_child () INHERITS (forged); CREATE INDEX ON forged_child ((spring() || description))",
}


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("state", ["idle", "in transaction", "has asked in transaction"])
def test_the_owner_gives_the_table_code_meanwhile(beans, ana, trick, state):
    beans.run("CREATE TABLE forged AS SELECT * FROM model; GRANT SELECT ON forged TO ana")
    try:
        assert answer(ana, "forged") == "true"
        if state != "idle":
            ana.run("BEGIN; SELECT 1 FROM beans LIMIT 1")
        if state == "has asked in transaction":
            ana.run("ROLLBACK; BEGIN")
            answer(ana, "forged")
        if not (state == "has asked in transaction" and trick == "policy"):  # (it waits for the transaction)
            beans.run(TRICKS[trick])
            beans.run("TRUNCATE trap")
            ana.run("SELECT 1 FROM beans LIMIT 1")  # (the lock of another table lets the session hear of the change)
            assert "of another role has" in str(ana.error(question("forged")))
        assert beans.run("SELECT * FROM trap") == []
    finally:
        ana.run("ROLLBACK")
        beans.run("DROP TABLE forged CASCADE")


def test_a_wrong_value_is_named_also_after_right_ones(ana):
    assert 'column "size" has "much", but model "model" was trained on integer' in str(
        ana.error(question(size="'much'"))
    )
    assert "a row must have columns" in str(ana.error("SELECT * FROM madlib.mop_predict_row('model', '[1]')"))
    assert ana.run("SELECT prediction FROM madlib.mop_predict_row('model', NULL)") == [{"prediction": None}]
    assert answer(ana) == "true"

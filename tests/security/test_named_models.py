"""Tables that look like named models and belong to somebody else run no code with the rights of who reads them."""

import json

import pytest


@pytest.fixture(scope="module")
def honest(db):
    """A named model of the superuser, and a role that may make tables."""
    db.run(
        "SET search_path = public, madlib; DROP ROLE IF EXISTS forger; CREATE ROLE forger LOGIN; GRANT mop_user TO forger; "
        "GRANT USAGE, CREATE ON SCHEMA public TO forger; CREATE TABLE trap (seen text); GRANT INSERT ON trap TO public; "
        "CREATE TABLE beans AS SELECT i AS id, i % 7 AS size, 'kind ' || i % 40 AS form, (i % 5 > 2)::text AS y "
        "FROM generate_series(1, 80) i; GRANT SELECT ON beans TO public; "
        "SELECT madlib.mop_pack('beans', 'beans_packed', 'y', id => 'id'); "
        "SELECT madlib.mop_architecture('beans_nets', 'beans_packed', 'linear')"
    )
    db.run(
        "SELECT madlib.madlib_keras_fit('beans_packed', 'beans_fitted', 'beans_nets', 1, "
        "$$loss='categorical_crossentropy', optimizer='Adam()'$$, 'batch_size=8', 1)"
    )
    db.run("SELECT madlib.mop_deploy('beans_model', 'beans_fitted'); SELECT madlib.mop_share('beans_model', 'forger')")
    return db


@pytest.fixture
def forger(honest):
    client = honest.another("forger")
    client.run(
        "SET search_path = public, madlib; CREATE OR REPLACE FUNCTION snap() RETURNS text LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.trap VALUES (current_user); RETURN 'x'; END $$; CREATE OR REPLACE FUNCTION spring() "
        "RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN public.snap(); END $$"
    )
    client.run("CREATE TABLE forged AS SELECT * FROM beans_model; GRANT SELECT ON forged TO public")
    yield client
    client.run("DROP TABLE forged CASCADE")
    client.close()


ROW = "SELECT p.* FROM (SELECT * FROM beans LIMIT 1) t, madlib.mop_predict('forged', t) AS p"
TRICKS = {
    "policy": "ALTER TABLE forged ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON forged USING (spring() = 'x')",
    "index expression": "CREATE INDEX ON forged ((spring() || description))",
    "index predicate": "CREATE INDEX ON forged (version) WHERE description = spring()",
    "child": "CREATE TABLE forged_child () INHERITS (forged); CREATE INDEX ON forged_child ((spring() || description))",
    "constraint": "ALTER TABLE forged ADD CHECK (description IS NULL OR description <> spring())",
    "type": "CREATE TYPE sprung AS (a text); CREATE FUNCTION sprung_text(sprung) RETURNS text LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO public.trap VALUES (current_user); RETURN '{}'; END $$; CREATE CAST (sprung AS text) WITH FUNCTION "
    "sprung_text(sprung); ALTER TABLE forged DROP metrics; ALTER TABLE forged ADD metrics sprung DEFAULT ROW('a')::sprung",
    "view": "ALTER TABLE forged RENAME TO forged_rows; CREATE VIEW forged AS SELECT *, spring() AS more FROM forged_rows; "
    "GRANT SELECT ON forged TO public",
}


@pytest.mark.parametrize("trick", list(TRICKS))
def test_somebody_elses_table_runs_nothing(honest, forger, trick):
    try:
        forger.run(TRICKS[trick])
        honest.run("TRUNCATE trap")  # (CREATE INDEX and ADD CHECK ran it as its owner)
        names = [r["name"] for r in honest.run("SELECT * FROM madlib.mop_models")]
        assert "beans_model" in names and "forged" not in names
        assert any(text in str(honest.error(ROW)) for text in ("of another role has", "is no model with versions"))
        assert honest.run("SELECT * FROM trap") == []
    finally:
        if trick == "view":
            forger.run("DROP VIEW forged; ALTER TABLE forged_rows RENAME TO forged")
        if trick == "type":
            forger.run("DROP TYPE sprung CASCADE")


def test_an_honest_copy_of_another_role_answers(honest, forger):
    assert "forged" in [r["name"] for r in honest.run("SELECT * FROM madlib.mop_models")]
    assert len(honest.run(ROW)) == 1


def test_a_role_may_have_policies_on_its_own_model(honest, forger):
    forger.run("ALTER TABLE forged ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON forged USING (true)")
    assert len(forger.run(ROW)) == 1


def _first(transform):
    return transform["inputs"][0]["parameters"]


HOSTILE = {
    "a word": lambda t: "words",
    "a list": lambda t: [1],
    "no inputs": lambda t: {"outputs": t["outputs"]},
    "input is null": lambda t: {**t, "inputs": [None]},
    "one input less": lambda t: {**t, "inputs": t["inputs"][:1]},
    "another width": lambda t: _first(t).update(shape=[10**12]),
    "a negative width": lambda t: _first(t).update(shape=[-1]),
    "features are missing": lambda t: _first(t).update(features=_first(t)["features"][:0]),
    "features are a number": lambda t: _first(t).update(features=3),
    "the mean is a word": lambda t: _first(t)["features"][0]["parameters"].update(center="x", fill="y"),
    "parameters are missing": lambda t: _first(t)["features"][0].update(parameters={"column": "size"}),
    "classes are a number": lambda t: t["outputs"][0]["parameters"].update(classes=3),
    "words of a huge length": lambda t: t["inputs"].__setitem__(
        0, {"type": "words", "name": "form", "parameters": {"column": "form", "vocabulary": ["a"], "shape": [10**11]}}
    ),
}


@pytest.mark.parametrize("change", list(HOSTILE))
def test_a_transform_that_does_not_suit_its_net_is_an_error(honest, forger, change):
    transform = json.loads(forger.value("SELECT transform::text FROM forged"))
    transform = HOSTILE[change](transform) or transform
    forger.run("UPDATE forged SET transform = %s, in_use = true", [json.dumps(transform)])
    for ask in (ROW, "SELECT * FROM madlib.mop_predict('forged', 'beans')"):
        error = str(honest.error(ask))
        assert "cannot be used" in error or "there is no" in error, error
    assert honest.value("SELECT 1") == 1

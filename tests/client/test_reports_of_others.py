"""Reports, pages and exports of another role's run read none of its tables: a view there would run with the reader's rights."""

import json

import pytest

from pg_mop_client import ClientError, Selection
from support.served import Served
from support.workload import ADAM, dense, fit, load, make_data, selection

TRAP = """
CREATE TABLE fallen (who name);
GRANT INSERT ON fallen TO PUBLIC;
CREATE FUNCTION trap() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO mallory.fallen SELECT current_user;
    RETURN 'flowers';
END
$$;
DROP TABLE flowers_packed_summary;
CREATE VIEW flowers_packed_summary AS
SELECT mallory.trap() AS source_table, ARRAY['x'] AS independent_varname;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
GRANT SELECT ON flowers_packed_summary TO PUBLIC;
"""


@pytest.fixture(scope="module")
def trapped(db):
    """The number of a run of mallory, whose summary of the packed table is a trap by now."""
    db.run("DROP ROLE IF EXISTS mallory; CREATE ROLE mallory LOGIN; GRANT mop_user TO mallory")
    db.run("CREATE SCHEMA mallory AUTHORIZATION mallory")
    mallory = db.another("mallory")
    mallory.run("SET search_path = mallory, public")
    make_data(mallory, rows=60, segments=2)
    load(mallory, "arch", dense())
    selection(mallory, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=8")])
    run = fit(mallory, "mallory.flowers_packed", "mallory.models", "mst", 1)
    mallory.run(TRAP)
    mallory.close()
    yield run
    db.run("DROP OWNED BY mallory CASCADE; DROP ROLE mallory")


def test_a_report_reads_no_table_of_another_role(db, trapped):
    for form in ("html", "json", "summary"):
        db.run("SELECT madlib.mop_report(%s, %s)", [trapped, form])
    best = json.loads(db.value("SELECT madlib.mop_report(%s, 'summary')", [trapped]))["summary"]["best"]
    assert best["predict"] is None and best["export"] is None
    assert db.run("SELECT * FROM mallory.fallen") == []


def test_the_live_page_reads_no_table_of_another_role(db, trapped):
    served = Served(db.uri())
    try:
        view = served.json(f"/api/run/{trapped}")["view"]
        assert view["summary"]["best"]["predict"] is None
        tables = served.json(f"/api/run/{trapped}/data")["tables"]
        assert [t["facts"] for t in tables] == [None]
        assert served.json(f"/api/run/{trapped}/configuration?mst_key=1")["sql"] == {}
        assert "Run" in served.json(f"/api/run/{trapped}/plan")["text"]
        assert served.call(f"/api/run/{trapped}/model.keras?mst_key=1")[0] == 404
    finally:
        served.end()
    assert db.run("SELECT * FROM mallory.fallen") == []


def test_who_reads_the_view_falls_into_the_trap(db, trapped):
    """(So the trap works. The report of its owner does not read it either.)"""
    mallory = db.another("mallory")
    mallory.run("SET search_path = mallory, public")
    mallory.run("SELECT madlib.mop_report(%s, 'summary')", [trapped])
    assert db.run("SELECT * FROM mallory.fallen") == []
    mallory.run("SELECT * FROM flowers_packed_summary")
    assert mallory.value("SELECT min(who) FROM fallen") == "mallory"
    mallory.close()


# --- one's own run, whose tables another role has made anew ---

ANEW = """
CREATE TABLE IF NOT EXISTS snatched.fallen (who name);
GRANT INSERT ON snatched.fallen TO PUBLIC;
CREATE OR REPLACE FUNCTION snatched.trap() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO snatched.fallen SELECT current_user;
    RETURN 'public.flowers';
END
$$;
"""
VIEW = """
CREATE VIEW snatched.flowers_packed_summary AS
SELECT snatched.trap() AS source_table, ARRAY['x'] AS independent_varname;
"""
TABLE_WITH_POLICY = """
CREATE TABLE snatched.flowers_packed_summary AS
SELECT 'public.flowers'::text AS source_table, ARRAY['x'] AS independent_varname;
ALTER TABLE snatched.flowers_packed_summary ENABLE ROW LEVEL SECURITY;
CREATE POLICY trap ON snatched.flowers_packed_summary USING (snatched.trap() IS NOT NULL);
"""
GIVEN = "GRANT SELECT ON snatched.flowers_packed_summary TO PUBLIC"


class OwnRun:
    """A run of role `reader` over tables in schema snatched of role thief, who may drop them and make others of their names."""

    def __init__(self, db, reader, run):
        self.db, self.reader, self.run = db, reader, run
        self.thief = db.another("thief")

    def fallen(self):
        return self.db.value("SELECT count(*) FROM snatched.fallen")

    def best(self):
        return json.loads(self.reader.value("SELECT madlib.mop_report(%s, 'summary')", [self.run]))["summary"]["best"]


@pytest.fixture(scope="module", params=["a superuser", "victim"])
def own(db, request):
    """A run of a superuser's, or of another role's, with the tables that it has made."""
    db.run("DROP ROLE IF EXISTS thief; CREATE ROLE thief LOGIN; GRANT mop_user TO thief")
    db.run("DROP ROLE IF EXISTS victim; CREATE ROLE victim LOGIN; GRANT mop_user TO victim")
    db.run("CREATE SCHEMA snatched AUTHORIZATION thief; GRANT ALL ON SCHEMA snatched TO PUBLIC")
    reader = db.another("victim") if request.param == "victim" else db.another()
    reader.run("SET search_path = snatched, public")
    make_data(reader, rows=60, segments=2)
    load(reader, "arch", dense())
    selection(reader, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=8")])
    found = OwnRun(db, reader, fit(reader, "snatched.flowers_packed", "snatched.models", "mst", 1))
    found.thief.run(ANEW)
    yield found
    found.reader.close()
    found.thief.close()
    db.run("DROP OWNED BY thief, victim CASCADE; DROP ROLE thief, victim")


def uri(db, own):
    role = own.reader.value("SELECT current_user")
    return db.uri(role) if role == "victim" else db.uri()


def test_the_tables_of_ones_own_run_are_read(db, own):
    assert "flowers" in own.best()["predict"] and "models" in own.best()["export"]
    served = Served(uri(db, own))
    try:
        (table,) = served.json(f"/api/run/{own.run}/data")["tables"]
        assert table["facts"]["dependent_varname"]
        assert served.call(f"/api/run/{own.run}/model.keras?mst_key=1", raw=True)[0] == 200
    finally:
        served.end()


@pytest.mark.parametrize("anew", [VIEW, TABLE_WITH_POLICY])
def test_a_relation_that_another_role_made_anew_is_not_read(db, own, anew):
    own.thief.run("DROP TABLE IF EXISTS snatched.flowers_packed_summary")
    own.thief.run(anew)
    own.thief.run(GIVEN)
    served = Served(uri(db, own))
    try:
        for form in ("html", "json", "table", "summary"):
            own.reader.run("SELECT madlib.mop_report(%s, %s)", [own.run, form])
        assert own.best()["predict"].startswith("-- put in your table")
        assert [t["facts"] for t in served.json(f"/api/run/{own.run}/data")["tables"]] == [None]
        assert served.json(f"/api/run/{own.run}")["view"]["summary"]["best"]["value"] is not None
        assert own.fallen() == 0
    finally:
        served.end()
        own.thief.run(
            f"DROP {'VIEW' if anew is VIEW else 'TABLE'} snatched.flowers_packed_summary; "
            "CREATE TABLE snatched.flowers_packed_summary ()"
        )


def test_models_that_another_role_made_anew_are_not_exported(db, own):
    columns = "SELECT 1 AS mst_key, snatched.trap() AS model_weights, ''::text AS model_arch"
    own.thief.run(f"DROP TABLE snatched.models; CREATE VIEW snatched.models AS {columns}")
    own.thief.run("GRANT SELECT ON snatched.models TO PUBLIC")
    assert own.best()["predict"] is None and own.best()["export"] is None
    served = Served(uri(db, own))
    try:
        status, _, answer = served.call(f"/api/run/{own.run}/model.keras?mst_key=1", raw=True)
        assert status != 200 and b"is no table of your role" in answer
    finally:
        served.end()
    with Selection(uri(db, own)) as s, pytest.raises(ClientError, match="belongs to role thief"):
        s.run(own.run).export(1)
    assert own.fallen() == 0

"""Reports, pages and exports of another role's run read none of its tables: a view there would run with the reader's rights."""

import json

import pytest
from test_dashboard import Served

from workload import ADAM, dense, fit, load, make_data, selection

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


def test_the_owner_falls_into_her_own_trap(db, trapped):
    """(So the trap works.)"""
    mallory = db.another("mallory")
    mallory.run("SET search_path = mallory, public")
    mallory.run("SELECT madlib.mop_report(%s, 'summary')", [trapped])
    assert mallory.value("SELECT min(who) FROM fallen") == "mallory"
    mallory.close()

"""The tab of the data: how the columns of a run's table were packed, and how far its rows are from those of now."""

import json

import pytest

from support.browser import DESKTOP, PHONE, SMALL, opened, problems, text, value
from support.cluster import eventually
from support.served import ATTACK, Served
from support.workload import ADAM, last_run

CELLS = "[...document.querySelectorAll('{} tbody tr')].map(r => [...r.cells].map(c => c.textContent))"


@pytest.fixture(scope="module")
def made(db):
    """The number of a run on a packed table with a number, a category with a hostile value, and NULLs."""
    db.run(
        "CREATE TABLE goods AS SELECT i AS id, i % 50 AS price, CASE WHEN i % 10 = 0 THEN NULL WHEN i % 3 = 0 THEN "
        f"{ATTACK!r} ELSE 'plain' END AS kind, i % 2 = 0 AS label FROM generate_series(1, 300) i".replace(
            repr(ATTACK), "$attack$" + ATTACK + "$attack$"
        )
    )
    db.run("SET pg_mop.segments = 2; SELECT madlib.mop_pack('goods', 'goods_packed', target => 'label', id => 'id')")
    db.run("SELECT madlib.mop_architecture('goods_nets', 'goods_packed', 'small')")
    db.run(
        "SELECT madlib.load_model_selection_table('goods_nets', 'goods_mst', ARRAY[1], ARRAY[%s], ARRAY['batch_size=16'])",
        [ADAM.format(0.01)],
    )
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('goods_packed', 'goods_models', 'goods_mst', 1, FALSE)")
    return last_run(db)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_transform_of_each_column_is_shown(db, browser, page, made, screen, size, dark):
    screen(size, dark)
    opened(browser, page, f"/run/{made}?tab=data", "#data-facts tbody tr")
    rows = {row[0]: row for row in value(browser, CELLS.format("#data-facts"))}
    info = {row["column_name"]: row for row in db.run("SELECT * FROM madlib.mop_feature_info('goods_packed')")}
    assert rows.keys() == info.keys() == {"price", "kind"}
    assert rows["price"][1] == "integer" and rows["price"][2] == info["price"]["feature"]
    assert float(rows["price"][5]) == pytest.approx(info["price"]["mean"], rel=1e-3) and rows["price"][8] == "49"
    assert rows["kind"][4] == "10 %" and rows["kind"][9] == f"plain (180), {ATTACK} (90)"
    assert "goods" in text(browser, "#data-facts dl") and "__transform__" not in text(browser, "#data-facts")
    assert browser.execute_script(SMALL) == []
    assert value(browser, "document.documentElement.scrollWidth") <= size[0]
    assert not value(browser, "'attacked' in window") and problems(browser) == []


def test_drift_is_read_on_request_alone(db, browser, page, made, screen):
    screen(DESKTOP)
    opened(browser, page, f"/run/{made}?tab=data", "#data-facts tbody tr")
    assert value(browser, "document.querySelectorAll('#drift-rows table').length") == 0
    browser.find_element("id", "drift").click()
    assert eventually(lambda: "0 of 3 columns have drifted" in text(browser, "#drift-said"), 120)
    assert {row[0]: row[4] for row in value(browser, CELLS.format("#drift-rows"))} == {
        "price": "stable",
        "kind": "stable",
        "label": "stable",
    }
    db.run("UPDATE goods SET price = price + 1000")
    try:
        browser.find_element("id", "drift").click()
        assert eventually(lambda: "1 of 3 columns have drifted" in text(browser, "#drift-said"), 120)
        rows = {row[0]: row for row in value(browser, CELLS.format("#drift-rows"))}
        assert rows["price"][4] == "drifted" and rows["kind"][2:] == ["10 %", "10 %", "stable"]
    finally:
        db.run("UPDATE goods SET price = price - 1000")
    assert value(browser, "document.getElementById('drift-stop').hidden") and problems(browser) == []


def test_a_view_in_the_place_of_the_source_is_not_read(db, page, made):
    db.run("CREATE TABLE fallen (who name)")
    db.run(
        "CREATE FUNCTION trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN INSERT INTO fallen SELECT current_user; "
        "RETURN true; END $$"
    )
    db.run("ALTER TABLE goods RENAME TO goods_hidden; CREATE VIEW goods AS SELECT * FROM goods_hidden WHERE trap()")
    try:
        status, found = page.post(f"/api/run/{made}/drift")
        assert status == 409, found
        assert (
            "goods is no plain table of your role's" in found["error"] and "mop_drift('goods_packed'" in found["hint"]
        )
        assert db.run("SELECT * FROM fallen") == []
    finally:
        db.run("DROP VIEW goods; ALTER TABLE goods_hidden RENAME TO goods; DROP TABLE fallen; DROP FUNCTION trap()")


def test_a_source_that_another_session_changes_is_no_view(db, page, made):
    other = db.another()
    try:
        other.run("BEGIN; LOCK TABLE goods IN ACCESS EXCLUSIVE MODE")
        status, found = page.post(f"/api/run/{made}/drift")
        assert status == 409 and "goods is locked at this moment" in found["error"], found
    finally:
        other.close()


def test_an_empty_summary_tells_no_source(db, page, made):
    db.run("CREATE TABLE kept AS SELECT * FROM goods_packed_summary; TRUNCATE goods_packed_summary")
    try:
        status, found = page.post(f"/api/run/{made}/drift")
        assert status == 409 and "does not tell which table it was made from" in found["error"], found
    finally:
        db.run("INSERT INTO goods_packed_summary SELECT * FROM kept; DROP TABLE kept")


def test_tables_that_are_gone_and_runs_of_others_tell_nothing(db, page, made):
    db.run("ALTER TABLE goods_packed_summary RENAME TO elsewhere")
    try:
        (table,) = page.json(f"/api/run/{made}/data")["tables"]
        assert table["columns"] is None and table["facts"] is None
        assert "no table of your role's any more" in page.post(f"/api/run/{made}/drift")[1]["error"]
    finally:
        db.run("ALTER TABLE elsewhere RENAME TO goods_packed_summary")
    assert page.post("/api/run/999999/drift")[0] == 404
    assert json.loads(page.call("/api/run/999999/data")[2])["error"]
    db.run("DROP ROLE IF EXISTS thief; CREATE ROLE thief LOGIN; GRANT mop_user TO thief")
    other = Served(db.uri("thief"))
    try:
        assert other.post(f"/api/run/{made}/drift")[0] == 404
    finally:
        other.end()
        db.run("DROP OWNED BY thief; DROP ROLE thief")

"""mop_drift compares rows with those that a packed table was made from, before any model is trained."""

import pytest

from support.workload import make_data

ROWS = (
    "SELECT i AS id, (i %% 50) / 10.0 AS price, CASE WHEN i %% 10 = 0 THEN NULL ELSE (ARRAY['a', 'b', 'c'])[1 + i %% 3] END "
    "AS kind, i %% 2 = 0 AS gift, i %% 4 AS label FROM generate_series(1, {count}) i"
)
DRIFT = "SELECT * FROM madlib.mop_drift(%s, %s)"


@pytest.fixture(scope="module", autouse=True)
def packed(db):
    db.run(f"CREATE TABLE goods AS {ROWS.format(count=400)}".replace("%%", "%"))
    db.run("SELECT madlib.mop_pack('goods', 'goods_packed', target => 'label', id => 'id')")


def drift(db, source):
    return {row["column_name"]: row for row in db.run(DRIFT, ["goods_packed", source])}


def test_the_packed_rows_have_not_drifted(db):
    found = drift(db, "goods")
    assert set(found) == {"price", "kind", "gift", "label"}
    for row in found.values():
        assert row["verdict"] == "stable" and row["stability"] == pytest.approx(0, abs=1e-6)
        assert row["null_share_then"] == pytest.approx(row["null_share_now"])
    assert found["kind"]["null_share_then"] == pytest.approx(0.1)


def test_other_rows_drift_in_the_columns_that_differ(db):
    rows = ROWS.replace("%%", "%").format(count=300)
    found = drift(db, f"SELECT id, price + 3 AS price, 'b'::text AS kind, gift, label FROM ({rows}) q")
    assert found["price"]["verdict"] == found["kind"]["verdict"] == "drifted" and found["gift"]["verdict"] == "stable"
    assert found["kind"]["null_share_now"] == 0


def test_a_named_model_of_these_rows_says_the_same(db):
    db.run(
        "SELECT madlib.mop_train('goods', 'goods_model', target => 'label', id => 'id', time_limit => '60 s', "
        "split => 'random', families => 'linear', baselines => false)"
    )
    both = [
        db.run(DRIFT, [name, "SELECT *, 1 AS other FROM goods WHERE id > 300"])
        for name in ("goods_model", "goods_packed")
    ]
    assert [row["column_name"] for row in sorted(both[0], key=lambda r: r["column_name"])] == [
        row["column_name"] for row in sorted(both[1], key=lambda r: r["column_name"])
    ]


def test_wrong_sources_and_tables_are_refused(db):
    error = str(db.error(DRIFT, ["goods_packed", "SELECT id, price::text AS price, kind, gift FROM goods"]))
    assert 'column "price" has type text, but "goods_packed" was packed from numeric' in error and "Cast it" in error
    assert "there are no rows" in str(db.error(DRIFT, ["goods_packed", "SELECT * FROM goods WHERE false"]))
    assert "does not exist" in str(db.error(DRIFT, ["goods_packed", "no_such_table"]))
    assert db.error(DRIFT, ["goods_packed", None])
    make_data(db, rows=60, segments=2)
    error = str(db.error(DRIFT, ["flowers_packed", "flowers"]))
    assert '"flowers_packed" has no columns that rows can be compared with' in error
    assert "mop_feature_info('flowers_packed')" in error
    db.run("SELECT * FROM madlib.mop_feature_info('flowers_packed')")

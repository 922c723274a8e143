"""mop_run_progress: the units of a run, each counted once, agree with those of its configurations and with its log."""

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, NAN, dense, fit, is_under_way, last_run, load, make_data, selection

BOTH = """
SELECT p.units_done, p.units_total, p.seconds_elapsed, p.seconds_left, p.status, r.status AS run_status, g.*,
       (SELECT count(*) FROM madlib.mop_unit u WHERE u.run_id = p.run_id AND u.status = 'finished') AS logged
FROM madlib.mop_run_progress p JOIN madlib.mop_runs r USING (run_id)
CROSS JOIN (SELECT sum(units_done)::bigint AS done, sum(units_total)::bigint AS total, max(seconds_elapsed) AS elapsed
            FROM madlib.mop_progress WHERE run_id = %s) g
WHERE p.run_id = %s
"""


def both(db, run):
    (row,) = db.run(BOTH, [run, run])
    assert row["status"] == row["run_status"] and row["units_done"] == row["logged"]
    return row


def reads_units(db, run):
    """What EXPLAIN says of the scan of the run's finished units, in a query of the run's progress."""
    plan = db.run(
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT * FROM madlib.mop_run_progress WHERE run_id = %s", [run]
    )
    lines = [line for row in plan for line in row.values() if "mop_unit" in line and "Scan" in line]
    return next(line for line in lines if " e" in line.split("on mop_unit")[1]).split("(")[-1].rstrip(")")


@pytest.fixture(scope="module", autouse=True)
def tables(db):
    make_data(db, rows=60, segments=2)
    load(db, "arch", dense())


def test_a_finished_run_has_done_all_that_its_configurations_have(db):
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=8") for rate in (0.01, 0.05)])
    row = both(db, fit(db, "flowers_packed", "models", "mst", 3, "flowers_packed", 1))
    # 2 configurations x 3 iterations x 2 segments: trained, and evaluated on both data sets
    assert row["units_done"] == row["units_total"] == row["done"] == row["total"] == 36
    assert row["seconds_left"] == 0 and row["seconds_elapsed"] == pytest.approx(row["elapsed"])


def test_a_failed_configuration_has_no_units_left(db):
    selection(db, "mst_f", "arch", [(1, ADAM.format(0.02), "batch_size=8"), (1, NAN, "batch_size=8")])
    row = both(db, fit(db, "flowers_packed", "failing", "mst_f", 3))
    assert row["units_done"] == row["units_total"] == row["done"] == row["total"]


def test_folds_and_replicas_are_counted(db):
    selection(db, "mst_k", "arch", [(1, ADAM.format(0.03), "batch_size=8")])
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'folded', 'mst_k', 2, FALSE, folds => 2)")
    row = both(db, last_run(db))
    assert row["units_done"] == row["units_total"] > 0
    db.run(
        "SELECT madlib.madlib_keras_fit('flowers_packed', 'one', 'arch', 1, %s, 'batch_size=8', 2)", [ADAM.format(0.03)]
    )
    row = both(db, last_run(db))
    assert row["units_done"] == row["units_total"] > 0


def test_a_run_that_goes_on_counts_what_is_left(db):
    selection(db, "long", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=10") for rate in (0.01, 0.02)])
    caller = db.another()
    calling = Calling(
        caller, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'long_models', 'long', 2000, FALSE)"
    )
    try:
        assert eventually(lambda: is_under_way(db), 60)
        run = last_run(db)
        view = "SELECT * FROM madlib.mop_run_progress WHERE run_id = %s"
        assert eventually(lambda: db.run(view, [run])[0]["seconds_left"], 60)
        row = db.run(view, [run])[0]
        # 2 configurations x 2000 iterations x 2 segments, and the last evaluation of each
        assert 0 < row["units_done"] < row["units_total"] == 8004 and row["status"] == "running"
        rate = row["units_done"] / row["seconds_elapsed"]
        assert row["seconds_left"] == pytest.approx((8004 - row["units_done"]) / rate, rel=0.05)
        assert eventually(lambda: reads_units(db, run) == "never executed", 60), "a look counts no units"
        first = db.run(view, [run])[0]["units_done"]
        assert eventually(lambda: db.run(view, [run])[0]["units_done"] > first, 60)
    finally:
        db.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
        calling.end()
        caller.close()
    row = db.run(view, [run])[0]
    assert row["status"] == "cancelled" and row["seconds_left"] == 0 and row["units_total"] == 8004
    assert reads_units(db, run) != "never executed", "an ended run is counted"
    before = both(db, run)["units_done"]
    assert before >= first
    # another coordinator counts on
    caller = db.another()
    calling = Calling(caller, "SELECT madlib.mop_resume(%s)" % run)
    try:
        assert eventually(lambda: is_under_way(db) and reads_units(db, run) == "never executed", 60)
        row = db.run(view, [run])[0]
        assert row["units_done"] >= before and row["units_total"] == 8004
    finally:
        db.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
        calling.end()
        caller.close()


def test_a_role_sees_its_own_runs(db):
    db.run("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN; GRANT mop_user TO stranger")
    stranger = db.another("stranger")
    assert stranger.run("SELECT * FROM madlib.mop_run_progress") == []
    stranger.close()
    db.run("DROP OWNED BY stranger; DROP ROLE stranger")

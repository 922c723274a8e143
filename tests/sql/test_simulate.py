"""mop_simulate."""

import pytest

from support.workload import ADAM, dense, fit, load, make_data, selection


@pytest.fixture(scope="module")
def run_id(db):
    make_data(db, rows=120, segments=3)
    load(db, "arch", dense())
    rows = [(1, ADAM.format(rate), "batch_size=8") for rate in (0.1, 0.05, 0.01, 0.005)]
    selection(db, "mst", "arch", rows)
    return fit(db, "flowers_packed", "models", "mst", 2, "flowers_packed", 1)


def rows_of(db, call, values=()):
    return db.run(f"SELECT * FROM madlib.mop_simulate({call})", values)


def test_a_past_run_is_simulated_by_its_logged_seconds(db, run_id):
    rows = rows_of(db, "%s", [run_id])
    assert {r["sessions"] for r in rows} == {1, 2, 3} and len(rows) == 9
    busy = db.value(
        "SELECT sum(s) FROM (SELECT extract(epoch FROM max(finished_at) - started_at)::float8 AS s FROM madlib.mop_units "
        "WHERE run_id = %s AND NOT shared AND status = 'finished' GROUP BY backend_pid, started_at) c",
        [run_id],
    )
    for r in rows:
        assert r["makespan"] >= r["lower_bound"] * (1 - 1e-9)
        assert r["utilization"] * r["sessions"] * r["makespan"] == pytest.approx(busy, rel=1e-6)
        if r["sessions"] == 1:
            assert r["makespan"] == pytest.approx(busy, rel=1e-6)


def test_given_seconds_are_simulated(db):
    rows = rows_of(
        db, "unit_seconds => ARRAY[1, 2, 3], segment_count => 3, num_iterations => 2, session_counts => ARRAY[1, 3]"
    )
    assert {(r["sessions"], r["lower_bound"]) for r in rows} == {(1, 36.0), (3, 18.0)}
    assert all(r["makespan"] == 36 and r["utilization"] == 1 for r in rows if r["sessions"] == 1)
    (row,) = rows_of(db, "unit_seconds => ARRAY[3, 3, 3, 1], segment_count => 3, session_counts => ARRAY[3], "
                         "schedulers => ARRAY['longest-first']")  # fmt: skip
    assert (row["scheduler"], row["sessions"]) == ("longest-first", 3) and 10 <= row["makespan"] <= 12


def test_cores_of_sessions_without_work_are_dealt_to_given_units(db):
    call = "unit_seconds => ARRAY[10, 400], segment_count => 4, num_iterations => 6, session_counts => ARRAY[4], "
    call += "schedulers => ARRAY['longest-first']"
    (fixed,) = rows_of(db, call)
    (dealt,) = rows_of(db, f"{call}, divided_share => 0.9")
    (hardly,) = rows_of(db, f"{call}, divided_share => 0.1")
    assert fixed["makespan"] == hardly["makespan"] == 6 * 4 * 400
    assert dealt["lower_bound"] <= dealt["makespan"] < fixed["makespan"] / 2
    assert fixed["utilization"] < 0.3 < 0.8 < dealt["utilization"] <= 1


def test_bad_calls_name_what_is_wrong(db, run_id):
    for call, fragment in (
        ("", "either run_id or unit_seconds"),
        ("1, ARRAY[1.0]", "either run_id or unit_seconds"),
        ("999999", "there is no run 999999"),
        (f"{run_id}, segment_count => 2", "a run has its own"),
        (f"{run_id}, divided_share => 0.5", "divided_share is of unit_seconds"),
        ("unit_seconds => ARRAY[1], segment_count => 1, divided_share => 1.1", "a share from 0 to 1, not 1.1"),
        (f"{run_id}, schedulers => ARRAY['fastest']", "no scheduler"),
        (f"{run_id}, schedulers => '{{}}'", "schedulers is empty"),
        (f"{run_id}, session_counts => ARRAY[4]", "from 1 to the number of segments (3), not 4"),
        (f"{run_id}, session_counts => ARRAY[1.5]", "must be an integer"),
        ("unit_seconds => ARRAY[1.0]", "segment_count must be"),
        ("unit_seconds => ARRAY[1.0, NULL], segment_count => 1", "unit_seconds must have"),
        ("unit_seconds => ARRAY[1e300], segment_count => 1", "at most 1e+09"),
        ("unit_seconds => ARRAY[[1.0, 2.0]], segment_count => 1", "an array of one dimension"),
        ("unit_seconds => ARRAY[1.0], segment_count => 1000, num_iterations => 1000", "too many"),
    ):
        assert fragment in str(db.error(f"SELECT * FROM madlib.mop_simulate({call})")), call
    db.run("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN; GRANT mop_user TO stranger")
    stranger = db.another("stranger")
    assert "there is no run" in str(stranger.error("SELECT * FROM madlib.mop_simulate(%s)", [run_id]))

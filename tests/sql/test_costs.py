"""What units have cost is kept from run to run: the kernel is right from the first unit, and what a run will take is
known before it. Nobody learns of others' nets."""

import pytest

from support.workload import ADAM, dense, load, make_data, selection

COSTS = "SELECT * FROM madlib.mop_unit_costs ORDER BY kernel"
CALL = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', {}, FALSE)"


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, rows=240, segments=2, buffer_size=60)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), "batch_size=4, epochs=20") for rate in (0.01, 0.02)])


def train(db, settings="", iterations=2, anew=True):
    """A call in a session of its own: (the run's number, mop_kernel_choices in the order of the units).

    `anew`: with new trainers, since those of the pool have measured the nets that they keep."""
    db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
    if anew:
        db.run("SELECT madlib.mop_end_trainers()")
    other = db.another()
    other.run(f"SET pg_mop.threads = 1; SET pg_mop.session_idle_timeout = 0; {settings}")
    other.run(CALL.format(iterations))
    run_id = other.value("SELECT max(run_id) FROM madlib.mop_runs")
    other.close()
    return run_id, db.run(
        "SELECT k.* FROM madlib.mop_kernel_choices k JOIN madlib.mop_units u USING (run_id, mst_key, "
        "iteration, segment) WHERE run_id = %s AND kind = 'train' ORDER BY u.started_at",
        [run_id],
    )


def test_what_units_have_cost_is_kept_and_used(db):
    first, _ = train(db)
    found = {row["kernel"]: row for row in db.run(COSTS)}
    assert "loop" in found
    for row in found.values():
        assert (row["optimizer"], row["loss"], row["batch_size"], row["shape"], row["part"], row["runs"]) == (
            "Adam",
            "categorical_crossentropy",
            4,
            "4 -> 3",
            "model",
            1,
        )
        assert row["batch_seconds"] > 0 and row["compile_seconds"] > 0
        assert row["units"] == 0 or row["unit_seconds"] > 0
        assert "threads" in row["device"] and "Keras" in row["version"] and "tensorflow" in row["version"]
    # two configurations of two iterations on two segments: the later half of the stages, unless a unit has compiled a kernel
    used = [row for row in found.values() if row["units"]]
    assert used and sum(row["units"] for row in used) <= 4
    expected = "SELECT expected_seconds FROM madlib.mop_run WHERE run_id = %s"
    assert db.value(expected, [first]) is None, "nobody knew"
    second, _ = train(db)
    assert db.value(expected, [second]) > 0
    # (which kernel that is follows from what the first measured)
    assert max(row["runs"] for row in db.run(COSTS)) == 2


def test_the_best_kernel_of_earlier_runs_comes_first(db):
    """What was measured is put in place of what would be, so that it does not depend on this machine."""
    train(db, "SET pg_mop.kernel = xla")
    train(db, "SET pg_mop.kernel = loop")
    for best, other in (("xla", "loop"), ("loop", "xla")):
        db.run(
            "UPDATE madlib.mop_cost SET batch_seconds = ARRAY[CASE kernel WHEN %s THEN 1e3 ELSE 1e4 END], "
            "compile_seconds = ARRAY[0.1]",
            [best],
        )
        _, choices = train(db)
        assert choices[0]["kernel"] == best and choices[0][f"{other}_seconds"] is None
    db.run("UPDATE madlib.mop_cost SET batch_seconds = ARRAY[CASE kernel WHEN 'xla' THEN 1e-12 ELSE 1e-11 END]")
    _, choices = train(db, iterations=4)
    assert any(choice["loop_seconds"] is not None for choice in choices), "what does not hold any more is compared anew"


def test_nobody_sees_others(db):
    run_id, _ = train(db)
    db.run("CREATE ROLE costs_stranger LOGIN; GRANT mop_user TO costs_stranger")
    stranger = db.another("costs_stranger")
    assert db.run(COSTS) and stranger.run(COSTS) == []
    assert "permission denied" in str(stranger.error("SELECT * FROM madlib.mop_cost"))
    assert "there is no run" in str(stranger.error(f"SELECT madlib.mop_note_costs({run_id}, 1, '[]')"))
    stranger.close()
    db.run("DROP OWNED BY costs_stranger; DROP ROLE costs_stranger")


def test_of_a_role_so_many_are_kept_and_rows_of_one_run_stay_together(db):
    """All rows that a run notes have one time. The 5,000th row is one of a run of 2,000."""
    db.run("DELETE FROM madlib.mop_cost")
    train(db, iterations=1)
    forged = "SELECT count(*) FROM madlib.mop_cost WHERE net LIKE %s"
    for days, rows in ((1, 4000), (2, 2000), (3, 1000)):
        db.run(
            "INSERT INTO madlib.mop_cost SELECT c.owner, %s || i, part, version, device, kernel, architecture, "
            "optimizer, loss, batch_size, shape, batch_seconds, compile_seconds, now() - %s * interval '1 day' "
            "FROM (SELECT * FROM madlib.mop_cost WHERE net NOT LIKE 'forged%%' LIMIT 1) AS c, generate_series(1, %s) AS i",
            [f"forged {days} ", days, rows],
        )
    train(db, iterations=1)
    assert [db.value(forged, [f"forged {days} %"]) for days in (1, 2, 3)] == [4000, 2000, 0]
    assert db.run("SELECT 1 FROM madlib.mop_unit_costs WHERE noted_at > now() - interval '1 minute'")
    db.run("DELETE FROM madlib.mop_cost")

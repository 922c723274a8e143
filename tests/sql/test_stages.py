"""Configurations that begin alike are trained together: the views, what is kept, who fails, and who shares nothing."""

import contextlib

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, assert_invariants, dense, fit, last_run, load, make_data, selection

SGD = "loss='categorical_crossentropy', optimizer='SGD(lr={}, momentum=0.9)', metrics=['accuracy']"
RATES = ("MultiStep(0.1, [1], 0.1)", "MultiStep(0.1, [2], 0.1)", "Constant(0.1)", "[0.1, 0.1, 0.01]")
# the stages of each of these over three iterations, by number
PATHS = {1: [1, 2, 3], 2: [1, 4, 5], 3: [1, 4, 6], 4: [1, 4, 5]}
PARENTS = {1: None, 2: 1, 3: 2, 4: 1, 5: 4, 6: 4}


@pytest.fixture(scope="module")
def data(db):
    db.run("SET pg_mop.kernel = plain; SET pg_mop.threads = 1")
    make_data(db, "one", segments=1)
    load(db, "arch", dense())
    return make_data(db)


@pytest.fixture(scope="module")
def run_id(db, data):
    """A run of RATES with metrics of each iteration."""
    selection(db, "mst", "arch", [(1, SGD.format(rate), "batch_size=8") for rate in RATES])
    return fit(db, data, "models", "mst", iterations=3, frequency=1)


def weights(db, table):
    return {r["mst_key"]: bytes(r["model_weights"]) for r in db.run(f"SELECT mst_key, model_weights FROM {table}")}


def merge_rate(db, run_id):
    return db.value("SELECT merge_rate FROM madlib.mop_runs WHERE run_id = %s", [run_id])


def test_mop_stages_shows_every_stage_once_and_who_asks_for_it(db, run_id):
    assert_invariants(db, run_id)
    assert merge_rate(db, run_id) == 2
    stages = db.run("SELECT * FROM madlib.mop_stages WHERE run_id = %s ORDER BY stage", [run_id])
    assert {s["stage"]: s["parent"] for s in stages} == PARENTS
    assert {s["stage"]: s["mst_keys"] for s in stages} == {
        stage: [key for key, path in PATHS.items() if stage in path] for stage in PARENTS
    }
    assert [s["iteration"] for s in stages] == [1, 2, 3, 2, 3, 3]
    for stage, rate in zip(stages, ("0.1", "0.01", "0.01", "0.1", "0.01", "0.1")):
        assert f"learning_rate={rate}," in stage["compile_params"] and stage["fit_params"] == "batch_size=8"
        assert stage["units_done"] == 3 + 3
    assert len({s["identity"] for s in stages}) == 6


def test_mop_trials_shows_every_configurations_path_and_metrics(db, run_id):
    trials = db.run(
        "SELECT t.*, i.training_loss AS losses, i.training_metrics FROM madlib.mop_trials t "
        "JOIN models_info i USING (mst_key) WHERE run_id = %s ORDER BY mst_key",
        [run_id],
    )
    assert {t["mst_key"]: t["path"] for t in trials} == PATHS
    for trial in trials:
        assert trial["status"] == "finished" and trial["reason"] is None and trial["iterations"] == 3
        assert trial["metrics_iterations"] == [1, 2, 3] and trial["validation_loss"] is None
        assert trial["training_loss"] == trial["losses"] and trial["training_metric"] == trial["training_metrics"]
        assert trial["compile_params"] == SGD.format(RATES[trial["mst_key"] - 1])
    assert trials[1]["losses"] == trials[3]["losses"] != trials[2]["losses"]


def test_the_log_has_a_row_for_each_configuration_and_marks_those_that_are_shared(db, run_id):
    units = db.run("SELECT * FROM madlib.mop_units WHERE run_id = %s", [run_id])
    assert len(units) == 4 * 3 * 6
    once = db.run(
        "SELECT stage, kind, segment, backend_pid, started_at, loss FROM madlib.mop_units WHERE run_id = %s "
        "AND NOT shared ORDER BY 1, 2, 3",
        [run_id],
    )
    assert (
        once
        == db.run(
            "SELECT stage, kind, segment, backend_pid, started_at, loss FROM madlib.mop_unit "
            "WHERE run_id = %s ORDER BY 1, 2, 3",
            [run_id],
        )
        and len(once) == 6 * 6
    )
    for key, path in PATHS.items():
        own = [u for u in units if u["mst_key"] == key]
        assert {(u["stage"], u["iteration"]) for u in own} == {(stage, i) for i, stage in enumerate(path, 1)}
        visits = db.run(
            "SELECT iteration, position, segment, shared FROM madlib.mop_visit_order WHERE run_id = %s "
            "AND mst_key = %s ORDER BY 1, 2",
            [run_id, key],
        )
        trained = sorted((u for u in own if u["kind"] == "train"), key=lambda u: u["started_at"])
        assert [(v["iteration"], v["segment"], v["shared"]) for v in visits] == [
            (u["iteration"], u["segment"], u["shared"]) for u in trained
        ]
        assert [v["position"] for v in visits] == [1, 2, 3] * 3
    progress = db.run(
        "SELECT mst_key, units_done, units_total, status, iteration FROM madlib.mop_progress "
        "WHERE run_id = %s ORDER BY 1",
        [run_id],
    )
    assert progress == [
        {"mst_key": key, "units_done": 18, "units_total": 18, "status": "finished", "iteration": 3} for key in PATHS
    ]


def test_metrics_of_a_shared_stage_are_those_of_all_that_share_it(db, run_id):
    rows = db.run("SELECT iteration, name, mst_key, value FROM madlib.mop_metrics WHERE run_id = %s", [run_id])
    assert len(rows) == 4 * 3 * 2
    values = {(r["mst_key"], r["iteration"], r["name"]): r["value"] for r in rows}
    for name in ("loss", "accuracy"):
        assert len({values[key, 1, name] for key in PATHS}) == 1
        assert values[2, 2, name] == values[3, 2, name] == values[4, 2, name]
    assert values[1, 2, "loss"] != values[2, 2, "loss"]


def test_equal_configurations_are_trained_once_and_have_each_its_result(db, data):
    selection(
        db,
        "twins",
        "arch",
        [(1, ADAM.format(0.05), "batch_size=8"), (1, ADAM.format("Constant(0.05)"), "batch_size = 8, verbose=0")],
    )
    run_id = fit(db, data, "models_of_twins", "twins")
    assert merge_rate(db, run_id) == 2
    found = weights(db, "models_of_twins")
    assert sorted(found) == [1, 2] and found[1] == found[2]
    assert db.value("SELECT count(*) FROM models_of_twins_info WHERE training_loss_final > 0") == 2
    assert db.value("SELECT count(DISTINCT __dist_key__) FROM models_of_twins") == 1


@contextlib.contextmanager
def stopped_before(db, output, stage):
    """Within it the run that begins to make `output` cannot begin with a stage. Gives a function: its run_id."""
    blocker = db.another()

    def block():
        rows = eventually(
            lambda: blocker.run(
                "SELECT run_id FROM madlib.mop_stages JOIN madlib.mop_runs USING (run_id) WHERE model_output_table = %s "
                "AND stage = %s",
                [output, stage],
            ),
            60,
        )
        blocker.run(
            "BEGIN; SELECT 1 FROM madlib.mop_stage_state WHERE (run_id, stage) = (%s, %s) FOR UPDATE",
            [rows[0]["run_id"], stage],
        )
        return rows[0]["run_id"]

    try:
        yield block
    finally:
        blocker.close()


def kept(db, run_id):
    return {
        r["stage"]
        for r in db.run("SELECT stage FROM madlib.mop_stages WHERE run_id = %s AND state_bytes > 0", [run_id])
    }


@pytest.mark.parametrize("late,branch", [(4, 1), (6, 4)])
def test_a_state_is_kept_at_a_branch_until_every_child_has_begun(db, data, late, branch):
    # (long enough for each unit to go alone: in a group others would wait with the one that cannot begin)
    selection(db, "slow", "arch", [(1, SGD.format(rate), "batch_size=1, epochs=8") for rate in RATES])
    client, output = db.another(), f"branches_{late}"
    client.run("SET pg_mop.lock_timeout = '10min'; SET pg_mop.kernel = plain; SET pg_mop.threads = 1; BEGIN")
    with stopped_before(db, output, late) as block:
        running = Calling(
            client, f"SELECT madlib.madlib_keras_fit_multiple_model('one_packed', '{output}', 'slow', 3, FALSE)"
        )
        run_id = block()
        db.run("SELECT madlib.mop_set_sessions(%s, 2)", [run_id])  # one that waits, and one that goes on
        others = {3, 5} if late == 6 else {3}
        there = eventually(
            lambda: (
                db.value(
                    "SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND stage = ANY (%s) AND units_done = 2",
                    [run_id, list(others)],
                )
                == len(others)
                and kept(db, run_id)
            ),
            120,
        )
    error, ends = running.end(), kept(db, run_id)
    client.close()
    assert error is None and there == {branch, *others}
    assert ends == {3, 5, 6}, "the ends of the paths, of which the output tables are made"
    assert_invariants(db, run_id)
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])


def test_a_stage_at_fault_fails_all_that_share_it_and_only_them(db, data):
    bad = "loss='mse', optimizer='SGD(lr={}, weight_decay=[1e-9, 1e38])'"  # an infinite decay from iteration 2 on
    selection(
        db,
        "some_bad",
        "arch",
        [
            (1, bad.format("[0.1, 1e38, 0.1]"), "batch_size=8"),
            (1, bad.format("[0.1, 1e38, 0.2]"), "batch_size=8"),
            (1, "loss='mse', optimizer='SGD(lr=0.1, weight_decay=1e-9)'", "batch_size=8"),
        ],
    )
    run_id = fit(db, data, "survivors", "some_bad", 3)
    assert_invariants(db, run_id)
    errors = {r["mst_key"]: r["error"] for r in db.run("SELECT mst_key, error FROM survivors_info")}
    assert "NaN" in errors[1] and errors[2] == errors[1] and errors[3] is None
    # (a chain fails as a whole; its units then run alone, and one of them fails again)
    failed = db.run("SELECT stage, error FROM madlib.mop_unit WHERE run_id = %s AND status = 'failed'", [run_id])
    assert len({row["stage"] for row in failed}) == 1 and all("NaN" in row["error"] for row in failed)
    assert {
        r["mst_key"]: r["status"]
        for r in db.run("SELECT mst_key, status FROM madlib.mop_trials WHERE run_id = %s", [run_id])
    } == {1: "failed", 2: "failed", 3: "finished"}
    assert (
        db.value(
            "SELECT count(*) FROM madlib.mop_unit JOIN madlib.mop_stage USING (run_id, stage) WHERE run_id = %s"
            " AND mst_key < 3 AND mop_unit.iteration = 3",
            [run_id],
        )
        == 0
    ), "nothing was begun below it"
    assert sorted(weights(db, "survivors")) == [3]
    db.run("DELETE FROM some_bad WHERE mst_key < 3")
    db.run("SET pg_mop.sharing = off")
    db.run("SELECT madlib.mop_replay(%s, 'alone')", [run_id])
    db.run("RESET pg_mop.sharing")
    assert weights(db, "alone") == weights(db, "survivors")


def test_who_starts_apart_or_writes_files_shares_nothing(db, data, tmp_path):
    tmp_path.chmod(0o777)
    equal = [(1, ADAM.format(0.05), "batch_size=8")] * 2
    selection(db, "equal", "arch", equal)
    db.run("SET pg_mop.same_start = off")
    run_id = fit(db, data, "apart", "equal", 1)
    db.run("RESET pg_mop.same_start")
    assert merge_rate(db, run_id) == 1 and len(set(weights(db, "apart").values())) == 2
    selection(
        db,
        "equal",
        "arch",
        [
            (1, ADAM.format(0.05), f'batch_size=8, callbacks=[TensorBoard(log_dir="{tmp_path}/{key}")]')
            for key in (1, 1)
        ],
    )
    run_id = fit(db, data, "written", "equal", 1)
    assert merge_rate(db, run_id) == 1
    selection(db, "equal", "arch", equal)
    db.run("SET pg_mop.sharing = off")
    run_id = fit(db, data, "by_wish", "equal", 1)
    db.run("RESET pg_mop.sharing")
    assert merge_rate(db, run_id) == 1
    run_id = fit(db, data, "together", "equal", 1)
    assert merge_rate(db, run_id) == 2


def test_a_run_that_grows_is_known_to_the_planner(db, data):
    """Else who looks at it waits for what is looked up again and again: it would be taken for one of a row or two."""
    selection(db, "long", "arch", [(1, ADAM.format(0.01), "batch_size=9"), (1, ADAM.format(0.02), "batch_size=9")])
    db.run("ANALYZE madlib.mop_stage; ANALYZE madlib.mop_unit")
    before = db.value("SELECT reltuples FROM pg_class WHERE oid = 'madlib.mop_unit'::regclass")
    caller = db.another()
    calling = Calling(
        caller, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'grown', 'long', 1200, FALSE)"
    )

    def expected():
        return db.value("EXPLAIN (FORMAT json) SELECT * FROM madlib.mop_stage WHERE run_id = %s", [last_run(db)])[0][
            "Plan"
        ]["Plan Rows"]

    try:
        assert eventually(
            lambda: db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s", [last_run(db)]), 60
        )
        assert eventually(lambda: expected() > 100, 60)
        assert eventually(
            lambda: db.value("SELECT reltuples FROM pg_class WHERE oid = 'madlib.mop_unit'::regclass") >= before + 900,
            120,
        )
    finally:
        db.run("SELECT pg_cancel_backend(%s)", [caller.connection.info.backend_pid])
        calling.end()
        caller.close()
        db.run("SELECT madlib.mop_drop_run(%s)", [last_run(db)])

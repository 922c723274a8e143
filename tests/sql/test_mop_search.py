"""mop_search: what its procedures make of a real run, people's hands, what it resumes from, and what it refuses."""

import time

import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.tries import tries
from support.workload import ADAM, dense, holding, last_run, load, make_data, selection

SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': "
    "['Adam'], 'lr': [0.001, 0.1, 'log']}], 'batch_size': [8, 16]}"
)
GRID = SPACE.replace("[0.001, 0.1, 'log']", "[0.01, 0.05, MultiStep(0.05, [1], 0.1)]").replace("[8, 16]", "[8]")
SLOW = GRID.replace("'batch_size': [8]", "'batch_size': [1], 'epochs': [20]")


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense(), dense(16))


def search(db, output="found", space=SPACE, procedure="asha", parameters="iterations=4, trials=8", **more):
    db.run(f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary, {output}_trials")
    named = "".join(f", {name} => %({name})s" for name in more)
    db.run(
        f"SELECT madlib.mop_search('flowers_packed', %(output)s, 'arch', %(space)s, %(procedure)s, %(parameters)s"
        f"{named})",
        {"output": output, "space": space, "procedure": procedure, "parameters": parameters, **more},
    )
    return last_run(db)


def its_run(db, output):
    """The run of a call that makes `output`, once it has begun."""
    running = f"SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = '{output}' AND status = 'running'"
    assert eventually(lambda: db.value(running), 60)
    return db.value(running)


def told(db, run_id):
    """What the procedure was told, in order."""
    return [
        r["event"]
        for r in db.run(
            "SELECT event FROM madlib.mop_search_log WHERE run_id = %s AND event ->> 0 = 'tell' ORDER BY number",
            [run_id],
        )
    ]


def test_four_arguments_search_and_the_tables_say_what_was_found(db, data):
    db.run("DROP TABLE IF EXISTS four, four_info, four_summary, four_trials")
    db.run("SELECT madlib.mop_search('flowers_packed', 'four', 'arch', %s, max_trials => 12)", [SPACE])
    run = assert_search_invariants(db, last_run(db))
    trials = db.run("SELECT * FROM four_trials ORDER BY mst_key")
    assert [t["mst_key"] for t in trials] == list(range(1, 13)) and run["configurations"] == 12
    assert {t["status"] for t in trials} <= {"finished", "stopped"} and any(t["status"] == "finished" for t in trials)
    best = min(trials, key=lambda t: t["metric_final"])
    assert db.value("SELECT best_mst_key FROM four_summary") == best["mst_key"]
    assert db.value("SELECT count(*) FROM four") == db.value("SELECT count(*) FROM four_info") == 12
    for t in trials:
        info = db.run("SELECT * FROM four_info WHERE mst_key = %s", [t["mst_key"]])[0]
        assert info["training_loss"] == t["metric"] and info["iteration"] == t["iterations"] == t["metric_iters"][-1]
        assert (t["reason"] is None) == (t["status"] == "finished")
    # what was found predicts
    db.run(
        "DROP TABLE IF EXISTS guesses; SELECT madlib.madlib_keras_predict('four', 'flowers', 'id', 'x', 'guesses', "
        "'prob', FALSE, %s)",
        [best["mst_key"]],
    )
    assert db.value("SELECT count(*) FROM guesses") == 300


def assert_search_invariants(db, run_id):
    """MOP's rules, of what the search asked for: every stage visits every segment once."""
    run = db.run("SELECT * FROM madlib.mop_runs WHERE run_id = %s", [run_id])[0]
    assert (
        db.run(
            "SELECT stage, count(*), count(DISTINCT segment) FROM madlib.mop_unit WHERE run_id = %s AND kind = "
            "'train' AND status = 'finished' GROUP BY stage HAVING (count(*), count(DISTINCT segment)) <> (2, 2)",
            [run_id],
        )
        == []
    )
    asked = {(r["stage"]) for r in db.run("SELECT DISTINCT stage FROM madlib.mop_request WHERE run_id = %s", [run_id])}
    done = {
        (r["stage"])
        for r in db.run(
            "SELECT DISTINCT stage FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' AND status = 'finished'",
            [run_id],
        )
    }
    assert asked == done, "all that is asked for is run, and nothing else"
    assert (
        db.value(
            "SELECT count(*) FROM madlib.mop_trials WHERE run_id = %s AND status NOT IN ('finished', 'stopped')",
            [run_id],
        )
        == 0
    )
    return run


@pytest.mark.parametrize(
    "procedure,parameters",
    [
        ("population", "iterations=4, population=4, interval=2"),
        ("tpe", "iterations=2, trials=4"),
        ("bohb", "iterations=4, reduction=2"),
    ],
)
def test_a_procedure_comes_to_its_end(db, data, procedure, parameters):
    """Those that differ most; thorough/searches/test_search_replays.py has all of them."""
    if procedure == "tpe":
        pytest.importorskip("optuna", reason=f"not run: {procedure} needs Optuna")
    run_id = search(db, procedure=procedure, parameters=parameters, metric="accuracy", validation_table="flowers_val")
    assert_search_invariants(db, run_id)
    assert db.value("SELECT metric FROM found_summary") == "validation_accuracy"
    best = db.run(
        "SELECT max(t.metric_best) AS one, max(i.validation_metrics_final) AS other FROM found_trials t "
        "JOIN found_info i USING (mst_key)"
    )[0]
    assert best["one"] is not None and best["one"] >= best["other"]


def test_a_grid_of_sequences_shares_its_beginnings(db, data):
    run_id = search(db, space=GRID, procedure="grid", parameters="iterations=3")
    run = assert_search_invariants(db, run_id)
    trials = db.run("SELECT compile_params, iterations FROM found_trials")
    assert len(trials) == 6 and {t["iterations"] for t in trials} == {3}
    assert run["merge_rate"] == pytest.approx(18 / 16)  # of each architecture, two share the first iteration


def test_a_cancelled_search_goes_on_as_if_nothing_had_happened(db, data):
    """What it was told before is told again; it makes the same proposals; no unit is done twice."""
    other = db.another()
    other.run(
        "DROP TABLE IF EXISTS halted, halted_info, halted_summary, halted_trials; SET pg_mop.seed = 7; "
        "SET pg_mop.lock_timeout = '300s'"
    )
    with holding(db.another()) as let_some_begin:
        call = Calling(
            other,
            f"SELECT madlib.mop_search('flowers_packed', 'halted', 'arch', $s${SPACE}$s$, 'asha', "
            "'iterations=9, trials=12')",
        )
        running = "SELECT run_id, coordinator_pid FROM madlib.mop_run WHERE model_output_table = 'halted'"
        assert eventually(lambda: db.run(running), 60)
        run_id, pid = db.run(running)[0].values()
        assert eventually(lambda: len(told(db, run_id)) >= 5 or let_some_begin(), 120)
        db.run("SELECT pg_cancel_backend(%s)", [pid])
    assert call.end().pgcode == "57014"
    before = told(db, run_id)
    assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "cancelled"
    done = db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'", [run_id])
    other.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert told(db, run_id)[: len(before)] == before and len(told(db, run_id)) > len(before)
    assert_search_invariants(db, run_id)
    assert db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'", [run_id]) > done
    # an undisturbed one proposes the same configurations
    undisturbed = search(other, "undisturbed", parameters="iterations=9, trials=12")
    configurations = (
        "SELECT mst_key, compile_params, fit_params FROM madlib.mop_configuration WHERE run_id = %s ORDER BY 1"
    )
    assert db.run(configurations, [undisturbed]) == db.run(configurations, [run_id])
    other.close()


def test_a_search_whose_end_was_cancelled_is_written_by_mop_resume(db, data):
    """The results are those of the same search without a disturbance, whose states it reused, and nothing is trained again."""
    trials, units = (
        "SELECT mst_key, status, iterations, metric, reason FROM found_trials ORDER BY 1",
        "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s",
    )
    db.run("SET pg_mop.reuse = on; SET pg_mop.kernel = plain; SET pg_mop.seed = 5")
    one_by_one = {"procedure": "median-stopping", "parameters": "iterations=4, parallel=1, others=1, grace=1, trials=4"}
    search(db, **one_by_one)
    wanted = db.run(trials)
    function = "madlib.mop_output_token(bigint, text)"
    body, source = db.run(
        "SELECT pg_get_functiondef(oid), prosrc FROM pg_proc WHERE oid = %s::regprocedure", [function]
    )[0].values()
    timeout = "BEGIN RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014'; END"
    db.run(body.replace(source, timeout))
    try:
        with pytest.raises(psycopg2.errors.QueryCanceled) as caught:
            search(db, **one_by_one)
    finally:
        db.run(body)
    run_id = last_run(db)
    before = db.value(units, [run_id])
    db.run(caught.value.diag.message_hint)
    assert db.run(trials) == wanted and db.value(units, [run_id]) == before
    assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "finished"
    db.run("RESET pg_mop.reuse; RESET pg_mop.kernel; RESET pg_mop.seed")


def test_people_stop_trials_and_add_some(db, data):
    other = db.another()
    other.run(
        "DROP TABLE IF EXISTS hands, hands_info, hands_summary, hands_trials; SET pg_mop.lock_timeout = '300s'; "
        "SET pg_mop.chain_seconds = 0"
    )
    with holding(db.another()) as let_some_begin:
        call = Calling(
            other, f"SELECT madlib.mop_search('flowers_packed', 'hands', 'arch', $s${GRID}$s$, 'grid', 'iterations=4')"
        )
        run_id = its_run(db, "hands")
        assert eventually(
            lambda: (
                db.value("SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND status = 'finished'", [run_id])
                > 0
                or let_some_begin()
            ),
            60,
        )
        assert f"run {run_id} has no mst_key 99" in str(db.error("SELECT madlib.mop_stop_trial(%s, 99)", [run_id]))
        db.run(
            "SELECT madlib.mop_stop_trial(%s, 2), madlib.mop_add_trial(%s, 1, %s, 'batch_size=4', 2)",
            [run_id, run_id, ADAM.format(0.02)],
        )
        assert eventually(lambda: not db.value("SELECT count(*) FROM madlib.mop_control_request"), 60)
    assert call.end() is None
    trials = {t["mst_key"]: t for t in db.run("SELECT * FROM hands_trials")}
    assert len(trials) == 7 and trials[2]["status"] == "stopped" and trials[2]["reason"] == "stopped by postgres"
    assert trials[2]["iterations"] < 4
    assert trials[7]["iterations"] == 2 and trials[7]["fit_params"] == "batch_size=4" and trials[7]["metric"]
    error = db.error("SELECT madlib.mop_stop_trial(%s, 1)", [run_id])
    assert f"run {run_id} is not running" in str(error)
    assert trials[7]["metric_final"] == trials[7]["metric"][-1]
    other.close()


def test_the_same_call_goes_on_with_a_search_in_which_a_trial_has_failed(db, data):
    """A trial that cannot be trained ended for itself; it does not keep the search from going on."""
    other = db.another()
    other.run(
        "DROP TABLE IF EXISTS onward, onward_info, onward_summary, onward_trials; SET pg_mop.lock_timeout = '300s'"
    )
    query = f"SELECT madlib.mop_search('flowers_packed', 'onward', 'arch', $s${GRID}$s$, 'grid', 'iterations=2')"
    with holding(db.another()):
        call = Calling(other, query)
        run_id = its_run(db, "onward")
        db.run("SELECT madlib.mop_add_trial(%s, 1, %s, 'batch_size=4', 2)", [run_id, "loss='mse', optimizer='None'"])
        failed = "SELECT error FROM madlib.mop_configuration WHERE run_id = %s AND error IS NOT NULL"
        assert eventually(lambda: db.value(failed, [run_id]), 60)
        db.run("SELECT pg_cancel_backend(coordinator_pid) FROM madlib.mop_run WHERE run_id = %s", [run_id])
    assert call.end().pgcode == "57014"
    other.run(query)
    assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "finished"
    statuses = [t["status"] for t in db.run("SELECT status FROM onward_trials ORDER BY mst_key")]
    assert statuses == ["finished"] * (len(statuses) - 1) + ["failed"] and len(statuses) > 1
    other.close()


def test_people_stop_and_add_configurations_of_a_fit_call(db, data):
    other = db.another()
    db.run("DROP TABLE IF EXISTS mst, mst_summary, fitted, fitted_info, fitted_summary")
    db.run(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[%s, %s], ARRAY['batch_size=8'])",
        [ADAM.format(0.01), ADAM.format(0.02)],
    )
    other.run("SET pg_mop.lock_timeout = '300s'; SET pg_mop.chain_seconds = 0")
    with holding(db.another()):
        call = Calling(
            other, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'fitted', 'mst', 4, FALSE)"
        )
        run_id = its_run(db, "fitted")
        db.run(
            "SELECT madlib.mop_stop_trial(%s, 1), madlib.mop_add_trial(%s, 2, %s, 'batch_size=4')",
            [run_id, run_id, ADAM.format(0.02)],
        )
        assert eventually(lambda: not db.value("SELECT count(*) FROM madlib.mop_control_request"), 60)
    assert call.end() is None
    rows = {r["mst_key"]: r for r in db.run("SELECT mst_key, model_id, iteration FROM fitted_info")}
    assert len(rows) == 3 and rows[2]["iteration"] == rows[3]["iteration"] == 4 and rows[3]["model_id"] == 2
    assert rows[1]["iteration"] is None or rows[1]["iteration"] < 4
    for view in ("mop_trials", "mop_progress"):
        told = db.run(f"SELECT mst_key, status FROM madlib.{view} WHERE run_id = %s ORDER BY mst_key", [run_id])
        assert [t["status"] for t in told] == ["stopped", "finished", "finished"], view
    assert (
        db.value("SELECT reason FROM madlib.mop_trials WHERE (run_id, mst_key) = (%s, 1)", [run_id])
        == "stopped by postgres"
    )
    # also where nothing had been asked of it yet, as of one that waits in a search
    db.run("BEGIN; DELETE FROM madlib.mop_request WHERE (run_id, mst_key) = (%s, 1)", [run_id])
    assert db.value("SELECT status FROM madlib.mop_progress WHERE (run_id, mst_key) = (%s, 1)", [run_id]) == "stopped"
    db.run("ROLLBACK")
    other.close()


@pytest.mark.parametrize("again", ["the same call", "mop_resume"])
def test_what_people_have_stopped_is_not_trained_when_the_run_goes_on(db, data, again):
    """Also by a call that has the configurations of its selection table, where nobody has stopped them."""
    other = db.another()
    db.run("DROP TABLE IF EXISTS mst, mst_summary, goes_on, goes_on_info, goes_on_summary")
    db.run(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[%s, %s, %s], ARRAY['batch_size=8'])",
        [ADAM.format(rate) for rate in (0.01, 0.02, 0.03)],
    )
    sql = "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'goes_on', 'mst', 5, FALSE, NULL, 5)"
    other.run("SET pg_mop.lock_timeout = '300s'; SET pg_mop.chain_seconds = 0")
    with holding(db.another()) as let_some_begin:
        call = Calling(other, sql)
        run_id = its_run(db, "goes_on")
        let_some_begin()
        db.run("SELECT madlib.mop_stop_trial(%s, k) FROM generate_series(2, 3) AS k", [run_id])
        assert eventually(
            lambda: (
                db.value(
                    "SELECT count(*) FROM madlib.mop_configuration WHERE run_id = %s AND reason IS NOT NULL", [run_id]
                )
                == 2
            ),
            60,
        )
        db.run("SELECT pg_cancel_backend(%s)", [other.connection.info.backend_pid])
    assert call.end() is not None
    other.run(sql if again == "the same call" else f"SELECT madlib.mop_resume({run_id})")
    assert db.run(
        "SELECT mst_key, status, iterations < 5 AS less FROM madlib.mop_trials WHERE run_id = %s ORDER BY 1", [run_id]
    ) == [
        {"mst_key": 1, "status": "finished", "less": False},
        *({"mst_key": key, "status": "stopped", "less": True} for key in (2, 3)),
    ]
    assert (
        db.value(
            "SELECT count(*) FROM madlib.mop_unit u WHERE run_id = %s AND NOT EXISTS (SELECT 1 FROM "
            "madlib.mop_request q WHERE (q.run_id, q.stage) = (u.run_id, u.stage))",
            [run_id],
        )
        == 0
    )
    # what is written of them is evaluated, and nothing else of them
    evaluated = db.run(
        "SELECT array_agg(DISTINCT u.iteration) AS at FROM madlib.mop_unit u JOIN madlib.mop_request q "
        "USING (run_id, stage) WHERE run_id = %s AND u.kind = 'evaluate' GROUP BY q.mst_key "
        "ORDER BY q.mst_key",
        [run_id],
    )
    written = db.run("SELECT iteration FROM goes_on_info WHERE iteration > 0 ORDER BY mst_key")
    assert [r["at"] for r in evaluated] == [[r["iteration"]] for r in written]
    assert db.value("SELECT count(*) FROM goes_on_info WHERE iteration > 0 AND training_loss_final IS NULL") == 0
    assert db.value("SELECT units_done = units_total FROM madlib.mop_progress WHERE run_id = %s LIMIT 1", [run_id])
    other.close()


def test_each_architecture_may_have_a_space_of_its_own(db, data):
    run_id = search(
        db,
        space="""[
        {'model_id': [1], 'loss': ['categorical_crossentropy'], 'optimizer': ['SGD'], 'batch_size': [8, 16]},
        {'model_id': [2], 'loss': ['categorical_crossentropy'], 'batch_size': [4],
         'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.01, 0.02]}]}]""",
        procedure="grid",
        parameters="iterations=1",
    )
    assert db.run(
        "SELECT model_id, fit_params, strpos(compile_params, 'SGD') > 0 AS sgd FROM madlib.mop_trials "
        "WHERE run_id = %s ORDER BY mst_key",
        [run_id],
    ) == [
        {"model_id": 1, "fit_params": "batch_size=8", "sgd": True},
        {"model_id": 1, "fit_params": "batch_size=16", "sgd": True},
        {"model_id": 2, "fit_params": "batch_size=4", "sgd": False},
        {"model_id": 2, "fit_params": "batch_size=4", "sgd": False},
    ]


@pytest.mark.parametrize("keep", ["", ", 'keep': ['best']", ", 'keep': ['last']"])
def test_the_best_state_by_the_searchs_metric_is_written_unless_the_last_is_asked_for(db, data, keep):
    space = SPACE.replace("[8, 16]", f"[8]{keep}").replace("[0.001, 0.1, 'log']", "[[0.05, 0.05, 3.0, 3.0]]")
    search(
        db,
        space=space[:-1] + ", 'model_id': [1]}",
        procedure="median-stopping",
        metric="accuracy",
        parameters="iterations=4, trials=1, sampler=grid",
    )
    trial = db.run("SELECT * FROM found_trials")[0]
    info = db.run("SELECT training_metrics_final AS metric, iteration, training_loss FROM found_info")[0]
    assert len(trial["metric"]) == 4 and trial["metric_best"] == max(trial["metric"]) > trial["metric"][-1]
    order = [(-metric, loss) for metric, loss in zip(trial["metric"], info["training_loss"])]
    written = 4 if "last" in keep else order.index(min(order)) + 1
    assert trial["iterations"] == info["iteration"] == written
    assert trial["metric_final"] == info["metric"] == trial["metric"][written - 1]


def test_who_comes_late_trains_anew_what_others_have_left_behind(db, data):
    other = db.another()
    db.run("DROP TABLE IF EXISTS mst, mst_summary, late, late_info, late_summary, later, later_info, later_summary")
    db.run(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[%s], ARRAY['batch_size=4'])",
        [ADAM.format(0.01)],
    )
    other.run("SET pg_mop.reuse = off; SET pg_mop.kernel = plain; SET pg_mop.lock_timeout = '300s'")
    with holding(db.another()) as let_some_begin:
        call = Calling(
            other, "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'late', 'mst', 9, FALSE)"
        )
        run_id = its_run(db, "late")
        assert eventually(
            lambda: (
                db.value("SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND units_done > 0", [run_id]) > 3
                or let_some_begin()
            ),
            90,
        )
        add = "SELECT madlib.mop_add_trial(%s, %s, %s, 'batch_size=4', %s)"
        db.run(add, [run_id, 1, ADAM.format("[0.01, 0.01, 0.005]"), 3])
        db.run(add, [run_id, 1, ADAM.format("0.01"), 2])  # ends where its twin has gone on
        db.run(add, [run_id, 99, ADAM.format("0.01"), 2])
        for control_request, problem in (
            ("mop_add_trial(%s, NULL, 'x', 'y')", "needs a model_id"),
            ("mop_add_trial(%s, 1, NULL, 'y')", "and compile_params"),
            ("mop_add_trial(%s, 1, 'x', 'y', 0)", "iterations must be from 1"),
            ("mop_stop_trial(%s, 9)", "no mst_key 9"),
            ("mop_add_control_request(%s, '1')", "invalid control request"),
            ("mop_add_control_request(%s, '{}')", "invalid control request"),
        ):
            assert problem in str(db.error(f"SELECT madlib.{control_request}", [run_id]))
        assert eventually(lambda: not db.value("SELECT count(*) FROM madlib.mop_control_request"), 60)
    assert call.end() is None
    trials = {t["mst_key"]: t for t in db.run("SELECT * FROM madlib.mop_trials WHERE run_id = %s", [run_id])}
    assert [trials[key]["iterations"] for key in (1, 2, 3)] == [9, 3, 2] and trials[4]["status"] == "failed"
    db.run("SELECT madlib.mop_replay(%s, 'later')", [run_id])
    assert (
        db.value("SELECT array_agg(a.model_weights = b.model_weights) FROM late a JOIN later b USING (mst_key)")
        == [True] * 3
    )
    other.close()


def test_what_an_earlier_run_has_trained_changes_no_search(db, data):
    """Neither when a trial stops, nor what the procedure hears, nor what is written: one trial goes at a time."""
    whole = GRID.replace("MultiStep(0.05, [1], 0.1)", "0.0001")
    space = whole[:-1] + ", 'stop': [{'patience': 1, 'min_delta': 0.4}], 'keep': ['best']}"
    columns = "SELECT mst_key, status, iterations, metric, reason FROM {}_trials ORDER BY 1"
    db.run("SET pg_mop.seed = 3; SET pg_mop.kernel = plain; SET pg_mop.reuse = off")
    parameters = "iterations=5, parallel=1, others=1, grace=1"
    run_id = search(db, "undisturbed", space, "median-stopping", parameters, metric="accuracy")
    wanted, events = db.run(columns.format("undisturbed")), told(db, run_id)
    assert any(row["iterations"] < 5 for row in wanted), "one stops"
    # an earlier run that has trained them all to the end, and one that a search has kept states of
    db.run("SET pg_mop.reuse = on; SELECT madlib.mop_drop_checkpoints()")
    search(db, "whole", whole, "grid", "iterations=5", metric="accuracy")
    for _ in range(2):
        run_id = search(db, "again", space, "median-stopping", parameters, metric="accuracy")
        assert db.run(columns.format("again")) == wanted and told(db, run_id) == events
        assert db.value(
            "SELECT bool_and(a.model_weights = b.model_weights) FROM again a JOIN undisturbed b USING (mst_key)"
        )
    db.run("RESET pg_mop.reuse; RESET pg_mop.kernel; RESET pg_mop.seed")


@pytest.mark.parametrize(
    "procedure,parameters,stop",
    [
        (
            "median-stopping",
            "iterations=5, trials=5, grace=1, others=2, parallel=1",
            "{'patience': 1, 'min_delta': 0.1}",
        ),
        ("successive-halving", "iterations=4, reduction=2, trials=8", "{'metric': 'accuracy', 'target': 0.6}"),
    ],
)
def test_a_trial_that_its_own_rule_stops_ends_there_whoever_has_trained_it(db, data, procedure, parameters, stop):
    """And nobody who goes on depends on when its result came: of one segment, each trial's losses are the same."""
    make_data(db, "alone", segments=1)
    space = GRID.replace(
        "[0.01, 0.05, MultiStep(0.05, [1], 0.1)]", "[0.001, 0.004, 0.008, 0.02, 0.03, 0.05, 0.08, 0.1]"
    )
    ruled = space[:-1] + f", 'stop': [{stop}]}}"
    db.run("SET pg_mop.kernel = plain; SELECT madlib.mop_drop_checkpoints()")

    def found(output, space, reuse):
        db.run(
            f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary, {output}_trials; "
            f"SET pg_mop.reuse = {reuse}; SET pg_mop.sharing = {reuse}; SET pg_mop.seed = 2"
        )
        db.run(
            "SELECT madlib.mop_search('alone_packed', %s, 'arch', %s, %s, %s, metric => 'loss', random_state => 2)",
            [output, space, procedure, parameters],
        )
        # (of iterations that trials share, one has the metrics that another has asked for)
        return db.run(f"SELECT mst_key, status, iterations, reason, metric_final FROM {output}_trials ORDER BY 1")

    alone = found("undisturbed", ruled, "off")
    found("earlier", space, "on")
    assert found("later", ruled, "on") == alone
    assert any("target" in (row["reason"] or "") or "patience" in (row["reason"] or "") for row in alone)
    db.run("RESET pg_mop.reuse; RESET pg_mop.sharing; RESET pg_mop.kernel; RESET pg_mop.seed")


def test_max_trials_counts_what_is_tried_now(db, data):
    """A person's trial is beside it, and what is known from earlier does not count."""
    first = search(db, procedure="random", parameters="iterations=1, trials=6")
    run_id = search(db, "more", procedure="asha", parameters="iterations=3, least=1", max_trials=5, continue_from=first)
    assert db.value("SELECT count(*) FROM more_trials WHERE iterations > 0") == 5
    assert (
        db.value("SELECT count(*) FROM madlib.mop_search_log WHERE run_id = %s AND event ->> 0 = 'known'", [run_id])
        == 1
    )


def test_a_search_that_is_resumed_needs_what_it_began_with(db, data):
    """Neither the run that it continues nor the architectures that came since; but its own."""
    db.run("DROP TABLE IF EXISTS own_arch; CREATE TABLE own_arch AS SELECT * FROM arch")
    first = search(db, procedure="random", parameters="iterations=1, trials=3")
    db.run("DROP TABLE IF EXISTS held, held_info, held_summary, held_trials; BEGIN")
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'held', 'own_arch', %s, 'asha', 'iterations=3, trials=5', "
        "continue_from => %s)",
        [SPACE, first],
    )
    run_id = last_run(db)
    db.run("ROLLBACK")
    before = db.run(
        "SELECT mst_key, compile_params, fit_params FROM madlib.mop_configuration WHERE run_id = %s ORDER BY 1",
        [run_id],
    )
    db.run("SELECT madlib.mop_drop_run(%s)", [first])
    db.run("SELECT madlib.load_keras_model('own_arch', %s::json)", [dense(5)])
    db.run("UPDATE own_arch SET model_arch = %s::json WHERE model_id = 2", [dense(17)])
    error = str(db.error("SELECT madlib.mop_resume(%s)", [run_id]))
    assert f"not those that run {run_id} began with" in error and "continue_from" in error
    db.run("UPDATE own_arch SET model_arch = (SELECT model_arch FROM arch WHERE model_id = 2) WHERE model_id = 2")
    db.run("SELECT madlib.mop_resume(%s)", [run_id])
    assert (
        db.run(
            "SELECT mst_key, compile_params, fit_params FROM madlib.mop_configuration WHERE run_id = %s ORDER BY 1",
            [run_id],
        )
        == before
    )
    # none of those that came since; which of its own five trials have is chance
    assert db.value("SELECT max(model_id) FROM held_trials") <= 2


def test_nothing_is_left_to_try(db, data):
    space = GRID.replace("[0.01, 0.05, MultiStep(0.05, [1], 0.1)]", "[0.01]")
    first = search(db, space=space, procedure="grid", parameters="iterations=1")
    error = db.error(
        "SELECT madlib.mop_search('flowers_packed', 'rest', 'arch', %s, 'random', 'iterations=1', continue_from => %s)",
        [space, first],
    )
    assert "nothing is left to try" in str(error)


@pytest.mark.parametrize("strategy", ["averaging", "sequential"])
def test_who_trains_one_model_has_no_trials_to_add(db, data, strategy):
    other = db.another()
    other.run(
        f"DROP TABLE IF EXISTS single, single_summary; SET pg_mop.fit_strategy = '{strategy}'; "
        "SET pg_mop.lock_timeout = '300s'; SET pg_mop.chain_seconds = 0"
    )
    with holding(db.another()) as let_some_begin:
        call = Calling(
            other,
            "SELECT madlib.madlib_keras_fit('flowers_packed', 'single', 'arch', 1, "
            f"$s${ADAM.format(0.01)}$s$, 'batch_size=8', 3)",
        )
        run_id = its_run(db, "single")
        error = db.error("SELECT madlib.mop_add_trial(%s, 1, %s, 'batch_size=4')", [run_id, ADAM.format(0.02)])
        assert "madlib_keras_fit, which trains one model" in str(error) and "pg_cancel_backend" in str(error)
        if strategy == "averaging":
            assert "trains one model" in str(db.error("SELECT madlib.mop_stop_trial(%s, 1)", [run_id]))
        else:
            let_some_begin()
            db.run("SELECT madlib.mop_stop_trial(%s, 1)", [run_id])
    assert call.end() is None
    assert db.value("SELECT count(*) FROM single") == 1
    other.close()


def test_what_people_add_wrongly_ends_no_run(db, data):
    """A sequence that fails beyond the run's own iterations; an architecture table that has gone."""
    db.run("DROP TABLE IF EXISTS gone_arch, mst, mst_summary, held, held_info, held_summary")
    db.run("CREATE TABLE gone_arch AS SELECT * FROM arch")
    db.run(
        "SELECT madlib.load_model_selection_table('gone_arch', 'mst', ARRAY[1], ARRAY[%s], ARRAY['batch_size=8'])",
        [ADAM.format(0.01)],
    )
    other = db.another()
    other.run("SET pg_mop.lock_timeout = '300s'; SET pg_mop.chain_seconds = 0")
    with holding(db.another()):
        call = Calling(other, "CALL madlib.mop_fit_multiple_model('flowers_packed', 'held', 'mst', 4, FALSE)")
        run_id = its_run(db, "held")
        db.run(
            "SELECT madlib.mop_add_trial(%s, 1, %s, 'batch_size=Exponential(32, 1.5)', 60)", [run_id, ADAM.format(0.02)]
        )
        assert eventually(
            lambda: db.value("SELECT count(*) FROM madlib.mop_configuration WHERE run_id = %s", [run_id]) == 2, 30
        )
        db.run(
            "DROP TABLE gone_arch; SELECT madlib.mop_add_trial(%s, 1, %s, 'batch_size=4', 1)",
            [run_id, ADAM.format(0.02)],
        )
        assert eventually(lambda: not db.value("SELECT count(*) FROM madlib.mop_control_request"), 60)
    assert call.end() is None
    assert db.value("SELECT count(*) FROM held") == 1
    other.close()


@pytest.mark.parametrize(
    "call",
    [
        "madlib_keras_fit_multiple_model('flowers_packed', 'added', 'mst', 2, FALSE)",
        f"mop_search('flowers_packed', 'added', 'arch', $s${SPACE}$s$, 'random', 'iterations=500, trials=2', "
        "time_limit => '1 s')",
    ],
)
def test_what_is_accepted_is_trained_or_it_is_said_that_it_is_not(db, data, call):
    """Whoever adds configurations up to a run's end, as fast as they are trained."""
    db.run("DROP TABLE IF EXISTS mst, mst_summary")
    selection(db, "mst", "arch", [(1, ADAM.format(0.01), "batch_size=4")])
    other, accepted = db.another(), 0
    other.run("SET pg_mop.reuse = off")
    for once in tries():  # (a run may have ended before the first is added)
        db.run("DROP TABLE IF EXISTS added, added_info, added_summary, added_trials")
        before = last_run(db) or 0
        del other.connection.notices[:]
        calling = Calling(other, f"SELECT madlib.{call}")
        assert eventually(lambda: (last_run(db) or 0) > before, 60)  # noqa: B023
        run_id, error = last_run(db), None
        while accepted < 60 and error is None:
            try:
                db.run(
                    "SELECT madlib.mop_add_trial(%s, 2, %s, %s, 1)",
                    [run_id, ADAM.format(0.02), f"batch_size={accepted + 1}"],
                )
                accepted += 1
            except psycopg2.errors.ObjectNotInPrerequisiteState as refused:
                error = refused
            time.sleep(0.1)
        assert calling.end() is None
        once.counts = accepted > 0
    late = sum("came too late" in notice for notice in other.connection.notices)
    there = db.value(
        "SELECT count(*) FROM madlib.mop_trials WHERE run_id = %s AND compile_params = %s", [run_id, ADAM.format(0.02)]
    )
    assert there + late == accepted > 0
    assert db.value("SELECT count(*) FROM madlib.mop_control_request") == 0
    other.close()


def test_time_is_up(db, data):
    for seconds in (
        2,
        10,
        40,
    ):  # (a machine that is slow, or stands still, may end no iteration within the first limit)
        run_id = search(db, space=SLOW, procedure="grid", parameters="iterations=1000", time_limit=f"{seconds} s")
        trials = db.run("SELECT status, reason, iterations FROM found_trials")
        if max(t["iterations"] for t in trials) > 0:
            break
    assert {t["reason"] for t in trials} == {"the time was up"} and 0 < max(t["iterations"] for t in trials) < 1000
    # what there is has been evaluated as it is written, whatever iterations the procedure asked for
    assert db.value("SELECT count(*) FROM found_trials WHERE iterations > 0 AND metric_final IS NULL") == 0
    best = db.value("SELECT best_mst_key FROM found_summary")
    assert best == db.value("SELECT mst_key FROM found_trials ORDER BY metric_final, mst_key LIMIT 1")
    db.run(
        "DROP TABLE IF EXISTS scores; SELECT madlib.madlib_keras_evaluate('found', 'flowers_packed', 'scores', "
        "FALSE, %s)",
        [best],
    )
    assert db.value("SELECT loss FROM scores") == pytest.approx(
        db.value("SELECT training_loss_final FROM found_info WHERE mst_key = %s", [best]), rel=1e-5
    )
    assert db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [run_id]) == "finished"
    assert (
        db.value("SELECT extract(epoch FROM finished_at - started_at) FROM madlib.mop_runs WHERE run_id = %s", [run_id])
        < 180
    )


def test_a_search_goes_on_from_what_is_known(db, data):
    first = search(db, "first")
    second = search(db, "second", parameters="iterations=4, trials=3", continue_from=first)
    assert (
        db.value("SELECT count(*) FROM madlib.mop_search_log WHERE run_id = %s AND event ->> 0 = 'known'", [second])
        == 1
    )
    mine, theirs = (
        {
            (r["compile_params"], r["fit_params"])
            for r in db.run("SELECT compile_params, fit_params FROM madlib.mop_configuration WHERE run_id = %s", [run])
        }
        for run in (second, first)
    )
    assert mine - theirs, "it proposes more than what is known"
    assert "there is no run 0" in str(
        db.error("SELECT madlib.mop_search('flowers_packed', 'third', 'arch', %s, continue_from => 0)", [SPACE])
    )


SIZES = ", ".join(map(str, range(1, 61)))
SOME = "{'loss': ['mse'], 'optimizer': ['SGD'], 'metrics': [['accuracy']], 'batch_size': [%s]}" % SIZES
SOME = f"[{SOME}, {{'loss': ['mse'], 'optimizer': ['SGD']}}]"  # of few of its configurations the metric is not known
BAD = [
    ({"space": "{'metrics': [['accuracy']]}"}, "the space has no 'loss'", "For instance: space =>"),
    ({"space": "{'loss': ['mse'], 'color': ['red']}"}, "'color' is not accepted in space", None),
    ({"space": "[{'loss': ['mse']}, {'metrics': ['mae']}]"}, "no 'loss' in its dictionary 2", "For instance: space =>"),
    ({"space": "__import__('os')"}, "'__import__' is none of the sequences", None),
    ({"space": SPACE.replace("'accuracy'", "'no_such'")}, "'no_such' is no loss or metric", None),
    ({"space": SPACE[:-1] + ", 'model_id': [7]}"}, 'model_id 7 is not in "arch"', "SELECT model_id"),
    ({"procedure": "asah"}, "there is no search procedure 'asah'", "The procedures are"),
    ({"procedure": "madlib-hyperband"}, "procedure of madlib_keras_automl alone", "Call madlib_keras_automl"),
    ({"parameters": "iterations=0"}, "iterations of asha must be an integer from 1", None),
    ({"parameters": "eta=3"}, "'eta' is no parameter of asha", None),
    ({"procedure": "random", "parameters": "seed=1"}, "'seed' is no parameter of random", "random_state"),
    ({"procedure": "grid", "parameters": None}, "'lr' is a distribution", None),
    ({"metric": "auc"}, 'metric "auc" is not among the metrics', "Write 'metrics'"),
    (
        {"metric": "accuracy", "procedure": "grid", "parameters": "iterations=1", "space": SOME},
        "some have none",
        "Write 'm",
    ),
    ({"metric": "mine"}, 'it is not known whether more or less of metric "mine" is better', "'mine max'"),
    ({"time_limit": "0 s"}, "time_limit must be above 0", "1 hour"),
]


@pytest.mark.parametrize("arguments,text,hint", BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_refused_before_any_work(db, data, arguments, text, hint):
    runs = db.value("SELECT count(*) FROM madlib.mop_runs")
    given = {"space": SPACE, "procedure": "asha", "parameters": "iterations=2, trials=2", **arguments}
    named = "".join(f", {name} => %({name})s" for name in given if name not in ("space", "procedure", "parameters"))
    error = db.error(
        f"SELECT madlib.mop_search('flowers_packed', 'bad', 'arch', %(space)s, %(procedure)s, %(parameters)s{named})",
        given,
    )
    assert text in str(error) and (hint is None or hint in error.diag.message_hint)
    assert db.value("SELECT count(*) FROM madlib.mop_runs") == runs
    assert db.value("SELECT to_regclass('bad')") is None


def test_another_role_neither_sees_nor_steers_a_search(db, data):
    run_id = search(db, procedure="random", parameters="iterations=1, trials=2")
    db.run("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN; GRANT mop_user TO stranger")
    stranger = db.another("stranger")
    for view in ("mop_stages", "mop_trials", "mop_checkpoints", "mop_stage", "mop_request", "mop_search_log"):
        assert stranger.value(f"SELECT count(*) FROM madlib.{view} WHERE run_id = %s", [run_id]) == 0
    for call in (
        "mop_stop_trial(%s, 1)",
        "mop_add_trial(%s, 1, 'x', 'y')",
        "mop_more(%s, 1, 1)",
        "mop_drop_checkpoints(%s)",
    ):
        assert "there is no run" in str(stranger.error(f"SELECT madlib.{call}", [run_id]))
    stranger.close()
    db.run("DROP OWNED BY stranger; DROP ROLE stranger")

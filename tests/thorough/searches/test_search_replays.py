"""mop_replay of searches and of mop_more: the log alone gives the same weights, metrics and tables again."""

import json

import pytest

from support.client import Calling
from support.cluster import eventually
from support.workload import ADAM, dense, holding, last_run, load, make_data, selection

SPACE = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [{'optimizer': "
    "['Adam'], 'lr': [0.001, 0.1, 'log']}], 'batch_size': [8, 16]}"
)
GRID = SPACE.replace("[0.001, 0.1, 'log']", "[0.01, 0.05, MultiStep(0.05, [1], 0.1)]").replace("[8, 16]", "[8]")
SLOW = GRID.replace("'batch_size': [8]", "'batch_size': [1], 'epochs': [20]")
FAILING = GRID.replace("'Adam'", "'SGD'").replace("MultiStep(0.05, [1], 0.1)", "[0.01, 1e38]")
SUFFIXES = ("", "_info", "_trials", "_best")
OTHER = (
    "metrics_elapsed_time",
    "start_training_time",
    "end_training_time",
    "model",
    "model_info",
    "model_selection_table",
)


@pytest.fixture(scope="module", autouse=True)
def data(db):
    make_data(db, segments=3)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense(), dense(16))
    db.run("SET pg_mop.kernel = 'plain'; SET pg_mop.lock_timeout = '300s'")


def drop(db, output):
    names = (output + suffix for suffix in (*SUFFIXES, "_summary", "_best_summary"))
    db.run(f"DROP TABLE IF EXISTS {', '.join(names)}")


def search(db, output, space=SPACE, procedure="asha", parameters="iterations=4, trials=8", **more):
    drop(db, output)
    named = "".join(f", {name} => %({name})s" for name in more)
    db.run(
        f"SELECT madlib.mop_search('flowers_packed', %(output)s, 'arch', %(space)s, %(procedure)s, %(parameters)s{named})",
        {"output": output, "space": space, "procedure": procedure, "parameters": parameters, **more},
    )
    return last_run(db)


def replay(db, run_id, output):
    """Replay a run without any WARNING. Returns the replay's run_id."""
    drop(db, output)
    del db.connection.notices[:]
    db.run("SELECT madlib.mop_replay(%s, %s)", [run_id, output])
    assert not [text for text in db.connection.notices if "WARNING" in text and "failed" not in text]
    return last_run(db)


def contents(db, output):
    """{suffix of an output table: its rows}, but for times and names of tables."""
    found = {}
    for suffix in (*SUFFIXES, "_summary"):
        if db.value("SELECT to_regclass(%s)", [output + suffix]) is not None:
            rows = db.run(f"SELECT (to_jsonb(t) - %s)::text AS row FROM {output}{suffix} t", [list(OTHER)])
            found[suffix] = sorted(row["row"] for row in rows)
    return found


def log(db, run_id):
    """What the views and the log tell of a run: visit order, metrics, ends of the trials, and the search's events."""
    return [
        db.run(sql, [run_id])
        for sql in (
            "SELECT v.mst_key, v.iteration, v.position, v.segment FROM madlib.mop_visit_order v JOIN "
            "madlib.mop_trials t USING (run_id, mst_key) WHERE run_id = %s AND t.status <> 'failed' "
            "AND v.iteration <= cardinality(t.path) ORDER BY 1, 2, 3",
            "SELECT mst_key, iteration, dataset, name, value FROM madlib.mop_metrics WHERE run_id = %s ORDER BY 1, 2, 3, 4",
            "SELECT mst_key, status, reason FROM madlib.mop_trials WHERE run_id = %s ORDER BY 1",
            "SELECT event FROM madlib.mop_search_log WHERE run_id = %s ORDER BY number",
        )
    ]


def assert_replayed(db, run_id, output, tables=None):
    """Replay a run of a search: all that is left of it is equal. Returns the replay's run_id."""
    again = replay(db, run_id, f"{output}_again")
    before, after = contents(db, output), contents(db, f"{output}_again")
    assert before.keys() == after.keys()
    for suffix in before:
        assert before[suffix] == after[suffix], suffix
    assert log(db, again) == log(db, run_id)
    return again


@pytest.mark.parametrize(
    "procedure,parameters",
    [
        ("asha", "iterations=4, trials=8"),
        ("random", "iterations=2, trials=4"),
        ("successive-halving", "iterations=4, trials=4, reduction=2"),
        ("hyperband", "iterations=4, reduction=2"),
        ("population", "iterations=4, population=4, interval=2"),
        ("median-stopping", "iterations=4, trials=5, grace=1, others=2"),
        ("tpe", "iterations=2, trials=4"),
        ("bohb", "iterations=4, reduction=2"),
        ("regularized-evolution", "population=3, tournament=2, trials=7, iterations=2, parallel=2"),
    ],
)
def test_a_search_is_replayed_to_the_byte(db, procedure, parameters):
    if procedure == "tpe":
        pytest.importorskip("optuna", reason=f"not run: {procedure} needs Optuna")
    run_id = search(
        db, "found", procedure=procedure, parameters=parameters, metric="accuracy", validation_table="flowers_val"
    )
    again = assert_replayed(db, run_id, "found")
    if procedure == "population":  # copies inherit weights: their beginnings are trained once
        rate = "SELECT merge_rate FROM madlib.mop_runs WHERE run_id = %s"
        assert db.value(rate, [again]) == db.value(rate, [run_id]) > 1
        db.run("SET pg_mop.sharing = off")
        assert_replayed(db, run_id, "found")
        db.run("RESET pg_mop.sharing")


@pytest.mark.parametrize(
    "method,parameters", [("hyperband", "R=4, eta=2"), ("hyperopt", "num_configs=5, num_iterations=2, algorithm=rand")]
)
def test_automl_is_replayed_with_its_best_and_its_rounds(db, method, parameters):
    drop(db, "auto")
    db.run(
        "SELECT madlib.madlib_keras_automl('flowers_packed', 'auto', 'arch', 'auto_best', ARRAY[1, 2], %s, %s, %s, %s, 3, "
        "NULL, FALSE, 'flowers_val', 1, 'a name')",
        [
            "{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'], 'optimizer_params_list': "
            "[{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}",
            "{'batch_size': [8, 16]}",
            method,
            parameters,
        ],
    )
    assert_replayed(db, last_run(db), "auto")
    assert db.value("SELECT model_arch_table FROM auto_again_best_summary") == "arch"


def test_a_search_with_folds_is_replayed(db):
    run_id = search(db, "folded", parameters="iterations=3, trials=4", folds=3)
    assert_replayed(db, run_id, "folded")
    assert any("folds_loss_mean" in row for row in contents(db, "folded_again")["_info"])


def test_what_was_decided_by_rules_by_people_by_the_clock_and_by_failures_is_repeated(db):
    """A trial fails in its second iteration, one cannot be trained, one is stopped and two are added by a person, and rules
    stop some."""
    space = FAILING.replace("'batch_size': [8]", "'batch_size': [1], 'epochs': [10]")[:-1]
    space += ", 'stop': [{'patience': 1, 'min_delta': 10.0}]}"
    drop(db, "hands")
    other = db.another()
    other.run("SET pg_mop.kernel = 'plain'; SET pg_mop.lock_timeout = '300s'")
    with holding(db.another()) as let_some_begin:
        call = Calling(
            other,
            f"SELECT madlib.mop_search('flowers_packed', 'hands', 'arch', $s${space}$s$, 'median-stopping', "
            "'iterations=4, sampler=grid')",
        )
        running = "SELECT max(run_id) FROM madlib.mop_runs WHERE model_output_table = 'hands' AND status = 'running'"
        assert eventually(lambda: db.value(running), 60)
        run_id = db.value(running)
        begun = "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND status = 'finished'"
        assert eventually(lambda: db.value(begun, [run_id]) > 0 or let_some_begin(), 60)
        add = "SELECT madlib.mop_add_trial(%s, 1, %s, 'batch_size=4', 2)"
        db.run("SELECT madlib.mop_stop_trial(%s, 2)", [run_id])
        db.run(add, [run_id, ADAM.format(0.02)])
        db.run(add, [run_id, "loss='mse', optimizer='None'"])
        assert eventually(lambda: not db.value("SELECT count(*) FROM madlib.mop_control_request"), 60)
    assert call.end() is None
    other.close()
    reasons = [t["reason"] for t in db.run("SELECT reason FROM hands_trials WHERE reason IS NOT NULL")]
    for text in ("stopped by postgres", "iteration 2", "patience 1", "optimizer"):
        assert any(text in reason for reason in reasons), (text, reasons)
    again = assert_replayed(db, run_id, "hands")
    # and the replay of the replay
    replay(db, again, "hands_again_again")
    assert contents(db, "hands_again_again") == contents(db, "hands")


def test_the_time_limit_of_a_replay_is_that_of_the_log(db):
    for seconds in (
        3,
        15,
        60,
    ):  # (a machine that is slow, or stands still, may end no iteration within the first limit)
        run_id = search(
            db, "timely", space=SLOW, procedure="grid", parameters="iterations=1000", time_limit=f"{seconds} s"
        )
        if db.value("SELECT max(iterations) FROM timely_trials") > 0:
            break
    assert db.value("SELECT bool_and(reason = 'the time was up') FROM timely_trials")
    assert_replayed(db, run_id, "timely")


def test_a_search_that_was_resumed_is_replayed_and_an_unfinished_one_says_how_to_go_on(db):
    drop(db, "halted")
    other = db.another()
    other.run("SET pg_mop.kernel = 'plain'; SET pg_mop.lock_timeout = '300s'")
    query = (
        f"SELECT madlib.mop_search('flowers_packed', 'halted', 'arch', $s${SPACE}$s$, 'asha', 'iterations=9, trials=9')"
    )
    with holding(db.another()) as let_some_begin:
        call = Calling(other, query)
        running = "SELECT run_id, coordinator_pid FROM madlib.mop_run WHERE model_output_table = 'halted'"
        assert eventually(lambda: db.run(running), 60)
        run_id, pid = db.run(running)[0].values()
        told = "SELECT count(*) FROM madlib.mop_search_log WHERE run_id = %s"
        assert eventually(lambda: db.value(told, [run_id]) >= 3 or let_some_begin(), 120)
        error = db.error("SELECT madlib.mop_replay(%s, 'halted_again')", [run_id])
        assert f"run {run_id} is running" in str(error) and error.pgcode == "55006"
        db.run("SELECT pg_cancel_backend(%s)", [pid])
    assert call.end().pgcode == "57014"
    error = db.error("SELECT madlib.mop_replay(%s, 'halted_again')", [run_id])
    assert f"the search of run {run_id} has not come to its end" in str(error) and error.pgcode == "55000"
    assert error.diag.message_hint == f'First SELECT "madlib".mop_resume({run_id});'
    other.run("SELECT madlib.mop_resume(%s)", [run_id])
    other.close()
    assert_replayed(db, run_id, "halted")


@pytest.mark.parametrize("again", ["mop_resume", "mop_replay"])
def test_a_replay_that_is_interrupted_goes_on(db, again):
    run_id = search(db, "whole", parameters="iterations=9, trials=9")
    drop(db, "whole_again")
    other = db.another()
    other.run("SET pg_mop.kernel = 'plain'; SET pg_mop.lock_timeout = '300s'")
    with holding(db.another()) as let_some_begin:
        call = Calling(other, f"SELECT madlib.mop_replay({run_id}, 'whole_again')")
        running = "SELECT run_id, coordinator_pid FROM madlib.mop_run WHERE run_id > %s AND status = 'running'"
        assert eventually(lambda: db.run(running, [run_id]), 60)
        replayed, pid = db.run(running, [run_id])[0].values()
        done = "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'"
        assert eventually(lambda: db.value(done, [replayed]) >= 3 or let_some_begin(), 120)
        for request in ("mop_stop_trial(%s, 1)", "mop_add_trial(%s, 1, 'x', 'y')"):
            error = db.error(f"SELECT madlib.{request}", [replayed])
            assert f"run {replayed} is a replay, which follows its log" in str(error)
        db.run("SELECT pg_cancel_backend(%s)", [pid])
    assert call.end().pgcode == "57014"
    before = db.value(done, [replayed])
    del other.connection.notices[:]
    if again == "mop_resume":
        other.run("SELECT madlib.mop_resume(%s)", [replayed])
    else:
        other.run("SELECT madlib.mop_replay(%s, 'whole_again')", [run_id])
        assert f"going on with run {replayed} of the same call" in "".join(other.connection.notices)
    assert not [text for text in other.connection.notices if "WARNING" in text]
    other.close()
    assert last_run(db) == replayed and 3 <= before < db.value(done, [replayed])
    assert contents(db, "whole_again") == contents(db, "whole") and log(db, replayed) == log(db, run_id)


def test_a_replay_does_not_go_on_without_the_run_that_it_repeats(db):
    run_id = search(db, "gone", procedure="random", parameters="iterations=2, trials=3")
    drop(db, "gone_again")
    db.run("BEGIN")
    db.run("SELECT madlib.mop_replay(%s, 'gone_again')", [run_id])
    db.run("ROLLBACK")
    replayed = last_run(db)
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])
    error = db.error("SELECT madlib.mop_resume(%s)", [replayed])
    assert f"run {replayed} is a replay of run {run_id}, which has been dropped" in str(error)
    assert error.diag.message_hint == f'SELECT "madlib".mop_drop_run({replayed});'


def test_stages_of_earlier_runs_are_trained_anew_while_their_logs_exist(db):
    db.run("SET pg_mop.seed = 11; SET pg_mop.reuse = on")
    first = search(db, "early", space=GRID, procedure="grid", parameters="iterations=2")
    second = search(db, "late", space=GRID, procedure="grid", parameters="iterations=4", continue_from=first)
    third = search(db, "late_too", space=GRID, procedure="grid", parameters="iterations=5")
    db.run("RESET pg_mop.seed; RESET pg_mop.reuse")
    for run_id, output in ((second, "late"), (third, "late_too")):
        of_others = "SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND source_run IS NOT NULL"
        if output == "late_too":
            assert db.value(of_others, [run_id]) > 0
        again = assert_replayed(db, run_id, output)
        assert db.value(of_others, [again]) == 0
    db.run("SELECT madlib.mop_drop_run(%s), madlib.mop_drop_run(%s)", [first, second])
    error = db.error("SELECT madlib.mop_replay(%s, 'later_still')", [third])
    assert f"the log of run {third} lacks what run" in str(error) and "pg_mop.reuse = off" in error.diag.message_hint


@pytest.mark.parametrize("searched", [True, False])
def test_mop_more_is_replayed_into_tables_of_its_own(db, searched):
    db.run("SET pg_mop.reuse = on")
    if searched:
        run_id = search(db, "begun", space=GRID, procedure="grid", parameters="iterations=2", metric="accuracy")
    else:
        drop(db, "begun")
        rows = [(1, ADAM.format(lr), "batch_size=8") for lr in (0.01, 0.02, 0.03)]
        selection(db, "mst", "arch", rows)
        db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'begun', 'mst', 2, FALSE)")
        run_id = last_run(db)
    db.run("SELECT madlib.mop_more(%s, 3, 2)", [run_id])
    more = last_run(db)
    db.run("RESET pg_mop.reuse")
    assert db.value("SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND source_run IS NOT NULL", [more]) == 2
    again = replay(db, more, "begun_more")
    before, after = contents(db, "begun"), contents(db, "begun_more")
    for suffix in ("", "_info", *(["_trials"] if searched else [])):
        (row,) = after[suffix]
        key = json.loads(row)["mst_key"]
        (other,) = (other for other in before[suffix] if json.loads(other)["mst_key"] == key)
        assert json.loads(row) == json.loads(other), suffix
    assert db.value("SELECT best_mst_key FROM begun_more_summary") == 3
    assert log(db, again)[1:] == log(db, more)[1:]
    db.run(
        "SELECT madlib.madlib_keras_evaluate('begun_more', 'flowers_val', 'begun_scores', FALSE); DROP TABLE begun_scores"
    )
    replay(db, again, "begun_more")  # the run that was trained on is not needed
    assert contents(db, "begun_more") == after


def test_a_search_whose_log_has_no_end_or_whose_rows_have_changed_is_refused(db):
    run_id = search(db, "lost", procedure="random", parameters="iterations=1, trials=2")
    runs = "SELECT count(*) FROM madlib.mop_run"
    before = db.value(runs)
    db.run("BEGIN; DELETE FROM madlib.mop_search_log WHERE run_id = %s AND event ->> 0 = 'end'; COMMIT", [run_id])
    error = db.error("SELECT madlib.mop_replay(%s, 'lost_again')", [run_id])
    assert f"the log of run {run_id} lacks the end of its search" in str(error) and error.pgcode == "0A000"
    db.run("CREATE TABLE flowers_copy AS TABLE flowers")
    db.run("SELECT madlib.training_preprocessor_dl('flowers_copy', 'copy_packed', 'y', 'x', NULL, 10)")
    drop(db, "lost")
    db.run("SELECT madlib.mop_search('copy_packed', 'lost', 'arch', %s, 'random', 'iterations=1, trials=2')", [SPACE])
    run_id = last_run(db)
    error = db.error("SELECT madlib.mop_replay(%s, 'lost_info')", [run_id])
    assert "already exists" in str(error)
    db.run("DROP TABLE copy_packed, copy_packed_summary")
    db.run("SELECT madlib.training_preprocessor_dl('flowers_copy', 'copy_packed', 'y', 'x', NULL, 10)")
    error = db.error("SELECT madlib.mop_replay(%s, 'lost_again')", [run_id])
    assert "have changed since run" in str(error)
    assert db.value(runs) == before + 1, "nothing was begun"


def test_explanations_reports_and_views_show_a_replay(db):
    run_id = search(db, "shown", parameters="iterations=4, trials=6")
    db.run("DROP TABLE IF EXISTS shown_again, shown_again_info, shown_again_summary, shown_again_trials")
    units = "SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND kind = 'train' AND status = 'finished'"
    plan = db.value("SELECT madlib.mop_explain(%s, 'json')", [f"SELECT madlib.mop_replay({run_id}, 'shown_again')"])
    plan = json.loads(plan) if isinstance(plan, str) else plan
    assert plan["prediction"]["training_units"] == 3 * db.value(
        "SELECT count(*) FROM madlib.mop_stage WHERE run_id = %s AND stage IN (SELECT stage FROM madlib.mop_request WHERE "
        "run_id = %s)",
        [run_id, run_id],
    )
    again = replay(db, run_id, "shown_again")
    assert db.value(units, [again]) == plan["prediction"]["training_units"]
    page = db.value("SELECT madlib.mop_report(%s)", [again])
    assert f"mop_replay({run_id}, " in page and f"mop_replay({again}, " in page
    assert f"mop_replay({run_id}, " in db.value("SELECT madlib.mop_report(%s)", [run_id])
    assert db.value("SELECT madlib.mop_explain_run(%s)", [again])
    counts = "SELECT status, count(*) FROM madlib.mop_trials WHERE run_id = %s GROUP BY 1 ORDER BY 1"
    assert db.run(counts, [again]) == db.run(counts, [run_id])

"""Cross-validation: `folds` of madlib_keras_fit_multiple_model."""

import base64
import json
import statistics

import numpy as np
import psycopg2
import pytest

from support.client import Calling
from support.cluster import eventually
from support.keras_jobs import keras_job
from support.workload import (
    ADAM,
    buffers,
    dense,
    ended_early,
    fit,
    is_under_way,
    last_run,
    load,
    make_data,
    replayed,
    selection,
)

SEED = 11
SIZE = 8
RATES = (0.02, 0.001)


def fit_folds(db, folds, output="folded", mst="mst", iterations=2, more=""):
    db.run(f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary")
    db.run(
        f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{output}', '{mst}', {iterations}, FALSE, "
        f"folds => {folds}{more})"
    )
    return last_run(db)


@pytest.fixture(scope="module")
def data(db):
    for setting in (f"seed = {SEED}", "threads = 1", "kernel = plain", "reuse = on"):
        db.run(f'SET pg_mop.{setting}; ALTER DATABASE "{db.database}" SET pg_mop.{setting}')
    make_data(db, rows=101, segments=4, buffer_size=9, seed=SEED)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(rate), f"batch_size={SIZE}") for rate in RATES])
    return "flowers_packed"


@pytest.fixture(scope="module")
def run_id(db, data):
    """A run of three folds; four segments, so that the first fold holds two."""
    return fit_folds(db, 3)


def test_no_fold_visits_its_own_segments_and_each_is_evaluated_on_them_alone(db, run_id):
    rows = db.run(
        "SELECT u.kind, u.iteration, c.fold, c.held_out, array_agg(u.segment ORDER BY u.segment) AS segments "
        "FROM madlib.mop_units u JOIN madlib.mop_configuration c USING (run_id, mst_key) "
        "WHERE run_id = %s AND u.status = 'finished' GROUP BY c.mst_key, 1, 2, 3, 4",
        [run_id],
    )
    assert len(rows) == 2 * 4 * (2 + 1), "two configurations, all rows and three folds; two iterations and the metrics"
    for row in rows:
        held_out, segments = row["held_out"] or [], [0, 1, 2, 3]
        inside = held_out or segments
        assert row["segments"] == (inside if row["kind"] == "evaluate" else [s for s in segments if s not in held_out])
    assert {tuple(row["held_out"]) for row in rows if row["fold"]} == {(0, 3), (1,), (2,)}
    trials = db.run("SELECT * FROM madlib.mop_trials WHERE run_id = %s ORDER BY mst_key", [run_id])
    assert [(t["mst_key"], t["fold"], t["fold_of"], t["status"]) for t in trials] == [
        (1, None, None, "finished"),
        (2, None, None, "finished"),
        *((2 + n, 1 + (n - 1) % 3, 1 + (n - 1) // 3, "finished") for n in range(1, 7)),
    ]


def of_plain_keras(db, run_id, size=SIZE, epochs=1):
    """{mst_key: [(loss, accuracy) of each fold]}: Keras trains on the segments outside each fold in the logged order, and
    its net is applied to the rows of the fold."""
    trials = db.run(
        "SELECT mst_key, fold_of, held_out FROM madlib.mop_configuration WHERE run_id = %s AND fold IS NOT NULL ORDER BY 1",
        [run_id],
    )
    jobs = []
    for trial in trials:
        rate = RATES[trial["fold_of"] - 1]
        jobs.append(keras_job(db, run_id, trial["mst_key"], rate, [SEED, 1], batch_size=size, epochs=epochs))
        assert len(jobs[-1]["visits"]) == 2 * (4 - len(trial["held_out"]))
    expected = {}
    for trial, job in zip(trials, replayed(jobs)):
        rows = [buffers(db, "flowers_packed", segment) for segment in trial["held_out"]]
        expected.setdefault(trial["fold_of"], []).append(scores(job["plain"], rows))
    return expected


def assert_equals_plain_keras(db, info, expected):
    assert len(expected) == 2
    for key, found in expected.items():
        row = db.run(f"SELECT * FROM {info} WHERE mst_key = %s", [key])[0]
        losses, accuracies = zip(*found)
        assert len(set(losses)) == 3
        assert row["folds_loss"] == pytest.approx(losses, rel=1e-4)
        assert row["folds_metrics"] == pytest.approx(accuracies, rel=1e-6)


def test_the_held_out_metrics_are_those_of_plain_keras_on_the_same_rows(db, run_id):
    assert_equals_plain_keras(db, "folded_info", of_plain_keras(db, run_id))


def test_mean_and_deviation_are_over_the_folds(db, run_id):
    for row in db.run("SELECT * FROM folded_info"):
        assert row["folds_loss_mean"] == pytest.approx(statistics.fmean(row["folds_loss"]))
        assert row["folds_loss_deviation"] == pytest.approx(statistics.stdev(row["folds_loss"]))
        assert row["folds_metrics_mean"] == pytest.approx(statistics.fmean(row["folds_metrics"]))
        assert row["folds_metrics_deviation"] == pytest.approx(statistics.stdev(row["folds_metrics"]), abs=1e-12)


def scores(weights, segments):
    """(loss, accuracy) of a net of `dense` with flat float32 weights (base64) on the packed rows of segments."""
    flat = np.frombuffer(base64.b64decode(weights), "<f4").astype("f8")
    first, bias, second, last = np.split(flat, np.cumsum([4 * 8, 8, 8 * 3]))
    x, y = (np.concatenate([array(b) for s in segments for b in s[c]]) for c in "xy")
    logits = np.maximum(x @ first.reshape(4, 8) + bias, 0) @ second.reshape(8, 3) + last
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    loss = -np.log((probabilities * y).sum(axis=1)).mean()
    return float(loss), float((probabilities.argmax(axis=1) == y.argmax(axis=1)).mean())


def array(packed):
    data = base64.b64decode(packed["bytes"])
    return np.frombuffer(data, "<i2" if len(data) == 2 * np.prod(packed["shape"]) else "<f4").reshape(packed["shape"])


def test_the_written_models_are_those_of_a_call_without_folds(db, run_id):
    plain = fit(db, "flowers_packed", "whole", "mst", 2)
    assert db.run("SELECT mst_key, md5(model_weights) AS w FROM folded ORDER BY 1") == db.run(
        "SELECT mst_key, md5(model_weights) AS w FROM whole ORDER BY 1"
    )
    adopted = db.value("SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND source_run = %s", [plain, run_id])
    assert adopted == 4, "its stages have the identities of a call without folds"
    shared = "mst_key, training_loss_final, training_metrics_final, iteration, error"
    assert db.run(f"SELECT {shared} FROM folded_info ORDER BY 1") == db.run(
        f"SELECT {shared} FROM whole_info ORDER BY 1"
    )
    assert not any("folds" in name for name in db.run("SELECT * FROM whole_info")[0])


def test_the_best_configuration_is_that_of_the_best_mean(db, run_id):
    means = {
        row["mst_key"]: (-row["folds_metrics_mean"], row["folds_loss_mean"])
        for row in db.run("SELECT * FROM folded_info")
    }
    assert db.run("SELECT best_mst_key, folds FROM folded_summary") == [
        {"best_mst_key": min(means, key=means.get), "folds": 3}
    ]


def test_later_runs_take_folds_over_and_only_folds_of_the_same_segments(db, run_id):
    again = fit_folds(db, 3, "folded_again")
    assert db.value("SELECT count(*) FROM madlib.mop_stages WHERE run_id = %s AND source_run IS NULL", [again]) == 0
    columns = "mst_key, folds_loss, folds_metrics, folds_loss_mean"
    assert db.run(f"SELECT {columns} FROM folded_again_info ORDER BY 1") == db.run(
        f"SELECT {columns} FROM folded_info ORDER BY 1"
    )
    four = fit_folds(db, 4, "folded_four")
    own = db.run(
        "SELECT DISTINCT c.held_out FROM madlib.mop_stage s JOIN madlib.mop_configuration c USING (run_id, mst_key) "
        "WHERE run_id = %s AND source_run IS NULL ORDER BY 1",
        [four],
    )
    assert [row["held_out"] for row in own] == [[0], [3]], "segments 1 and 2 were folds of the earlier run, too"


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_of_folds_goes_on_where_it_was(db, run_id, killed):
    output = f"stopped_{killed}".lower()
    db.run("SET pg_mop.reuse = off")
    selection(db, "mst_slow", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=5") for rate in RATES])
    client = db.another()
    client.run("SET pg_mop.reuse = off")
    call = (
        f"SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', '{output}', 'mst_slow', 2, FALSE, folds => 3)"
    )
    end = "pg_terminate_backend" if killed else "pg_cancel_backend"
    assert isinstance(ended_early(db, client, call, 12, end), psycopg2.Error)
    stopped = last_run(db)
    assert eventually(
        lambda: db.value("SELECT status FROM madlib.mop_runs WHERE run_id = %s", [stopped]) != "running", 60
    )
    done = db.value("SELECT count(*) FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished'", [stopped])
    assert 12 < done < 2 * (2 * 4 + 4) + 2 * 2 * (2 + 3 + 3) + 2 * 4
    if killed:
        db.run("SELECT madlib.mop_resume(%s)", [stopped])
    else:
        db.run(call)
    assert last_run(db) == stopped
    db.run("SET pg_mop.reuse = on")
    assert_equals_plain_keras(db, f"{output}_info", of_plain_keras(db, stopped, 1, 5))
    twice = db.run(
        "SELECT stage, segment FROM madlib.mop_unit WHERE run_id = %s AND status = 'finished' AND kind = 'train' "
        "GROUP BY 1, 2 HAVING count(*) > 1",
        [stopped],
    )
    assert twice == []


def test_a_stopped_configuration_ends_with_all_of_its_folds(db, data):
    selection(db, "mst_long", "arch", [(1, ADAM.format(rate), "batch_size=1, epochs=5") for rate in RATES])
    client = db.another()
    running = Calling(
        client,
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'ended', 'mst_long', 50, FALSE, folds => 2)",
    )
    assert eventually(lambda: is_under_way(db), 60)
    stopped = last_run(db)
    for key in (1, 5):  # the trials of folds are 3, 4 and 5, 6: a fold stands for its configuration
        db.run("SELECT madlib.mop_stop_trial(%s, %s)", [stopped, key])
    assert running.end() is None
    trials = db.run("SELECT status, iterations FROM madlib.mop_trials WHERE run_id = %s", [stopped])
    assert len(trials) == 6 and all(t["status"] == "stopped" and t["iterations"] < 50 for t in trials)
    assert len({t["iterations"] for t in trials}) <= 2, "a configuration and its folds end with the same iteration"
    for row in db.run("SELECT iteration, folds_loss_mean FROM ended_info"):
        assert row["iteration"] < 50 and row["folds_loss_mean"] is not None


def test_a_report_ranks_by_the_means_and_shows_no_fold_as_a_configuration(db, run_id):
    data = json.loads(db.value("SELECT madlib.mop_report(%s, 'json')", [run_id]))
    info = {row["mst_key"]: row for row in db.run("SELECT * FROM folded_info")}
    assert sorted(c["mst_key"] for c in data["configurations"]) == [1, 2]
    assert data["measure"] == {"series": "held-out accuracy", "goal": "max"}
    for c in data["configurations"]:
        row = info[c["mst_key"]]
        assert c["last"]["held-out loss"] == pytest.approx(row["folds_loss_mean"], rel=1e-3)
        assert c["last"]["held-out accuracy"] == pytest.approx(row["folds_metrics_mean"], rel=1e-3)
        assert c["last"]["training loss"] == pytest.approx(row["training_loss_final"], rel=1e-3)
        assert data["curves"][str(c["mst_key"])]["held-out loss"][0][0] == 2
    assert data["configurations"][0]["mst_key"] == db.value("SELECT best_mst_key FROM folded_summary")
    assert "held-out accuracy" in db.value("SELECT madlib.mop_report(%s)", [run_id])


def test_a_fold_that_fails_fails_its_configuration(db, data):
    selection(
        db,
        "mst_bad",
        "arch",
        [
            (1, ADAM.format(0.02), "batch_size=8"),
            (
                1,
                "loss='mse', optimizer='SGD(learning_rate=1e38, weight_decay=1e38)', metrics=['accuracy']",
                "batch_size=8",
            ),
        ],
    )
    db.connection.notices.clear()
    fit_folds(db, 2, "folded_bad", "mst_bad")
    assert any("1 of 2 configurations failed: mst_key 2" in n for n in db.connection.notices)
    good, bad = db.run("SELECT * FROM folded_bad_info ORDER BY mst_key")
    assert good["error"] is None and good["folds_loss_mean"] is not None
    assert bad["error"] is not None and bad["folds_loss_mean"] is None
    assert db.value("SELECT best_mst_key FROM folded_bad_summary") == 1
    assert db.run("SELECT mst_key FROM folded_bad") == [{"mst_key": 1}]


@pytest.mark.parametrize(
    "folds,more,message,hint",
    [
        (1, "", "folds must be at least 2, not 1", "no cross-validation"),
        (-3, "", "folds must be at least 2, not -3", "no cross-validation"),
        (2.5, "", "folds must be an integer, not 2.5", ""),
        (5, "", '5 folds need as many segments, but "flowers_packed" has 4', "SET pg_mop.segments = 5; SELECT"),
        (2, ", validation_table => 'flowers_packed'", "folds and a validation table cannot be combined", "Leave out"),
        (2, ", warm_start => TRUE", "folds and warm_start cannot be combined", "Leave out"),
    ],
)
def test_bad_folds_are_refused_before_any_work(db, run_id, folds, more, message, hint):
    before = last_run(db)
    call = (
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 2, FALSE, "
        f"folds => {folds}{more})"
    )
    error = db.error(call)
    assert message in str(error) and hint in (error.diag.message_hint or "")
    assert last_run(db) == before and db.value("SELECT to_regclass('never')") is None


def test_the_hint_for_more_segments_can_be_run(db, data):
    error = db.error(
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst', 2, FALSE, folds => 6)"
    )
    db.run(error.diag.message_hint)
    db.run("SET pg_mop.segments = 4")
    assert db.value("SELECT count(DISTINCT __dist_key__) FROM flowers_packed_6") == 6


@pytest.mark.parametrize("rule", ["stop={'patience': 1}", "keep='best'"])
def test_rules_that_choose_by_the_held_out_metrics_are_refused(db, data, rule):
    selection(db, "mst_rule", "arch", [(1, ADAM.format(0.02), f"batch_size=8, {rule}")])
    error = db.error(
        "SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'never', 'mst_rule', 2, FALSE, folds => 2)"
    )
    assert "has 1 configuration that cannot be trained: stop and keep='best' choose by the metrics" in str(error)


def test_the_procedure_has_folds_too(db, data):
    db.run("DROP TABLE IF EXISTS called, called_info, called_summary")
    db.run("CALL madlib.mop_fit_multiple_model('flowers_packed', 'called', 'mst', 1, FALSE, folds => 2)")
    assert [len(r["folds_loss"]) for r in db.run("SELECT folds_loss FROM called_info")] == [2, 2]


# --- searches -------------------------------------------------------------------------------------------------
SPACE = """$$ {'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'batch_size': [8],
    'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.0001, 0.1, 'log']}]} $$"""


def search(db, output, procedure, parameters, more=""):
    tables = ", ".join(output + suffix for suffix in ("", "_info", "_summary", "_trials"))
    db.run(f"DROP TABLE IF EXISTS {tables}")
    db.run(
        f"SELECT madlib.mop_search('flowers_packed', '{output}', 'arch', {SPACE}, '{procedure}', '{parameters}', "
        f"random_state => 3{more})"
    )
    return last_run(db)


PROCEDURES = {
    "random": "iterations=2, trials=3",
    "asha": "iterations=4, trials=4, reduction=2, parallel=2",
    "successive-halving": "iterations=4, trials=4, reduction=2",
    "population": "population=3, iterations=4, interval=2, fraction=0.34",
    "median-stopping": "iterations=3, trials=4, grace=1, others=2",
}


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_a_search_judges_by_the_mean_over_folds(db, data, procedure):
    run_id = search(db, "found", procedure, PROCEDURES[procedure], ", metric => 'loss', folds => 2")
    means = {}
    for row in db.run(
        "SELECT c.fold_of, m.iteration, avg(m.value) AS mean, count(*) AS folds FROM madlib.mop_metrics m "
        "JOIN madlib.mop_configuration c USING (run_id, mst_key) WHERE run_id = %s AND m.name = 'loss' AND c.fold IS NOT NULL "
        "GROUP BY 1, 2",
        [run_id],
    ):
        assert row["folds"] == 2
        means[row["fold_of"], row["iteration"]] = row["mean"]
    trials = db.run("SELECT * FROM found_trials ORDER BY mst_key")
    assert [t["mst_key"] for t in trials] == list(range(1, len(trials) + 1))
    for trial in trials:
        found = dict(zip(trial["metric_iters"], trial["metric"]))
        assert found and found == pytest.approx({i: m for (key, i), m in means.items() if key == trial["mst_key"]})
        assert trial["metric_final"] == pytest.approx(means[trial["mst_key"], trial["iterations"]])
        info = db.run("SELECT * FROM found_info WHERE mst_key = %s", [trial["mst_key"]])[0]
        assert info["folds_loss_mean"] == pytest.approx(trial["metric_final"]) and len(info["folds_loss"]) == 2
    told = db.run("SELECT event FROM madlib.mop_search_log WHERE run_id = %s ORDER BY number", [run_id])
    heard = [row["event"][1:] for row in told if row["event"][0] == "tell"]
    assert heard and all(value == pytest.approx(means[key, iteration]) for key, iteration, value, *_ in heard)
    best = min(trials, key=lambda t: t["metric_final"])["mst_key"]
    assert db.run("SELECT best_mst_key, metric, folds FROM found_summary") == [
        {"best_mst_key": best, "metric": "held-out_loss", "folds": 2}
    ]
    leaks = db.run(
        "SELECT * FROM madlib.mop_units u JOIN madlib.mop_configuration c USING (run_id, mst_key) WHERE run_id = %s "
        "AND c.fold IS NOT NULL AND (u.kind = 'evaluate') <> (u.segment = ANY (c.held_out))",
        [run_id],
    )
    assert leaks == []


@pytest.mark.parametrize(
    "more,message",
    [
        (", folds => 1", "folds must be at least 2, not 1"),
        (", folds => 9", '9 folds need as many segments, but "flowers_packed" has 4'),
        (", folds => 2, continue_from => 1", "folds and continue_from cannot be combined"),
        (", folds => 2, validation_table => 'flowers_packed'", "folds and a validation table cannot be combined"),
    ],
)
def test_bad_folds_of_a_search_are_refused(db, run_id, more, message):
    before = last_run(db)
    error = db.error(f"SELECT madlib.mop_search('flowers_packed', 'never', 'arch', {SPACE}, 'random', ''{more})")
    assert message in str(error) and last_run(db) == before

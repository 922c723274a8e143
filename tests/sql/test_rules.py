"""Rules in fit parameters: when a configuration stops, and which of its states is kept."""

import pytest

from support.workload import ADAM, assert_invariants, dense, fit, layer, load, make_data, selection, sequential

SGD = "loss='categorical_crossentropy', optimizer='SGD(lr={})', metrics=['accuracy']"


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=2)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed')")
    load(db, "arch", dense())
    load(db, "arch_open", sequential("open", [4], layer("Dense", name="out", units=3)))


def rows(db):
    return {r["mst_key"]: r for r in db.run("SELECT * FROM models_info")}


def test_patience_and_target_stop_a_configuration_alone(db, data):
    selection(
        db,
        "mst",
        "arch",
        [
            (1, ADAM.format(0.05), "batch_size=8, stop={'target': 0.9, 'metric': 'accuracy'}"),
            (1, SGD.format(0.0), "batch_size=8, stop={'patience': 2}"),
            (1, ADAM.format(0.02), "batch_size=8"),
        ],
    )
    run_id = fit(db, "flowers_packed", "models", "mst", iterations=8, frequency=1)
    info = rows(db)
    assert info[1]["training_metrics"][-1] >= 0.9 > max(info[1]["training_metrics"][:-1])
    assert len(info[2]["training_loss"]) == info[2]["iteration"] == 3, "the first, and two that are no better"
    assert info[3]["iteration"] == len(info[3]["training_loss"]) == 8
    trials = {r["mst_key"]: r for r in db.run("SELECT * FROM madlib.mop_trials WHERE run_id = %s", [run_id])}
    assert trials[1]["status"] == trials[2]["status"] == "stopped" and trials[3]["status"] == "finished"
    assert "target 0.9" in trials[1]["reason"] and "patience 2" in trials[2]["reason"]
    assert trials[2]["iterations"] == 3 and len(trials[2]["path"]) == 3
    assert db.value("SELECT count(*) FROM models") == 3
    # it can be done again
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary; SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert db.value("SELECT bool_and(m.model_weights = a.model_weights) FROM models m JOIN again a USING (mst_key)")


def test_who_keeps_the_best_state_has_it_when_a_later_loss_is_infinite(db, data):
    """And the losses up to there; whoever keeps the last state has failed. A replay and a search say the same."""
    bursts = "loss='mse', optimizer='SGD(lr=[0.01, 0.01, 1e30, 0.01])', metrics=['accuracy']"
    selection(db, "mst", "arch_open", [(1, bursts, "batch_size=8, keep='best'"), (1, bursts, "batch_size=8")])
    run_id = fit(db, "flowers_packed", "models", "mst", iterations=4, validation="flowers_val", frequency=1)
    info = rows(db)
    assert info[1]["error"] is None and info[1]["iteration"] in (1, 2) and len(info[1]["validation_loss"]) == 2
    assert info[1]["validation_loss_final"] == min(info[1]["validation_loss"])
    assert "iteration 3" in info[2]["error"] and info[2]["validation_loss"] is None
    trials = {r["mst_key"]: r for r in db.run("SELECT * FROM madlib.mop_trials WHERE run_id = %s", [run_id])}
    assert trials[1]["status"] == "stopped" and "iteration 3" in trials[1]["reason"] and trials[2]["status"] == "failed"
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary; SELECT madlib.mop_replay(%s, 'again')", [run_id])
    assert db.value("SELECT m.model_weights = a.model_weights FROM models m JOIN again a USING (mst_key)")
    db.run("DROP TABLE IF EXISTS found, found_info, found_summary, found_trials")
    db.run(
        "SELECT madlib.mop_search('flowers_packed', 'found', 'arch_open', %s, 'median-stopping', "
        "'iterations=4, trials=1, grace=3')",
        [
            "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [MultiStep(0.01, [2], 1e32)]}], "
            "'batch_size': [8]}"
        ],
    )
    (trial,) = db.run("SELECT * FROM found_trials JOIN found USING (mst_key)")
    assert (
        trial["status"] == "stopped"
        and trial["metric_final"] == min(trial["metric"])
        and "iteration 3" in trial["reason"]
    )


def test_the_best_state_is_kept_and_its_metrics_are_final(db, data):
    """At this rate the loss goes down and up again."""
    wild = "loss='categorical_crossentropy', optimizer='Adam(lr=[0.05, 0.05, 3.0, 3.0])', metrics=['accuracy']"
    selection(db, "mst", "arch", [(1, wild, "batch_size=8, keep='best'"), (1, wild, "batch_size=8")])
    run_id = fit(db, "flowers_packed", "models", "mst", iterations=4, validation="flowers_val", frequency=1)
    assert_invariants(db, run_id)
    info = rows(db)
    losses = info[1]["validation_loss"]
    best = losses.index(min(losses))
    assert best < 3 and info[1]["iteration"] == best + 1 and info[2]["iteration"] == 4
    assert info[1]["validation_loss_final"] == losses[best] and info[2]["validation_loss_final"] == losses[3]
    assert info[1]["validation_loss"] == info[2]["validation_loss"], "they shared all"
    db.run(
        "DROP TABLE IF EXISTS scores; SELECT madlib.madlib_keras_evaluate('models', 'flowers_val', 'scores', FALSE, 1)"
    )
    assert db.value("SELECT loss FROM scores") == pytest.approx(losses[best], abs=1e-6)


@pytest.mark.parametrize(
    "fit_params,text",
    [
        ("stop=3", "stop must be a dictionary"),
        ("stop={'min_delta': 1}", "stop needs patience or target"),
        ("stop={'patience': 0}", "patience of stop must be an integer of at least 1"),
        ("stop={'patience': 1, 'metric': 'auc'}", "'auc', which is not among its metrics"),
        ("stop={'patience': 1, 'metric': 'validation_loss'}", "needs a validation table"),
        ("stop={'patience': 1, 'mode': 'up'}", "mode of stop must be 'min' or 'max'"),
        ("stop={'target': 'x'}", "target of stop must be a number"),
        ("keep='worst'", "keep must be 'last' or 'best'"),
    ],
)
def test_rules_that_say_nothing_are_refused(db, data, fit_params, text):
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), fit_params)])
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'refused', 'mst', 1, FALSE)")
    assert text in str(error)


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_each_configuration_keeps_its_own_best_state_of_iterations_that_they_share(db, data, reuse):
    """By the loss the best is another iteration than by the accuracy: what one gives up the other keeps."""
    db.run(f"SET pg_mop.reuse = {reuse}")
    for seed in range(3):
        db.run(f"SET pg_mop.seed = {seed}")
        keeps = "batch_size=8, keep='best', stop={{'metric': '{}', 'patience': 99}}"
        selection(
            db,
            "mst",
            "arch",
            [
                (1, ADAM.format(rate), keeps.format(metric))
                for rate in (0.2, 0.5)
                for metric in ("loss", "accuracy", "loss min")
            ],
        )
        fit(db, "flowers_packed", "models", "mst", iterations=6, frequency=1)
        for row in db.run("SELECT * FROM models_info"):
            by_loss = "accuracy" not in row["fit_params"]
            values = row["training_loss"] if by_loss else row["training_metrics"]
            best = min(values) if by_loss else max(values)
            # of equal values the smaller loss decides
            smallest = min(loss for loss, value in zip(row["training_loss"], values) if value == best)
            assert row["iteration"] == 1 + row["training_loss"].index(smallest), row["fit_params"]
            assert (row["training_loss_final"] if by_loss else row["training_metrics_final"]) == best
    db.run("RESET pg_mop.reuse; RESET pg_mop.seed")

"""The best configuration of a call: the summary and a NOTICE name it, and predictions and evaluations use it."""

import pytest

from support.workload import ADAM, NAN, dense, fit, last_run, load, make_data, selection

ROWS = [
    (1, ADAM.format(0.0001), "batch_size=8"),
    (1, ADAM.format(0.05), "batch_size=8"),
    (1, ADAM.format(0.00001), "batch_size=8"),
    (2, ADAM.format(0.05), "batch_size=8"),  # does not fit
]


@pytest.fixture(scope="module")
def data(db):
    make_data(db)
    load(db, "arch", dense(), dense(inputs=5, name="misfit"))
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed', 7)")


def notices(db, word):
    return [n for n in db.connection.notices if n.startswith("NOTICE") and word in n]


@pytest.mark.parametrize("validation,dataset", [(None, "training"), ("flowers_val", "validation")])
def test_fit_multiple_names_its_best_configuration_with_parameters_and_metric(db, data, validation, dataset):
    selection(db, "mst", "arch", ROWS)
    del db.connection.notices[:]
    fit(db, "flowers_packed", "models", "mst", 4, validation)
    (told,) = notices(db, "the best of")
    value, loss = db.run(
        f"SELECT {dataset}_metrics_final AS m, {dataset}_loss_final AS l FROM models_info WHERE mst_key = 2"
    )[0].values()
    assert f"the best of 3 configurations is mst_key=2: {dataset} accuracy={value:.4g}, loss={loss:.4g}\n" in told
    assert ADAM.format(0.05) in told and "batch_size=8" in told
    assert db.value("SELECT best_mst_key FROM models_summary") == 2


def test_equal_metrics_are_decided_by_the_loss_and_without_a_common_metric_the_loss_decides(db, data):
    """A model that has learnt nothing classifies as its start does, whatever its loss is."""
    still = ADAM.replace("Adam(learning_rate={})", "SGD(learning_rate=1e-{})")
    selection(db, "mst", "arch", [(1, still.format(12), "batch_size=8"), (1, still.format(5), "batch_size=8")])
    fit(db, "flowers_packed", "models", "mst", 1)
    first, second = db.run(
        "SELECT training_metrics_final AS m, training_loss_final AS l FROM models_info ORDER BY mst_key"
    )
    assert first["m"] == second["m"] and second["l"] < first["l"]
    assert db.value("SELECT best_mst_key FROM models_summary") == 2
    other = "loss='categorical_crossentropy', optimizer='Adam(learning_rate=0.05)'"
    selection(db, "mst", "arch", [(1, ADAM.format(0.0001), "batch_size=8"), (1, other, "batch_size=8"), (1, NAN, "")])
    del db.connection.notices[:]
    fit(db, "flowers_packed", "models", "mst", 2)
    assert db.value("SELECT best_mst_key FROM models_summary") == 2
    assert "the best of 2 configurations is mst_key=2: training loss=" in notices(db, "the best of")[0]


def test_a_single_configuration_is_the_best_without_a_notice(db, data):
    selection(db, "mst", "arch", ROWS[1:2])
    del db.connection.notices[:]
    fit(db, "flowers_packed", "models", "mst", 1)
    assert db.value("SELECT best_mst_key FROM models_summary") == 1 and not notices(db, "the best of")


def test_a_resumed_run_names_the_best_as_the_run_would_have(db, data):
    selection(db, "mst", "arch", ROWS)
    db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
    db.run("BEGIN")
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'models', 'mst', 4, FALSE)")
    db.run("ROLLBACK")
    del db.connection.notices[:]
    db.run("SELECT madlib.mop_resume(%s)", [last_run(db)])
    assert db.value("SELECT best_mst_key FROM models_summary") == 2 and notices(db, "the best of 3 configurations")


def test_more_training_makes_another_configuration_the_best(db, data):
    compiled = "loss='categorical_crossentropy', optimizer='Adam(learning_rate={})'"
    selection(db, "mst", "arch", [(1, compiled.format(rate), "batch_size=8") for rate in (0.001, 0.002)])
    run_id = fit(db, "flowers_packed", "models", "mst", 1)
    assert db.value("SELECT best_mst_key FROM models_summary") == 2
    db.run("SELECT madlib.mop_more(%s, 1, 20)", [run_id])
    assert db.value("SELECT best_mst_key FROM models_summary") == 1


@pytest.fixture(scope="module")
def models(db, data):
    selection(db, "mst", "arch", ROWS)
    fit(db, "flowers_packed", "kept", "mst", 3, "flowers_val")
    return "kept"


def predicted(db, call, *arguments):
    db.run("DROP TABLE IF EXISTS out")
    db.run(f"SELECT madlib.madlib_keras_{call}", list(arguments))
    return db.run("SELECT * FROM out ORDER BY 1, 2, 3")


@pytest.mark.parametrize(
    "call",
    [
        "predict('kept', 'flowers', 'id', 'x', 'out', 'prob', FALSE, %s)",
        "evaluate('kept', 'flowers_packed', 'out', FALSE, %s)",
    ],
)
def test_without_mst_key_the_best_model_is_used_and_named(db, models, call):
    expected = predicted(db, call, 2)
    del db.connection.notices[:]
    assert predicted(db, call, None) == expected
    assert notices(db, 'the best model of "kept" is used: mst_key 2')
    assert predicted(db, call, 1) != expected


def test_of_a_table_without_a_named_best_the_final_metrics_decide(db, models):
    """As MADlib's tables are. Where they do not tell, mst_key must be given."""
    call = "predict('kept', 'flowers', 'id', 'x', 'out', 'prob', FALSE, %s)"
    expected = predicted(db, call, 2)
    db.run(
        "ALTER TABLE kept_summary DROP COLUMN best_mst_key; ALTER TABLE kept_info DROP COLUMN error, "
        "DROP COLUMN all_metrics, DROP COLUMN iteration"
    )
    assert predicted(db, call, None) == expected
    db.run("UPDATE kept_info SET validation_metrics_final = 2 WHERE mst_key = 1")
    del db.connection.notices[:]
    assert predicted(db, call, None) != expected and notices(db, "mst_key 1")
    for broken in (
        "UPDATE kept_info SET training_loss_final = NULL, validation_loss_final = NULL",
        "ALTER TABLE kept_info DROP COLUMN metrics_type",
    ):
        db.run(broken)
        assert "holds several models: mst_key must be given" in str(
            db.error(f"SELECT madlib.madlib_keras_{call}", [None])
        )

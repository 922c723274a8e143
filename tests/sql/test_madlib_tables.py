"""Packed tables that MADlib made on PostgreSQL: without `__dist_key__`, they are one segment."""

import numpy as np
import pytest

from support.workload import ADAM, assert_invariants, dense, fit, last_run, load, make_data, selection


def as_madlib(db, packed, output):
    """The packed table, its summary and nothing else as MADlib makes them on PostgreSQL."""
    db.run(
        f"DROP TABLE IF EXISTS {output}, {output}_summary; CREATE TABLE {output} AS SELECT x, y, x_shape, y_shape, "
        f"buffer_id FROM {packed} ORDER BY buffer_id DESC; CREATE TABLE {output}_summary AS "
        f"SELECT * FROM {packed}_summary"
    )


@pytest.fixture(scope="module")
def data(db):
    make_data(db, segments=1)
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed', 30)")
    as_madlib(db, "flowers_packed", "theirs")
    as_madlib(db, "flowers_val", "theirs_val")
    db.run("SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1")
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8"), (1, ADAM.format(0.01), "batch_size=8")])


def weights(db, table):
    return [bytes(r["model_weights"]) for r in db.run(f"SELECT model_weights FROM {table} ORDER BY 1")]


@pytest.fixture(scope="module")
def trained(db, data):
    fit(db, "flowers_packed", "ours", "mst", 2, "flowers_val")
    return fit(db, "theirs", "models", "mst", 2, "theirs_val")


def test_they_train_as_one_segment_to_the_same_weights(db, trained):
    assert assert_invariants(db, trained)["segments"] == 1
    assert sorted(weights(db, "models")) == sorted(weights(db, "ours"))
    finals = [
        [
            (r["training_loss_final"], r["validation_loss_final"], r["validation_metrics_final"])
            for r in db.run(f"SELECT * FROM {table}_info ORDER BY mst_key")
        ]
        for table in ("models", "ours")
    ]
    assert np.array(finals[0]) == pytest.approx(np.array(finals[1]), rel=1e-6)


def test_evaluate_and_predict_use_them(db, trained):
    db.run("DROP TABLE IF EXISTS scores, guessed")
    db.run("SELECT madlib.madlib_keras_evaluate('models', 'theirs_val', 'scores', FALSE, 1)")
    assert db.value("SELECT loss FROM scores") == pytest.approx(
        db.value("SELECT validation_loss_final FROM models_info WHERE mst_key = 1"), rel=1e-6
    )
    db.run("SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'guessed', 'response', FALSE, 1)")
    assert float(
        db.value("SELECT avg((class_value = y)::integer) FROM guessed JOIN flowers USING (id)")
    ) == pytest.approx(db.value("SELECT training_metrics_final FROM models_info WHERE mst_key = 1"), abs=1e-6)


@pytest.mark.parametrize("strategy", ["averaging", "sequential"])
def test_a_single_model_trains_on_them(db, data, strategy):
    db.run(f"DROP TABLE IF EXISTS one, one_summary; SET pg_mop.fit_strategy = '{strategy}'")
    db.run(
        "SELECT madlib.madlib_keras_fit('theirs', 'one', 'arch', 1, %s, 'batch_size=8', 2, FALSE, 'theirs_val')",
        [ADAM.format(0.05)],
    )
    db.run("RESET pg_mop.fit_strategy")
    assert db.value("SELECT validation_loss_final > 0 FROM one_summary")


def test_they_are_a_training_table_for_the_validation_of_any_number_of_segments(db, data):
    db.run("SET pg_mop.segments = 3")
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'split_val', 'y', 'x', 'theirs', 10)")
    assert db.value("SELECT count(DISTINCT __dist_key__) FROM split_val") == 3
    fit(db, "theirs", "split", "mst", 1, "split_val")
    fit(db, "theirs", "whole", "mst", 1, "theirs_val")
    losses = [
        [r["validation_loss_final"] for r in db.run(f"SELECT * FROM {t}_info ORDER BY mst_key")]
        for t in ("split", "whole")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_run_on_them_is_replayed_and_one_whose_rows_have_changed_is_not_resumed(db, trained):
    db.run("DROP TABLE IF EXISTS again, again_info, again_summary")
    db.run("SELECT madlib.mop_replay(%s, 'again')", [trained])
    assert weights(db, "again") == weights(db, "models")
    db.run("BEGIN")
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('theirs', 'gone', 'mst', 1, FALSE)")
    db.run("ROLLBACK")
    run_id = last_run(db)
    db.run("UPDATE theirs SET buffer_id = buffer_id WHERE buffer_id = 3")
    assert "have changed since run" in str(db.error("SELECT madlib.mop_resume(%s)", [run_id]))
    db.run("SELECT madlib.mop_drop_run(%s)", [run_id])


def test_one_that_was_rolled_back_is_resumed(db, data):
    db.run("BEGIN")
    db.run("SELECT madlib.madlib_keras_fit_multiple_model('theirs', 'later', 'mst', 1, FALSE)")
    db.run("ROLLBACK")
    db.run("SELECT madlib.mop_resume(%s)", [last_run(db)])
    assert db.value("SELECT count(*) FROM later") == 2


def test_a_class_null_and_a_class_of_that_name_have_keys_of_their_own(db, data):
    db.run(
        "CREATE TABLE named AS SELECT id, x, CASE y WHEN 'a' THEN NULL WHEN 'b' THEN 'NULL' ELSE 'c' END AS y FROM flowers"
    )
    db.run("SELECT madlib.training_preprocessor_dl('named', 'named_packed', 'y', 'x', 30, 1, ARRAY[4])")
    as_madlib(db, "named_packed", "named_theirs")
    load(db, "named_arch", dense(classes=4))
    db.run(
        "SELECT madlib.madlib_keras_fit('named_theirs', 'named_one', 'named_arch', 1, %s, 'batch_size=8', 1)",
        [ADAM.format(0.05)],
    )
    assert db.value("SELECT madlib.mop_deploy('named_model', 'named_one')") == 1
    (row,) = db.run("SELECT p.* FROM (SELECT x FROM named LIMIT 1) t, madlib.mop_predict('named_model', t) p")
    assert set(row["probabilities"]) == {"[NULL]", "NULL", "c", "(unit 3)"}
    assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert row["probabilities"][row["prediction"]] == row["probability"]

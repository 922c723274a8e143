"""What `_info` says of a model is what an evaluation of the whole table says, however the rows are split."""

import json

import pytest

from support.workload import dense, fit, load, make_data, selection

SEVERAL = [
    "f1_score",
    "accuracy",
    "auc",
    "precision",
    "recall",
    "true_positives",
    "r2_score",
    "top_k_categorical_accuracy",
]
PERFECT = "loss='categorical_crossentropy', optimizer='Adam(lr=0.1)', metrics={}"


@pytest.fixture(scope="module")
def data(db):
    """Training rows in 3 unequal segments; validation rows sorted by label in 4, so that each has other classes."""
    make_data(db, rows=101, segments=3, buffer_size=10)
    db.run("CREATE TABLE val AS SELECT * FROM flowers ORDER BY y, id; SET pg_mop.segments = 4")
    db.run("SELECT madlib.validation_preprocessor_dl('val', 'val_packed', 'y', 'x', 'flowers_packed', 8)")
    load(db, "arch", dense())
    return "flowers_packed"


def evaluated(db, table, packed, mst_key=None):
    db.run("DROP TABLE IF EXISTS scores")
    db.run("SELECT madlib.madlib_keras_evaluate(%s, %s, 'scores', FALSE, %s)", [table, packed, mst_key])
    return db.run("SELECT * FROM scores")[0]


def test_info_has_the_metrics_of_an_evaluation_of_the_whole_table(db, data):
    selection(
        db,
        "mst",
        "arch",
        [
            (1, PERFECT.format(SEVERAL), "batch_size=8"),
            (1, PERFECT.format(SEVERAL[::-1]).replace("categorical_crossentropy", "dice"), ""),
            (1, PERFECT.format(["accuracy"]).replace("categorical_crossentropy", "tversky"), ""),
        ],
    )
    run_id = fit(db, data, "models", "mst", 6, "val_packed", 3)
    for row in db.run("SELECT * FROM models_info ORDER BY mst_key"):
        assert row["error"] is None
        names = row["metrics_type"]
        assert set(row["all_metrics"]["validation"]) == set(names) and len(names) == (1 if row["mst_key"] == 3 else 8)
        for dataset, packed in (("training", data), ("validation", "val_packed")):
            whole = evaluated(db, "models", packed, row["mst_key"])
            assert row[f"{dataset}_loss_final"] == pytest.approx(whole["loss"], rel=1e-5, abs=1e-7)
            assert row[f"{dataset}_metrics_final"] == pytest.approx(whole["metric"], rel=1e-6)
            assert whole["metrics_type"] == names and whole["metric"] == whole["all_metrics"][names[0]]
            for name in names:
                values = row["all_metrics"][dataset][name]
                assert len(values) == 2 and values[-1] == pytest.approx(whole["all_metrics"][name], rel=1e-6)
                logged = db.run(
                    "SELECT value FROM madlib.mop_metrics WHERE (run_id, mst_key, dataset, name) = "
                    "(%s, %s, %s, %s) ORDER BY iteration",
                    [run_id, row["mst_key"], dataset, name],
                )
                assert [r["value"] for r in logged] == values
            assert row[f"{dataset}_metrics"] == row["all_metrics"][dataset][names[0]]
            wide = db.run(
                "SELECT * FROM madlib.mop_metrics_wide WHERE (run_id, mst_key) = (%s, %s) ORDER BY iteration",
                [run_id, row["mst_key"]],
            )
            assert all(w["metric"] == names[0] for w in wide) and [w["iteration"] for w in wide] == [3, 6]
            assert [w[f"{dataset}_loss"] for w in wide] == row[f"{dataset}_loss"]
            assert [w[f"{dataset}_metric"] for w in wide] == row[f"{dataset}_metrics"]
            assert [list(w[f"{dataset}_metrics"].values()) for w in wide] == list(
                map(list, zip(*row["all_metrics"][dataset].values()))
            )
            assert all(w["seconds"] > 0 for w in wide)
    first = db.run("SELECT * FROM models_info WHERE mst_key = 1")[0]["all_metrics"]["validation"]
    assert first["true_positives"][-1] == pytest.approx(101 * first["recall"][-1]) and first["accuracy"][-1] > 0.9
    assert db.value("SELECT count(*) FROM madlib.mop_partial") == 0


def test_averaged_replicas_have_the_metrics_of_all_their_rows(db, data):
    db.run("DROP TABLE IF EXISTS one, one_summary")
    db.run(
        "SELECT madlib.madlib_keras_fit(%s, 'one', 'arch', 1, %s, 'batch_size=8', 3, FALSE, 'val_packed', 1)",
        [data, PERFECT.format(SEVERAL)],
    )
    row = db.run("SELECT * FROM one_summary")[0]
    whole = evaluated(db, "one", "val_packed")
    assert row["validation_loss_final"] == pytest.approx(whole["loss"], rel=1e-6)
    for name in SEVERAL:
        assert row["all_metrics"]["validation"][name][-1] == pytest.approx(whole["all_metrics"][name], rel=1e-6)
        assert len(row["all_metrics"]["training"][name]) == 3
    assert (
        db.value(
            "SELECT count(DISTINCT mst_key) FROM madlib.mop_metrics WHERE run_id = (SELECT max(run_id) FROM "
            "madlib.mop_runs)"
        )
        == 1
    )


def test_one_name_alone_is_a_list_of_one(db, data):
    selection(db, "mst", "arch", [(1, "loss='mse', optimizer='SGD()', metrics='mae'", "")])
    fit(db, data, "models", "mst", 1)
    row = db.run("SELECT * FROM models_info")[0]
    assert row["metrics_type"] == ["mae"] and row["training_metrics_final"] > 0


def test_a_model_whose_loss_or_metric_is_not_finite_has_failed(db, data):
    selection(
        db,
        "mst",
        "arch",
        [
            (1, PERFECT.format("['accuracy']"), "batch_size=8"),
            (1, "loss='mse', optimizer='SGD(lr=1e37)', metrics=['accuracy']", "batch_size=128"),
        ],
    )
    run_id = fit(db, data, "models", "mst", 1, "val_packed")
    good, bad = db.run("SELECT * FROM models_info ORDER BY mst_key")
    assert good["error"] is None and good["validation_loss_final"] < 5
    assert "loss" in bad["error"] and ("NaN" in bad["error"] or "infinite" in bad["error"])
    assert bad["training_loss_final"] is None and bad["all_metrics"] is None
    assert db.run("SELECT mst_key FROM models") == [{"mst_key": 1}]
    progress = db.run("SELECT mst_key, status FROM madlib.mop_progress WHERE run_id = %s", [run_id])
    assert {r["mst_key"]: r["status"] for r in progress} == {1: "finished", 2: "failed"}
    # whoever takes it for the best is told how to ask
    db.run("DROP TABLE IF EXISTS p")
    error = db.error(
        "SELECT madlib.madlib_keras_predict('models', 'flowers', 'id', 'x', 'p', 'prob', FALSE, "
        "(SELECT mst_key FROM models_info ORDER BY validation_metrics_final DESC LIMIT 1))"
    )
    assert "failed" in str(error) and "NULLS LAST" in error.diag.message_hint
    assert db.run(error.diag.message_hint.split(": ", 1)[1])[0]["mst_key"] == 1


def test_the_metrics_of_a_resumed_run_are_those_of_all_segments(db, data):
    """Some segments are evaluated before the call is cancelled, the others after."""
    selection(db, "mst", "arch", [(1, PERFECT.format(SEVERAL), "batch_size=8") for _ in range(3)])
    db.run(
        # (an evaluation of other rows has been committed before)
        "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM madlib.mop_unit u "
        "WHERE (u.run_id, u.kind, u.status, u.dataset) = (NEW.run_id, NEW.kind, NEW.status, NEW.dataset) "
        "AND u.segment <> NEW.segment) THEN RAISE EXCEPTION 'stopped' USING ERRCODE = '57014'; END IF; RETURN NULL; END $$; "
        "CREATE TRIGGER stop AFTER UPDATE ON madlib.mop_unit FOR EACH ROW WHEN "
        "(NEW.kind = 'evaluate' AND NEW.dataset = 'validation' AND NEW.status = 'finished') EXECUTE FUNCTION stop()"
    )
    db.run("DROP TABLE IF EXISTS models, models_info, models_summary")
    call = f"SELECT madlib.madlib_keras_fit_multiple_model('{data}', 'models', 'mst', 1, FALSE, 'val_packed')"
    db.error(call)
    assert db.value("SELECT count(*) FROM madlib.mop_partial") > 0
    db.run("DROP TRIGGER stop ON madlib.mop_unit; DROP FUNCTION stop()")
    db.run(call)
    for key in (1, 2, 3):
        whole = evaluated(db, "models", "val_packed", key)
        mine = db.value("SELECT all_metrics FROM models_info WHERE mst_key = %s", [key])["validation"]
        assert {n: v[-1] for n, v in mine.items()} == pytest.approx(whole["all_metrics"], rel=1e-6)
    assert db.value("SELECT count(*) FROM madlib.mop_partial") == 0
    assert json.dumps(mine)


@pytest.mark.parametrize("kernel", ["plain", "loop"])
def test_precision_of_two_classes_is_that_of_the_second(db, data, kernel):
    """By training's evaluation, and from the predictions."""
    db.run(
        "DROP TABLE IF EXISTS two, two_packed, two_packed_summary, guesses; CREATE TABLE two AS SELECT id, x, "
        "CASE WHEN y = 'a' OR id % 9 = 0 THEN 'yes' ELSE 'no' END AS y FROM flowers"
    )
    db.run(f"SET pg_mop.kernel = {kernel}; SELECT madlib.training_preprocessor_dl('two', 'two_packed', 'y', 'x', 9)")
    load(db, "two_arch", dense(classes=2))
    selection(db, "mst", "two_arch", [(1, PERFECT.format(["precision", "recall", "auc"]), "batch_size=8")])
    fit(db, "two_packed", "models", "mst", 2)
    db.run("SELECT madlib.madlib_keras_predict('models', 'two', 'id', 'x', 'guesses', 'response'); RESET pg_mop.kernel")
    hits = "count(*) FILTER (WHERE t.y = 'yes' AND g.class_value = 'yes')::float8"
    precision, recall = db.run(
        f"SELECT {hits} / nullif(count(*) FILTER (WHERE g.class_value = 'yes'), 0) AS p, "
        f"{hits} / count(*) FILTER (WHERE t.y = 'yes') AS r FROM two t JOIN guesses g USING (id)"
    )[0].values()
    found = db.value("SELECT all_metrics FROM models_info")["training"]
    assert found["precision"][-1] == pytest.approx(precision or 0) and found["recall"][-1] == pytest.approx(recall)

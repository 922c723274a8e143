"""madlib_keras_evaluate and madlib_keras_predict for the models of fit_multiple."""

import math
import pathlib
import re

import pytest

from support.cluster import eventually
from support.tries import tries
from support.workload import ADAM, alike, dense, fit, load, make_data, runs_made, selection

CLASSES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def models(db):
    make_data(db, rows=90, segments=2)
    load(db, "arch", dense(16))
    selection(
        db,
        "mst",
        "arch",
        [
            (1, ADAM.format(0.05), "batch_size=8, epochs=3"),
            (1, "loss='categorical_crossentropy', optimizer='SGD()'", "batch_size=8"),
        ],
    )
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed', 40)")
    fit(db, "flowers_packed", "models", "mst", iterations=4, validation="flowers_val")


@pytest.fixture(autouse=True)
def clean(db):
    db.run("DROP TABLE IF EXISTS out")


def predict(db, rest="", test="flowers", x="x"):
    db.run(f"SELECT madlib.madlib_keras_predict('models', '{test}', 'id', '{x}', 'out'{rest})")
    return db.run("SELECT * FROM out ORDER BY id, prob DESC")


def test_evaluate_on_the_training_table_gives_the_info_tables_finals(db, models):
    for key, metric in ((1, ["accuracy"]), (2, None)):
        db.run("DROP TABLE IF EXISTS out")
        db.run(f"SELECT madlib.madlib_keras_evaluate('models', 'flowers_packed', 'out', NULL, {key})")
        row = db.run("SELECT * FROM out")[0]
        info = db.run("SELECT * FROM models_info WHERE mst_key = %s", [key])[0]
        assert row["loss"] == pytest.approx(info["training_loss_final"], rel=1e-5)
        assert row["metrics_type"] == metric and row["loss_type"] == "categorical_crossentropy"
        if metric:
            assert row["metric"] == pytest.approx(info["training_metrics_final"], rel=1e-5)
        else:
            assert row["metric"] is None


@pytest.mark.parametrize("of", ["table", "view", "query", "temporary table"])
def test_raw_rows_are_evaluated_with_the_transform_of_the_model(db, models, of):
    db.run("DROP TABLE IF EXISTS packed_here, packed_here_summary; DROP VIEW IF EXISTS seen")
    if of == "view":
        db.run("CREATE VIEW seen AS SELECT y, x FROM flowers")
    if of == "temporary table":
        db.run("CREATE TEMPORARY TABLE passing ON COMMIT PRESERVE ROWS AS SELECT * FROM flowers")
    raw = {"table": "flowers", "view": "seen", "query": "SELECT * FROM flowers", "temporary table": "passing"}[of]
    db.run("SELECT madlib.madlib_keras_evaluate('models', 'flowers_val', 'out', FALSE, 1)")
    wanted = db.run("SELECT * FROM out")[0]
    db.run("DROP TABLE out; SELECT madlib.madlib_keras_evaluate('models', %s, 'out', FALSE, 1)", [raw])
    found = db.run("SELECT * FROM out")[0]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5) and found["metric"] == pytest.approx(
        wanted["metric"]
    )
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'mop_packed_%' OR relname LIKE 'mop_rows_%'") == 0
    db.run("DROP TABLE IF EXISTS passing; DROP VIEW IF EXISTS seen")


@pytest.mark.parametrize(
    "raw, fragment",
    [
        ("SELECT y FROM flowers", 'column "x" of the training rows does not exist'),
        ("SELECT x FROM flowers", 'column "y" does not exist'),
        ("SELECT x, 'z'::text AS y FROM flowers", "no subset of those of training"),
        ("SELECT x, 5 AS y FROM flowers", "the model was trained on text"),
        ("SELECT x || 1::real AS x, y FROM flowers", "dimensions"),
        ("SELECT * FROM flowers WHERE false", "returns no rows"),
    ],
)
def test_raw_rows_that_do_not_suit_the_model(db, models, raw, fragment):
    assert fragment in str(db.error("SELECT madlib.madlib_keras_evaluate('models', %s, 'out', FALSE, 1)", [raw]))
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'mop_packed_%' OR relname LIKE 'mop_rows_%'") == 0


def test_predictions_agree_with_the_metric_of_training(db, models):
    rows = predict(db, ", 'response', FALSE, 1")
    assert len(rows) == 90 and list(rows[0]) == ["id", "class_name", "class_value", "prob"]
    right = db.value("SELECT avg((o.class_value = f.y)::integer) FROM out o JOIN flowers f USING (id)")
    assert float(right) == pytest.approx(db.value("SELECT training_metrics_final FROM models_info WHERE mst_key = 1"))


@pytest.mark.parametrize("kind", [", 'prob', FALSE, 1", ", NULL, FALSE, 1", ", 3, FALSE, 1"])
def test_prob_gives_every_class_with_its_rank(db, models, kind):
    rows = predict(db, kind)
    assert len(rows) == 270 and list(rows[0]) == ["id", "class_name", "class_value", "prob", "rank"]
    for start in range(0, 270, 3):
        three = rows[start : start + 3]
        assert sorted(r["class_value"] for r in three) == CLASSES
        assert sorted(r["rank"] for r in three) == [1, 2, 3]
        assert [r["prob"] for r in sorted(three, key=lambda r: r["rank"])] == [r["prob"] for r in three]
        assert math.isclose(sum(r["prob"] for r in three), 1, abs_tol=1e-6)
        assert {r["class_name"] for r in three} == {"y"}


def test_an_integer_keeps_the_best_and_a_double_what_is_above(db, models):
    assert len(predict(db, ", 1, FALSE, 1")) == 90
    db.run("DROP TABLE out")
    assert all(r["prob"] > 0.4 for r in predict(db, ", 0.4::double precision, FALSE, 1"))


def test_types_of_the_output(db, models):
    predict(db, ", 'prob', FALSE, 1")
    types = db.value(
        "SELECT string_agg(concat_ws(' ', column_name, data_type), ', ' ORDER BY ordinal_position) FROM "
        "information_schema.columns WHERE table_name = 'out'"
    )
    assert types == "id integer, class_name text, class_value text, prob double precision, rank integer"


def test_views_temporary_and_uncommitted_tables_can_be_predicted(db, models):
    db.run(
        "BEGIN; CREATE TEMP TABLE a_few AS SELECT md5(id::text)::uuid AS id, x FROM flowers LIMIT 5;"
        "CREATE TEMP VIEW v AS SELECT * FROM a_few"
    )
    assert len(predict(db, ", 'response', FALSE, 1", test="v")) == 5
    assert db.value("SELECT pg_typeof(id)::text FROM out LIMIT 1") == "uuid"
    db.run("ROLLBACK")


def test_class_values_with_null_quotes_and_padding_come_back_as_text(db, models):
    db.run(
        "DROP TABLE IF EXISTS odd, odd_packed, odd_packed_summary; CREATE TABLE odd AS SELECT i AS id, "
        "ARRAY[i % 3, i, 1, 0]::real[] AS x, (ARRAY[NULL, 'it''s', 'b'])[1 + i % 3] AS y "
        "FROM generate_series(1, 30) i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('odd', 'odd_packed', 'y', 'x', NULL, NULL, ARRAY[5])")
    load(db, "arch5", dense(classes=5))
    selection(db, "mst5", "arch5", [(1, ADAM.format(0.05), "batch_size=8")])
    fit(db, "odd_packed", "odd_models", "mst5", iterations=1)
    assert db.value("SELECT y_class_values FROM odd_models_summary") == [None, "b", "it's", None, None]
    db.run("SELECT madlib.madlib_keras_predict('odd_models', 'odd', 'id', 'x', 'out', 'prob', FALSE, 1)")
    values = [r["class_value"] for r in db.run("SELECT class_value FROM out WHERE id = 1")]
    assert sorted(values, key=str) == sorted([None, "b", "it's", None, None], key=str)


def test_own_one_hot_labels_are_named_by_number(db, models):
    db.run(
        "DROP TABLE IF EXISTS own, own_packed, own_packed_summary; CREATE TABLE own AS SELECT i AS id, "
        "ARRAY[i % 3, i, 1, 0]::real[] AS x, ARRAY[(i % 3 = 0)::int, (i % 3 = 1)::int, (i % 3 = 2)::int] AS y "
        "FROM generate_series(1, 30) i"
    )
    db.run("SELECT madlib.training_preprocessor_dl('own', 'own_packed', 'y', 'x')")
    fit(db, "own_packed", "own_models", "mst", iterations=1)
    db.run("SELECT madlib.madlib_keras_predict('own_models', 'own', 'id', 'x', 'out', 'prob', FALSE, 1)")
    assert {r["class_value"] for r in db.run("SELECT class_value FROM out")} == {"0", "1", "2"}
    assert db.value("SELECT num_classes FROM own_models_summary") == [3]


def test_the_architecture_table_is_not_needed_any_more(db, models):
    db.run("ALTER TABLE arch RENAME TO arch_gone")
    assert len(predict(db, ", 'response', FALSE, 1")) == 90
    db.run("ALTER TABLE arch_gone RENAME TO arch")


def test_rows_are_scaled_by_the_training_constant(db, models):
    db.run(
        "DROP TABLE IF EXISTS big, big_packed, big_packed_summary; CREATE TABLE big AS SELECT id, "
        "ARRAY[x[1]*10, x[2]*10, x[3]*10, x[4]*10]::integer[] AS x, y FROM flowers"
    )
    db.run("SET pg_mop.segments = 2; SELECT madlib.training_preprocessor_dl('big', 'big_packed', 'y', 'x', 10, 10)")
    fit(db, "big_packed", "big_models", "mst", iterations=1)
    db.run("SELECT madlib.madlib_keras_predict('big_models', 'big', 'id', 'x', 'out', 'response', FALSE, 1)")
    right = db.value("SELECT avg((o.class_value = f.y)::integer) FROM out o JOIN big f USING (id)")
    assert float(right) == pytest.approx(
        db.value("SELECT training_metrics_final FROM big_models_info WHERE mst_key = 1"), abs=1e-6
    )


@pytest.mark.parametrize(
    "call,fragment",
    [
        ("predict(NULL, 'flowers', 'id', 'x', 'out', 'prob', FALSE, 1)", "NULL/empty input table name"),
        ("predict('nowhere', 'flowers', 'id', 'x', 'out', 'prob', FALSE, 1)", "does not exist"),
        ("predict('models', 'flowers', 'no', 'x', 'out', 'prob', FALSE, 1)", "invalid id column"),
        ("predict('models', 'flowers', 'id', 'no', 'out', 'prob', FALSE, 1)", "invalid independent_varname"),
        ("predict('models', 'flowers_packed', 'buffer_id', 'x', 'out', 'prob', FALSE, 1)", "not a packed table"),
        *(
            (f"predict('models', 'flowers', 'id', 'x', 'out', {kind}, FALSE, 1)", "pred_type")
            for kind in ("'best'", "'two'", "0", "1.5::float8", "-0.1::float8")
        ),
        ("predict('models', 'flowers', 'id', 'x', 'out', 'prob', FALSE, 9)", "mst_key 9"),
        ("predict('models', 'flowers', 'id', 'x', 'out', 'prob', TRUE, 1)", "no GPU"),
        ("predict('models', 'short', 'id', 'x', 'out', 'prob', FALSE, 1)", "input shape does not match"),
        (
            "predict('models', 'flags', 'id', 'x', 'out', 'prob', FALSE, 1)",
            'column "x" of test table "flags" has type boole',
        ),
        (
            "predict('models', 'vast', 'id', 'x', 'out', 'prob', FALSE, 1)",
            'column "x" has NaN, an infinity or a number',
        ),
        ("predict('models', 'ragged', 'id', 'x', 'out', 'prob', FALSE, 1)", "different dimensions"),
        ("predict('models', 'flowers', 'id', 'x', 'models', 'prob', FALSE, 1)", "already exists"),
        ("evaluate('models', 'arch', 'out', FALSE, 1)", 'column "y" does not exist'),
        ("evaluate('models', 'flowers_packed', 'out', FALSE, 3)", "mst_key 3"),
        ("evaluate('noarch', 'flowers_packed', 'out', FALSE, 1)", "model_arch"),
    ],
)
def test_bad_calls_have_clear_errors_and_leave_nothing(db, models, call, fragment):
    db.run(
        "DROP TABLE IF EXISTS short, ragged, noarch, flags, vast;"
        "CREATE TABLE flags AS SELECT id, ARRAY[true, false, true, true] AS x FROM flowers;"
        "CREATE TABLE vast AS SELECT id, CASE id WHEN 50 THEN ARRAY[1e400, 1, 1, 1] ELSE x::numeric[] END AS x "
        "FROM flowers;"
        "CREATE TABLE short AS SELECT id, x[1:3] AS x FROM flowers;"
        "CREATE TABLE ragged AS SELECT id, CASE id WHEN 50 THEN x[1:2] ELSE x END AS x FROM flowers ORDER BY id;"
        "CREATE TABLE noarch AS SELECT mst_key, model_weights FROM models"
    )
    assert fragment in str(db.error(f"SELECT madlib.madlib_keras_{call}"))
    assert db.value("SELECT to_regclass('out') IS NULL")


@pytest.mark.parametrize("kind, rows", [("'prob'", 3), ("'response'", 1), ("2", 2), ("0.3::float8", None)])
def test_what_has_no_finite_prediction_gets_null_and_no_class(db, models, kind, rows):
    db.run(
        "DROP TABLE IF EXISTS holes; CREATE TABLE holes AS SELECT id, CASE id WHEN 7 THEN '{NaN,1,1,1}' WHEN 8 THEN "
        "'{1,Infinity,1,1}' WHEN 9 THEN '{3e38,3e38,3e38,3e38}' ELSE x END::real[] AS x FROM flowers"
    )
    db.connection.notices.clear()
    found = predict(db, f", {kind}, FALSE, 1", test="holes")
    unknown = [r for r in found if r["id"] in (7, 8, 9)]
    assert [(r["id"], r["class_name"], r["class_value"], r["prob"]) for r in unknown] == [
        (i, "y", None, None) for i in (7, 8, 9)
    ]
    assert all(r["class_value"] in CLASSES and 0 <= r["prob"] <= 1 for r in found if r not in unknown)
    assert rows is None or len(found) == 87 * rows + 3
    assert any("3 predictions are NULL" in n for n in db.connection.notices)


def test_damaged_weights_are_an_error_with_both_counts(db, models):
    db.run(
        "DROP TABLE IF EXISTS hurt, hurt_info, hurt_summary; CREATE TABLE hurt AS SELECT * FROM models;"
        "CREATE TABLE hurt_info AS SELECT * FROM models_info;"
        "CREATE TABLE hurt_summary AS SELECT * FROM models_summary;"
        "UPDATE hurt SET model_weights = substring(model_weights FROM 5)"
    )
    for call in (
        "predict('hurt', 'flowers', 'id', 'x', 'out', 'prob', FALSE, 1)",
        "evaluate('hurt', 'flowers_packed', 'out', FALSE, 1)",
    ):
        assert "130 elements, the architecture needs 131" in str(db.error(f"SELECT madlib.madlib_keras_{call}"))


def test_losses_and_metrics_are_of_all_rows_not_of_the_last_batch(db):
    """Against the predictions themselves, on segments of several evaluation batches."""
    make_data(db, "many", rows=5000, segments=2, buffer_size=700)
    load(db, "many_arch", dense())
    selection(db, "many_mst", "many_arch", [(1, ADAM.format(0.001), "batch_size=32")])
    fit(db, "many_packed", "many_models", "many_mst", 1)
    db.run("DROP TABLE IF EXISTS many_guesses, many_scores")
    db.run("SELECT madlib.madlib_keras_predict('many_models', 'many', 'id', 'x', 'many_guesses', 'prob', FALSE, 1)")
    truth = db.run(
        "SELECT avg(-ln(prob)) AS loss, avg((rank = 1)::integer) AS accuracy FROM many_guesses JOIN many "
        "USING (id) WHERE class_value = y"
    )[0]
    info = db.run("SELECT * FROM many_models_info")[0]
    assert info["training_loss_final"] == pytest.approx(truth["loss"], rel=1e-4)
    assert info["training_metrics_final"] == pytest.approx(float(truth["accuracy"]), abs=1e-6)
    db.run("SELECT madlib.madlib_keras_evaluate('many_models', 'many_packed', 'many_scores', FALSE, 1)")
    assert db.value("SELECT loss FROM many_scores") == pytest.approx(truth["loss"], rel=1e-4)
    # while it trained, the net got better: the mean loss of a unit is above what the net has in the end
    units = db.run("SELECT loss FROM madlib.mop_units WHERE kind = 'train' ORDER BY run_id DESC, finished_at LIMIT 2")
    assert units[0]["loss"] > units[1]["loss"] > truth["loss"]


def test_the_memory_of_predicting_does_not_grow_with_the_table(db):
    classes = 40
    load(db, "wide", dense(classes=classes))
    shapes = ((4, 8), (8,), (8, classes), (classes,))
    db.run("UPDATE wide SET model_weights = decode(repeat('00', %s), 'hex')", [4 * sum(map(math.prod, shapes))])

    def highest(rows):
        """The most kB that a fresh session held of its own while it predicted so many rows."""
        client = db.another()
        client.run(
            "DROP TABLE IF EXISTS many, probabilities; CREATE TABLE many AS SELECT i AS id, "
            "ARRAY[1, 2, 3, 4]::real[] AS x FROM generate_series(1, %s) AS i",
            [rows],
        )
        client.run("SELECT madlib.madlib_keras_predict_byom('wide', 1, 'many', 'id', 'x', 'probabilities', 'prob')")
        assert client.value("SELECT count(*) FROM probabilities") == rows * classes
        pid = client.value("SELECT pg_backend_pid()")
        status = dict(re.findall(r"(\w+):\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()))
        client.close()
        return int(status["VmHWM"]) - int(status["RssShmem"])

    assert highest(15_000) < highest(1_500) + 30_000


def together(db, run_id):
    """Of every call that evaluated: how many models it evaluated."""
    return [
        r["n"]
        for r in db.run(
            # (what is not a model's own is divided among those of a call, equally)
            "SELECT count(*) AS n FROM madlib.mop_units WHERE run_id = %s AND kind = 'evaluate' AND status = 'finished' "
            "GROUP BY backend_pid, dataset, segment, read_seconds ORDER BY 1",
            [run_id],
        )
    ]


@pytest.mark.parametrize("cache", ["1024", "0"])
def test_models_are_evaluated_together_with_the_results_of_each_alone(db, cache):
    """Of one and of two architectures, from the cache and from rows that are streamed."""
    make_data(db, rows=2500, segments=2, buffer_size=700)
    load(db, "arch", dense(), dense(5, name="other"))
    compiled = "loss='categorical_crossentropy', optimizer='{}', metrics=['{}']"
    selection(
        db,
        "mst",
        "arch",
        [
            (1, compiled.format("SGD(lr=0.01)", "accuracy"), "batch_size=50"),
            (1, compiled.format("SGD(lr=0.05)", "accuracy"), "batch_size=50"),
            (1, compiled.format("Adam(lr=0.01)", "mae"), "batch_size=25"),
            (2, compiled.format("SGD(lr=0.02)", "f1_score"), "batch_size=50"),
        ],
    )
    db.run(f"SET pg_mop.scheduler = 'round-robin'; SET pg_mop.sessions = 1; SET pg_mop.cache_mb = {cache}")
    run_id = fit(db, "flowers_packed", "several", "mst", 1)
    db.run("RESET pg_mop.scheduler; RESET pg_mop.sessions; RESET pg_mop.cache_mb")
    assert sum(together(db, run_id)) == 8 and max(together(db, run_id)) > 1
    for row in db.run("SELECT * FROM several_info"):
        db.run("DROP TABLE IF EXISTS alone")
        db.run("SELECT madlib.madlib_keras_evaluate('several', 'flowers_packed', 'alone', FALSE, %s)", [row["mst_key"]])
        alone = db.run("SELECT * FROM alone")[0]
        assert row["training_loss_final"] == pytest.approx(alone["loss"], rel=1e-5)
        if row["mst_key"] < 4:  # f1_score is no mean over rows
            assert row["training_metrics_final"] == pytest.approx(alone["metric"], rel=1e-5)


def warmed(db, client, output):
    """Train, so that several trainers of the client's role are idle in the pool: then worker sessions predict."""
    idle = "SELECT count(*) > 1 AND bool_and(state = 'idle') FROM madlib.mop_trainers WHERE state <> 'serving'"
    for once in tries():  # (a trainer that starts late may find nothing to train)
        fit(client, "flowers_packed", output, "mst", iterations=1)
        once.counts = eventually(lambda: db.value(idle), 20)


@pytest.fixture(scope="module")
def parted(db, models):
    """The rows in partitions of two levels; this session's worker sessions are warm."""
    db.run(
        "CREATE TABLE parted (LIKE flowers) PARTITION BY LIST (y); "
        "CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a'); "
        "CREATE TABLE parted_bc PARTITION OF parted FOR VALUES IN ('b', 'c') PARTITION BY RANGE (id); "
        "CREATE TABLE parted_bc1 PARTITION OF parted_bc FOR VALUES FROM (1) TO (50); "
        "CREATE TABLE parted_bc2 PARTITION OF parted_bc DEFAULT; "
        "CREATE TABLE parted_none PARTITION OF parted DEFAULT; "
        "INSERT INTO parted SELECT * FROM flowers WHERE id <= 90; CREATE TABLE flat AS TABLE parted"
    )
    warmed(db, db, "warm")


def both(db, rest=", 'prob', FALSE, 1", client=None):
    """The predictions for the partitions by a client, and whether a run made them."""
    client = client or db
    rows, by_run = runs_made(db, lambda: predict(client, rest, test="parted"))
    client.run("DROP TABLE out")
    return rows, bool(by_run)


def test_partitions_are_predicted_side_by_side(db, parted):
    rows, by_run = both(db)
    assert by_run and rows == alike(predict(db, ", 'prob', FALSE, 1", test="flat"))
    db.run("DROP TABLE out; SET pg_mop.sessions = 1")
    rows, by_run = both(db, ", 'response', FALSE, 1")
    db.run("RESET pg_mop.sessions")
    assert by_run and rows == alike(predict(db, ", 'response', FALSE, 1", test="flat"))
    assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE function ~ 'predict'") == 0


def test_what_others_do_not_see_is_predicted_alone(db, parted):
    db.run("BEGIN; INSERT INTO parted VALUES (1000, '{1,2,3,4}', 'a')")
    rows, by_run = both(db, ", 'response', FALSE, 1")
    assert not by_run and len(rows) == 91
    db.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    rows, by_run = both(db, ", 'response', FALSE, 1")
    assert not by_run and len(rows) == 90
    db.run(
        "ROLLBACK; BEGIN; CREATE TABLE uncommitted AS TABLE models; CREATE TABLE uncommitted_info AS TABLE "
        "models_info; CREATE TABLE uncommitted_summary AS TABLE models_summary"
    )
    db.run("SELECT madlib.madlib_keras_predict('uncommitted', 'parted', 'id', 'x', 'out', 'response', FALSE, 1)")
    assert db.run("SELECT * FROM out ORDER BY id") == rows
    assert "this session works alone" in "".join(db.connection.notices)
    db.run("ROLLBACK")


def test_partitions_are_read_with_the_rights_that_the_table_gives(db, parted):
    db.run(
        "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$; "
        "GRANT mop_user TO reader; GRANT SELECT ON parted, models, models_info, models_summary TO reader; "
        "GRANT ALL ON SCHEMA public TO reader; "
        "GRANT SELECT ON flowers_packed, flowers_packed_summary, mst, mst_summary, arch TO reader"
    )
    reader = db.another("reader")
    warmed(db, reader, "readers_own")
    rows, by_run = both(db, client=reader)
    assert len(rows) == 270 and not by_run, "the partitions themselves may not be read"
    db.run("GRANT SELECT ON parted_a, parted_bc1, parted_bc2, parted_none TO reader")
    assert both(db, client=reader) == (alike(rows), True)
    db.run("ALTER TABLE parted ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON parted USING (id <= 10)")
    rows, by_run = both(db, client=reader)
    assert len(rows) == 30 and not by_run
    db.run("ALTER TABLE parted DISABLE ROW LEVEL SECURITY")
    reader.run("DROP TABLE readers_own, readers_own_info, readers_own_summary")
    reader.close()


def test_a_number_that_a_partition_holds_and_no_float_is_told_of(db, parted):
    db.run("ALTER TABLE parted ALTER COLUMN x TYPE numeric[]; INSERT INTO parted VALUES (2000, '{1e300,1,1,1}', 'b')")
    error = str(db.error("SELECT madlib.madlib_keras_predict('models', 'parted', 'id', 'x', 'out', 'prob', FALSE, 1)"))
    assert 'column "x" has NaN, an infinity or a number beyond type real in 1 row' in error
    assert db.value("SELECT to_regclass('out')") is None
    assert db.value("SELECT count(*) FROM madlib.mop_runs WHERE function ~ 'predict'") == 0
    db.run("DELETE FROM parted WHERE id = 2000; ALTER TABLE parted ALTER COLUMN x TYPE real[]")

"""madlib_keras_fit_multiple_model on a real server: what it makes, for all shapes of workload."""

import re

import pytest

from support.cluster import eventually
from support.golden import assert_golden
from support.tries import tries
from support.workload import ADAM, NAN, assert_invariants, dense, fit, layer, load, make_data, selection, sequential


@pytest.fixture(scope="module")
def data(db):
    make_data(db)
    load(db, "arch", dense(), dense(16, name="wide"))
    return "flowers_packed"


def test_the_output_tables_have_the_contracts_columns_and_contents(db, data):
    selection(
        db,
        "mst",
        "arch",
        [
            (1, ADAM.format(0.05), "batch_size=8, epochs=2"),
            (2, " loss='categorical_crossentropy',optimizer='SGD(lr=0.1)' ", "batch_size = 16"),
        ],
    )
    db.run("SELECT madlib.validation_preprocessor_dl('flowers', 'flowers_val', 'y', 'x', 'flowers_packed', 7)")
    run_id = fit(db, data, "models", "mst", iterations=5, validation="flowers_val", frequency=2)
    assert_invariants(db, run_id)
    columns = db.run(
        "SELECT table_name, string_agg(concat_ws(' ', column_name, data_type), ', ' ORDER BY ordinal_position) AS own FROM "
        "information_schema.columns WHERE table_name IN ('models', 'models_info', 'models_summary') GROUP BY 1 ORDER BY 1"
    )
    assert_golden("columns_of_fit_multiple", "\n".join(f"{r['table_name']}: {r['own']}" for r in columns))
    info = db.run("SELECT * FROM models_info ORDER BY mst_key")
    assert [i["mst_key"] for i in info] == [1, 2]
    assert info[1]["compile_params"] == " loss='categorical_crossentropy',optimizer='SGD(lr=0.1)' "
    assert info[0]["metrics_type"] == ["accuracy"] and info[1]["metrics_type"] is None
    assert info[0]["model_size"] == (4 * 8 + 8 + 8 * 3 + 3) * 4 / 1024
    for row in info:
        assert row["model_type"] == "madlib_keras" and row["loss_type"] == "categorical_crossentropy"
        for field in ("training_loss", "validation_loss", "training_metrics", "metrics_elapsed_time"):
            assert len(row[field]) == 3
        assert row["training_loss"][-1] == row["training_loss_final"]
        assert row["metrics_elapsed_time"] == sorted(row["metrics_elapsed_time"])
        # the same rows, packed otherwise, give the same loss
        assert row["training_loss_final"] == pytest.approx(row["validation_loss_final"], rel=1e-5)
    assert info[1]["training_metrics"] == [0, 0, 0]
    summary = db.run("SELECT * FROM models_summary")[0]
    assert summary["metrics_iters"] == [2, 4, 5] and summary["metrics_compute_frequency"] == 2
    assert summary["num_classes"] == [3] and summary["y_class_values"] == ["a", "b", "c"]
    assert summary["start_training_time"] < summary["end_training_time"]
    assert summary["dependent_varname"] == ["y"] and summary["model_info"] == "models_info"
    assert db.value("SELECT json_typeof(model_arch) FROM models LIMIT 1") == "object"
    assert db.value("SELECT model_arch::text FROM models WHERE mst_key = 1") == dense()
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'models%' AND relpersistence <> 'p'") == 0


def test_info_lines_tell_every_iteration_with_its_metrics(db, data):
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    del db.connection.notices[:]
    fit(db, data, "models", "mst", iterations=3, frequency=2)
    infos = [n for n in db.connection.notices if n.startswith("INFO")]
    assert len(infos) == 3
    assert all(f"iteration {i} of 3" in infos[i - 1] for i in (1, 2, 3))
    assert "mst_key=1: " not in infos[0] and "mst_key=1: accuracy=" in infos[1] and "loss=" in infos[2]


def test_between_two_evaluations_at_most_ten_iterations_are_told(db, data):
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=50")])
    del db.connection.notices[:]
    fit(db, data, "models", "mst", iterations=35)
    infos = [n for n in db.connection.notices if n.startswith("INFO:  iteration")]
    assert [int(n.split()[2]) for n in infos] == [4, 8, 12, 16, 20, 24, 28, 32, 35] and "accuracy=" in infos[-1]


def test_of_many_configurations_the_lines_tell_the_best_five_and_the_failures(db, data):
    load(db, "arch2", dense(), dense(inputs=5, name="misfit"))
    selection(
        db,
        "mst",
        "arch2",
        [(1, ADAM.format(0.001 * (i + 1)), "batch_size=50") for i in range(12)]
        + [(2, ADAM.format(0.001 * i), "batch_size=50") for i in range(1, 7)],
    )
    del db.connection.notices[:]
    fit(db, data, "models", "mst", iterations=2, frequency=1)
    infos = [n for n in db.connection.notices if n.startswith("INFO")]
    assert len(infos) == 2 and all("the best 5 of 12 configurations by training accuracy:" in n for n in infos)
    assert all(n.count("mst_key=") == 6 and len(n.strip().splitlines()) == 8 for n in infos)
    assert "s left" in infos[0] and "left" not in infos[1]
    assert all("6 of 18 configurations failed, mst_key=13: " in n for n in infos)
    best = [
        r["mst_key"]
        for r in db.run(
            "SELECT mst_key FROM models_info WHERE error IS NULL "
            "ORDER BY training_metrics_final DESC, training_loss_final, mst_key LIMIT 5"
        )
    ]
    assert [int(key) for key in re.findall(r"  mst_key=(\d+)", infos[1])] == best
    (warning,) = [n for n in db.connection.notices if n.startswith("WARNING")]
    assert "13, 14, 15, 16, 17, 18" in warning and "and 1 more" in warning and "mst_key 18:" not in warning


@pytest.mark.parametrize("configurations,segments", [(5, 3), (1, 3), (3, 1)])
def test_any_number_of_configurations_trains_on_any_number_of_segments(db, data, configurations, segments):
    packed = make_data(db, "other", rows=50, segments=segments)
    selection(db, "mst", "arch", [(1, ADAM.format(0.01 * (k + 1)), "batch_size=8") for k in range(configurations)])
    run_id = fit(db, packed, "models", "mst", iterations=2)
    run = assert_invariants(db, run_id)
    assert (run["configurations"], run["segments"], run["status"]) == (configurations, segments, "finished")
    assert db.value("SELECT count(*) FROM models WHERE length(model_weights) = 67 * 4") == configurations


def test_a_selection_table_means_the_architectures_that_it_was_made_for_wherever_a_search_path_leads(db, data):
    db.run("CREATE SCHEMA one; CREATE SCHEMA two")
    try:
        for schema, width in (("one", 8), ("two", 9)):
            load(db, f"{schema}.nets", dense(width))
        db.run("SET search_path = one, public")
        db.run(
            "SELECT madlib.load_model_selection_table('nets', 'one.chosen', ARRAY[1], ARRAY[%s], ARRAY['epochs=1'])",
            [ADAM.format(0.05)],
        )
        db.run("SET search_path = two, public")
        fit(db, data, "models", "one.chosen", iterations=1)
        assert '"units": 8' in db.value("SELECT model_arch::text FROM models")
        assert db.value("SELECT model_arch_table FROM models_summary") == "nets"
        generate = (
            "SELECT madlib.generate_model_configs({}, 'one.chosen', ARRAY[1], $${{'loss': ['mse'], "
            "'optimizer_params_list': [{{'optimizer': ['SGD']}}]}}$$, $${{'batch_size': [5]}}$$)"
        )
        assert 'made for the architecture table "nets"' in str(db.error(generate.format("'nets'")))
        db.run(generate.format("'one.nets'"))
        db.run("UPDATE one.chosen_summary SET model_arch_table = 'two.nets'; DELETE FROM one.chosen WHERE mst_key > 1")
        fit(db, data, "models", "one.chosen", iterations=1)
        assert '"units": 9' in db.value("SELECT model_arch::text FROM models")
    finally:
        db.run(
            "RESET search_path; DROP TABLE IF EXISTS two.models, two.models_info, two.models_summary; "
            "DROP SCHEMA one, two CASCADE"
        )


def test_segments_without_rows_are_no_segments_of_the_run(db, data):
    packed = make_data(db, "few", rows=2, segments=3)
    assert db.value("SELECT count(DISTINCT __dist_key__) FROM few_packed") == 2
    selection(db, "mst", "arch", [(1, "loss='mse', optimizer='SGD()'", "")])
    load(db, "arch2", dense(classes=2))
    db.run("UPDATE mst_summary SET model_arch_table = 'arch2'")
    run = assert_invariants(db, fit(db, packed, "models", "mst"))
    assert run["segments"] == 2


def test_configurations_of_one_architecture_start_equal_unless_told_otherwise(db, data):
    frozen = "loss='categorical_crossentropy', optimizer='SGD(learning_rate=0.0)'"
    selection(db, "mst", "arch", [(1, frozen, "batch_size=8"), (1, frozen + ",metrics=['accuracy']", "batch_size=8")])
    fit(db, data, "models", "mst", iterations=1)
    assert db.value("SELECT count(DISTINCT model_weights) FROM models") == 1
    db.run("SET pg_mop.same_start = off")
    fit(db, data, "models", "mst", iterations=1)
    assert db.value("SELECT count(DISTINCT model_weights) FROM models") == 2
    db.run("RESET pg_mop.same_start")


def test_streaming_and_caching_give_the_same_bytes(db, data):
    db.run("SET pg_mop.kernel = loop")
    packed = make_data(db, "single", segments=1)
    selection(
        db,
        "mst",
        "arch",
        [
            (1, ADAM.format(0.05), "batch_size=8, epochs=3"),
            (1, ADAM.format(0.05), "batch_size=7, epochs=1"),
            (1, ADAM.format(0.05), "batch_size=8, epochs=2, shuffle=True"),
            (1, ADAM.format(0.05), "batch_size=8, epochs=2, shuffle='batch'"),
        ],
    )
    fit(db, packed, "models", "mst")
    assert db.value("SELECT count(DISTINCT model_weights) FROM models") == 4
    cached = db.run("SELECT mst_key, model_weights::text FROM models ORDER BY 1")
    db.run("SET pg_mop.cache_mb = 0")
    fit(db, packed, "models", "mst")
    assert db.run("SELECT mst_key, model_weights::text FROM models ORDER BY 1") == cached
    db.run("RESET pg_mop.cache_mb; RESET pg_mop.kernel")


def test_models_whose_states_are_read_ahead_are_trained_as_each_alone(db, data):
    """States of 4 MB: from 1 MB on a session reads the next one while it trains."""
    load(
        db,
        "large_arch",
        sequential(
            "large",
            [4],
            layer("Dense", name="a", units=600, activation="relu"),
            layer("Dense", name="b", units=600, activation="relu"),
            layer("Dense", name="c", units=3, activation="softmax"),
        ),
    )
    configurations = [(1, ADAM.format(rate), "batch_size=8") for rate in (0.001, 0.002)]
    make_data(db, "one", segments=1)
    db.run("SET pg_mop.seed = 4; SET pg_mop.kernel = 'plain'; SET pg_mop.threads = 1")
    selection(db, "large_mst", "large_arch", configurations)
    fit(db, "one_packed", "together", "large_mst", 2)
    for key in (1, 2):
        db.run("DELETE FROM large_mst")
        db.run("INSERT INTO large_mst VALUES (%s, %s, %s, %s)", [key, *configurations[key - 1]])
        fit(db, "one_packed", "single", "large_mst", 2)
        assert db.value("SELECT t.model_weights = s.model_weights FROM together t JOIN single s USING (mst_key)")
    db.run("RESET pg_mop.kernel; RESET pg_mop.threads; RESET pg_mop.seed")


TRANSFER = sequential(
    "transfer",
    [4],
    layer("Dense", name="hidden", units=8, trainable=False),
    layer("Dense", name="out", units=3, activation="softmax"),
)


@pytest.mark.parametrize(
    "settings,first,anywhere", [("", dense(), True), ("SET pg_mop.cache_mb = 0", dense(), False), ("", TRANSFER, False)]
)
def test_a_session_trains_its_nets_on_all_segments_where_it_may_hold_their_rows(db, settings, first, anywhere):
    make_data(db, "iris", rows=60, segments=2)
    load(db, "nets", first, dense(16, name="wide"))
    selection(db, "mst", "nets", [(net, ADAM.format(rate), "batch_size=8") for net in (1, 2) for rate in (0.01, 0.02)])
    caller = db.another()
    caller.run(settings or "SELECT")
    for once in tries():  # (a session whose trainer starts late may find little to train, or nothing)
        run_id = fit(caller, "iris_packed", "models", "mst", iterations=3)
        assert_invariants(db, run_id)
        sessions = db.value(
            "SELECT max(n) FROM (SELECT count(DISTINCT backend_pid) AS n FROM madlib.mop_unit WHERE kind = "
            "'train' AND run_id = %s GROUP BY segment) AS q",
            [run_id],
        )
        once.counts = sessions == (2 if anywhere else 1)
        assert once.counts or anywhere, "a session has trained on another one's segment"
    caller.close()


def test_failing_configurations_are_marked_and_the_others_finish(db, data):
    load(db, "arch3", dense(), dense(inputs=5, name="misfit"), dense(classes=4, name="fourclasses"))
    selection(
        db,
        "mst",
        "arch3",
        [
            (1, ADAM.format(0.05), "batch_size=8"),
            (1, "loss='categorical_crossentropy', optimizer='Adam(no_such_argument=3)'", "batch_size=8"),
            (2, ADAM.format(0.05), "batch_size=8"),
            (3, ADAM.format(0.05), "batch_size=8"),
            (1, NAN, "batch_size=8"),
        ],
    )
    del db.connection.notices[:]
    run_id = fit(db, data, "models", "mst", iterations=2)
    assert_invariants(db, run_id)
    errors = {r["mst_key"]: r["error"] for r in db.run("SELECT mst_key, error FROM models_info")}
    assert errors[1] is None
    assert "no_such_argument" in errors[2]
    assert "input shape does not match" in errors[3] and "[5]" in errors[3]
    assert "4 classes" in errors[4]
    assert "NaN" in errors[5]
    assert [r["mst_key"] for r in db.run("SELECT mst_key FROM models")] == [1]
    warning = [n for n in db.connection.notices if n.startswith("WARNING")]
    assert len(warning) == 1 and "2, 3, 4, 5" in warning[0]
    progress = {
        r["mst_key"]: r["status"]
        for r in db.run("SELECT mst_key, status FROM madlib.mop_progress WHERE run_id = %s", [run_id])
    }
    assert progress == {1: "finished", 2: "failed", 3: "failed", 4: "failed", 5: "failed"}
    assert (
        db.value(
            "SELECT count(*) FROM madlib.mop_units WHERE run_id = %s AND status = 'failed' AND error IS NOT NULL",
            [run_id],
        )
        == 2
    )


def test_a_configuration_that_fails_does_not_cost_the_trainer(db, data):
    fit_some = [(1, ADAM.format(0.05), "batch_size=8"), (1, NAN, "")]
    selection(db, "mst", "arch", fit_some)
    client = db.another()
    client.run("SET pg_mop.segments = 1")
    db.run("SELECT madlib.mop_end_trainers()")
    fit(client, data, "models", "mst", iterations=1)
    first = pool(db)
    fit(client, data, "models", "mst", iterations=1)
    assert first and first.keys() <= pool(db).keys()
    assert client.value("SELECT count(*) FROM models_info WHERE error LIKE '%%NaN%%'") == 1
    client.close()


def test_all_configurations_failing_is_an_error_and_leaves_no_table(db, data):
    selection(db, "mst", "arch", [(1, "loss='mse', optimizer='Adam(nonsense=1)'", "")])
    error = db.error("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', 'gone', 'mst', 1, FALSE)")
    assert "all 1 configurations failed" in str(error) and "nonsense" in str(error)
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'gone%'") == 0
    assert db.value("SELECT status FROM madlib.mop_runs ORDER BY run_id DESC LIMIT 1") == "failed"


def test_a_rolled_back_call_loses_no_trained_state_and_a_committed_one_frees_it(db, data):
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    db.run("BEGIN")
    run_id = fit(db, data, "undone", "mst")
    db.run("ROLLBACK")
    assert db.value("SELECT count(*) FROM pg_class WHERE relname = 'undone'") == 0
    kept = fit(db, data, "models", "mst")
    fit(db, data, "models2", "mst")
    states = {r["run_id"] for r in db.run("SELECT DISTINCT run_id FROM madlib.mop_state_table")}
    assert run_id in states and kept not in states


def pool(db):
    """{process id: (compiled nets, bytes of rows)} of the idle trainers of this database."""
    assert eventually(lambda: not db.value("SELECT count(*) FROM madlib.mop_trainers WHERE state <> 'idle'"))
    rows = db.run("SELECT pid, nets, rows_bytes FROM madlib.mop_trainers WHERE database = current_database()")
    return {row["pid"]: (row["nets"], row["rows_bytes"]) for row in rows}


def test_the_summary_spells_names_as_the_caller_does(db):
    make_data(db, segments=2)
    load(db, "arch", dense())
    selection(db, "mst", "arch", [(1, ADAM.format(0.05), "batch_size=8")])
    for output, info in (("Public.Odd_Models", "Public.Odd_Models_info"), ('public."My m"', 'public."My m_info"')):
        db.run(f"DROP TABLE IF EXISTS {output}, {info}, {info.replace('_info', '_summary')}")
        db.run("SELECT madlib.madlib_keras_fit_multiple_model('flowers_packed', %s, 'mst', 1, FALSE)", [output])
        row = db.run(f"SELECT model, model_info FROM {info.replace('_info', '_summary')}")[0]
        assert row == {"model": output, "model_info": info}
        db.run("DROP TABLE IF EXISTS odd_scores")
        db.run("SELECT madlib.madlib_keras_evaluate(%s, 'flowers_packed', 'odd_scores', FALSE, 1)", [output])

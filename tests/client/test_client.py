"""The client as people use it: the README's example, its results, models, pictures and bridges, and what goes wrong."""

import html
import io
import json
import os
import pathlib
import re
import signal
import threading
import time
import warnings
import zipfile

import numpy
import pandas
import pytest
import sqlalchemy

from pg_mop_client import ClientError, LostError, Selection, ServerError
from pg_mop_client.database import quote, quote_table
from support.cluster import ROOT, eventually
from support.workload import ADAM, HOSTILE, dense, is_under_way, load


@pytest.fixture(scope="module")
def example(db, tmp_path_factory):
    """What the first example of docs/client.md leaves: its variables."""
    text = re.search(r"^```python\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(), re.M | re.S)[1]
    assert len(text.splitlines()) <= 12
    text = re.sub(r'"postgresql://[^"]*"', repr(db.uri()), text)
    text = text.replace('"run.html"', repr(str(tmp_path_factory.mktemp("report") / "run.html")))
    made = {}
    exec(compile(text, "client.md", "exec"), made)
    yield made
    made["s"].close()


@pytest.fixture
def s(example):
    return example["s"]


@pytest.fixture
def run(example):
    return example["run"]


def test_the_example_trains_and_its_best_model_predicts(db, example, s, run):
    assert run.info.status == "finished" and run.info.seed == 42
    board = run.leaderboard()
    info = pandas.DataFrame(db.run("SELECT * FROM py_models_info")).set_index("mst_key")
    assert sorted(board.mst_key) == [1, 2, 3, 4] and list(board["rank"]) == [1, 2, 3, 4]
    for row in board.itertuples():
        assert board.set_index("mst_key")["validation accuracy"][row.mst_key] == pytest.approx(
            info.validation_metrics_final[row.mst_key], rel=1e-5
        )
    assert run.best().mst_key == board.mst_key[0]
    digits = example["digits"]
    predicted = run.predict(digits[1::2])
    assert (predicted.index == digits[1::2].index).all()
    right = (predicted.astype(int) == digits.target[1::2]).mean()
    assert right == pytest.approx(info.validation_metrics_final[run.best().mst_key], abs=2e-3)
    curves = run.metrics()
    assert len(curves) == 4 * 5 * 2 * 2 and set(curves.name) == {"loss", "accuracy"}
    assert len(run.trials()) == 4 and len(s.runs()) >= 1
    with pytest.raises(ClientError, match="there is no file 'nowhere'"):
        run.predict("nowhere")
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'mop_rows_%'") == 0


def test_a_call_and_a_run_are_explained_as_text(s, example, run):
    call = ("madlib_keras_fit_multiple_model", example["train"], "explained", "grid", 5, False)
    text = s.explain(*call)
    assert text.startswith("Train 4 configurations on ") and "Makespan: " in text
    assert s.explain(*call[:4], num_iterations=5, use_gpus=False).splitlines()[1:3] == text.splitlines()[1:3]
    written = f"SELECT {s.schema}.{call[0]}('{example['train']}', 'explained', 'grid', 5, FALSE)"
    assert s.explain(written).splitlines()[1:3] == text.splitlines()[1:3]
    with pytest.raises(ClientError, match="the call has its arguments already"):
        s.explain(written, 1)
    with pytest.raises(ServerError, match="does not exist"):
        s.explain(*call[:3], "no_such_grid", 5, False)
    assert run.explain().startswith(f"Run {run.run_id}: ") and "Critical path: " in run.explain()


def test_the_plan_of_a_call_has_data(s, example):
    plan = s.explain("madlib_keras_fit_multiple_model", example["train"], "explained", "grid", 5, False)
    assert repr(plan) == str(plan) and plan.data["configurations"] == 4
    assert len({row[0] for row in plan.data["prediction"]["units"]["rows"]}) == plan.data["sessions"]


def test_a_model_is_a_live_keras_model_and_goes_back(example, s, run):
    model, keras = run.to_keras(), example["keras"]
    rows = example["digits"].head(50)
    x = rows.drop(columns="target").to_numpy() / 16
    own = run.predict(rows, pred_type="prob").sort_values(["class_value"], kind="stable")
    given = numpy.asarray(model(x))
    for digit in range(10):
        mine = own[own.class_value == str(digit)].prob
        assert mine.sort_index().to_numpy() == pytest.approx(given[:, digit], abs=1e-5)
    with warnings.catch_warnings():  # Keras' own, of NumPy
        warnings.filterwarnings("ignore", message="__array__ implementation")
        number = s.from_keras(model, "nets", "trained", weights=True)
    found = s.table("nets").set_index("model_id").loc[number]
    assert number == 2 and found["name"] == "trained"
    weights = numpy.frombuffer(bytes(found.model_weights), "f4")
    assert weights == pytest.approx(numpy.concatenate([w.ravel() for w in model.get_weights()]))
    assert keras.models.model_from_json(json.dumps(found.model_arch)).count_params() == model.count_params()


def test_methods_are_the_servers_functions_with_its_documentation(db, s):
    listed = db.run("SELECT * FROM madlib.mop_functions()")
    for row in listed:
        method = getattr(s, row["name"])
        assert method.__name__ == row["name"] and method.__doc__ == f"{row['about']}\n\n{row['usage']}"
    parameters = s.mop_search.__signature__.parameters
    assert list(parameters)[:4] == ["source_table", "model_output_table", "model_arch_table", "space"]
    assert parameters["space"].default is parameters["space"].empty and parameters["metric"].default is None
    assert len(s.mop_functions()) == len(listed)
    with pytest.raises(TypeError, match="missing a required argument: 'source_table'"):
        s.mop_search()
    with pytest.raises(TypeError, match="nonsense"):
        s.mop_search("a", "b", "c", "d", nonsense=1)
    with pytest.raises(ClientError, match="the statement was executed, but returns no rows"):
        s.query("SET lock_timeout = 0", cap=None)
    with pytest.raises(ServerError, match="does not exist"):
        s.training_preprocessor_dl("nowhere", "out", "y", "x")


def test_forms_of_a_function_are_told_by_the_names_of_their_arguments(s):
    s.load_top_k_accuracy_function("functions", 2)
    s.delete_custom_function("functions", name="top_2_accuracy")
    s.load_top_k_accuracy_function("functions", 3)
    s.delete_custom_function("functions", id=1)


def test_a_setting_that_there_is_not_is_told_at_once(db, s):
    with pytest.raises(ServerError, match='unrecognized setting "pg_mop.sed"') as caught:
        Selection(db.uri(), sed=42)
    assert caught.value.hint == "RESET pg_mop.sed;" and caught.value.sqlstate == "42704"
    with Selection(db.uri(), seed=1) as other:
        for wrong in ({"sed": 7}, {"seed": "seven"}):
            with pytest.raises(ServerError):
                other.set(sharing=False, **wrong)
            assert other.calls.settings == {"seed": 1}
            in_force = other.calls.execute(
                "SELECT string_agg(value, ' ' ORDER BY name) FROM madlib.mop_settings() "
                "WHERE name IN ('pg_mop.seed', 'pg_mop.sharing')",
                {},
            ).scalar()
            assert in_force == "1 on"


def test_settings_hold_for_the_calls_and_survive_a_lost_connection(db, s):
    with Selection(db.uri(), seed=7, kernel="plain") as other:
        shown = "SELECT current_setting('pg_mop.' || :name, true)"
        assert other.calls.execute(shown, {"name": "seed"}).scalar() == "7"
        other.set(segments=3, sharing=False, kernel=None)
        pid = other.calls.execute("SELECT pg_backend_pid()", {}).scalar()
        db.run("SELECT pg_terminate_backend(%s, 5000)", [pid])
        values = [other.calls.execute(shown, {"name": n}).scalar() for n in ("seed", "segments", "sharing", "kernel")]
        assert values[:3] == ["7", "3", "off"] and not values[3]


# --- a call that goes on -------------------------------------------------------------------------------------
def test_ctrl_c_cancels_a_call_and_its_run_can_be_resumed(db, s, example, capsys):
    load(db, "small", dense(8, 64, 10))
    s.load_model_selection_table("small", "long", [1], [ADAM.format(0.01), ADAM.format(0.02)], ["batch_size=2"])

    def interrupt():
        eventually(lambda: is_under_way(other), 60)
        signal.raise_signal(signal.SIGINT)

    other, before = db.another(), signal.signal(signal.SIGINT, signal.default_int_handler)  # (tests may ignore it)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            s.fit_multiple(example["train"], "interrupted", "long", 12)  # (long enough on a fast machine)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    other.close()
    stopped = s.run()
    assert stopped.info.status == "cancelled" and stopped.models == "interrupted"
    assert f"mop_resume({stopped.run_id})" in capsys.readouterr().out
    optuna = pytest.importorskip("optuna", reason="not run: to_optuna needs optuna")
    assert {trial.state for trial in stopped.to_optuna().trials} <= {
        optuna.trial.TrialState.PRUNED,
        optuna.trial.TrialState.WAITING,
    }
    later = s.fit_multiple(example["train"], "later", "grid", 1)
    assert later.run_id > stopped.run_id
    again = stopped.resume()
    assert again.run_id == stopped.run_id and again.info.status == "finished"
    repeated = later.replay("repeated")
    assert repeated.run_id > later.run_id and repeated.models == "repeated"
    told = lambda run: sorted(map(tuple, run.metrics()[["mst_key", "iteration", "dataset", "name", "value"]].values))  # noqa: E731
    assert told(repeated) == told(later)


def test_ctrl_c_ends_a_call_that_does_not_train(s):
    timer = threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT])
    before, began = signal.signal(signal.SIGINT, signal.default_int_handler), time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            s.calls.execute("SELECT pg_sleep(600)", {})
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 300 and s.calls.execute("SELECT 1", {}).scalar() == 1


def test_a_run_is_told_by_any_whole_number(s, run):
    assert s.run(numpy.int64(run.run_id)).run_id == run.run_id
    for bad in (1.5, "abc", 10**30, -1, 0):
        with pytest.raises(ClientError, match="run_id must be the number of a run"):
            s.run(bad)


def test_a_call_has_its_own_run_whatever_else_was_trained(db, s, example):
    load(db, "tiny", dense(4, 64, 10))
    s.load_model_selection_table("tiny", "tiny_mst", [1], [ADAM.format(0.01)], ["batch_size=32, epochs=1"])
    first = s.fit_multiple(example["train"], "tiny_models", "tiny_mst", 1)
    kept = first.predict(example["digits"].head())
    with Selection(db.uri(), progress=False) as other:
        second = other.fit_multiple(example["train"], "tiny_later", "tiny_mst", 1)
        assert other.run().run_id == second.run_id == first.run_id + 1
        assert s.run().run_id == first.run_id, "that of its own last call"
        with pytest.raises(ServerError, match=f"run {first.run_id} is finished"):
            other.mop_resume(first.run_id)
        other.calls.execute("DROP TABLE tiny_models, tiny_models_info, tiny_models_summary", {})
        third = other.fit_multiple(example["train"], "tiny_models", "tiny_mst", 1)
    message = f"table tiny_models has the models of run {third.run_id}, trained after run {first.run_id}"
    for use in (first.to_keras, first.export, lambda: first.predict(example["digits"].head())):
        with pytest.raises(ClientError, match=message):
            use()
    assert len(third.predict(example["digits"].head())) == len(kept)
    s.mop_drop_run(first.run_id)
    with pytest.raises(ClientError, match=f"run {first.run_id} has been dropped"):
        assert first.info


def test_columns_that_were_packed_are_asked_for_where_nobody_knows_them(db, s, example):
    table = '"alone packed"'
    s.pack(example["digits"], "alone", label="target", normalizing_const=16)
    s.calls.execute(
        'ALTER TABLE alone_packed RENAME TO "alone packed"; '
        'ALTER TABLE alone_packed_summary RENAME TO "alone packed_summary"',
        {},
    )
    run = s.fit_multiple(table, "alone_models", "grid", 1)
    digits = example["digits"].head()
    found = run.predict(digits)
    s.calls.execute('COMMENT ON COLUMN "alone packed".features IS NULL', {})
    with pytest.raises(ClientError, match=r"which columns were packed is not known\nHINT: features=\[...\]"):
        run.predict(digits)
    assert list(run.predict(digits, features=list(digits.columns.drop("target")))) == list(found)


def test_a_call_shows_its_progress(s, example, capsys):
    s.progress = True
    s.set(reuse=False)
    run = s.fit_multiple(example["train"], "watched", "grid", 3)
    shown = capsys.readouterr().err
    assert f"run {run.run_id}: 100%" in shown and "best unit loss" in shown and "60/60" not in shown.split("100%")[0]


# --- to look at ----------------------------------------------------------------------------------------------
def test_what_is_shown_in_a_notebook_is_escaped_and_capped(db, run, s):
    db.run("UPDATE madlib.mop_run SET model_output_table = %s WHERE run_id = %s", [HOSTILE, run.run_id])
    db.run("UPDATE madlib.mop_configuration SET reason = %s WHERE run_id = %s AND mst_key = 1", [HOSTILE, run.run_id])
    try:
        hostile = s.run(run.run_id)
        shown = hostile._repr_html_()
        assert "<script" not in shown and "&lt;script&gt;" in shown
        assert "<script" not in hostile.trials()._repr_html_()
        assert "<script" not in s.runs()._repr_html_()
        with pytest.warns(UserWarning, match="the first 3 rows"):
            assert len(run.units(cap=3)) == 3
    finally:
        db.run("UPDATE madlib.mop_run SET model_output_table = 'py_models' WHERE run_id = %s", [run.run_id])
        db.run("UPDATE madlib.mop_configuration SET reason = NULL WHERE run_id = %s", [run.run_id])


def test_arguments_may_have_numpys_numbers_at_any_depth(db, s, run):
    s.generate_model_configs(
        "nets",
        "of_numpy",
        numpy.array([1]),
        {
            "loss": ["categorical_crossentropy"],
            "metrics": [["accuracy"]],
            "optimizer_params_list": [
                {"optimizer": ["Adam"], "lr": list(numpy.logspace(-3, -1, 3)), "beta_1": numpy.array([0.9])}
            ],
        },
        {"batch_size": [numpy.int64(8), 16], "epochs": pandas.Series([1])},
    )
    assert db.value("SELECT count(DISTINCT compile_params) FROM of_numpy") == 3
    assert db.value("SELECT count(*) FROM of_numpy") == 6
    db.run("DROP TABLE of_numpy, of_numpy_summary")


def test_a_notebook_shows_the_report_in_a_frame_of_its_own(run):
    shown = run.show()._repr_html_()
    page = html.unescape(re.search('srcdoc="([^"]*)"', shown)[1])
    assert page.startswith("<!DOCTYPE html>") and "py_models" in page
    assert 'sandbox="allow-scripts"' in shown, "without the notebook's origin"


def test_somebody_elses_table_of_a_runs_name_is_not_taken_for_its_models(db, run, example):
    """A superuser sees all runs, whose tables may be of other schemas."""
    db.run(
        "DROP ROLE IF EXISTS looker, taker; CREATE ROLE looker LOGIN SUPERUSER; CREATE ROLE taker; "
        "CREATE SCHEMA looker; CREATE TABLE looker.py_models (); ALTER TABLE looker.py_models OWNER TO taker"
    )
    with Selection(db.uri("looker")) as other:
        seen = other.run(run.run_id)
        with pytest.raises(
            ClientError, match="py_models of the search_path belongs to role taker, but run .* to role "
        ):
            seen.predict(example["digits"])
        db.run("DROP SCHEMA looker CASCADE")
        assert len(seen.predict(example["digits"][:3])) == 3
    db.run("DROP ROLE looker, taker")


# --- bridges ---------------------------------------------------------------------------------------------------
def test_optuna_has_a_trial_for_each_configuration(run, tmp_path):
    optuna = pytest.importorskip("optuna", reason="not run: to_optuna needs optuna")
    study = run.to_optuna()
    board = run.leaderboard().set_index("mst_key")
    assert study.direction.name == "MAXIMIZE" and len(study.trials) == 4
    assert study.best_trial.user_attrs["mst_key"] == board.index[0]
    for trial in study.trials:
        row = board.loc[trial.user_attrs["mst_key"]]
        assert trial.params == {"optimizer": row.optimizer, "learning_rate": row.learning_rate}
        assert trial.value == pytest.approx(row["validation accuracy"], rel=1e-5)
        assert sorted(trial.intermediate_values) == [1, 2, 3, 4, 5]
    assert set(optuna.importance.get_param_importances(study)) == {"optimizer", "learning_rate"}
    storage = f"sqlite:///{tmp_path}/study.db"
    assert len(run.to_optuna(storage).trials) == 4
    with pytest.raises(ClientError, match=f"study 'pg_mop run {run.run_id}' already exists\nHINT: study_name="):
        run.to_optuna(storage)
    assert len(run.to_optuna(storage, "another").trials) == 4


def test_tensorboard_reads_the_scalars(run, tmp_path):
    pytest.importorskip("tensorboardX", reason="not run: to_tensorboard needs tensorboardX")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        run.to_tensorboard(tmp_path)
    curves = run.metrics().query("dataset == 'training' and name == 'loss'")
    for key, own in curves.groupby("mst_key"):
        events = EventAccumulator(str(tmp_path / f"run_{run.run_id}" / f"configuration_{key}"))
        events.Reload()
        found = events.Scalars("training/loss")
        assert {e.step: e.value for e in found} == pytest.approx(dict(zip(own.iteration, own.value)), rel=1e-6)
        assert len(found) == len(own), "once, also where it was written before"


def test_mlflow_has_parameters_metrics_and_the_model(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="not run: log_to_mlflow needs mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    parent = run.log_to_mlflow()
    found = mlflow.search_runs(experiment_names=["pg_mop"], filter_string=f"tags.mlflow.parentRunId = '{parent}'")
    assert len(found) == 4 and set(found["params.optimizer"]) == {"Adam", "SGD"}
    best = run.best()
    assert found["metrics.validation accuracy"].max() == pytest.approx(best["validation accuracy"], rel=1e-5)
    client, key = mlflow.MlflowClient(), str(best["mst_key"])
    (nested,) = found.loc[found["tags.mst_key"] == key, "run_id"]
    curve = run.metrics().query(f"mst_key == {key} and dataset == 'training' and name == 'loss'")
    logged = {m.step: m.value for m in client.get_metric_history(nested, "training loss")}
    assert logged == pytest.approx(dict(zip(curve.iteration, curve.value)), rel=1e-6)
    model = pathlib.Path(client.download_artifacts(nested, f"model_{key}.keras", str(tmp_path)))
    with zipfile.ZipFile(model) as logged, zipfile.ZipFile(io.BytesIO(run.export(best["mst_key"]))) as made:
        assert logged.read("config.json") == made.read("config.json")
        assert logged.read("model.weights.h5") == made.read("model.weights.h5")
    assert [a.path for a in client.list_artifacts(parent)] == ["report.html"]
    with mlflow.start_run(), pytest.raises(ClientError, match="another MLflow run is active\nHINT: mlflow.end_run"):
        run.log_to_mlflow()


def test_a_package_that_is_not_there_is_named(run, monkeypatch, tmp_path):
    import sys

    for module, extra, use in (
        ("mlflow", "mlflow", run.log_to_mlflow),
        ("optuna", "optuna", run.to_optuna),
        ("tensorboardX", "tensorboard", lambda: run.to_tensorboard(tmp_path)),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ClientError, match=rf"pip install 'pg_mop_client\[{extra}\]'"):
            use()


# --- what goes wrong ---------------------------------------------------------------------------------------------
def test_servers_and_roles_that_cannot_be_used_are_told_apart(db, run):
    db.run(
        "DROP ROLE IF EXISTS client_stranger, client_nobody; CREATE ROLE client_nobody LOGIN; "
        "CREATE ROLE client_stranger LOGIN; GRANT mop_user TO client_stranger"
    )
    with pytest.raises(ClientError, match='role "client_nobody" may not use pg_mop\nHINT: GRANT mop_user TO'):
        Selection(db.uri("client_nobody"))
    with pytest.raises(ClientError, match='pg_mop is in schema "madlib", not in "elsewhere"'):
        Selection(db.uri(), schema="elsewhere")
    empty = db.uri(database="postgres")
    db.another().run("SELECT 1")
    with pytest.raises(ClientError, match='there is no extension pg_mop in database "postgres"'):
        Selection(empty)
    with pytest.raises(LostError, match="does not exist"):
        Selection(db.uri() + "_not_there")
    with Selection(sqlalchemy.create_engine(db.uri("client_stranger").replace(":", "+psycopg2:", 1))) as stranger:
        assert len(stranger.runs()) == 0
        with pytest.raises(ClientError, match=f"there is no run {run.run_id} that the role may see"):
            stranger.run(run.run_id)
        with pytest.raises(ClientError, match="the role has no runs"):
            stranger.run()
        with pytest.raises(ServerError, match="may see"):
            stranger.mop_report(run.run_id)
    db.run("DROP OWNED BY client_stranger; DROP ROLE client_stranger, client_nobody")


def test_one_models_fit_is_one_configuration(s, example):
    board = s.madlib_keras_fit(
        example["train"], "one_fitted", "nets", 1, ADAM.format(0.01), "batch_size=32", 2, metrics_compute_frequency=1
    ).leaderboard()
    assert list(board.mst_key) == [1] and board["training loss"].notna().all() and board["training seconds"][0] > 0


@pytest.mark.parametrize(
    "name, quoted",
    [("t", '"t"'), ("T", '"t"'), ("s.t", '"s"."t"'), ('"S t"."x.y"', '"S t"."x.y"'), ('s."a""b"', '"s"."a""b"')],
)
def test_tables_are_quoted_as_sql_reads_them(name, quoted):
    assert quote_table(name) == quoted


@pytest.mark.parametrize("name", ["", "a.b.c", "a b", "a;b", 'a"b', '"a', "a.", "1a", "a--b", "a)"])
def test_what_is_no_table_is_refused(name):
    with pytest.raises(ClientError, match="invalid table name"):
        quote_table(name)


def test_the_extensions_schema_may_have_any_name(db):
    db.run("DROP DATABASE IF EXISTS t_schema WITH (FORCE)")
    db.run("CREATE DATABASE t_schema")
    other, schema = type(db)(db.server, "t_schema"), "a:b c %s"
    other.run(f"CREATE SCHEMA {quote(schema)}; CREATE EXTENSION pg_mop SCHEMA {quote(schema)} CASCADE")
    other.close()
    with Selection(db.uri(database="t_schema")) as selection:
        assert selection.schema == schema and len(selection.runs()) == 0
        assert "mop_report" in set(selection.mop_functions().name)
        with pytest.raises(ServerError, match="there is no run 1"):
            selection.mop_report(1)
        with pytest.raises(ServerError, match="there is no run 1"):
            selection.mop_resume(1)
        with pytest.raises(ClientError, match="the role has no runs"):
            selection.run()
    db.run("DROP DATABASE t_schema WITH (FORCE)")

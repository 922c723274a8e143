"""The client as people use it: the README's example, its results, models, pictures and bridges, and what goes wrong."""

import io
import json
import pathlib
import re
import signal
import threading
import warnings
import zipfile

import numpy
import pandas
import pytest
import sqlalchemy

from conftest import ROOT, eventually
from pg_mop_client import ClientError, Selection
from pg_mop_client.database import quote, quote_table
from workload import ADAM, dense, is_under_way, layer, load, sequential

HOSTILE = """<script>alert("x")</script> $x^ %s :name \\ 'q' \u2028 """

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def uri(db, user="postgres"):
    to = db.connection.info
    return f"postgresql://{user}@{to.host}:{to.port}/{to.dbname}"


@pytest.fixture(scope="module")
def example(db, tmp_path_factory):
    """What the README's example leaves: its variables."""
    text, = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(text.splitlines()) <= 12
    text = re.sub(r'"postgresql://[^"]*"', repr(uri(db)), text)
    text = text.replace('"run.html"', repr(str(tmp_path_factory.mktemp("report") / "run.html")))
    made = {}
    exec(compile(text, "README.md", "exec"), made)
    yield made
    made["s"].close()


@pytest.fixture
def s(example):
    return example["s"]


@pytest.fixture
def run(example):
    return example["run"]


@pytest.mark.slice
def test_the_example_trains_and_its_best_model_predicts(db, example, s, run):
    assert run.info.status == "finished" and run.info.seed == 42
    board = run.leaderboard()
    info = pandas.DataFrame(db.run("SELECT * FROM py_models_info")).set_index("mst_key")
    assert sorted(board.mst_key) == [1, 2, 3, 4] and list(board["rank"]) == [1, 2, 3, 4]
    for row in board.itertuples():
        assert board.set_index("mst_key")["validation accuracy"][row.mst_key] == pytest.approx(
            info.validation_metrics_final[row.mst_key], rel=1e-5)
    assert run.best().mst_key == board.mst_key[0]
    digits = example["digits"]
    predicted = run.predict(digits[1::2])
    assert (predicted.index == digits[1::2].index).all()
    right = (predicted.astype(int) == digits.target[1::2]).mean()
    assert right == pytest.approx(info.validation_metrics_final[run.best().mst_key], abs=2e-3)
    curves = run.metrics()
    assert len(curves) == 4 * 5 * 2 * 2 and set(curves.name) == {"loss", "accuracy"}
    assert len(run.trials()) == 4 and len(s.runs()) >= 1
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'mop_rows_%'") == 0


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


@pytest.mark.slice
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
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="does not exist"):
        s.training_preprocessor_dl("nowhere", "out", "y", "x")


def test_forms_of_a_function_are_told_by_the_names_of_their_arguments(s):
    s.load_top_k_accuracy_function("functions", 2)
    s.delete_custom_function("functions", name="top_2_accuracy")
    s.load_top_k_accuracy_function("functions", 3)
    s.delete_custom_function("functions", id=1)


def test_settings_hold_for_the_calls_and_survive_a_lost_connection(db, s):
    with Selection(uri(db), seed=7, kernel="plain") as other:
        shown = "SELECT current_setting('pg_mop.' || :name, true)"
        assert other.calls.execute(shown, {"name": "seed"}).scalar() == "7"
        other.set(segments=3, sharing=False, kernel=None)
        pid = other.calls.execute("SELECT pg_backend_pid()", {}).scalar()
        db.run("SELECT pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            other.calls.execute("SELECT 1", {})
        values = [other.calls.execute(shown, {"name": n}).scalar() for n in ("seed", "segments", "sharing", "kernel")]
        assert values[:3] == ["7", "3", "off"] and not values[3]


# --- packing -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["frame", "arrays", "csv", "parquet", "npz"])
def test_rows_are_packed_as_they_are(db, s, tmp_path, kind):
    source = numpy.random.default_rng(3)
    x = source.normal(size=(90, 2, 3) if kind in ("arrays", "npz") else (90, 3)).astype("f4")
    y = source.integers(0, 3, 90)
    frame = None if x.ndim == 3 else pandas.DataFrame(x, columns=["a", "b", "c"]).assign(label=y)
    label, data = "label", frame
    if kind == "arrays":
        label, data = None, (x, y)
    elif kind == "csv":
        data = tmp_path / "rows.csv"
        frame.to_csv(data, index=False, float_format="%.9g")
    elif kind == "parquet":
        pytest.importorskip("pyarrow", reason="not run: packing Parquet needs pyarrow")
        data = tmp_path / "rows.parquet"
        frame.to_parquet(data)
    elif kind == "npz":
        label, data = None, tmp_path / "rows.npz"
        numpy.savez(data, x=x, y=y)
    packed = s.pack(data, f"rows_{kind}", label, buffer_size=20)
    column, target = ("x", "y") if label is None else ("features", "label")
    stored = db.run(f"SELECT {column} AS x, {target} AS y FROM rows_{kind} ORDER BY id")
    assert numpy.array([r["x"] for r in stored], "f4") == pytest.approx(x) and [r["y"] for r in stored] == list(y)
    assert db.value(f"SELECT sum({target}_shape[1]) FROM {packed}") == 90


def test_names_and_values_of_all_kinds_are_packed(db, s):
    frame = pandas.DataFrame({HOSTILE: [1.0, 2.0, 3.0, 4.0] * 9, "b": [0.5, None, 1.5, 2.5] * 9,
                              'c"l': ["a\tb", "new\nline", "back\\slash", None] * 9})
    table = quote(f"T {HOSTILE}"[:40])
    frame["b"] = frame["b"].fillna(0)
    packed = s.pack(frame.dropna(), table, label='c"l')
    assert packed == f'{table[:-1]}_packed"'
    assert {r['c"l'] for r in db.run(f"SELECT * FROM {table}")} == {"a\tb", "new\nline", "back\\slash"}
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="NaN"):
        s.pack(frame.assign(b=float("nan")).dropna(subset='c"l'), "with_nan", label='c"l')
    assert db.value("SELECT to_regclass('with_nan') IS NULL"), "what could not be packed is gone"


def test_what_cannot_be_packed_is_said(s, tmp_path):
    frame = pandas.DataFrame({"a": [1.0], "word": ["x"], "v": [[1.0, 2.0]]})
    for data, given, message in (
            (frame, {}, "label=... is missing"),
            (frame, {"label": "no", "features": "a"}, "there is no column 'no' for the label"),
            (frame, {"label": "word", "features": ["a", "b"]}, "there is no column 'b'"),
            (frame, {"label": "a", "features": "word"}, "column 'word' has no numbers"),
            (frame, {"label": "word"}, "column 'v' has arrays"), (frame.head(0), {"label": "a"}, "there are no rows"),
            ("nowhere.csv", {"label": "a"}, "there is no file 'nowhere.csv'"),
            (([1], [1, 2]), {}, "x has 1 rows and y 2")):
        with pytest.raises(ClientError, match=re.escape(message)):
            s.pack(data, "never", **given)
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(ClientError, match="is no .csv, .parquet or .npz file, and no folder"):
        s.pack(tmp_path / "rows.txt", "never", label="a")


def write_pictures(folder, source, size=(8, 6), each=12):
    """Pictures of two classes, one dark, one light; {path within the folder: its pixels}."""
    from PIL import Image
    written = {}
    for name, low in (("dark", 0), ("light", 128)):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = source.integers(low, low + 128, (*size, 3)).astype("u1")
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")
            written[f"{name}/{number:02}.png"] = pixels
    (folder / ".DS_Store").write_text("no picture")
    return written


def test_a_folder_of_pictures_is_packed_and_predicted(db, s, tmp_path):
    written = write_pictures(tmp_path / "pictures", numpy.random.default_rng(1))
    packed = s.pack(tmp_path / "pictures", "pictures", normalizing_const=255, buffer_size=4)
    rows = db.run("SELECT pixels, label FROM pictures ORDER BY id")
    assert [r["label"] for r in rows] == [path.split("/")[0] for path in sorted(written)]
    assert all(numpy.array_equal(r["pixels"], written[path]) for r, path in zip(rows, sorted(written)))
    load(db, "seeing", sequential("seeing", [8, 6, 3], layer(
        "Flatten", name="flat"), layer("Dense", name="out", units=2, activation="softmax")))
    s.load_model_selection_table("seeing", "seeing_mst", [1], ["loss='categorical_crossentropy', "
                                 "optimizer='Adam(lr=0.05)', metrics=['accuracy']"], ["batch_size=4"])
    run = s.fit_multiple(packed, "seen", "seeing_mst", 5)
    found = run.predict(tmp_path / "pictures")
    assert list(found.index) == sorted(written) and found.name == "label"
    assert (found == [path.split("/")[0] for path in sorted(written)]).mean() > 0.9
    s.pack(tmp_path / "pictures", "small_grey", size=(4, 5), mode="L")
    assert {numpy.array(r["pixels"]).shape for r in db.run("SELECT pixels FROM small_grey")} == {(4, 5, 1)}


def test_what_is_wrong_with_pictures_is_said(s, tmp_path):
    from PIL import Image
    folder = tmp_path / "bad"
    write_pictures(folder, numpy.random.default_rng(1), each=2)
    for given, message in (({"mode": "CMYK"}, "mode must be one of"), ({"size": (3,)}, "size must be (height, width)"),
                           ({"size": 28}, "size must be (height, width)")):
        with pytest.raises(ClientError, match=re.escape(message)):
            s.pack(folder, "never", **given)
    write_pictures(folder / "light", numpy.random.default_rng(1), size=(5, 5), each=1)
    with pytest.raises(ClientError, match=r"has 5 x 5 pixels, those before it 8 x 6[^$]*size=\(8, 6\)"):
        s.pack(folder, "never")
    (folder / "notes.txt").write_text("x")
    with pytest.raises(ClientError, match="notes.txt' is in no folder of a class"):
        s.pack(folder, "never")
    (folder / "notes.txt").rename(folder / "dark" / "aaa.png")
    with pytest.raises(ClientError, match="aaa.png' cannot be read as a picture"):
        s.pack(folder, "never", size=(4, 4))
    (folder / "dark" / "aaa.png").unlink()
    Image.fromarray(numpy.arange(0, 48_000, 1000, dtype="uint16").reshape(8, 6)).save(folder / "dark" / "deep.png")
    with pytest.raises(ClientError, match="deep.png' has more than 8 bits a pixel"):
        s.pack(folder, "never", size=(4, 4))
    (folder / "dark" / "deep.png").unlink()
    (folder / "linked").symlink_to(folder / "light", target_is_directory=True)
    with pytest.raises(ClientError, match="linked' is a link to a folder"):
        s.pack(folder, "never", size=(4, 4))
    with pytest.raises(ClientError, match="there is no folder"):
        s.run().predict("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ClientError, match="there are no pictures"):
        s.pack(tmp_path / "empty", "never")
    with pytest.raises(ClientError, match="size is for a folder of pictures"):
        s.pack(pandas.DataFrame({"a": [1.0], "b": [1]}), "never", "b", size=(4, 4))
    assert s.query("SELECT to_regclass('never') IS NULL AS gone").gone[0]


# --- a call that goes on -------------------------------------------------------------------------------------
def test_ctrl_c_cancels_a_call_and_its_run_can_be_resumed(db, s, example, capsys):
    load(db, "small", dense(8, 64, 10))
    s.load_model_selection_table("small", "long", [1], [ADAM.format(0.01), ADAM.format(0.02)],
                                 ["batch_size=1, epochs=4"])

    def interrupt():
        eventually(lambda: is_under_way(other), 60)
        signal.raise_signal(signal.SIGINT)

    other, before = db.another(), signal.signal(signal.SIGINT, signal.default_int_handler)  # (tests may ignore it)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            s.fit_multiple(example["train"], "interrupted", "long", 2)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    other.close()
    stopped = s.run()
    assert stopped.info.status == "cancelled" and stopped.models == "interrupted"
    assert f"mop_resume({stopped.run_id})" in capsys.readouterr().out
    again = stopped.resume()
    assert again.run_id == stopped.run_id and again.info.status == "finished"


def test_a_call_shows_its_progress(s, example, capsys):
    s.progress = True
    s.set(reuse=False)
    run = s.fit_multiple(example["train"], "watched", "grid", 3)
    shown = capsys.readouterr().err
    assert f"run {run.run_id}: 100%" in shown and "best loss" in shown and "60/60" not in shown.split("100%")[0]


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


def hostile_data(run):
    """The data of a run in which every name that people give is hostile."""
    text = json.dumps(run.data)
    for word in ("accuracy", "learning_rate", "optimizer", "Adam", "py_models"):
        text = text.replace(word, json.dumps(HOSTILE + word)[1:-1])
    return json.loads(text)


@pytest.mark.parametrize("name", ["curves", "leaderboard", "parallel", "sessions", "stages"])
def test_pictures_are_axes_and_draw_names_as_text(run, name):
    from pg_mop_client import plots
    for data in (run.data, hostile_data(run)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # of fonts
            axes = getattr(plots, name)(data)
            axes.figure.canvas.draw()
        assert isinstance(axes, matplotlib.axes.Axes) and axes.has_data()
        assert data["run"]["model_output_table"].replace("\u2028", "\ufffd")[:20] in axes.get_title(loc="left")
        matplotlib.pyplot.close(axes.figure)
    mine = matplotlib.pyplot.figure().add_subplot()
    assert getattr(run, f"plot_{name}")(ax=mine) is mine


def test_confusion_counts_what_was_predicted(run, example):
    digits = example["digits"][:200]
    axes = run.plot_confusion(digits, "target")
    predicted = run.predict(digits).astype(int)
    counts = numpy.asarray(axes.images[0].get_array())
    wanted = [[int(((digits.target == a) & (predicted == b)).sum()) for b in range(10)] for a in range(10)]
    assert counts.tolist() == wanted
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [str(n) for n in range(10)]
    with pytest.raises(ClientError, match="there is no column 'no'"):
        run.plot_confusion(digits, "no")
    from pg_mop_client import plots
    axes = plots.confusion(pandas.Series([True, False, None], dtype="boolean"), ["true", "false", None])
    assert "3 of 3 right" in axes.get_title(loc="left")
    assert numpy.trace(plots.confusion(numpy.float32([1, 2]), ["1", "2"]).images[0].get_array()) == 2
    with pytest.raises(ClientError, match="1000 different values: no classes"):
        plots.confusion(range(1000), range(1000))
    axes = plots.confusion([HOSTILE, "b", None], ["b", "b", HOSTILE])
    axes.figure.canvas.draw()
    assert "1 of 3 right" in axes.get_title(loc="left")


def test_a_picture_shows_the_numbers(run):
    axes = run.plot_curves("validation loss")
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    curves = run.metrics().query("dataset == 'validation' and name == 'loss'")
    for key, own in curves.groupby("mst_key"):
        assert drawn[str(key)] == pytest.approx(own.sort_values("iteration").value.tolist(), rel=1e-5)
    with pytest.raises(ClientError, match="there is no series 'nonsense'"):
        run.plot_curves("nonsense")


def test_a_run_that_has_nothing_to_draw_says_so(db, s, example):
    s.set(reuse=False)
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="all 1 configurations failed"):
        s.load_model_selection_table("small", "bad", [1], ["loss='mse', optimizer='Adam(nonsense=1)'"],
                                     ["batch_size=8"])
        s.fit_multiple(example["train"], "nothing", "bad", 1)
    failed = s.run()
    assert failed.info.status == "failed" and "nonsense" in failed.leaderboard().reason[0]
    for draw in (failed.plot_curves, failed.plot_leaderboard, failed.plot_parallel):
        with pytest.raises(ClientError, match="no evaluations|no results|two configurations"):
            draw()
    with pytest.raises(ClientError, match="has a result yet"):
        failed.predict(example["digits"])
    assert "nonsense" in failed.report()


def test_the_report_is_the_servers(db, run, tmp_path):
    path = run.report(tmp_path / "report.html")
    with open(path, encoding="utf-8") as file:
        made = [file.read(), db.value("SELECT madlib.mop_report(%s)", [run.run_id])]
    without = [re.sub(r"<p>Made .*? by", "", text) for text in made]
    assert without[0] == without[1] and "py_models" in without[0]


# --- bridges ---------------------------------------------------------------------------------------------------
def test_optuna_has_a_trial_for_each_configuration(run):
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


def test_tensorboard_reads_the_scalars(run, tmp_path):
    pytest.importorskip("tensorboardX", reason="not run: to_tensorboard needs tensorboardX")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    run.to_tensorboard(tmp_path)
    curves = run.metrics().query("dataset == 'training' and name == 'loss'")
    for key, own in curves.groupby("mst_key"):
        events = EventAccumulator(str(tmp_path / f"run_{run.run_id}" / f"configuration_{key}"))
        events.Reload()
        read = {e.step: e.value for e in events.Scalars("training/loss")}
        assert read == pytest.approx(dict(zip(own.iteration, own.value)), rel=1e-6)


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
    nested, = found.loc[found["tags.mst_key"] == key, "run_id"]
    curve = run.metrics().query(f"mst_key == {key} and dataset == 'training' and name == 'loss'")
    logged = {m.step: m.value for m in client.get_metric_history(nested, "training loss")}
    assert logged == pytest.approx(dict(zip(curve.iteration, curve.value)), rel=1e-6)
    model = pathlib.Path(client.download_artifacts(nested, f"model_{key}.keras", str(tmp_path)))
    with zipfile.ZipFile(model) as logged, zipfile.ZipFile(io.BytesIO(run.export(best["mst_key"]))) as made:
        assert logged.read("config.json") == made.read("config.json")
        assert logged.read("model.weights.h5") == made.read("model.weights.h5")
    assert [a.path for a in client.list_artifacts(parent)] == ["report.html"]


def test_a_package_that_is_not_there_is_named(run, monkeypatch, tmp_path):
    import sys
    for module, extra, use in (("mlflow", "mlflow", run.log_to_mlflow), ("optuna", "optuna", run.to_optuna),
                               ("tensorboardX", "tensorboard", lambda: run.to_tensorboard(tmp_path)),
                               ("matplotlib", "plot", run.plot_curves)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ClientError, match=rf"pip install 'pg_mop_client\[{extra}\]'"):
            use()


# --- what goes wrong ---------------------------------------------------------------------------------------------
def test_servers_and_roles_that_cannot_be_used_are_told_apart(db, run):
    db.run("DROP ROLE IF EXISTS client_stranger, client_nobody; CREATE ROLE client_nobody LOGIN; "
           "CREATE ROLE client_stranger LOGIN; GRANT mop_user TO client_stranger")
    with pytest.raises(ClientError, match='role "client_nobody" may not use pg_mop\nHINT: GRANT mop_user TO'):
        Selection(uri(db, "client_nobody"))
    with pytest.raises(ClientError, match='pg_mop is in schema "madlib", not in "elsewhere"'):
        Selection(uri(db), schema="elsewhere")
    empty = uri(db).rsplit("/", 1)[0] + "/postgres"
    db.another().run("SELECT 1")
    with pytest.raises(ClientError, match='there is no extension pg_mop in database "postgres"'):
        Selection(empty)
    with pytest.raises(sqlalchemy.exc.OperationalError, match="does not exist"):
        Selection(uri(db) + "_not_there")
    with Selection(sqlalchemy.create_engine(uri(db, "client_stranger").replace(":", "+psycopg2:", 1))) as stranger:
        assert len(stranger.runs()) == 0
        with pytest.raises(ClientError, match=f"there is no run {run.run_id} that the role may see"):
            stranger.run(run.run_id)
        with pytest.raises(ClientError, match="the role has no runs"):
            stranger.run()
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="may see"):
            stranger.mop_report(run.run_id)
    db.run("DROP OWNED BY client_stranger; DROP ROLE client_stranger, client_nobody")


def test_an_extension_that_is_too_old_is_told(db):
    db.run("DROP DATABASE IF EXISTS t_older WITH (FORCE)")
    db.run("CREATE DATABASE t_older")
    older = type(db)(db.server, "t_older")
    older.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib VERSION '0.3.0' CASCADE")
    older.close()
    with pytest.raises(ClientError, match="the server has pg_mop 0.3.0, and this client needs 0.4 or later"):
        Selection(uri(db).rsplit("/", 1)[0] + "/t_older")
    db.run("DROP DATABASE t_older WITH (FORCE)")


def test_another_drivers_engine_is_refused():
    class Engine(sqlalchemy.Engine):
        driver = "asyncpg"

        def __init__(self):
            pass

    with pytest.raises(ClientError, match="the engine's driver is asyncpg, not psycopg2"):
        Selection(Engine())


@pytest.mark.parametrize("name, quoted", [
    ("t", '"t"'), ("T", '"t"'), ("s.t", '"s"."t"'), ('"S t"."x.y"', '"S t"."x.y"'), ('s."a""b"', '"s"."a""b"')])
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
    with Selection(uri(db).rsplit("/", 1)[0] + "/t_schema") as selection:
        assert selection.schema == schema and len(selection.runs()) == 0
        assert "mop_report" in set(selection.mop_functions().name)
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="there is no run 1"):
            selection.mop_report(1)
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="there is no run 1"):
            selection.mop_resume(1)
        with pytest.raises(ClientError, match="the role has no runs"):
            selection.run()
    db.run("DROP DATABASE t_schema WITH (FORCE)")

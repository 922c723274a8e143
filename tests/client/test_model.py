"""Named models from Python: DataFrames of all kinds of columns go in, answers, reports and pictures come out."""

import datetime
import decimal
import os
import pathlib
import re
import signal
import threading
import uuid

import numpy
import pandas
import pytest

from pg_mop_client import ClientError, Model, Selection, ServerError, images
from pg_mop_client.command import main
from support.cluster import eventually
from support.workload import HOSTILE, is_under_way

ROWS = 400

QUICK = "boosting, linear"  # (nets take longer, and show no more of the client)


@pytest.fixture(scope="module")
def s(db):
    with Selection(db.uri(), progress=False, seed=42) as selection:
        yield selection


@pytest.fixture(scope="module")
def people():
    """Whether people leave, and what they earn, follow from an age, a plan and a score that is sometimes missing."""
    i = numpy.arange(ROWS)
    frame = pandas.DataFrame(
        {
            "id": i,
            "age": 18 + i * 7 % 60,
            "plan": numpy.array(["free", "pro", "team"])[i % 3],
            "score": numpy.where(i % 10 > 0, i * 37 % 101, numpy.nan),
            "joined": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(i % 300, unit="D"),
        }
    )
    limit = frame.age + frame.score.fillna(50) + 40 * (frame.plan == "free")
    return frame.assign(leaves=limit > 110, income=1000.0 + 50 * frame.age + 300 * (frame.plan == "pro"))


@pytest.fixture(scope="module")
def model(s, people):
    """A model of classes that are booleans."""
    s.load(people, "clients", key="id")
    return s.train(
        "clients", "leaving", "leaves", id="id", exclude="income", max_trials=2, time_limit="60 s", families=QUICK
    )


@pytest.fixture(scope="module")
def income(s, people, model):
    """A model of numbers."""
    return s.train(
        "clients", "income_of", "income", id="id", exclude="leaves", max_trials=2, time_limit="60 s", families=QUICK
    )


def test_a_trained_model_has_the_report_and_its_row(s, model):
    assert 'Version 1 of model "leaving" predicts leaves (classification).' in model.training_report
    assert model.info.kind == "classification" and model.info.version == 1 and model.info.in_use
    assert "version 1 predicts leaves" in repr(model)
    assert "leaving" in list(s.models().name) and isinstance(s.model("leaving"), Model)
    features = model.feature_info().set_index("column_name")
    assert {"age", "plan", "score", "joined"} == set(features.index)
    assert features.null_share["score"] == pytest.approx(0.1, abs=0.05)


def test_answers_have_the_index_of_the_data_and_the_type_of_the_target(db, model, people):
    rows = people.drop(columns="leaves").sample(150, random_state=1)
    found = model.predict(rows, probabilities=True)
    assert (found.index == rows.index).all() and found.prediction.dtype == bool
    own = db.run(
        "SELECT c.id, p.prediction, p.probability, p.probabilities FROM clients c, madlib.mop_predict('leaving', c) p"
    )
    own = pandas.DataFrame(own).set_index("id").loc[rows.id]
    assert list(found.prediction.map({True: "true", False: "false"})) == list(own.prediction)
    assert found.probability.to_numpy() == pytest.approx(own.probability.to_numpy(), abs=1e-5)
    assert found["probability of true"].to_numpy() == pytest.approx([p["true"] for p in own.probabilities], abs=1e-5)
    assert (found.prediction == people.leaves.loc[rows.index]).mean() > 0.8
    assert not db.value(
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'mop\\_rows\\_%' OR relname LIKE 'mop\\_answers\\_%'"
    )


def test_answers_for_rows_of_the_server_keep_columns(model, people):
    found = model.predict("SELECT * FROM clients WHERE id < 7 ORDER BY id DESC", keep="id, plan, score")
    assert list(found.columns) == ["id", "plan", "score", "prediction", "probability"]
    assert list(found.id) == [6, 5, 4, 3, 2, 1, 0] and numpy.isnan(found.score.iloc[-1])
    assert list(found.prediction) == list(model.predict(people.iloc[6::-1]).prediction)


def test_types_of_pandas_that_mean_the_same_give_the_same_answers(model, people):
    rows = people.head(60)
    expected = model.predict(rows)
    other = rows.assign(
        age=rows.age.astype("float32"),
        plan=rows.plan.astype("category"),
        score=rows.score.astype(object).where(rows.score.notna(), None),
        joined=rows.joined.dt.date,
    )[["joined", "score", "plan", "age"]]
    assert model.predict(other).equals(expected)
    nothing = model.predict(rows.assign(score=None, joined=None))
    assert nothing.equals(model.predict(rows.drop(columns=["score", "joined"])))


def test_few_rows_are_answered_as_many_are(model, people):
    texts = pandas.Series([HOSTILE, "a\tb\n\\c'd", None, "free"]).sample(ROWS, replace=True, random_state=1)
    people = people.assign(plan=texts.to_numpy())
    many = model.predict(people, probabilities=True)
    for rows in (slice(7, 8), slice(0, 100)):
        few = model.predict(people.iloc[rows], probabilities=True)
        pandas.testing.assert_frame_equal(few, many.iloc[rows])
    with pytest.raises(ServerError, match='column "age" has type text'):
        model.predict(people.iloc[:1].assign(age="old"))


def test_reports_agree_with_the_predictions(model, people):
    predicted = model.predict(people).prediction
    matrix = model.confusion_matrix(people)
    assert list(matrix.index) == list(matrix.columns) == ["false", "true"]
    for actual in (False, True):
        for said in (False, True):
            expected = ((people.leaves == actual) & (predicted == said)).sum()
            assert matrix.loc[str(actual).lower(), str(said).lower()] == expected
    measured = model.evaluate(people).set_index("metric").value
    assert measured["accuracy"] == pytest.approx((predicted == people.leaves).mean())
    report = model.class_report(people).set_index("label")
    assert report.support["true"] == people.leaves.sum()
    assert report.recall["true"] == pytest.approx(predicted[people.leaves].mean())
    roc = model.roc_curve(people, "true")
    assert roc.false_positive_rate.is_monotonic_increasing and roc.true_positive_rate.iloc[-1] == 1
    assert model.calibration(people).row_count.sum() == ROWS
    assert model.importance(people).importance.is_monotonic_decreasing
    few = people.iloc[[7, 3]]
    why = model.explain_answer(few, "true", background=people)
    odds = model.predict(few, probabilities=True)["probability of true"]
    assert why.contribution.groupby(level=0).sum().sort_index().tolist() == pytest.approx(
        numpy.log(odds / (1 - odds)).sort_index().tolist(), abs=1e-3
    )
    assert (why[why.column_name == "plan"].value == few.plan).all() and len(model.explain_answer(few)) == len(why)
    older = people.assign(age=people.age + 40)
    drift = model.drift(older).set_index("column_name")
    assert drift.verdict["age"] == "drifted" and drift.verdict["plan"] == "stable"
    found = model.baselines("leaving_train", people)
    assert {"pg_mop", "majority"} <= set(found.contender)
    own = found[(found.contender == "pg_mop") & (found.metric == "accuracy")]
    assert own.value.item() == pytest.approx(measured["accuracy"])


def test_the_command_writes_the_report(db, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["-d", db.uri(), "report", "--model", "leaving", "--on", "leaving_test"]) == 0
    assert capsys.readouterr().out == "leaving.html\n"
    assert "measured on leaving_test" in (tmp_path / "leaving.html").read_text()
    assert main(["-d", db.uri(), "report", "--model", '"leaving"', "--version", "1", "-o", "-"]) == 0
    assert "Confusion matrix" not in capsys.readouterr().out
    for arguments, said in (
        ([], "takes the number of a run, or --model"),
        (["7", "--model", "leaving"], "takes the number of a run, or --model"),
        (["7", "--on", "leaving_test"], "--on and --version are for --model"),
        (["--model", "nobody"], "there is no model nobody that the role may read"),
        (["--model", "leaving", "--version", "9"], "model leaving has no version 9"),
        (["--model", "leaving", "--on", "no_table"], "source table 'no_table' does not exist"),
    ):
        assert main(["-d", db.uri(), "report", *arguments]) == 1
        assert said in capsys.readouterr().err


def test_what_is_no_model_or_no_source_is_told(s, model, people):
    with pytest.raises(ClientError, match="there is no model nobody"):
        s.model("nobody")
    with pytest.raises(ClientError, match="invalid table name"):
        s.model("a; b")
    with pytest.raises(ClientError, match="source is a table, view or query, not DataFrame") as caught:
        s.train(people, "x", "leaves")
    assert "s.load(data" in caught.value.hint
    with pytest.raises(ClientError, match="rows are a DataFrame, not list"):
        model.evaluate([1, 2])
    with pytest.raises(ClientError, match="keep is for"):
        model.predict(people, keep="id")
    with pytest.raises(ClientError, match="there are no rows"):
        model.predict(people.head(0))


# --- training is watched --------------------------------------------------------------------------------
def test_training_shows_its_steps_and_what_the_server_has_said(db, s, people, model, capsys):
    s.load(people.assign(same=1), "members", key="id")
    given = {"id": "id", "exclude": "income", "max_trials": 1, "baselines": False, "layers": "linear"}
    given["families"] = "nets"
    with Selection(db.uri(), seed=1) as watched:
        capsys.readouterr()
        trained = watched.train("members", "staying", "leaves", time_limit="60 s", **given)
        shown, messages = capsys.readouterr(), watched.calls.messages
        assert "model staying trains" in shown.err and "left]" in shown.err and "best unit loss" in shown.err
        assert re.search(r"model staying is trained: 100%\|", shown.err)
        assert any(message.startswith("NOTICE: ") and "same" in message for message in messages)
        assert shown.out == "".join(f"{message}\n" for message in messages) and "CONTEXT" not in shown.out
        assert watched.calls.connection() is not None and "Version 1" in trained.training_report
        assert "Version 2" in trained.retrain(time_limit="6 s", automatic=False)
        assert "model staying is trained: 100%|" in capsys.readouterr().err
        with pytest.raises(ServerError, match="interval") as caught:
            watched.train("members", "soon", "leaves", time_limit="soon", **given)
        assert caught.value.sqlstate == "22007"
        with pytest.raises(ServerError, match='model "staying" exists'):
            watched.train("members", "staying", "leaves", **given)
    with Selection(db.uri(), seed=1, progress=False) as silent:
        capsys.readouterr()
        silent.train(
            "members", "silent", "leaves", time_limit="60 s", **{**given, "families": "linear", "layers": None}
        )
        assert capsys.readouterr() == ("", "") and silent.calls.messages == messages


def test_ctrl_c_cancels_the_training_and_leaves_nothing(db, s, people, model, capsys):
    other = db.another()

    def interrupt():
        eventually(lambda: is_under_way(other), 60)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # (tests may ignore it)
    thread = threading.Thread(target=interrupt)
    with Selection(db.uri(), seed=1) as watched:
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                watched.train("clients", "stopped", "leaves", id="id", exclude="income", families="nets")
        finally:
            signal.signal(signal.SIGINT, before)
        thread.join()
        other.close()
        assert "Cancelled. What the steps have made is dropped." in capsys.readouterr().out
        left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'stopped%'"
        assert eventually(lambda: db.value(left) == 0, 60)
        assert watched.calls.execute("SELECT 1", {}).scalar() == 1


# --- load ----------------------------------------------------------------------------------------------
UTC = datetime.timezone.utc
DAY = datetime.datetime(2024, 2, 29, 12, 30, 1, 250_000)


@pytest.mark.parametrize(
    "values, sql_type, stored",
    [
        ([1, -2], "bigint", [1, -2]),
        (pandas.array([1, None], "Int8"), "bigint", [1, None]),
        (numpy.array([1, 2**64 - 1], "uint64"), "numeric", [1, 2**64 - 1]),
        ([1, 2**70], "numeric", [1, 2**70]),
        ([0.1, None], "double precision", [0.1, None]),
        ([float("inf"), 1.5], "double precision", [float("inf"), 1.5]),
        (numpy.array([0.1, 1.5], "f4"), "real", [pytest.approx(0.1), 1.5]),
        ([True, False], "boolean", [True, False]),
        ([True, None], "boolean", [True, None]),
        ([HOSTILE, "tab\t, line\r\n, \\N, \\"], "text", [HOSTILE, "tab\t, line\r\n, \\N, \\"]),
        (["", None], "text", ["", None]),
        ([None, None], "text", [None, None]),
        (pandas.Categorical(["b", None]), "text", ["b", None]),
        (pandas.Categorical([3, None]), "bigint", [3, None]),
        ([DAY, None], "timestamp without time zone", [DAY, None]),
        (pandas.Series([DAY], dtype=object).tolist() * 2, "timestamp without time zone", [DAY, DAY]),
        ([DAY.replace(tzinfo=UTC), None], "timestamp with time zone", [DAY.replace(tzinfo=UTC), None]),
        ([DAY.date(), None], "date", [DAY.date(), None]),
        ([DAY.time(), None], "time without time zone", [DAY.time(), None]),
        ([datetime.timedelta(-1, 5), None], "interval", [datetime.timedelta(-1, 5), None]),
        ([decimal.Decimal("1.10"), None], "numeric", [decimal.Decimal("1.10"), None]),
        ([[1.5, 2], None], "double precision[]", [[1.5, 2.0], None]),
        (
            [numpy.ones((2, 2)), [[3, 4], [5, 6]]],
            "double precision[]",
            [[[1.0, 1.0], [1.0, 1.0]], [[3.0, 4.0], [5.0, 6.0]]],
        ),
        ([{"a": ["x\n", 1]}, None], "jsonb", [{"a": ["x\n", 1]}, None]),
        ([uuid.UUID(int=5), None], "uuid", [str(uuid.UUID(int=5)), None]),
    ],
)
def test_a_column_gets_the_type_of_its_values(db, s, values, sql_type, stored):
    s.load(pandas.DataFrame({f"a {HOSTILE}"[:30]: pandas.Series(values)}), "loaded", replace=True)
    (row,) = db.run(
        "SELECT format_type(atttypid, NULL) AS t FROM pg_attribute WHERE attrelid = 'loaded'::regclass AND attnum = 1"
    )
    assert row["t"] == sql_type
    assert [next(iter(r.values())) for r in db.run("TABLE loaded")] == stored


@pytest.mark.parametrize(
    "values, message",
    [
        ([1, "a"], "column 'a' has values of several types"),
        ([{"x": 1}, "a"], "column 'a' has both dict and str"),
        ([1j, 2j], "column 'a' has the type complex128"),
        (pandas.period_range("2024-01", periods=2, freq="M"), "column 'a' has the type period"),
        (["\0", "b"], "a text has a NUL character"),
        (["\ud800", "b"], "half of a character"),
        ([[1, "x"], [2]], "an array has values that are not numbers"),
    ],
)
def test_what_sql_has_no_type_for_is_refused_and_leaves_nothing(db, s, values, message):
    with pytest.raises(ClientError, match=message):
        s.load(pandas.DataFrame({"a": pandas.Series(values, dtype=object if "\ud800" in values else None)}), "refused")
    assert db.value("SELECT to_regclass('refused') IS NULL")


def test_an_existing_table_is_replaced_on_request_alone(db, s):
    s.load(pandas.DataFrame({"a": [1]}), "kept")
    with pytest.raises(ClientError, match="already exists") as caught:
        s.load(pandas.DataFrame({"a": [2]}), "kept")
    assert caught.value.hint == "load(..., replace=True) drops it first."
    with pytest.raises(ServerError, match="duplicate key"):
        s.load(pandas.DataFrame({"a": [2, 2]}), "kept", key="a", replace=True)
    with pytest.raises(ClientError, match="there is no column 'b' for the key"):
        s.load(pandas.DataFrame({"a": [2]}), "kept", key="b", replace=True)
    assert db.value("SELECT a FROM kept") == 1
    s.load(pandas.DataFrame({"a": [3]}), "kept", replace=True)
    assert db.value("SELECT a FROM kept") == 3


# --- images --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Paths of small pictures that are red or blue, PNG or JPEG, and their bytes."""
    image = pytest.importorskip("PIL.Image", reason="not run: Pillow is not installed")
    folder = tmp_path_factory.mktemp("photos")
    rows = []
    for i in range(40):
        colour = "red" if i % 2 else "blue"
        path = folder / f"{i} {HOSTILE[:5].replace('/', '')}.{'png' if i % 3 else 'jpg'}"
        image.new("RGB", (20, 16), colour).save(path)
        rows.append({"id": i, "photo": str(path) if i % 4 else path, "colour": colour})
    return pandas.DataFrame(rows)


def test_a_column_of_paths_becomes_the_bytes_of_the_files(db, s, photos, tmp_path):
    data = photos.assign(photo=photos.photo.where(photos.id != 7, None), again=photos.photo)
    s.load(data, "photos", key="id", images=["photo", "again"])
    found = {r["id"]: r for r in db.run("SELECT * FROM photos")}
    assert len(found) == len(photos) and found[7]["photo"] is None
    for i, path in zip(photos.id, photos.photo):
        assert bytes(found[i]["again"]) == pathlib.Path(path).read_bytes()
        assert i == 7 or bytes(found[i]["photo"]) == bytes(found[i]["again"])
    s.load(photos.head(2), "photos", images="photo", replace=True)
    assert db.value("SELECT count(*) FROM photos") == 2


def test_what_is_no_image_is_named_with_its_row_before_anything_is_written(db, s, photos, tmp_path, monkeypatch):
    text, empty, pipe = tmp_path / "notes.txt", tmp_path / "empty.png", tmp_path / "pipe"
    text.write_text("no picture")
    empty.write_bytes(b"")
    os.mkfifo(pipe)
    monkeypatch.setattr(images, "MOST_FILE", 5000)
    long = tmp_path / "long.png"
    long.write_bytes(images.MAGIC[0] + bytes(5000))
    for value, message in (
        (tmp_path / "none.png", "there is no file"),
        (text, "is no PNG or JPEG file"),
        (empty, "is empty"),
        (pipe, "is no file"),
        (tmp_path, "is no file"),
        (long, "has 5,008 bytes, more than 5,000"),
        (7, "is int, not the path of an image"),
        ("a\0b", "cannot be read"),
    ):
        photo = photos.photo.astype(object).copy()
        photo.iloc[3] = value
        with pytest.raises(ClientError, match="row 3 of column 'photo'") as caught:
            s.load(photos.assign(photo=photo), "no_photos", images="photo")
        assert message in caught.value.message
    with pytest.raises(ClientError, match="there is no column 'x' of images"):
        s.load(photos, "no_photos", images="x")
    assert db.value("SELECT to_regclass('no_photos') IS NULL")


def test_a_file_that_goes_while_rows_are_written_leaves_the_database_unchanged(db, s, photos, monkeypatch):
    kept = images.read_file

    def vanishing(column, row, value):
        return kept(column, row, "/nowhere/x.png" if row == 30 else value)

    monkeypatch.setattr(images, "read_file", vanishing)
    with pytest.raises(ClientError, match="row 30 of column 'photo': there is no file '/nowhere/x.png'"):
        s.load(photos, "gone_photos", images="photo")
    assert db.value("SELECT to_regclass('gone_photos') IS NULL")


def test_a_model_of_images_answers_for_paths(s, photos):
    s.load(photos, "pictures", key="id", images="photo")
    model = s.train(
        "pictures",
        "colours",
        "colour",
        id="id",
        transform={"photo": {"kind": "image", "size": 8}},
        max_trials=1,
        time_limit="20 s",
        baselines=False,
        refit=False,
    )
    found = model.predict(photos)
    assert found.equals(model.predict(photos.assign(photo=[pathlib.Path(p).read_bytes() for p in photos.photo])))
    assert (found.prediction == photos.colour).mean() > 0.9
    assert model.evaluate(photos).set_index("metric").value["rows"] == len(photos)
    with pytest.raises(ClientError, match="row 1 of column 'photo': there is no file"):
        model.predict(photos.assign(photo=photos.photo.where(photos.id != 1, "gone.png")))

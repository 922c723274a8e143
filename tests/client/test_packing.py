"""Rows and pictures that people bring: what is packed is what they are, and what cannot be is said."""

import datetime
import decimal
import json
import re

import numpy
import pandas
import pytest

from pg_mop_client import ClientError, LostError, Selection, ServerError, packing, reading
from pg_mop_client.database import quote
from support.workload import HOSTILE, layer, load, sequential


@pytest.fixture(scope="module")
def s(db):
    with Selection(db.uri(), progress=False, seed=42) as selection:
        yield selection


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
    frame = pandas.DataFrame(
        {
            HOSTILE: [1.0, 2.0, 3.0, 4.0] * 9,
            "b": [0.5, None, 1.5, 2.5] * 9,
            'c"l': ["a\tb", "new\nline", "back\\slash", None] * 9,
        }
    )
    table = quote(f"T {HOSTILE}"[:40])
    frame["b"] = frame["b"].fillna(0)
    packed = s.pack(frame.dropna(), table, label='c"l')
    assert packed == f'{table[:-1]}_packed"'
    assert {r['c"l'] for r in db.run(f"SELECT * FROM {table}")} == {"a\tb", "new\nline", "back\\slash"}
    with pytest.raises(ClientError, match="column 'b' has no number in row 0\nHINT: data.dropna()"):
        s.pack(frame.assign(b=float("nan")).dropna(subset='c"l'), "with_nan", label='c"l')
    assert db.value("SELECT to_regclass('with_nan') IS NULL"), "what could not be packed is gone"


LABELS = [  # a column, what it is in SQL, and its values there
    (pandas.Series([1, None, 2], dtype="Int64"), "integer", [1, None, 2]),
    (pandas.Series([None, None, None], dtype="Int64"), "integer", [None] * 3),
    (pandas.Series([1, 2, 2**63 + 5], dtype="uint64"), "numeric", [1, 2, 2**63 + 5]),
    (pandas.Series([-(2**31) - 1, 0, 1]), "bigint", [-(2**31) - 1, 0, 1]),
    (pandas.Series([True, None, False], dtype="boolean"), "boolean", [True, None, False]),
    (pandas.Series([True, None, False], dtype=object), "boolean", [True, None, False]),
    (pandas.Series([3, 4, None], dtype=object), "integer", [3, 4, None]),
    (pandas.Series([3, 4, 3], dtype="category"), "integer", [3, 4, 3]),
    (pandas.Series([1.5, float("nan"), 2.0]), "double precision", [1.5, None, 2.0]),
    (pandas.Series(["a", None, pandas.NA], dtype=object), "text", ["a", None, None]),
    (
        pandas.to_datetime(pandas.Series(["2026-01-31", None, "2026-02-28"])),
        "text",
        ["2026-01-31 00:00:00", None, "2026-02-28 00:00:00"],
    ),
    (pandas.Series([datetime.date(2026, 1, 31), None, pandas.NaT], dtype=object), "text", ["2026-01-31", None, None]),
    (pandas.Series([[0, 1], [1, 0], [1, 0]]), "real[]", [[0, 1], [1, 0], [1, 0]]),
    (pandas.Series([numpy.array([True, False])] * 3), "real[]", [[1, 0]] * 3),
    (pandas.Series([numpy.float32([0.5, 1])] * 3), "real[]", [[0.5, 1.0]] * 3),
]


@pytest.mark.parametrize("values, kind, wanted", LABELS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_label_is_what_its_column_is(db, s, values, kind, wanted):
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "label": values})
    with s.engine.connect() as connection:
        packing.copy(connection, frame, "labelled", "label")
    assert db.value("SELECT pg_typeof(label)::text FROM labelled LIMIT 1") == kind
    assert [row["label"] for row in db.run("SELECT label FROM labelled ORDER BY id")] == wanted
    db.run("DROP TABLE labelled")


def late(rows=reading.CHUNK_ROWS):
    """A table of which the first rows do not show what is in the last."""
    return pandas.DataFrame({"a": numpy.arange(rows + 2) / 4.0, "label": numpy.arange(rows + 2) % 3}, dtype=object)


@pytest.mark.parametrize(
    "last, wanted", [(["x", "01"], ["0", "1", "x", "01"]), ([7, None], [0, 1, 7, None]), ([2**40, 5], [0, 1, 2**40, 5])]
)
def test_rows_that_come_late_are_packed_as_the_first(db, s, tmp_path, last, wanted):
    frame = late()
    frame.loc[len(frame) - 2 :, "label"] = last
    frame.to_csv(tmp_path / "late.csv", index=False)
    files = [tmp_path / "late.csv"]
    if last != ["x", "01"]:
        pytest.importorskip("pyarrow", reason="not run: packing Parquet needs pyarrow")
        frame.assign(a=frame.a.astype(float), label=frame.label.astype("Int64")).to_parquet(tmp_path / "late.parquet")
        files.append(tmp_path / "late.parquet")
    for data in (frame.assign(a=frame.a.astype(float)), *files):
        with s.engine.connect() as connection:
            packing.copy(connection, data, "late_rows", "label")
        stored = db.run("SELECT features[1] AS a, label FROM late_rows ORDER BY id")
        assert [row["label"] for row in stored[:2] + stored[-2:]] == wanted and len(stored) == len(frame)
        assert [row["a"] for row in stored] == list(frame.a)
        db.run("DROP TABLE late_rows")


def test_what_is_no_number_late_in_a_file_is_said(db, s, tmp_path):
    frame = late()
    frame.loc[len(frame) - 1, "a"] = "none"
    frame.to_csv(tmp_path / "late.csv", index=False)
    with pytest.raises(ClientError, match="column 'a' has a value that is not a number, after row 10000"):
        s.pack(tmp_path / "late.csv", "never", label="label")
    assert db.value("SELECT to_regclass('never') IS NULL")


def test_columns_may_be_called_by_numbers(db, s):
    frame = pandas.DataFrame(numpy.arange(120.0).reshape(40, 3)).assign(**{"3": [0, 1] * 20})
    frame.columns = [0, 1, 2, 3]
    packed = s.pack(frame, "numbered", label=3, features=[0, 2])
    assert packing.noted(s.calls.connection(), packed, "features")[0] == ["0", "2"]
    assert db.value("SELECT features FROM numbered WHERE id = 1") == [3.0, 5.0] and packed == "numbered_packed"
    frame.columns = [0, 1, 1, "1"]
    with pytest.raises(ClientError, match="two columns are named '1'"):
        s.pack(frame, "never", label=0)


def test_classes_may_be_vectors_and_columns(db, s):
    x, y = numpy.arange(80.0).reshape(40, 2), numpy.arange(40) % 4
    s.pack((x, y.reshape(40, 1)), "of_keras")  # as Keras' own data sets are
    assert [row["y"] for row in db.run("SELECT y FROM of_keras ORDER BY id")] == list(y)
    packed = s.pack((x, numpy.eye(4)[y]), "one_hot")
    assert db.value(f"SELECT num_classes FROM {packed}_summary") == []  # (they are encoded already)
    assert db.value("SELECT y FROM one_hot WHERE id = 2") == [0.0, 0.0, 1.0, 0.0]


def test_vectors_that_come_late_are_refused(s):
    for first, last in (([None], [[0.0, 1.0]]), ([[0.0, 1.0]], ["word"])):
        rows = pandas.DataFrame({"a": 1.0, "y": first * reading.CHUNK_ROWS + last})
        with pytest.raises(ClientError, match="column 'y' has vectors in some rows but not in others"):
            s.pack(rows, "late_vectors", label="y")


def test_arrays_of_all_kinds_are_packed_or_refused(db, s):
    def stored(values):
        frame = pandas.DataFrame({"v": pandas.Series(values, dtype=object), "label": [0, 1, 0]})
        with s.engine.connect() as connection:
            packing.copy(connection, frame, "of_arrays", "label")
        found = [row["v"] for row in db.run("SELECT v FROM of_arrays ORDER BY id")]
        db.run("DROP TABLE of_arrays")
        return found

    assert stored([numpy.array([True, False])] * 3) == [[1.0, 0.0]] * 3
    assert stored([[decimal.Decimal("0.5"), 2]] * 3) == [[0.5, 2.0]] * 3
    assert (
        stored([numpy.array([numpy.array([1, 2]), numpy.array([3, 4])], dtype=object)] * 3)
        == [[[1.0, 2.0], [3.0, 4.0]]] * 3
    )
    nested = numpy.empty(2, dtype=object)  # as Parquet gives lists of lists
    nested[:] = [numpy.array([1.0, 2.0]), numpy.array([3.0, 4.0])]
    assert stored([nested] * 3) == [[[1.0, 2.0], [3.0, 4.0]]] * 3
    for bad, message in (
        ([[1, 2], None, [3, 4]], "has 0 dimensions in row 1, and 1 in its first rows"),
        ([[1, 2], [[1, 2]], [3, 4]], "has 2 dimensions in row 1"),
        ([[1, 2], ["x", 1], [3, 4]], "has no array of numbers in row 1"),
        ([[[1], [2, 3]], [1], [2]], "has no array of numbers in its first rows"),
    ):
        with pytest.raises(ClientError, match=f"column 'v' {message}"):
            stored(bad)
        assert db.value("SELECT to_regclass('of_arrays') IS NULL")
    for odd, told in ((float("nan"), "no number"), (float("-inf"), "an infinity"), (1e39, "1e\\+39, beyond real")):
        with pytest.raises(ClientError, match=f"column 'v' has {told} in row 2"):
            stored([[1.0], [2.0], [odd]])


def test_columns_that_are_no_features_are_named(s):
    frame = pandas.DataFrame(
        {
            "id": [1, 2],
            "name": ["a", "b"],
            "of": [decimal.Decimal("0.5"), None],
            "z": [1j, 2j],
            "when": pandas.to_datetime(["2026-01-31"] * 2),
            "label": [0, 1],
        }
    )
    with pytest.warns(UserWarning) as told, s.engine.connect() as connection:
        _, _, columns = packing.copy(
            connection, frame.fillna({"of": decimal.Decimal(1)}), "some", "label", temporary=True
        )
    assert columns == ["id", "of"]
    assert [str(w.message) for w in told] == [
        "not used as features, because they have no numbers: 'name', 'z', 'when'",
        "used as features, because they have numbers: 'id'; features=[...] excludes them",
    ]


def test_a_file_is_read_as_it_is_written_or_not_at_all(db, s, tmp_path):
    def stored(text, encoding="utf-8"):
        (tmp_path / "rows.CSV").write_bytes(text.encode(encoding))
        s.pack(tmp_path / "rows.CSV", "of_file", label="label", replace=True)
        return [row["label"] for row in db.run("SELECT label FROM of_file ORDER BY id")]

    assert stored("a,label\n1,NA\n2,null\n3,\n4,NA\n") == ["NA", "null", None, "NA"]
    assert stored("a,label\n1,01\n2,1\n") == ["01", "1"]
    assert stored("a,label\n1,1\n2,\n3,2\n") == [1, None, 2]
    assert stored("a,label\n1,1.5\n2,\n3,2\n") == [1.5, None, 2.0]
    assert stored("a,label\n1,True\n2,false\n") == [True, False]
    assert stored("a,b,label\n1,2,0,\n3,4,1,\n") == [0, 1]  # (an empty field at the end of each line)
    assert db.value("SELECT features FROM of_file WHERE id = 1") == [3.0, 4.0]
    for text, encoding, message in (
        ("a,b,label\n1,2,0,9\n3,4,1,8\n", "utf-8", "Length of header"),
        ("a,label\n1,2\n3,4,5\n", "utf-8", "Expected 2 fields in line 3"),
        ("", "utf-8", "No columns"),
    ):
        with pytest.raises(ClientError, match=f"rows.CSV' cannot be read: .*{message}"):
            stored(text, encoding)
    with pytest.raises(ClientError, match="rows.CSV' is not UTF-8: .*\nHINT: pack\\(pandas.read_csv"):
        stored("a,label\n1,\xe9\n", "latin-1")
    with pytest.raises(ClientError, match="has one column, 'a;label'\nHINT: .*sep=';'"):
        stored("a;label\n1;2\n")
    assert stored(f"a,label\n1,{10**23}\n2,\n") == [str(10**23), None]
    assert stored(f"a,label\n1,{2**53 + 1}\n2,\n") == [2**53 + 1, None]
    with pytest.raises(ClientError, match="has '1' as a number and as a text"):
        s.pack(pandas.DataFrame({"a": [1.0, 2.0], "label": [1, "1"]}), "never", label="label")


@pytest.mark.parametrize("odd,told", [(float("inf"), "an infinity"), (-1e39, "-1e\\+39, beyond real")])
def test_what_no_real_can_hold_is_told_by_column_and_row(db, s, odd, told):
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [1.0, odd], "label": [0, 1]})
    with pytest.raises(ClientError, match=f"column 'b' has {told} in row 1\nHINT: replace"):
        s.pack(frame, "odd", label="label")
    assert db.value("SELECT to_regclass('odd') IS NULL")


def test_a_table_of_that_name_in_another_schema_is_none_of_packs(db, s):
    frame = pandas.DataFrame({"a": [1.0, 2.0], "label": [0, 1]})
    db.run("CREATE SCHEMA mine; CREATE TABLE public.elsewhere (x integer)")
    s.calls.execute("SET search_path = mine, public", {})
    try:
        assert s.pack(frame, "elsewhere", label="label", replace=True) == "elsewhere_packed"
        with pytest.raises(ClientError, match='table "mine"."elsewhere" already exists'):
            s.pack(frame, "elsewhere", label="label")
    finally:
        s.calls.execute("RESET search_path", {})
    assert db.value("SELECT count(*) FROM mine.elsewhere") == 2
    assert db.run("SELECT x FROM public.elsewhere") == []
    db.run("DROP SCHEMA mine CASCADE; DROP TABLE public.elsewhere")


def test_a_table_that_is_there_is_replaced_where_that_is_asked_for(db, s):
    frame = pandas.DataFrame({"a": [1.0, 2.0], "label": [0, 1]})
    s.pack(frame, "twice", label="label")
    s.calls.execute("DROP TABLE twice", {})
    with pytest.raises(
        ClientError, match='table "public"."twice_packed" already exists\nHINT: pack\\(..., replace=True\\)'
    ):
        s.pack(frame, "twice", label="label")
    assert db.value("SELECT to_regclass('twice') IS NULL")
    s.pack(frame[:1], "twice", label="label", replace=True)
    assert db.value("SELECT count(*) FROM twice") == 1
    kept = db.run("SELECT oid FROM pg_class WHERE relname LIKE 'twice%' ORDER BY 1")
    for data, given, error in (
        ("typo.csv", {"label": "a"}, ClientError),
        (frame, {"label": "no"}, ClientError),
        (frame, {"label": "label", "bufer_size": 3}, TypeError),
        (frame, {"label": "label", "source_table": "other"}, ClientError),
        (frame, {"label": "label", "buffer_size": -3}, ServerError),
    ):
        with pytest.raises(error):
            s.pack(data, "twice", replace=True, **given)
        assert db.run("SELECT oid FROM pg_class WHERE relname LIKE 'twice%' ORDER BY 1") == kept


def test_columns_are_taken_by_name_from_whatever_comes_later(db, s):
    """Rows to validate, and rows to predict for; not where other columns have been packed since."""
    source = numpy.random.default_rng(5)
    frame = pandas.DataFrame({"a": source.normal(size=200), "b": source.normal(size=200) * 9})
    frame["label"] = (frame.a > 0).astype(int)
    mixed = frame[["b", "label", "a"]]
    train = s.pack(frame, "named", label="label", replace=True)
    val = s.pack(mixed, "named_val", label="label", validation_of=train, replace=True)
    assert [row["features"] for row in db.run("SELECT features FROM named_val ORDER BY id")] == [
        row["features"] for row in db.run("SELECT features FROM named ORDER BY id")
    ]
    with pytest.raises(ClientError, match="there is no column 'b'"):
        s.pack(frame[["a", "label"]], "never", label="label", validation_of=train)
    load(db, "of_two", sequential("two", [2], layer("Dense", units=2, activation="softmax")))
    s.load_model_selection_table(
        "of_two",
        "two_mst",
        [1],
        ["loss='categorical_crossentropy', optimizer='Adam(lr=0.1)', metrics=['accuracy']"],
        ["batch_size=10"],
    )
    run = s.fit_multiple(train, "two_models", "two_mst", 10, val)
    right = (run.predict(mixed) == frame.label).mean()
    assert right > 0.9 and run.best()["validation accuracy"] == pytest.approx(right, abs=0.01)
    assert (run.predict(frame[["a", "b"]].to_numpy()) == run.predict(mixed).to_numpy()).all()
    ranks = run.predict(mixed, pred_type=1)
    assert len(ranks) == 200 and set(ranks["rank"]) == {1}
    assert len(run.predict(mixed, pred_type=2)) == 400
    s.pack(mixed, "named", label="label", replace=True)
    with pytest.raises(ClientError, match="which columns were packed is not known"):
        run.predict(mixed)


def test_numbers_are_predicted_as_numbers_and_classes_as_what_they_are(db, s):
    x = numpy.random.default_rng(1).normal(size=(120, 2))
    rows = pandas.DataFrame(x, columns=["a", "b"])
    load(db, "of_one", sequential("one", [2], layer("Dense", units=1)))
    s.load_model_selection_table(
        "of_one", "one_mst", [1], ["loss='mse', optimizer='Adam(lr=0.1)', metrics=['mae']"], ["batch_size=10"]
    )
    packed = s.pack(rows.assign(y=2 * rows.a + 1), "numbers", label="y", dependent_dtype="float32")
    run = s.fit_multiple(packed, "one_models", "one_mst", 15)
    assert abs(run.predict(rows) - (2 * rows.a + 1)).mean() == pytest.approx(run.best()["training mae"], rel=1e-3)
    load(db, "of_both", sequential("both", [2], layer("Dense", units=2)))
    s.load_model_selection_table(
        "of_both", "both_mst", [1], ["loss='mse', optimizer='Adam(lr=0.1)', metrics=['mae']"], ["batch_size=10"]
    )
    packed = s.pack((x, numpy.stack([x[:, 0], -x[:, 1]], 1)), "pairs", dependent_dtype="float32")
    found = s.fit_multiple(packed, "both_models", "both_mst", 15).predict(x)
    assert found.shape == (120, 2) and abs(found.to_numpy() - [1, -1] * x).mean() < 0.2
    load(db, "kinds", sequential("kinds", [2], layer("Dense", units=2, activation="softmax")))
    s.load_model_selection_table(
        "kinds",
        "kinds_mst",
        [1],
        ["loss='categorical_crossentropy', optimizer='Adam(lr=0.1)', metrics=['accuracy']"],
        ["batch_size=10"],
    )
    for number, (low, high, kind) in enumerate(
        ((None, "p", "str"), (0.5, 1.5, "float64"), ([1.0, 0.0], [0.0, 1.0], "int64"))
    ):
        actual = pandas.Series([high if a > 0 else low for a in rows.a])
        packed = s.pack(rows.assign(y=actual), "of_kind", label="y", replace=True)
        found = s.fit_multiple(packed, f"kind_{number}", "kinds_mst", 10).predict(rows[rows.a < -0.5])
        if low is None:
            assert found.isna().all()
        else:
            assert found.dtype == kind and (found == (0 if isinstance(low, list) else low)).all()


def test_a_connection_that_is_lost_in_packing_leaves_all_as_it_was(db, s, monkeypatch):
    """Nothing goes on in a new session, where each statement would be committed."""
    frame = pandas.DataFrame({"a": [1.0, 2.0], "label": [0, 1]})
    s.pack(frame, "base", label="label")
    s.pack(frame, "kept", label="label", validation_of="base_packed")
    kept = db.run("SELECT oid FROM pg_class WHERE relname LIKE 'kept%' ORDER BY 1")
    pid = "SELECT pg_backend_pid()"
    for name in ("_clear_names", "_features_of"):
        own = getattr(Selection, name)

        def lost(self, *given, own=own):
            db.run("SELECT pg_terminate_backend(%s, 5000)", [self.calls.execute(pid, {}).scalar()])
            return own(self, *given)

        monkeypatch.setattr(Selection, name, lost)
        with pytest.raises(LostError):
            s.pack(frame, "kept", label="label", replace=True, validation_of="base_packed")
        monkeypatch.setattr(Selection, name, own)
        assert db.run("SELECT oid FROM pg_class WHERE relname LIKE 'kept%' ORDER BY 1") == kept
        assert s.calls.execute(pid, {}).scalar()


def test_what_cannot_be_packed_is_said(s, tmp_path):
    frame = pandas.DataFrame({"a": [1.0], "word": ["x"], "v": [[1.0, 2.0]]})
    word, ones, masked = {"label": "word", "features": "a"}, numpy.ones((3, 2)), numpy.ma.masked_equal([1.0, 2.0], 2)
    for data, given, message in (
        (frame, {}, "label=... is missing"),
        (frame, {"label": "no", "features": "a"}, "there is no column 'no' for the label"),
        (frame, {"label": "word", "features": ["a", "b"]}, "there is no column 'b'"),
        (frame, {"label": "a", "features": "word"}, "column 'word' has no numbers"),
        (frame, {"label": "word"}, "column 'v' has arrays"),
        (frame, {"label": "a", "features": ["a"]}, "column 'a' is named twice"),
        (frame, {"label": "a", "validation_of": "never_packed", "replace": True}, "cannot validate itself"),
        ({"a": [1]}, {"label": "a"}, "rows are a DataFrame, a pair of arrays (x, y) or a path, not dict"),
        (frame.assign(word=b"a"), word, "a class is bytes, b'a'"),
        (frame.assign(word="a\0b"), word, r"a class has a NUL character, 'a\x00b'"),
        (frame.assign(word=2**70), word, "integers of more than 64 bits"),
        (frame.assign(word=pandas.Series(["a\ud800b"], dtype=object)), word, r"half of a character"),
        ((numpy.array(1), numpy.array(2)), {}, "x is not an array of rows"),
        (([[1.0]], [1]), {"label": "no"}, "there is no column 'no' for the label"),
        (frame.head(0), {"label": "a"}, "there are no rows"),
        ((numpy.ma.masked_array(ones, mask=numpy.eye(3, 2) > 0), numpy.arange(3)), {}, "x has masked values"),
        (([masked] * 3, [0, 1, 2]), {}, "x has masked values"),
        ((ones, numpy.ma.masked_equal([1, 2, 3], 2)), {}, "y has masked values"),
        (pandas.DataFrame({"a": [[1, 2], masked], "b": [0, 1]}), {"label": "b"}, "masked values in row 1"),
        (pandas.DataFrame({"a": [1.0, 2.0], "word": [masked] * 2}), word, "a class has masked values"),
        ((ones * 1j, numpy.arange(3)), {}, "column 'x' has no array of numbers in its first rows"),
        ((numpy.zeros((3, 2), "M8[s]"), numpy.arange(3)), {}, "column 'x' has no array of numbers"),
        (
            pandas.DataFrame({"a": [0.5, 1e-50], "c": 1.0, "b": [0, 1]}),
            {"label": "b"},
            "1e-50, too small for real in row 1",
        ),
        ((numpy.array([[1.0, -1e-46]]), [0]), {}, "column 'x' has -1e-46, too small for real in row 0"),
        ((numpy.array([[1.0, 2.0], [1e39, 1.0]]), [0, 1]), {}, "column 'x' has 1e+39, beyond real in row 1"),
        ("nowhere.csv", {"label": "a"}, "there is no file 'nowhere.csv'\nHINT: The current directory is"),
        (([1], [1, 2]), {}, "x has 1 rows and y 2"),
    ):
        with pytest.raises(ClientError, match=re.escape(message)):
            s.pack(data, "never", **given)
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(ClientError, match="is neither a .csv, .parquet or .npz file nor a folder"):
        s.pack(tmp_path / "rows.txt", "never", label="a")


def test_the_least_and_the_largest_numbers_of_real_are_packed(db, s):
    numbers = [1.4e-45, -1.4e-45, 8e-46, 0.0, -0.0, 3.4028234e38, -3.4028234e38]
    assert all(numpy.isfinite(numpy.float32(n)) and (n == 0 or numpy.float32(n) != 0) for n in numbers)
    s.pack(pandas.DataFrame({"a": numbers, "b": 0.5, "y": [0, 1] * 3 + [0]}), "extremes", "y", features=["a", "b"])
    kept = [r["a"] for r in db.run("SELECT features[1]::float8 AS a FROM extremes ORDER BY id")]
    assert numpy.array(kept, "f4").tolist() == numpy.array(numbers, "f4").tolist()
    x = numpy.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=False)  # nothing is hidden
    s.pack((x, [0, 1]), "unmasked")
    assert [r["x"] for r in db.run("SELECT x FROM unmasked ORDER BY id")] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "kind", ["list_(float32)", "large_list(float64)", "list_(float32,2)", "fixed_shape_tensor(float32,[2])"]
)
def test_arrow_s_lists_are_arrays(db, s, kind):
    arrow = pytest.importorskip("pyarrow", reason="not run: Arrow's lists need pyarrow")
    name, _, given = kind.rstrip(")").partition("(")
    of, *size = given.split(",")
    of = getattr(arrow, of)()
    made = getattr(arrow, name)(of, *(json.loads(n) for n in size))
    column = pandas.array([[1.0, 2.0], [3.0, 4.5]] * 6, dtype=pandas.ArrowDtype(made))
    table = f"arrow_{name}_{len(size)}"
    s.pack(pandas.DataFrame({"v": column, "y": pandas.array([0, 1] * 6, dtype="int64[pyarrow]")}), table, "y")
    assert [r["v"] for r in db.run(f"SELECT v FROM {table} ORDER BY id")] == [[1.0, 2.0], [3.0, 4.5]] * 6


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
    load(
        db,
        "seeing",
        sequential(
            "seeing",
            [8, 6, 3],
            layer("Flatten", name="flat"),
            layer("Dense", name="out", units=2, activation="softmax"),
        ),
    )
    s.load_model_selection_table(
        "seeing",
        "seeing_mst",
        [1],
        ["loss='categorical_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy']"],
        ["batch_size=4"],
    )
    run = s.fit_multiple(packed, "seen", "seeing_mst", 5)
    found = run.predict(tmp_path / "pictures")
    assert list(found.index) == sorted(written) and found.name == "label"
    assert (found == [path.split("/")[0] for path in sorted(written)]).mean() > 0.9
    s.pack(tmp_path / "pictures", "small_grey", size=(4, 5), mode="L")
    assert {numpy.array(r["pixels"]).shape for r in db.run("SELECT pixels FROM small_grey")} == {(4, 5, 1)}


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tiff"])
def test_a_picture_of_several_frames_is_refused(db, s, tmp_path, kind):
    from PIL import Image

    (tmp_path / "a").mkdir()
    frames = [Image.new("RGB", (5, 4), (grey,) * 3) for grey in (10, 200, 90)]
    frames[0].save(tmp_path / "a" / f"1.{kind}", save_all=True, append_images=frames[1:])
    with pytest.raises(ClientError, match=f"1.{kind}' has 3 frames, but a row holds one frame"):
        s.pack(tmp_path, "never")
    frames[0].save(tmp_path / "a" / f"1.{kind}", **({"lossless": True} if kind == "webp" else {}))
    Image.new("P", (5, 4)).save(tmp_path / "a" / "2.png")
    s.pack(tmp_path, f"one_{kind}", replace=True)
    assert db.value(f"SELECT pixels[1][1][1] FROM one_{kind} ORDER BY id LIMIT 1") == 10


def test_what_is_wrong_with_pictures_is_said(s, tmp_path):
    from PIL import Image

    folder = tmp_path / "bad"
    write_pictures(folder, numpy.random.default_rng(1), each=2)
    for given, message in (
        ({"mode": "CMYK"}, "mode must be one of"),
        ({"size": (3,)}, "size must be (height, width)"),
        ({"size": 28}, "size must be (height, width)"),
    ):
        with pytest.raises(ClientError, match=re.escape(message)):
            s.pack(folder, "never", **given)
    write_pictures(folder / "light", numpy.random.default_rng(1), size=(5, 5), each=1)
    with pytest.raises(ClientError, match=r"has 5 x 5 pixels, the pictures before it 8 x 6[^$]*size=\(8, 6\)"):
        s.pack(folder, "never")
    (folder / "notes.txt").write_text("x")
    with pytest.raises(ClientError, match="notes.txt' is in no folder of a class"):
        s.pack(folder, "never")
    (folder / "notes.txt").rename(folder / "dark" / "aaa.png")
    with pytest.raises(ClientError, match="aaa.png' cannot be read as a picture"):
        s.pack(folder, "never", size=(4, 4))
    (folder / "dark" / "aaa.png").unlink()
    Image.fromarray(numpy.arange(0, 48_000, 1000, dtype="uint16").reshape(8, 6)).save(folder / "dark" / "deep.png")
    with pytest.raises(ClientError, match="deep.png' has more than 8 bits a channel"):
        s.pack(folder, "never", size=(4, 4))
    (folder / "dark" / "deep.png").unlink()
    (folder / "linked").symlink_to(folder / "light", target_is_directory=True)
    with pytest.raises(ClientError, match="linked' is a link to a folder"):
        s.pack(folder, "never", size=(4, 4))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ClientError, match="there are no pictures"):
        s.pack(tmp_path / "empty", "never")
    with pytest.raises(ClientError, match="size is for a folder of pictures"):
        s.pack(pandas.DataFrame({"a": [1.0], "b": [1]}), "never", "b", size=(4, 4))
    assert s.query("SELECT to_regclass('never') IS NULL AS gone").gone[0]

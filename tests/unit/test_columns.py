"""Column types, without a server: what a value becomes on its way into a buffer, a model, and a prediction."""

from dataclasses import dataclass

import numpy as np
import pytest

from pg_mop import columns
from pg_mop.backend.errors import MopError
from pg_mop.backend.sql_types import Kind
from pg_mop.columns import Column, Identity, OneHot, Request, Scale, SourceColumn, TargetNumber, Transform, madlib
from pg_mop.columns.weight import Weight
from pg_mop.packing.buffers import Buffers
from pg_mop.packing.source_columns import _type_like
from support.conformance import ColumnConformance
from support.conformance.columns import doubles, wire


@dataclass
class Angle(Column):
    """A toy type: an angle as its sine and cosine, decoded to an angle again."""

    type_name = "angle"

    @classmethod
    def fit(cls, source, request):
        return cls(source.name, {"shape": [2], "turn": 360})

    def wire_sql(self, value):
        return f"{value}::float8"

    def encode(self, values):
        angles = np.array(values, "f8") * (2 * np.pi / self.parameters["turn"])
        rows = np.stack([np.sin(angles), np.cos(angles)], 1).astype(self.dtype)
        return rows if np.isfinite(rows).all() else None

    def decode(self, outputs):
        angles = np.arctan2(outputs[:, :1], outputs[:, 1:]) / (2 * np.pi) * self.parameters["turn"]
        return self.labels(1), angles % self.parameters["turn"]


NUMBER = Kind(
    {"oid": 23, "shown": "integer", "sql": "integer", "typtype": "b", "has_array": True, "collatable": False}
    | {"element": None, "typelem": 0}
)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(columns, "DEPENDENT", [Angle, *columns.DEPENDENT])


def in_buffers(transform, wires, size):
    """The wires of each column, packed into buffers of `size` rows: [(rows, bytes of each column), ...]."""
    gathered = Buffers(size, len(transform.columns))
    arrays = [column.encode(values) for column, values in zip(transform.columns, wires)]
    return [*gathered.add(arrays), *([gathered.take()] if gathered.rows else [])]


class TestColumns(ColumnConformance):
    """A new column type is an entry of COLUMN_CASES in tests/support/conformance/columns.py."""


def test_a_new_column_type_goes_from_raw_values_to_predictions(registered):
    source = SourceColumn(None, None, "heading", None)
    column_type = columns.type_of(source, Request(), columns.DEPENDENT)
    transform = Transform([Scale("x", {"constant": 4.0, "shape": [2]})], [column_type.fit(source, Request())])
    angles = [0.0, 90.0, 359.0]
    buffers = in_buffers(transform, [[wire([i, 4.0]) for i in range(3)], angles], 2)
    assert [rows for rows, _ in buffers] == [2, 1]

    stored = columns.transform_from_json(transform.to_json())  # another session reads the packed table
    assert stored == transform and stored.dtypes == ["<f4", "<f4"]
    assert stored.wanted_outputs("t", [[2]]) == {"widths": [2], "what": "numbers", "table": "t"}
    x, y = (
        np.frombuffer(b"".join(values[i] for _, values in buffers), column.dtype).reshape(-1, *column.shape)
        for i, column in enumerate(stored.columns)
    )
    assert x.tolist() == [[0, 1], [0.25, 1], [0.5, 1]]
    labels, decoded = stored.outputs[0].decode(y.astype("f8"))
    assert labels == [None] and decoded.ravel() == pytest.approx(angles, abs=1e-3)
    assert stored.outputs[0].encode([float("nan")]) is None


def test_a_new_column_type_is_stored_in_the_summary(registered):
    transform = Transform([Scale("x", {"constant": 1.0})], [Angle("heading", {"shape": [2], "turn": 400})])
    (dtype, entry) = madlib.extra(transform)
    assert (dtype.value, entry.name) == ("float32", "__transform__")
    summary = {entry.name: entry.value, "independent_varname": ["x"], "dependent_varname": ["heading"]}
    assert madlib.read(None, None, summary) == transform


def test_a_new_column_type_matches_validation_rows_to_those_of_training():
    source, trained = SourceColumn(None, None, "h", None), Angle("heading", {"shape": [2], "turn": 400})
    assert Angle.fit_like(source, Request(), trained, None) == Angle("h", {"shape": [2], "turn": 400})
    with pytest.raises(MopError, match='"h" would be packed as angle, but training column "y" is packed as identity'):
        Angle.fit_like(source, Request(), Identity("y", {"dtype": "int16"}), None)


def test_validation_rows_have_the_type_of_the_training_column_though_no_request_names_it(registered):
    """The summary of the training table, not the arguments of the second preprocessor, tells the type."""

    class OnRequest(Angle):
        type_name = "on_request"

        @classmethod
        def accepts(cls, kind, request):
            return request.dependent_dtype == "angle"

    source, trained = SourceColumn(None, None, "h", NUMBER), OnRequest("heading", {"shape": [2], "turn": 400})
    found = _type_like(trained, source, Request(), [OnRequest, *columns.DEPENDENT])
    assert found is OnRequest and found.fit_like(source, Request(), trained, None).parameters["turn"] == 400
    chosen_anew = _type_like(Identity("y", {}), source, Request(), [OneHot])
    assert chosen_anew is OneHot, "of MADlib's types the source decides, and fit_like compares"


def test_an_unknown_type_is_named():
    with pytest.raises(MopError, match='no column type "odd"'):
        columns.from_json({"type": "odd", "name": "x", "parameters": {}})


def test_scale_multiplies_when_packing_and_divides_when_predicting():
    column = Scale("x", {"constant": 3.0, "shape": [1, 2]})
    values = np.array([[[1, 7]], [[2, -5]]], "f4")
    wires = [wire(v) for v in values]
    assert column.encode(wires).tobytes() == (values * np.float32(1 / 3)).tobytes()
    assert column.encode_for_prediction(wires).tobytes() == (values / np.float32(3)).tobytes()
    assert column.encode_for_prediction(wires).shape == (2, 1, 2)


def test_scale_packs_no_number_that_is_not_finite_but_predicts_with_it():
    column = Scale("x", {"constant": None, "shape": [1]})
    wires = [wire([np.nan]), wire([np.inf])]
    assert column.encode(wires) is None
    assert np.array_equal(column.encode_for_prediction(wires), [[np.nan], [np.inf]], equal_nan=True)


def test_identity_packs_whole_numbers_as_int16_and_all_others_as_float32():
    labels = Identity("y", {"dtype": "int16", "shape": [2]})
    assert (labels.wire, labels.element, labels.dtype) == ("double precision", "smallint", "<i2")
    assert labels.encode([wire([0, 1], ">f8")]).tobytes() == np.array([0, 1], "<i2").tobytes()
    assert labels.encode([wire([0, 0.5], ">f8")]) is None
    targets = Identity("y", {"dtype": "float32", "shape": [1], "scalar": True})
    assert targets.wire_sql("q.y") == "pg_catalog.array_send(ARRAY[q.y]::real[])"
    assert targets.encode([wire([0.5])]).tolist() == [[0.5]] and targets.encode([wire([np.inf])]) is None


def test_one_hot_packs_codes_and_refuses_labels_without_a_class():
    column = OneHot("y", {"classes": [None, "a", "b", None]})
    assert column.encode([1, 0]).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert column.encode([1, -1]) is None
    assert (column.null_code, column.shape, column.packed_bytes) == (0, [4], 8)


@pytest.mark.parametrize(
    "column,width,labels",
    [
        (OneHot("y", {"classes": ["a", "b"]}), 3, ["a", "b", None]),
        (OneHot("y", {"classes": ["a", "b", "c"]}), 1, ["a"]),
        (OneHot("y", {"classes": [None]}), 3, ["0", "1", "2"]),  # MADlib's, of labels that are vectors
        (Identity("y", {"dtype": "int16"}), 2, ["0", "1"]),
        (Identity("y", {"dtype": "float32"}), 1, [None]),
    ],
)
def test_outputs_are_decoded_to_the_user_s_terms(column, width, labels):
    outputs = np.arange(2.0 * width).reshape(2, width)
    assert column.decode(outputs)[0] == labels and (column.decode(outputs)[1] == outputs).all()


def test_one_unit_is_the_probability_of_the_second_of_two_classes():
    labels, numbers = OneHot("y", {"classes": ["a", "b"]}).decode(np.array([[0.25], [1.0]]))
    assert labels == ["a", "b"] and numbers.tolist() == [[0.75, 0.25], [0.0, 1.0]]


def test_what_an_exported_model_needs_is_a_layer_s_config():
    assert Scale("x", {"constant": 255.0}).to_keras() == {
        "class_name": "Rescaling",
        "config": {"scale": 1 / 255, "offset": 0.0},
    }
    assert Scale("x", {"constant": 1.0}).to_keras() is None and Identity("y", {"dtype": "int16"}).to_keras() is None
    config = OneHot("y", {"classes": [None, "NULL", "b", None]}).to_keras()["config"]
    assert (config["vocabulary"], config["mask_token"]) == (["NULL", "b"], "[NULL]")


# --- MADlib's summaries ---------------------------------------------------------------------------------


class Summaries:
    """A database that answers the one question of the reader, for the class values as text."""

    def __init__(self, *classes):
        self.classes = classes

    def one(self, sql):
        return {f"c{i}": values for i, values in enumerate(self.classes)}


SUMMARY = {
    "independent_varname": ["x"],
    "dependent_varname": ["y", "z"],
    "dependent_vartype": ["integer", "integer[]"],
    "y_class_values": [1, 2],
    "z_class_values": None,
    "normalizing_const": 255.0,
}


def test_the_reader_finds_the_column_types():
    transform = madlib.read(Summaries(["1", "2"]), "t", SUMMARY)
    assert transform == Transform(
        [Scale("x", {"constant": 255.0})],
        [
            OneHot("y", {"classes": ["1", "2"], "sql_type": "integer"}),
            Identity("z", {"dtype": "int16", "sql_type": "integer[]"}),
        ],
    )
    assert transform.dtypes == ["<f4", "<i2", "<i2"] and not transform.is_regression


def test_the_writer_writes_what_the_reader_has_read():
    transform = madlib.read(Summaries(["1", "2"]), "t", SUMMARY)
    entries = [*madlib.names(transform), *madlib.of_model(transform), *madlib.extra(transform)]
    assert {entry.name: entry.value for entry in entries} == {name: SUMMARY[name] for name in madlib.REQUIRED}
    assert madlib.extra(madlib.read(None, "t", {**SUMMARY, "y_class_values": None, "dependent_dtype": "float32"})) == [
        ("dependent_dtype", "text", "float32")
    ]


def test_the_digest_of_a_summary_is_that_of_earlier_versions():
    transform = madlib.read(Summaries(["1", "2"]), "t", SUMMARY)
    assert madlib.digest(transform, SUMMARY) == "2605e93fd810db8a3cdc295705811642"


@pytest.mark.parametrize(
    "change,difference",
    [
        ({}, None),
        ({"dependent_dtype": "float32"}, "dependent_dtype int16, not float32"),
        ({"normalizing_const": 5.0}, "normalizing_const 255, not 5"),
        ({"normalizing_const": None}, None),
        ({"dependent_varname": ["z", "y"]}, "dependent_varname y, z, not z, y"),
        ({"y_class_values": None}, None),
    ],
)
def test_differences_are_told_and_unknowns_are_none(change, difference):
    own, other = (madlib.read(Summaries(["1", "2"]), "t", s) for s in (SUMMARY, {**SUMMARY, **change}))
    assert own.difference(other) == difference


def test_other_classes_are_a_difference():
    own, other = (Transform([], [OneHot("y", {"classes": c})]) for c in ([None, "a"], [str(i) for i in range(9)]))
    assert own.difference(other) == 'for "y" the classes {NULL, a}, not {0, 1, 2, 3, 4, 5, 6, 7, ...}'


# --- sample weights -------------------------------------------------------------------------------------


def test_sample_weights_are_the_last_packed_column():
    weight = Weight("w", {"shape": [1], "scalar": True, "sql_type": "real"})
    transform = Transform([Scale("x", {"constant": 1.0})], [OneHot("y", {"classes": ["a", "b"]})], weight)
    assert [column.name for column in transform.columns] == ["x", "y", "w"] and transform.dtypes == [
        "<f4",
        "<i2",
        "<f4",
    ]
    assert weight.wire_sql("v") == "pg_catalog.array_send(ARRAY[v]::real[])"
    assert weight.encode([wire([0.5]), wire([0])]).tolist() == [[0.5], [0.0]]
    assert not transform.is_regression and columns.transform_from_json(transform.to_json()) == transform
    assert "weight" not in Transform(transform.inputs, transform.outputs).to_json()
    # MADlib's summary has no place for them
    assert [entry.name for entry in madlib.extra(transform)] == [madlib.TRANSFORM]


def test_weights_differ_by_their_presence_alone():
    inputs, outputs = [Scale("x", {"constant": 1.0})], [OneHot("y", {"classes": ["a", "b"]})]
    plain, first, second = (
        Transform(inputs, outputs, weight) for weight in (None, Weight("v"), Weight("w", {"sql_type": "real"}))
    )
    assert first.difference(second) is None
    assert plain.difference(first) == "no sample weights, not those of v"
    assert first.difference(plain) == "sample weights, v, not none"


@pytest.mark.parametrize("kind,negative,text", [("text", 0, "which is no number"), ("real", 2, "below 0 in 2 rows")])
def test_what_cannot_be_a_sample_weight_is_refused(kind, negative, text):
    class Negatives:
        def value(self, sql):
            return negative

    of_kind = Kind(
        {"oid": 1, "shown": kind, "sql": kind, "typtype": "b", "has_array": True, "collatable": False}
        | {"element": None, "typelem": 0}
    )
    with pytest.raises(MopError, match=text):
        Weight.fit(SourceColumn(Negatives(), "t", "w", of_kind), Request())


def test_predictions_stay_near_the_training_range_and_keep_its_sign():
    outputs, scale = np.array([[-19.0], [0.5], [19.0]]), {"mean": 10.0, "deviation": 2.0, "shape": [1]}
    for least, most, limits in (
        (4.0, 14.0, (3, 15)),
        (-5.0, 15.0, (-7, 17)),
        (0.0, 20.0, (0, 22)),
        (-9.0, 0.0, (-9.9, 0)),
    ):
        column = TargetNumber("y", {**scale, "least": least, "most": most})
        assert column.decode(outputs)[1][:, 0].tolist() == [limits[0], min(11, limits[1]), limits[1]]
        assert column.to_keras()["limits"] == limits
    assert TargetNumber("y", scale).decode(outputs)[1][:, 0].tolist() == [-28, 11, 48]


def test_a_target_of_logarithms_is_turned_back():
    column = TargetNumber("y", {"mean": 3.0, "deviation": 2.0, "shape": [1], "scale": "log", "least": 0.0, "most": 1e4})
    numbers = np.array([0.0, 1e-3, 7.5, 9e3])
    packed = column.encode(doubles(*[[n] for n in numbers]))
    assert np.allclose(packed[:, 0], (np.log1p(numbers) - 3) / 2)
    assert np.allclose(column.decode(packed.astype("f8"))[1][:, 0], numbers, rtol=1e-5, atol=1e-6)
    assert column.decode(np.array([[-99.0], [1e9]]))[1][:, 0].tolist() == [0, 1.1e4]
    assert column.difference(TargetNumber("y", {"mean": 3.0, "deviation": 2.0, "shape": [1]})) is not None

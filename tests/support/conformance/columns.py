"""Tests of every column type (columns/base.py) and of every kind of feature (columns/features/base.py)."""

import json
import math
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pg_mop import columns
from pg_mop.backend.errors import MopError
from pg_mop.columns import Column, Features, Identity, Image, OneHot, Scale, Series, SoftLabels, TargetNumber, Words
from pg_mop.columns.base import WIRE_BYTES
from pg_mop.columns.features import FEATURES, Source, Statistics, feature_from_json
from pg_mop.columns.features.category import CodedCategory, OneHotCategory
from pg_mop.columns.features.moment import DAY, Moment
from pg_mop.columns.features.number import Boolean, Number
from pg_mop.columns.weight import Weight
from support.conformance.base import Conformance

NAN = math.nan


def wire(array, dtype=">f4"):
    """An array as array_send writes it."""
    array = np.asarray(array, dtype)
    head = struct.pack(">iii", array.ndim, 0, 700) + b"".join(struct.pack(">ii", d, 1) for d in array.shape)
    return head + b"".join(struct.pack(">i", array.itemsize) + np.array(v, dtype).tobytes() for v in array.ravel())


def doubles(*rows):
    return [wire(row, ">f8") for row in rows]


class Pixels:
    """In place of a trainer that decodes: each file is its pixels."""

    def request(self, header, files):
        return {}, [files]


@dataclass
class Packed:
    """A fitted column, the wires of some rows for each of its parts, and wires that it cannot pack."""

    column: Column
    parts: list[list[Any]]
    refused: list[Any] | None = None
    outputs: int = 0  # units of a model that predicts the column


@dataclass
class Fitted:
    """The arguments of a feature's `fit`, and the wires of some rows."""

    source: Source
    statistics: Statistics
    wires: Any


def fitted(kind):
    case = FEATURE_CASES[kind]
    return kind.fit(case.source, case.statistics)


VALUES = (("a", 5), ("b", 3))
FEATURE_CASES = {
    Number: Fitted(
        Source("x", "x", "double precision"),
        Statistics(4, 1, 3.0, 1.6, 1.0, 5.0, sample=(1.0, 3.0, NAN, 5.0)),
        np.array([3.0, NAN, 1e300, -np.inf]),
    ),
    Boolean: Fitted(Source("b", "b", "boolean"), Statistics(4, 1, 0.5), np.array([1.0, 0.0, NAN])),
    OneHotCategory: Fitted(
        Source("c", "c", "text"), Statistics(10, 2, values=VALUES, distinct=2), ["b", None, "new", "a"]
    ),
    CodedCategory: Fitted(
        Source("k", "k", "text"), Statistics(8, 0, values=VALUES, distinct=2), ["b", None, "new", "a"]
    ),
    Moment: Fitted(
        Source("t", "t", "timestamp without time zone"),
        Statistics(9, 1, 500 * DAY, 100 * DAY, 0.0, 1000 * DAY, sample=tuple(DAY * k + 3600 for k in range(9))),
        np.array([0.0, 4 * DAY + 6 * 3600, NAN]),
    ),
}
SCALED = {"mean": 3.0, "deviation": 2.0, "least": 1.0, "most": 5.0, "sql_type": "real", "shape": [1]}
COLUMN_CASES = {
    Scale: Packed(
        Scale("x", {"constant": 3.0, "shape": [1, 2]}), [[wire([[1, 7]]), wire([[2, -5]])]], [wire([[np.nan, 1]])]
    ),
    Identity: Packed(Identity("y", {"dtype": "int16", "shape": [2]}), [doubles([0, 1], [1, 0])], doubles([0, 0.5]), 2),
    OneHot: Packed(OneHot("y", {"classes": [None, "a", "b", None], "sql_type": "text"}), [[1, 0]], [1, -1], 4),
    Features: Packed(
        Features.of("f", [fitted(kind) for kind in (Number, Boolean, OneHotCategory)]),
        [doubles([3.0, 1.0], [NAN, NAN]), [["b"], [None]]],
    ),
    Words: Packed(
        Words.of("w", Counter({"b": 3, "a": 3}), Counter({2: 99}), {}, column="w"),
        [["B, a!", "unknown", None, "a a a"]],
    ),
    Series: Packed(
        Series("s", {"shape": [3, 2], "means": [0.0, 1.0], "deviations": [1.0, 2.0], "dimensions": 2}),
        [[*doubles([[1, 2]], [[1, NAN]] * 5), None]],
    ),
    Image: Packed(
        Image("i", {"shape": [2, 2, 3], "bytes": 100, "sql_type": "bytea", "rows": 3, "nulls": 0}),
        [[bytes(range(12)), bytes(range(12, 24))]],
    ),
    TargetNumber: Packed(TargetNumber("n", SCALED), [doubles([5.0], [-1.0])], doubles([NAN]), 1),
    SoftLabels: Packed(
        SoftLabels("p", {"dtype": "float32", "shape": [2]}),
        [[wire([0.25, 0.75]), wire([1, 0])]],
        [wire([np.inf, 0])],
        2,
    ),
    Weight: Packed(
        Weight("w", {"shape": [1], "scalar": True, "sql_type": "real"}), [[wire([0.5]), wire([0])]], [wire([NAN])]
    ),
}


class ColumnConformance(Conformance):
    cases = COLUMN_CASES
    registered = (*columns.INDEPENDENT, *columns.DEPENDENT, *columns.OF_TABLES)
    title = staticmethod(lambda kind: kind.type_name)

    def encoded(self, kind, parts):
        column = self.cases[kind].column
        if column.needs_trainer:
            column.decoded_by(Pixels())
        return column.encode(column.values_of(parts))

    def test_it_comes_back_from_json_as_it_was(self, kind):
        column = self.cases[kind].column
        again = columns.from_json(json.loads(json.dumps(column.to_json()))) if kind in self.registered else column
        assert again == column and again.to_json()["type"] == kind.type_name
        assert [own.type_name for own in self.registered].count(kind.type_name) <= 1
        renamed = column.with_parameters("another", more=1)
        assert renamed.name == "another" and renamed.parameters == {**column.parameters, "more": 1}
        assert column.difference(again) is None

    def test_rows_are_packed_with_its_dtype_and_shape_each_for_itself(self, kind):
        column, parts = self.cases[kind].column, self.cases[kind].parts
        rows, packed = len(parts[0]), self.encoded(kind, parts)
        assert packed.dtype.str == column.dtype and column.dtype in ("<f4", "<i2")
        assert packed.size == rows * math.prod(column.shape) and packed.nbytes == rows * column.packed_bytes
        each = [self.encoded(kind, [part[at : at + 1] for part in parts]).tobytes() for at in range(rows)]
        assert b"".join(each) == packed.tobytes()
        assert column.is_numbers == (column.dtype == "<f4")

    def test_what_cannot_be_packed_is_none(self, kind):
        if (refused := self.cases[kind].refused) is not None:
            assert self.encoded(kind, [refused]) is None

    def test_a_model_takes_rows_of_its_shape(self, kind):
        column, parts = self.cases[kind].column, self.cases[kind].parts
        packed = self.encoded(kind, parts)
        rows = column.encode_for_prediction(column.values_of(parts))
        assert rows.shape == (len(parts[0]), *column.shape) and rows.dtype == packed.dtype
        assert np.allclose(rows.reshape(-1), packed.reshape(-1), rtol=1e-6)

    def test_outputs_are_decoded_to_as_many_labels_as_numbers(self, kind):
        column, width = self.cases[kind].column, self.cases[kind].outputs
        if width:
            wanted = column.wanted_output(width)
            assert wanted.width == width and wanted.kind == ("numbers" if column.is_numbers else "classes")
            labels, numbers = column.decode(np.ones((3, width)))
            assert numbers.shape == (3, len(labels)) and all(
                label is None or isinstance(label, str) for label in labels
            )
            assert column.classes is None or [*labels] == column.classes
            head = column.net_output()
            assert (head.classes or head.numbers) == width and bool(head.classes) == (kind in (OneHot, SoftLabels))

    def test_reports_know_what_belongs_to_a_column_of_the_source(self, kind):
        column = self.cases[kind].column
        assert column.described() and column.net_input().shape == tuple(column.shape)
        assert list(column.source_types()) == column.sources and all(column.source_types().values())
        row = np.arange(column.shape[-1])
        assert np.concatenate([row[place] for _, place in column.places()]).tolist() == row.tolist()

    def test_its_sql_has_an_expression_for_each_part(self, kind):
        column = self.cases[kind].column
        raw = column.raw_parts()
        assert len(raw) == len(self.cases[kind].parts) and all(raw)
        wires = column.wire_parts([f"q.part_{at}" for at in range(len(raw))])
        assert len(wires) == len(raw) and all(f"q.part_{at}" in sql for at, sql in enumerate(wires))
        assert column.wire in WIRE_BYTES and column.wire_bytes > 0 and all(column.sources)
        try:
            assert "q.part_0" in column.segment_sql("q.part_0", "mop")
        except MopError as error:
            assert f"type {kind.type_name} cannot be packed on Greenplum" in str(error)

    def test_an_exported_model_is_told_of_its_raw_values_as_json(self, kind):
        column = self.cases[kind].column
        for told in json.loads(json.dumps(column.raw_inputs())):
            assert told["name"] and told["kind"]
        layer = json.loads(json.dumps(column.to_keras()))
        assert layer is None or layer.keys() - {"limits", "log", "decision"} == {"class_name", "config"}


class FeatureConformance(Conformance):
    cases, registered = FEATURE_CASES, FEATURES
    title = staticmethod(lambda kind: kind.type_name)

    def made(self, kind, **options):
        source = self.cases[kind].source
        return kind.fit(
            Source(source.name, source.column, source.sql_type, options=options), self.cases[kind].statistics
        )

    def test_it_comes_back_from_json_as_it_was(self, kind):
        feature = self.made(kind)
        assert feature == self.made(kind), "fitting is pure"
        again = feature_from_json(json.loads(json.dumps(feature.to_json()))) if kind in self.registered else feature
        assert again == feature and again.described()
        assert (feature.column, feature.sql_type) == (self.cases[kind].source.column, self.cases[kind].source.sql_type)
        assert {"rows", "nulls"} <= set(feature.parameters)
        assert [own.type_name for own in self.registered].count(kind.type_name) <= 1

    def test_a_value_becomes_its_elements_whatever_the_other_rows_are(self, kind):
        feature, wires = self.made(kind), self.cases[kind].wires
        elements = feature.encode(wires)
        assert elements.dtype.str == "<f4" and elements.shape == (len(wires), len(feature.elements))
        assert np.isfinite(elements).all() and len(set(feature.elements)) == len(feature.elements)
        each = [feature.encode(wires[at : at + 1])[0] for at in range(len(wires))]
        assert (np.array(each) == elements).all()
        assert not feature.is_code or elements.shape[1] == 1

    def test_null_values_of_training_rows_are_told_filled_or_refused(self, kind):
        statistics = self.cases[kind].statistics
        if not statistics.nulls:
            return
        null = [None] if kind.wire == "text" else np.array([NAN])
        assert self.made(kind).elements[-1].endswith("NULL") and self.made(kind).encode(null)[0, -1] == 1
        assert np.isfinite(self.made(kind, on_null="fill").encode(null)).all()
        with pytest.raises(MopError, match=f"NULL in {statistics.nulls} of {statistics.rows} rows"):
            self.made(kind, on_null="refuse")

    def test_its_sql_is_that_of_its_source(self, kind):
        assert kind.wire in ("number", "text")
        assert self.made(kind).wire_sql() == kind.wire_of(self.cases[kind].source) and self.made(kind).wire_sql()

    def test_an_exported_model_is_told_its_parameters_as_json(self, kind):
        assert json.loads(json.dumps(self.made(kind).to_keras()))["kind"]

    def test_values_that_training_rows_did_not_have_are_told_of_texts_alone(self, kind):
        unseen = self.made(kind).unseen(self.cases[kind].wires)
        assert unseen == (["new"] if kind.wire == "text" else [])

    def test_its_values_are_counted_in_the_bins_of_training_rows(self, kind):
        feature, wires = self.made(kind), self.cases[kind].wires
        counts = feature.counts(wires)
        assert len(counts) == len(feature.trained_shares()) and 0 < counts.sum() <= len(wires)
        assert (sum(feature.counts(wires[at : at + 1]) for at in range(len(wires))) == counts).all()
        assert feature.nulls(wires) == 1
        if kind.wire == "number":
            assert feature.counts(np.array([NAN])).sum() == 0, "NULL is in no bin"

"""Many columns of an ordinary table as one packed vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.columns.base import ARRAY_HEADER, Column, Request, SourceColumn
from pg_mop.columns.features import CodedCategory, Feature, feature_from_json

if TYPE_CHECKING:
    import numpy

TEXT_BYTES = 40  # of a text in a row, to size chunks


@dataclass
class Features(Column):
    """The features of one packed column. Parameters: `features` (JSON of each), `shape`.

    A row has two wires: an array with the numbers of all number features, in binary form, with NaN for NULL; and an array
    with the texts of all others. The column does not belong to a single column of the source: `name` is free.
    """

    type_name = "features"

    @classmethod
    def of(cls, name: str, features: Sequence[Feature]) -> Features:
        """The packed column of fitted features."""
        width = sum(len(feature.elements) for feature in features)
        return cls(name, {"features": [feature.to_json() for feature in features], "shape": [width]})

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> Features:
        raise NotImplementedError("features are fitted together (columns/fitting.py)")

    @property
    def features(self) -> list[Feature]:
        if not hasattr(self, "_features"):
            self._features = [feature_from_json(data) for data in self.parameters["features"]]
        return self._features

    @property
    def numbers(self) -> list[Feature]:
        """The features whose wires are numbers."""
        return [feature for feature in self.features if feature.wire == "number"]

    @property
    def texts(self) -> list[Feature]:
        """The features whose wires are texts."""
        return [feature for feature in self.features if feature.wire == "text"]

    @property
    def elements(self) -> list[str]:
        """The names of the packed elements."""
        return [element for feature in self.features for element in feature.elements]

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(feature.column for feature in self.features))

    @property
    def wire_bytes(self) -> int:
        return ARRAY_HEADER + 12 * len(self.numbers) + TEXT_BYTES * len(self.texts)

    def raw_parts(self) -> list[str]:
        parts = []
        if self.numbers:
            sent = ", ".join(f"coalesce({feature.wire_sql()}, 'NaN')" for feature in self.numbers)
            parts.append(f"pg_catalog.array_send(ARRAY[{sent}]::double precision[])")
        if self.texts:
            parts.append(f"ARRAY[{', '.join(feature.wire_sql() for feature in self.texts)}]::text[]")
        return parts

    def wire_parts(self, values: list[str]) -> list[str]:
        return values

    def wire_sql(self, value: str) -> str:
        raise NotImplementedError("a row has several wires: see raw_parts")

    def encode(self, values: list[Any]) -> numpy.ndarray:
        return self.encode_wires(self.wires(values))

    def encode_wires(self, wires: dict[str, Any]) -> numpy.ndarray:
        """The packed rows from the wires of each feature (see `wires`)."""
        from pg_mop.columns.binary import np

        packed = np.empty((len(wires[self.features[0].name]), self.shape[0]), "<f4")
        start = 0
        for feature in self.features:
            width = len(feature.elements)
            packed[:, start : start + width] = feature.encode(wires[feature.name])
            start += width
        return packed

    def _parts(self, values: list[Any]) -> list[list[Any]]:
        return values if self.numbers and self.texts else [values]

    def wires(self, values: list[Any]) -> dict[str, Any]:
        """{feature: its wires} from the wires of many rows: float64 numbers, or a list of texts."""
        from pg_mop.columns import binary

        columns: dict[str, Any] = {}
        remaining = list(self._parts(values))
        if self.numbers:
            matrix = binary.read(remaining.pop(0), [len(self.numbers)], "double precision", self.name)
            columns.update((feature.name, matrix[:, i]) for i, feature in enumerate(self.numbers))
        if self.texts:
            columns.update(zip((feature.name for feature in self.texts), map(list, zip(*remaining[0]))))
            if not remaining[0]:
                columns.update((feature.name, []) for feature in self.texts)
        return columns

    def encode_for_prediction(self, values: list[Any]) -> numpy.ndarray:
        return self.encode(values)

    def unseen(self, wires: dict[str, Any]) -> dict[str, list[str]]:
        """{feature: values that training rows did not have}, from the wires of each feature."""
        found = {feature.name: feature.unseen(wires[feature.name]) for feature in self.texts}
        return {name: values for name, values in found.items() if values}

    def raw_inputs(self) -> list[dict[str, Any]]:
        return [{"name": feature.name, **feature.to_keras()} for feature in self.features]

    @property
    def codes(self) -> int:
        """The number of codes of all features together: the rows of their embedding table."""
        return sum(len(feature.classes) for feature in self.features if isinstance(feature, CodedCategory))

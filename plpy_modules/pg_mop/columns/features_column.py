"""Many columns of an ordinary table as one packed vector."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.columns.base import ARRAY_HEADER, Column, Request, SourceColumn
from pg_mop.columns.features import CodedCategory, Feature, feature_from_json
from pg_mop.columns.features.number import Scaled, Scaling

if TYPE_CHECKING:
    import numpy

TEXT_BYTES = 40  # of a text in a row, to size chunks


class _ScaledFeatures:
    """The scaled numbers of a packed column, which are computed together, and the places of their elements."""

    def __init__(self, placed: Sequence[tuple[int, Scaled]]) -> None:
        self.features = [feature for _, feature in placed]
        self.places = [place for place, _ in placed]
        self.with_indicator = [i for i, feature in enumerate(self.features) if feature.parameters["indicator"]]
        self.indicator_places = [self.places[i] + 1 for i in self.with_indicator]
        self.scaling = Scaling(self.features)


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

    @functools.cached_property
    def numbers(self) -> list[Feature]:
        """The features whose wires are numbers."""
        return [feature for feature in self.features if feature.wire == "number"]

    @functools.cached_property
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

        packed = np.zeros((len(wires[self.features[0].name]), self.shape[0]), "<f4")
        scaled = self._scaled
        if scaled.features:
            numbers = np.stack([wires[feature.name] for feature in scaled.features], 1)
            is_null = np.isnan(numbers)
            packed[:, scaled.places] = scaled.scaling.elements(numbers, is_null)
            packed[:, scaled.indicator_places] = is_null[:, scaled.with_indicator]
        for place, feature in self._others:
            feature.encode_into(packed, place, wires[feature.name])
        return packed

    @functools.cached_property
    def _places(self) -> list[tuple[int, Feature]]:
        """(place of the first element, feature) of each feature."""
        ends = itertools.accumulate(len(feature.elements) for feature in self.features)
        return list(zip([0, *ends], self.features))

    @functools.cached_property
    def _scaled(self) -> _ScaledFeatures:
        return _ScaledFeatures([(place, feature) for place, feature in self._places if isinstance(feature, Scaled)])

    @functools.cached_property
    def _others(self) -> list[tuple[int, Feature]]:
        return [(place, feature) for place, feature in self._places if not isinstance(feature, Scaled)]

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

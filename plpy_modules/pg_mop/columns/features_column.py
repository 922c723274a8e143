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
from pg_mop.plan import nets

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

    def source_types(self) -> dict[str, str]:
        return {f.column: "jsonb" if f.parameters.get("path") else f.sql_type for f in self.features}

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
        from pg_mop.columns.binary import np

        wires = self.wires(values)
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

    def wires(self, values: list[Any]) -> dict[str, Any]:
        """{feature: its wires} from the wires of many rows: float64 numbers, or a list of texts."""
        from pg_mop.columns import binary

        columns: dict[str, Any] = {}
        if self.numbers:
            own = values[0] if self.texts else values
            matrix = binary.read(own, [len(self.numbers)], "double precision", self.name)
            columns.update((feature.name, matrix[:, i]) for i, feature in enumerate(self.numbers))
        return {**columns, **self._text_wires(values)}

    def _text_wires(self, values: list[Any]) -> dict[str, list[Any]]:
        rows = (values[-1] if self.numbers else values) if self.texts else []
        lists = map(list, zip(*rows)) if rows else ([] for _ in self.texts)
        return dict(zip((feature.name for feature in self.texts), lists))

    def encode_for_prediction(self, values: list[Any]) -> numpy.ndarray:
        return self.encode(values)

    def unseen(self, values: list[Any]) -> dict[str, list[str]]:
        wires = self._text_wires(values)
        found = {feature.name: feature.unseen(wires[feature.name]) for feature in self.texts}
        return {name: values for name, values in found.items() if values}

    def places(self) -> list[tuple[str, slice]]:
        return [(own.name, slice(first, first + len(own.elements))) for first, own in self._places]

    def net_input(self) -> nets.Input:
        """Codes are embedded; numbers, which come first in a packed column (columns/fitting.py), have pieces."""
        shape = tuple(self.shape)
        if codes := sum(len(feature.classes) for feature in self.features if isinstance(feature, CodedCategory)):
            size = nets.embedded(codes // len(self.features))
            return nets.Input(
                self.name, shape, [("Embedding", {"input_dim": codes, "output_dim": size}), ("Flatten", {})]
            )
        edges: list[tuple[float, ...]] = []
        for feature in self.features:
            if not (own := feature.piece_edges()):
                break
            edges += own
        return nets.Input(self.name, shape, pieces=nets.Pieces(0, tuple(edges)) if edges else None)

    def raw_inputs(self) -> list[dict[str, Any]]:
        return [{"name": feature.name, **feature.to_keras()} for feature in self.features]

"""Many columns of an ordinary table as one packed vector."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.columns.base import ARRAY_HEADER, Column, Request, SourceColumn
from pg_mop.columns.features import CodedCategory, Feature, feature_from_json
from pg_mop.columns.features.category import Category
from pg_mop.columns.features.number import Scaled, Scaling
from pg_mop.plan import nets

if TYPE_CHECKING:
    import numpy

TEXT_BYTES = 40  # of a text in a row, to size chunks
SHOWN = 8  # columns in a message
NEAR = 1e-9  # share by which equal numbers of two packings of the same rows may differ


@dataclass(frozen=True)
class _Placed:
    """A feature, the place of its first element, and the number of its wire among those of its kind."""

    feature: Any
    place: int
    wire: int


def _indices(places: list[int]) -> slice | list[int]:
    """Places as an index of numpy: as a slice, where they are one, which takes a fifth of the time for a row."""
    first, after = places[0], places[-1] + 1
    return slice(first, after) if places == list(range(first, after)) else places


class _ScaledFeatures:
    """The scaled numbers of a packed column, which are computed together."""

    def __init__(self, placed: Sequence[_Placed]) -> None:
        has_indicator = [i for i, own in enumerate(placed) if own.feature.parameters["indicator"]]
        self._wires, self._places = (_indices(list(own)) for own in zip(*((one.wire, one.place) for one in placed)))
        self._with_indicator, self._indicators = has_indicator, [placed[i].place + 1 for i in has_indicator]
        self._scaling = Scaling([own.feature for own in placed])

    def encode(self, packed: numpy.ndarray, numbers: numpy.ndarray) -> None:
        """Numbers [rows, number features] -> their elements of `packed`, which are 0."""
        from pg_mop.columns.binary import np

        numbers = numbers[:, self._wires]
        is_null = np.isnan(numbers)
        packed[:, self._places] = self._scaling.elements(numbers, is_null)
        if self._with_indicator:
            packed[:, self._indicators] = is_null[:, self._with_indicator]


class _Categories:
    """The categories of a packed column, whose classes are looked up together."""

    def __init__(self, placed: Sequence[_Placed]) -> None:
        from pg_mop.columns.binary import np

        self._lookups = [(own.feature.known.get, own.wire) for own in placed]
        self._coded = [i for i, own in enumerate(placed) if own.feature.is_code]
        self._one_hot = [i for i, own in enumerate(placed) if not own.feature.is_code]
        self._coded_places = [placed[i].place for i in self._coded]
        self._offsets = np.array([placed[i].feature.offset for i in self._coded], "i8")
        self._one_hot_places = np.array([[placed[i].place] for i in self._one_hot], "i8")

    def encode(self, packed: numpy.ndarray, texts: Sequence[Sequence[str | None]]) -> None:
        """The texts of each text feature -> their elements of `packed`, which are 0."""
        from pg_mop.columns.binary import np

        rows, zeros = len(packed), itertools.repeat(0)
        numbers = itertools.chain.from_iterable(map(number_of, texts[wire], zeros) for number_of, wire in self._lookups)
        classes = np.fromiter(numbers, "i8", rows * len(self._lookups)).reshape(-1, rows)
        if self._coded:
            packed[:, self._coded_places] = classes[self._coded].T + self._offsets
            classes = classes[self._one_hot]
        if self._one_hot:
            packed[np.arange(rows), classes + self._one_hot_places] = 1


@dataclass
class Features(Column):
    """The features of one packed column. Parameters: `features` (JSON of each), `shape`.

    A row has two wires: an array with the numbers of all number features, in binary form, with NaN for NULL; and an array
    with the texts of all others. `encode` also takes the numbers as a matrix [rows, number features]. The
    column does not belong to a single column of the source: `name` is free.
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
        numbers, texts = self.numbers_and_texts()
        parts = []
        if numbers:
            parts.append(f"pg_catalog.array_send(ARRAY[{', '.join(numbers)}]::double precision[])")
        if texts:
            parts.append(f"ARRAY[{', '.join(texts)}]::text[]")
        return parts

    def numbers_and_texts(self) -> tuple[list[str], list[str]]:
        numbers = [f"coalesce({feature.wire_sql()}, 'NaN')" for feature in self.numbers]
        return numbers, [feature.wire_sql() for feature in self.texts]

    def values_of(self, parts: list[list[Any]]) -> list[Any]:
        """The numbers' wires, if any, and the texts of each feature."""
        if not self.texts:
            return parts
        return [*parts[:-1], *map(list, zip(*parts[-1]))] if parts[-1] else [*parts[:-1], *([] for _ in self.texts)]

    def wire_parts(self, values: list[str]) -> list[str]:
        return values

    def wire_sql(self, value: str) -> str:
        raise NotImplementedError("a row has several wires: see raw_parts")

    def encode(self, values: list[Any]) -> numpy.ndarray:
        from pg_mop.columns.binary import np

        numbers, texts = self._matrix(values), self._texts(values)
        packed = np.zeros((len(texts[0]) if texts else len(numbers), self.shape[0]), "<f4")
        scaled, categories, others = self._encoders
        if scaled is not None:
            scaled.encode(packed, numbers)
        if categories is not None:
            categories.encode(packed, texts)
        for own in others:
            elements = own.feature.encode(texts[own.wire] if own.feature.wire == "text" else numbers[:, own.wire])
            packed[:, own.place : own.place + elements.shape[1]] = elements
        return packed

    @functools.cached_property
    def _places(self) -> list[tuple[int, Feature]]:
        """(place of the first element, feature) of each feature."""
        ends = itertools.accumulate(len(feature.elements) for feature in self.features)
        return list(zip([0, *ends], self.features))

    @functools.cached_property
    def _encoders(self) -> tuple[_ScaledFeatures | None, _Categories | None, list[_Placed]]:
        """What computes the features of a kind together, and the features that are computed one at a time."""
        counts = {"number": itertools.count(), "text": itertools.count()}
        placed = [_Placed(feature, place, next(counts[feature.wire])) for place, feature in self._places]
        scaled = [own for own in placed if isinstance(own.feature, Scaled)]
        categories = [own for own in placed if isinstance(own.feature, Category)]
        others = [own for own in placed if not isinstance(own.feature, (Scaled, Category))]
        return (_ScaledFeatures(scaled) if scaled else None, _Categories(categories) if categories else None, others)

    def wires(self, values: list[Any]) -> dict[str, Any]:
        """{feature: its wires} from the wires of many rows: float64 numbers, or the texts."""
        columns: dict[str, Any] = {}
        if self.numbers:
            columns.update(zip((feature.name for feature in self.numbers), self._matrix(values).T))
        columns.update(zip((feature.name for feature in self.texts), self._texts(values)))
        return columns

    def _matrix(self, values: list[Any]) -> numpy.ndarray:
        """The numbers [rows, number features] of many rows; without rows where no feature takes numbers."""
        from pg_mop.columns import binary

        if not self.numbers:
            return binary.np.zeros((0, 0))
        if isinstance(values[0], binary.np.ndarray):
            return values[0]
        return binary.read(values[0], [len(self.numbers)], "double precision", self.name)

    def _texts(self, values: list[Any]) -> list[list[str | None]]:
        """The texts of many rows, a list for each text feature."""
        return values[bool(self.numbers) :]

    def unseen(self, values: list[Any]) -> dict[str, list[str]]:
        found = ((feature.name, feature.unseen(own)) for feature, own in zip(self.texts, self._texts(values)))
        return {name: values for name, values in found if values}

    def difference(self, other: Column) -> str | None:
        if not isinstance(other, Features):
            return None
        names, other_names = ([feature.name for feature in own.features] for own in (self, other))
        if names != other_names:
            return f"columns {', '.join(names[:SHOWN])}, not {', '.join(other_names[:SHOWN])}"
        for feature, theirs in zip(self.features, other.features):
            if not _are_equal(feature.to_keras(), theirs.to_keras()):
                return f'for "{feature.name}" other values of elements than those of training'
        return None

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


def _are_equal(own: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two features make the same elements of a value, by the parameters that layers of Keras take."""
    if own.keys() != other.keys():
        return False
    return all(
        math.isclose(value, other[name], rel_tol=NEAR, abs_tol=1e-300)
        if isinstance(value, float) and isinstance(other[name], (int, float))
        else value == other[name]
        for name, value in own.items()
    )

"""The elements that boosted trees take of a packed row: those of nets, but a category is one code, and no value is NaN.

So one encoding answers for nets and for trees. A net needs a category as one-hot elements, or as a code within the table of all
columns' codes; and NULL as the mean with an indicator beside it. Trees split codes into sets, and send NaN where it is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pg_mop.backend.arrays import np
from pg_mop.columns import Column
from pg_mop.columns.features import CodedCategory
from pg_mop.columns.features.category import Category
from pg_mop.columns.features.number import Scaled


@dataclass
class _Input:
    """Of one packed column: the places of its elements that are taken; of these (by number) those with an indicator, and its
    place; the offset of each code, 0 for other elements; and the places of one-hot categories."""

    places: list[int] = field(default_factory=list)
    indicated: list[int] = field(default_factory=list)
    indicators: list[int] = field(default_factory=list)
    offsets: list[float] = field(default_factory=list)
    one_hot: list[slice] = field(default_factory=list)


class TreeInputs:
    """How packed inputs become elements. `codes`: the numbers of the elements that are codes; `width`: of a row."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """Raises ValueError where `are_possible` is false."""
        if not self.are_possible(columns):
            raise ValueError("trees take numbers and categories alone")
        self._inputs: list[_Input] = []
        self.codes: list[int] = []
        self.width = 0
        for column in columns:
            own = _Input()
            for feature, (_, place) in zip(column.features, column.places(), strict=True):
                if isinstance(feature, Category) and not isinstance(feature, CodedCategory):
                    own.one_hot.append(place)
                    continue
                if isinstance(feature, Scaled):
                    if feature.parameters["indicator"]:
                        own.indicated.append(len(own.places))
                        own.indicators.append(place.start + 1)
                    place = slice(place.start, place.start + 1)
                elif isinstance(feature, CodedCategory):
                    self.codes.append(self.width + len(own.places))
                places = range(place.start, place.stop)
                own.places += places
                own.offsets += [float(feature.offset if isinstance(feature, CodedCategory) else 0)] * len(places)
            self.width += len(own.places)
            self.codes += range(self.width, self.width + len(own.one_hot))
            self.width += len(own.one_hot)
            self._inputs.append(own)

    @staticmethod
    def are_possible(columns: Sequence[Column]) -> bool:
        """Whether trees can take these columns: none has texts, images, series or arrays."""
        return bool(columns) and all(column.features for column in columns)

    def elements(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The elements [rows, width], float32. `arrays`: of each packed column."""
        found = np.empty((len(arrays[0]), self.width), "<f4")
        at = 0
        for own, array in zip(self._inputs, arrays, strict=True):
            values = array[:, own.places] - np.array(own.offsets, "<f4")
            if own.indicated:
                values[:, own.indicated] = np.where(array[:, own.indicators] != 0, np.nan, values[:, own.indicated])
            found[:, at : at + len(own.places)] = values
            at += len(own.places)
            for place in own.one_hot:
                found[:, at] = array[:, place].argmax(1)
                at += 1
        return found

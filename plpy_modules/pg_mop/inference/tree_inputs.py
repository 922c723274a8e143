"""The elements that boosted trees take of a packed row: those of nets, but a category is one code, and NULL is NaN.

So one encoding answers for nets and for trees. A net needs a category as one-hot elements, or as a code within the table of all
columns' codes; and NULL as the mean with an indicator beside it. Trees split codes into sets, and send NaN where it is best.
"""

from __future__ import annotations

from collections.abc import Sequence

from pg_mop.backend.arrays import np
from pg_mop.columns import Column
from pg_mop.columns.features import CodedCategory
from pg_mop.columns.features.category import Category
from pg_mop.columns.features.number import Scaled


class _Input:
    """The elements of one packed column."""

    def __init__(self, column: Column) -> None:
        places: list[int] = []  # of numbers and codes
        offsets: list[float] = []  # of codes, 0 for numbers
        indicated: list[int] = []  # of these, by number, those with an indicator, and its place
        indicators: list[int] = []
        one_hot: list[int] = []  # places of all one-hot elements, with the code that each stands for
        numbers: list[float] = []
        firsts: list[int] = []  # of these, by number, the first of each category
        self.codes: list[int] = []  # the elements that are codes
        for feature, (_, place) in zip(column.features, column.places(), strict=True):
            own = list(range(place.start, place.stop))
            if isinstance(feature, Category) and not isinstance(feature, CodedCategory):
                firsts.append(len(one_hot))
                one_hot += own
                numbers += map(float, range(len(own)))
                continue
            if isinstance(feature, CodedCategory):
                self.codes.append(len(places))
            elif isinstance(feature, Scaled) and feature.parameters["indicator"]:
                indicated.append(len(places))
                indicators.append(own.pop())
            places += own
            offsets += [float(feature.offset if isinstance(feature, CodedCategory) else 0)] * len(own)
        self.codes += range(len(places), len(places) + len(firsts))
        self.width = len(places) + len(firsts)
        self._places, self._offsets = np.array(places, "i8"), np.array(offsets, "<f4")
        self._indicated, self._indicators = np.array(indicated, "i8"), np.array(indicators, "i8")
        self._one_hot, self._numbers, self._firsts = np.array(one_hot, "i8"), np.array(numbers, "<f4"), firsts

    def elements(self, array: np.ndarray) -> np.ndarray:
        found = array.take(self._places, 1) - self._offsets
        if len(self._indicated):
            is_null = array.take(self._indicators, 1) != 0
            found[:, self._indicated] = np.where(is_null, np.float32(np.nan), found[:, self._indicated])
        if not self._firsts:
            return found
        # one element of each category is 1
        return np.concatenate(
            [found, np.add.reduceat(array.take(self._one_hot, 1) * self._numbers, self._firsts, 1)], 1
        )


class TreeInputs:
    """How packed inputs become elements. `codes`: the numbers of the elements that are codes; `width`: of a row."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """Raises ValueError where `are_possible` is false."""
        if not self.are_possible(columns):
            raise ValueError("trees take numbers and categories alone")
        self._inputs = [_Input(column) for column in columns]
        self.codes: list[int] = []
        self.width = 0
        for own in self._inputs:
            self.codes += [self.width + code for code in own.codes]
            self.width += own.width

    @staticmethod
    def are_possible(columns: Sequence[Column]) -> bool:
        """Whether trees can take these columns: none has texts, images, series or arrays."""
        return bool(columns) and all(column.features for column in columns)

    def elements(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The elements [rows, width], float32. `arrays`: of each packed column."""
        return np.concatenate([own.elements(array) for own, array in zip(self._inputs, arrays, strict=True)], 1)

"""Class weights of fit parameters, given by label or as 'balanced', as weights of class numbers."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from mop_udf.params.params import ParameterError
from pg_mop.engines.base import Engine
from pg_mop.packing.packed_table import PackedTable

SHOWN = 8  # classes in an error


class ClassWeights:
    """Reads class weights with the classes of a packed table's output.

    A call takes a configuration's class weights, as params.parse_fit_params returns them, and returns
    {class number: weight}. It raises ParameterError where a key is not a class.
    """

    def __init__(self, packed: PackedTable, engine: Engine) -> None:
        self.packed, self.engine = packed, engine

    def __call__(self, weights: Any) -> dict[int, float]:
        if len(self.packed.outputs) > 1:  # call/configurations.py refuses it with the architecture
            return weights if isinstance(weights, dict) else {}
        if len(self.engine.shapes(self.packed)[self.packed.outputs[0]]) > 1:
            raise ParameterError(
                f'class_weight needs one class in each row, but "{self.packed.text}" has several steps'
            )
        if weights == "balanced":
            return dict(self._balanced)
        self._check_numbers([key for key in weights if isinstance(key, int) and not isinstance(key, bool)])
        numbers = {}
        for key, weight in weights.items():
            number = self._number(key)
            if number in numbers:
                raise ParameterError(f"class_weight gives class {number} two weights")
            numbers[number] = weight
        if len(numbers) == max(2, self._width) and not any(numbers.values()):
            raise ParameterError("class_weight gives all classes the weight 0")
        return dict(sorted(numbers.items()))

    @property
    def _labels(self) -> list[str | None] | None:
        """The class values in the order of the classes, as PostgreSQL writes them; None where there are none. A single
        number has the classes 0 and 1."""
        classes = self.packed.transform.outputs[0].classes
        return ["0", "1"] if classes is None and self._width == 1 else classes

    @functools.cached_property
    def _width(self) -> int:
        return self.engine.shapes(self.packed)[self.packed.outputs[0]][0]

    def _check_numbers(self, keys: Iterable[Any]) -> None:
        """Raise ParameterError where a number is not a class, or where the numbers are ambiguous: all of them are also
        labels of other classes."""
        labels, classes = self._labels or [], max(2, self._width)
        for key in keys:
            if key >= classes:
                raise ParameterError(
                    f'class_weight names class {key}, but "{self.packed.text}" has the classes 0 to {classes - 1}'
                    + (f"; for the label {key}, write {{'{key}': ...}}" if str(key) in labels else "")
                )
        others = [key for key in keys if str(key) in labels and labels.index(str(key)) != key]
        if others and all(str(key) in labels for key in keys):
            key = others[0]
            raise ParameterError(
                f"class_weight names {key}, which is the number of the class {labels[key]!r}, and the label of "
                f"another: write {{'{key}': ...}} for the label, or {{{labels[key]!r}: ...}}"
            )

    def _number(self, key: Any) -> int:
        """The number of the class that a key names."""
        if isinstance(key, int) and not isinstance(key, bool):
            return key
        text = ("true" if key else "false") if isinstance(key, bool) else key
        if self._labels is None:
            raise ParameterError(
                f'class_weight names the label {text!r}, but the classes of "{self.packed.text}" have numbers alone'
            )
        if text not in self._labels:
            labels = [label for label in self._labels if label is not None]
            raise ParameterError(
                f'class_weight names the label {text!r}, which is none of "{self.packed.text}": '
                f"{', '.join(labels[:SHOWN])}{', ...' if len(labels) > SHOWN else ''}"
            )
        return self._labels.index(text)

    @functools.cached_property
    def _balanced(self) -> dict[int, float]:
        """Weights in inverse proportion to how many rows a class has, 1 on the mean of all rows."""
        counts = None if self._width > 1 and self.packed.regression else self.engine.class_counts(self.packed)
        if counts is None:
            raise ParameterError(
                f"class_weight='balanced' needs classes, but the output of \"{self.packed.text}\" is numbers"
            )
        counts_there = [count for count in counts if count]
        return {number: sum(counts_there) / (len(counts_there) * count) for number, count in enumerate(counts) if count}

"""Class weights of fit parameters, which may name labels or be 'balanced', as weights of class numbers."""

import functools

from mop_udf.params import ParameterError

SHOWN = 8  # classes in an error


class ClassWeights:
    """The classes of a packed table's output. Called with a configuration's class weights, as params.parse_fit_params
    gives them, it returns {class number: weight}; it raises ParameterError where they name what is no class."""

    def __init__(self, packed, engine):
        self.packed, self.engine = packed, engine

    def __call__(self, weights):
        if len(self.packed.outputs) > 1:  # refused where the architecture is looked at
            return weights if isinstance(weights, dict) else {}
        if weights == "balanced":
            return dict(self._balanced)
        numbers = {}
        for key, weight in weights.items():
            number = self._number(key)
            if number in numbers:
                raise ParameterError(f"class_weight gives class {number} two weights")
            numbers[number] = weight
        if len(numbers) == self._width > 1 and not any(numbers.values()):
            raise ParameterError("class_weight gives all classes the weight 0")
        return dict(sorted(numbers.items()))

    @functools.cached_property
    def _labels(self):
        """The class values in the order of the classes; None where there are none."""
        values = self.packed.class_values()[self.packed.outputs[0]]
        return None if values is None else [_text(value) for value in values]

    @functools.cached_property
    def _width(self):
        return self.engine.shapes(self.packed)[self.packed.outputs[0]][0]

    def _number(self, key):
        """The number of the class that a key names."""
        if isinstance(key, int) and not isinstance(key, bool):
            # (of a single output, numbers are their own classes)
            if key < self._width or self._width == 1:
                return key
            labelled = self._labels and str(key) in self._labels
            raise ParameterError(
                f"class_weight names class {key}, but \"{self.packed.text}\" has the classes 0 to {self._width - 1}"
                + (f"; for the label {key}, write {{'{key}': ...}}" if labelled else ""))
        text = _text(key)
        if self._labels is None:
            raise ParameterError(f"class_weight names the label {text!r}, but the classes of \"{self.packed.text}\" "
                                 f"have numbers alone")
        if text not in self._labels:
            shown = [label for label in self._labels if label is not None]
            raise ParameterError(f"class_weight names the label {text!r}, which is none of \"{self.packed.text}\": "
                                 f"{', '.join(shown[:SHOWN])}{', ...' if len(shown) > SHOWN else ''}")
        return self._labels.index(text)

    @functools.cached_property
    def _balanced(self):
        """Weights in inverse proportion to how many rows a class has, 1 on the mean of all rows."""
        if self._width == 1 or self.packed.regression:
            raise ParameterError(f"class_weight='balanced' needs classes, but the output of \"{self.packed.text}\" is "
                                 f"numbers")
        counts = self.engine.class_counts(self.packed)
        present = [count for count in counts if count]
        return {number: sum(present) / (len(present) * count) for number, count in enumerate(counts) if count}


def _text(value):
    """A class value as text; None for NULL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)

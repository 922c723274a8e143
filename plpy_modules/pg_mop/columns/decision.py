"""How the probabilities of a version become answers: calibrated, corrected to the table's classes, and decided. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

KEY = "decision"  # in the parameters of the target's column
MOST_TEMPERATURE = 100.0


@dataclass(frozen=True)
class Decision:
    """`temperature`: probabilities to the power of 1 / temperature calibrate; `factors`: of the classes, which correct the
    probabilities of a training that counted classes otherwise than the table does; `weights`: of the classes, where the
    class with the greatest product of weight and probability is predicted. None: all are 1.

    >>> decision = Decision(weights=(0.3, 0.7))  # the second of two classes, from probability 0.3 on
    >>> decision.threshold
    0.3
    """

    temperature: float = 1.0
    factors: tuple[float, ...] | None = None
    weights: tuple[float, ...] | None = None

    @classmethod
    def of_threshold(cls, threshold: float) -> tuple[float, ...]:
        """The weights with which the second of two classes is predicted from this probability on."""
        return threshold, 1 - threshold

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> Decision | None:
        """The decision in a column's parameters, which another role may have written. Raises ValueError."""
        stored = parameters.get(KEY)
        if stored is None:
            return None
        temperature = stored.get("temperature", 1.0)
        if not (_is_number(temperature) and 0 < temperature <= MOST_TEMPERATURE):
            raise ValueError("the temperature of the model is no positive number")
        lists: dict[str, tuple[float, ...] | None] = {"factors": None, "weights": None}
        for name in lists:
            values = stored.get(name)
            if values is None:
                continue
            if not (isinstance(values, list) and all(_is_number(v) and v >= 0 for v in values) and any(values)):
                raise ValueError(f"the {name} of the model's classes are no numbers")
            lists[name] = tuple(map(float, values))
        return cls(float(temperature), **lists)

    def to_json(self) -> dict[str, Any]:
        """What `read` reads under KEY, without what changes nothing."""
        return {
            **({"temperature": self.temperature} if self.temperature != 1 else {}),
            **{
                name: list(values)
                for name, values in (("factors", self.factors), ("weights", self.weights))
                if values is not None
            },
        }

    @property
    def threshold(self) -> float | None:
        """The probability from which on the second of two classes is predicted; None where it is 0.5, or of several classes."""
        if self.weights is None or len(self.weights) != 2:
            return None
        return self.weights[0] / sum(self.weights)

    def described(self) -> list[str]:
        """Lines of a report."""
        return [
            *([f"  Calibrated by temperature {self.temperature:.3g}."] if self.temperature != 1 else []),
            *(
                [f"  The second class is predicted from probability {self.threshold:.3g} on."]
                if self.threshold is not None
                else []
            ),
        ]

    def probabilities(self, outputs: numpy.ndarray) -> numpy.ndarray:
        """Calibrated and corrected probabilities [..., classes]."""
        from pg_mop.columns.binary import np

        if self.temperature == 1 and self.factors is None:
            return outputs
        highest = outputs.max(-1, keepdims=True)
        with np.errstate(all="ignore"):
            found = (outputs / np.where(highest > 0, highest, 1)) ** (1 / self.temperature)
            if self.factors is not None:
                found = found * _padded(self.factors, outputs.shape[-1], 0)
            total = found.sum(-1, keepdims=True)
            return np.where(total == 0, outputs, found / total)

    def weighted(self, probabilities: numpy.ndarray) -> numpy.ndarray:
        """The products of which the greatest decides [..., classes]."""
        if self.weights is None:
            return probabilities
        return probabilities * _padded(self.weights, probabilities.shape[-1], 1)

    def decided(self, outputs: numpy.ndarray) -> numpy.ndarray:
        """Shares [..., classes] of which the greatest decides: for two classes, the one above 0.5."""
        products = self.weighted(self.probabilities(outputs))
        return products / products.sum(-1, keepdims=True)

    def to_keras(self, width: int) -> dict[str, Any]:
        """The decision for mop_udf/training/raw_model.py, for outputs of so many classes."""
        return {
            "power": 1 / self.temperature,
            "factors": None if self.factors is None else _padded(self.factors, width, 0).tolist(),
            "weights": None if self.weights is None else _padded(self.weights, width, 1).tolist(),
        }


def _padded(values: tuple[float, ...], width: int, rest: float) -> numpy.ndarray:
    """One value for each of so many units; `rest`: for units without a class."""
    from pg_mop.columns.binary import np

    return np.array([*values[:width], *[rest] * (width - len(values))], "f8")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

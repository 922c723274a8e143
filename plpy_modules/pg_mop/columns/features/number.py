"""Numbers and booleans as elements of a packed column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.backend.errors import MopError
from pg_mop.columns.features.base import (
    Feature,
    Source,
    Statistics,
    bin_counts,
    raw_sql,
    wants_indicator,
    with_indicator,
)
from pg_mop.columns.features.conversion import number_sql

if TYPE_CHECKING:
    import numpy

SCALES = ("standard", "minmax", "robust", "log", "none")
MOST = 1e30  # the largest number that is packed: float32 ends at 3.4e38, and its square must be a double
CLIP = 30.0  # scaled numbers are kept within this distance of 0: one wild value must not decide a prediction
ALL = (0.0, 1.0)  # the one piece of an element that is 0 or 1
BINS = 10  # of the distribution that is kept for mop_drift


class Scaling:
    """How many columns of numbers become elements, all at once: (value - center) * factor, with NULL as `fill`, after the
    logarithm where a column takes it, within `limit`. The numbers are those of each feature's `to_keras`."""

    def __init__(self, features: Sequence[Scaled]) -> None:
        import numpy as np

        parameters = [feature.to_keras() for feature in features]
        self._fill, self._center, self._factor, self._limit = (
            np.array([p[name] for p in parameters], "f8") for name in ("fill", "center", "factor", "limit")
        )
        self._log = np.array([p["log"] for p in parameters], bool)
        self._has_log = bool(self._log.any())

    def elements(self, numbers: numpy.ndarray, is_null: numpy.ndarray) -> numpy.ndarray:
        """Numbers [rows, features] -> elements of the same shape. `is_null`: where a number is NaN."""
        import numpy as np

        values = np.where(is_null, self._fill, numbers)
        if self._has_log:
            values = np.where(self._log, np.sign(values) * np.log1p(np.abs(values)), values)
        with np.errstate(over="ignore"):
            scaled = (values - self._center) * self._factor
        return np.minimum(np.maximum(scaled, -self._limit), self._limit)


class Scaled(Feature):
    """A number, scaled, and where `indicator` says so an element that is 1 for NULL."""

    @property
    def elements(self) -> list[str]:
        return [self.name, *[f"{self.name} IS NULL"] * self.parameters["indicator"]]

    def encode(self, wires: Any) -> numpy.ndarray:
        import numpy as np

        numbers = np.reshape(wires, (-1, 1))
        elements = Scaling([self]).elements(numbers, np.isnan(numbers)).astype("<f4")
        return with_indicator(wires, elements, self.parameters["indicator"])


@dataclass
class Number(Scaled):
    """Parameters: `scale` (one of SCALES), `center` and `factor` (element = (value - center) * factor), `fill` (the value of
    NULL), `indicator`; and statistics: `mean`, `deviation`, `least`, `most`, `edges` (of BINS bins), `shares` (of the
    sample's rows in each bin)."""

    type_name = "number"

    @classmethod
    def fit(cls, source: Source, statistics: Statistics) -> Number:
        scale = source.options.get("scale", "standard")
        if scale not in SCALES:
            raise MopError(f'the scale of column "{source.name}" must be one of {", ".join(SCALES)}, not {scale!r}')
        center, factor = _scaling(scale, source.sql_type, statistics)
        fill = statistics.mean or 0.0
        if scale == "log":
            fill = math.copysign(math.expm1(abs(fill)), fill)
        parameters = {
            "scale": scale,
            "center": center,
            "factor": factor,
            "fill": fill,
            "indicator": wants_indicator(source, statistics),
            "mean": statistics.mean,
            "deviation": statistics.deviation,
            "least": statistics.least,
            "most": statistics.most,
            **distribution(statistics.sample),
        }
        return cls.stored(source, statistics, **parameters)  # type: ignore[return-value]

    @classmethod
    def wire_of(cls, source: Source) -> str:
        return number_sql(raw_sql(source.column, source.path), source.sql_type, bool(source.path))

    def to_keras(self) -> dict[str, Any]:
        p = self.parameters
        return {
            "kind": "number",
            "log": p["scale"] == "log",
            "limit": MOST if p["scale"] == "none" else CLIP,
            **{name: p[name] for name in ("fill", "center", "factor", "indicator")},
        }

    def piece_edges(self) -> list[tuple[float, ...]]:
        """The pieces are between the deciles."""
        import numpy as np

        p = self.parameters
        raw = sorted({p["least"], *p["edges"], p["most"]} - {None})
        scaled = sorted(set(self.encode(np.array(raw, "f8"))[:, 0].tolist()))
        return [tuple(scaled) if len(scaled) > 1 else ALL, *[ALL] * p["indicator"]]

    def described(self) -> str:
        return f"number, {self.parameters['scale']}" + ", NULL indicator" * self.parameters["indicator"]


def _scaling(scale: str, sql_type: str, statistics: Statistics) -> tuple[float, float]:
    """(center, factor) of a scale."""
    import numpy as np

    least, most = statistics.least or 0.0, statistics.most or 0.0
    center, width = 0.0, 1.0
    if scale in ("standard", "log"):
        center, width = statistics.mean or 0.0, statistics.deviation or 0.0
        if scale == "log":
            least, most = (math.copysign(math.log1p(abs(v)), v) for v in (least, most))
    elif scale == "minmax":
        center, width = least, most - least
    elif scale == "robust":
        sample = np.asarray(statistics.sample, "f8")
        sample = sample[np.isfinite(sample)]
        low, center, high = (float(v) for v in np.percentile(sample, [25, 50, 75])) if len(sample) else (0.0, 0.0, 0.0)
        width = (high - low) or (statistics.deviation or 0.0)
    width = spread(width, sql_type, least, most) if scale != "none" else width
    return center, 1.0 / width if width else 1.0


def spread(width: float | None, sql_type: str, least: float | None, most: float | None) -> float:
    """The width of numbers from `least` to `most`, such as their deviation; 0 where they differ by rounding alone.

    >>> spread(1e-16, "double precision", 0.1, 0.1)
    0.0
    """
    least, most = least or 0.0, most or 0.0
    precision = 2.0**-23 if sql_type.startswith("real") else 2.0**-52
    return width if width and most - least > 4 * precision * max(abs(least), abs(most)) else 0.0


def distribution(sample: Any) -> dict[str, Any]:
    """The bins of a sample of numbers (NaN: NULL), at its deciles: {"edges", "shares"}; NULL has no share."""
    import numpy as np

    values = np.asarray(sample, "f8")
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "shares": []}
    edges = sorted({float(v) for v in np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])})
    return {"edges": edges, "shares": shares(edges, values)}


def shares(edges: Sequence[float], values: Any) -> list[float]:
    """The shares of numbers in the bins between `edges`; NaN and infinity do not count."""
    counts = bin_counts(edges, values)
    return (counts / max(1, counts.sum())).tolist()


@dataclass
class Boolean(Scaled):
    """Parameters: `fill` (the share of true, for NULL), `indicator`, `share`."""

    type_name = "boolean"

    @classmethod
    def fit(cls, source: Source, statistics: Statistics) -> Boolean:
        share = statistics.mean or 0.0
        return cls.stored(  # type: ignore[return-value]
            source, statistics, fill=share, share=share, indicator=wants_indicator(source, statistics)
        )

    @classmethod
    def wire_of(cls, source: Source) -> str:
        """A field of a JSON column that is no boolean is NULL."""
        raw = raw_sql(source.column, source.path)
        if source.path:
            return f"(CASE {raw} WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 END)::double precision"
        return f"{raw}::integer::double precision"

    def trained_shares(self) -> list[float]:
        return [self.parameters["share"], 1 - self.parameters["share"]]

    def counts(self, wires: Any) -> numpy.ndarray:
        import numpy as np

        return np.array([(wires == 1).sum(), (wires == 0).sum()])

    def to_keras(self) -> dict[str, Any]:
        own = {name: self.parameters[name] for name in ("fill", "indicator")}
        return {"kind": "number", "log": False, "limit": MOST, "center": 0.0, "factor": 1.0, **own}

"""Dates and times: age, and the cyclic parts that the training rows span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.columns.features.base import Feature, Source, Statistics, raw_sql, wants_indicator, with_indicator
from pg_mop.columns.features.conversion import UTC, local_sql
from pg_mop.columns.features.number import CLIP, distribution, spread

if TYPE_CHECKING:
    import numpy

DAY = 86_400.0
YEAR = 365.2425 * DAY
TYPES = (
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
    "time without time zone",
    "time with time zone",
    "interval",
)


@dataclass
class Moment(Feature):
    """The wire is seconds: since 1970 by the clocks of the zone, of the day, or of an interval.

    Elements: `age` (standardised), where the span of the training rows exceeds two months the time of the year as sine and
    cosine, where it exceeds two days the weekday (seven elements), and for types with a time the time of the day as sine
    and cosine. Parameters: `mean`, `deviation` (seconds), `parts`, `fill`, `indicator`, `edges`, `shares`.
    """

    type_name = "moment"

    @classmethod
    def fit(cls, source: Source, statistics: Statistics) -> Moment:
        span = (statistics.most or 0.0) - (statistics.least or 0.0)
        on_calendar = source.sql_type.startswith(("date", "timestamp"))
        parts = [] if source.sql_type.startswith("time ") else ["age"]
        if on_calendar and span > 60 * DAY:
            parts.append("year")
        if on_calendar and span > 2 * DAY:
            parts.append("weekday")
        if source.sql_type.startswith("time") and span > 0 and _has_times(statistics.sample):
            parts.append("day")
        return cls.stored(  # type: ignore[return-value]
            source,
            statistics,
            parts=parts or ["age"],
            mean=statistics.mean or 0.0,
            deviation=spread(statistics.deviation, source.sql_type, statistics.least, statistics.most) or DAY,
            least=statistics.least,
            most=statistics.most,
            fill=statistics.mean or 0.0,
            indicator=wants_indicator(source, statistics),
            **distribution(statistics.sample),
        )

    @classmethod
    def wire_of(cls, source: Source) -> str:
        """Infinity is NULL."""
        raw = raw_sql(source.column, source.path)
        if source.sql_type == "timestamp with time zone" and source.zone != UTC:
            raw = local_sql(raw, source.zone)
        if source.sql_type == "date":  # (the range of dates is larger than that of timestamps)
            days = f"({raw} - '1970-01-01'::date)::double precision"
            return f"(CASE WHEN isfinite({raw}) THEN {days} * '{DAY}'::double precision END)"
        if not source.sql_type.startswith("time "):  # (a time of the day is finite)
            return f"(CASE WHEN isfinite({raw}) THEN date_part('epoch', {raw}) END)"
        return f"date_part('epoch', {raw})"  # (extract would compute with type numeric, which is slow)

    @property
    def elements(self) -> list[str]:
        names = {
            "age": ["age"],
            "year": ["sin(year)", "cos(year)"],
            "weekday": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
            "day": ["sin(day)", "cos(day)"],
        }
        elements = [f"{self.name} {element}" for part in self.parameters["parts"] for element in names[part]]
        return elements + [f"{self.name} IS NULL"] * self.parameters["indicator"]

    def encode(self, wires: Any) -> numpy.ndarray:
        import numpy as np

        p = self.parameters
        seconds = np.where(np.isfinite(wires), wires, p["fill"])
        columns = []
        for part in p["parts"]:
            if part == "age":
                columns.append(np.clip((seconds - p["mean"]) / p["deviation"], -CLIP, CLIP)[:, None])
            elif part == "weekday":
                weekday = (np.floor(seconds / DAY).astype("i8") + 3) % 7  # 1970 began on a Thursday
                columns.append(np.eye(7)[weekday])
            else:
                angle = 2 * np.pi * (seconds / (YEAR if part == "year" else DAY) % 1.0)
                columns.append(np.stack([np.sin(angle), np.cos(angle)], 1))
        return with_indicator(wires, np.concatenate(columns, 1).astype("<f4"), p["indicator"])

    def to_keras(self) -> dict[str, Any]:
        own = ("parts", "mean", "deviation", "fill", "indicator")
        return {"kind": "moment", "limit": CLIP, **{name: self.parameters[name] for name in own}}

    def described(self) -> str:
        zone = f", in {self.zone}" * (self.zone != UTC)
        return f"time: {', '.join(self.parameters['parts'])}{zone}" + ", NULL indicator" * self.parameters["indicator"]


def _has_times(sample: Any) -> bool:
    import numpy as np

    seconds = np.asarray(sample, "f8")
    return bool((seconds[np.isfinite(seconds)] % DAY != 0).any())

"""Numbers to predict: standardised for training, or their logarithms are, and turned back in predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, written
from pg_mop.backend.sql_types import NUMBERS
from pg_mop.columns.base import ARRAY_HEADER, Column, Request, SourceColumn
from pg_mop.columns.features.conversion import number_sql
from pg_mop.columns.features.number import MOST, distribution, shares

if TYPE_CHECKING:
    import numpy

SAMPLE = 10_000  # rows of the distribution
MARGIN = 0.1  # of the width of the training range, by which predictions may leave it
MOST_LOG = 100.0  # of a number up to MOST, and more
STANDARD, LOG = "standard", "log"  # scales
INEXACT = ("numeric", "real", "double precision")  # types that have NaN


@dataclass
class TargetNumber(Column):
    """Parameters: `mean`, `deviation`, `least`, `most`, `sql_type`, `shape` ([1]), `edges` and `shares` (for mop_drift); with
    `scale` "log", mean and deviation are those of ln(1 + number), and no number of training is negative: later ones that are
    count as 0. Rows without a number are refused."""

    type_name = "target_number"

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> TargetNumber:
        return cls.scaled(source, STANDARD)

    @classmethod
    def scaled(cls, source: SourceColumn, scale: str) -> TargetNumber:
        """The fitted column whose packed numbers are standardised, or their logarithms. Raises MopError."""
        kind = source.kind
        if kind.shown not in NUMBERS:
            raise MopError(
                f'target "{source.name}" has type {kind.shown}, which is no number',
                hint="Call with kind => 'classification', or cast the column in a view.",
                sqlstate="42804",
            )
        raw = number_sql(quote_identifier(source.name), kind.shown)
        packed = "ln(1 + greatest(v, 0))" if scale == LOG else "v"
        found = source.db.one(
            f"SELECT count(*) FILTER (WHERE abs(v) > {MOST}) AS large, count(v) AS known, min(v) AS least, max(v) AS most, "
            f"avg({packed}) FILTER (WHERE abs(v) <= {MOST}) AS mean, "
            f"stddev_pop({packed}) FILTER (WHERE abs(v) <= {MOST}) AS deviation FROM (SELECT {raw} AS v FROM {source.table}) t"
        )
        assert found is not None
        if found["large"]:
            raise MopError(
                f'target "{source.name}" has numbers beyond {MOST:g} in {found["large"]} rows',
                hint=f"Leave them out: SELECT ... WHERE abs({quote_identifier(source.name)}) < {MOST:g}.",
                sqlstate="22003",
            )
        if scale == LOG and found["least"] is not None and found["least"] < 0:
            raise MopError(
                f'target "{source.name}" has no logarithm: its least number is {found["least"]:g}',
                detail="It is trained as ln(1 + number), which needs numbers from 0 on.",
                hint=f"Leave such rows out: SELECT ... WHERE {quote_identifier(source.name)} >= 0.",
                sqlstate="22003",
            )
        step = max(1, math.ceil(found["known"] / SAMPLE))
        sample = source.db.execute(
            f"SELECT v FROM (SELECT {raw} AS v, row_number() OVER () AS n FROM {source.table}) t WHERE n % {step} = 0"
        )
        parameters = {name: found[name] for name in ("mean", "deviation", "least", "most")}
        parameters.update(distribution([math.nan if row["v"] is None else row["v"] for row in sample]))
        if scale == LOG:
            parameters["scale"] = LOG
        return cls(source.name, {**parameters, "sql_type": kind.shown, "shape": [1], "rows": found["known"]}, kind)

    @classmethod
    def fit_like(cls, source: SourceColumn, request: Request, trained: Column, summary: Table) -> Column:
        own = cls.fit(source, request)
        own.parameters = {**trained.parameters, "sql_type": own.parameters["sql_type"]}
        return own

    @property
    def wire_bytes(self) -> int:
        return ARRAY_HEADER + 12

    @property
    def wire(self) -> str:
        return "double precision"

    def raw_sql(self) -> str:
        number = number_sql(quote_identifier(self.name), self.parameters["sql_type"])
        return f"pg_catalog.array_send(ARRAY[coalesce({number}, 'NaN')]::double precision[])"

    def wire_sql(self, value: str) -> str:
        return value

    def encode(self, values: list[Any]) -> numpy.ndarray | None:
        from pg_mop.columns import binary

        numbers = binary.read(values, [1], "double precision", self.name)
        if self._is_log:
            numbers = binary.np.log1p(binary.np.maximum(numbers, 0))
        packed = ((numbers - self.parameters["mean"]) / self._deviation).astype("<f4")
        return packed if binary.np.isfinite(packed).all() else None

    def explain_misfit(self, db: Database, source: Table, summary: str, training: str | None) -> None:
        number = number_sql(quote_identifier(self.name), self.parameters["sql_type"])
        unknown = db.value(f"SELECT count(*) FROM {source} WHERE {number} IS NULL OR abs({number}) > {MOST}")
        if unknown:
            name = written(self.name)
            raise MopError(
                f'target "{self.name}" is no number in {unknown} row{"s" if unknown > 1 else ""}: NULL, NaN or beyond {MOST:g}',
                hint=f"Leave such rows out: SELECT ... WHERE {name} IS NOT NULL"
                + (f" AND {name} <> 'NaN'." if self.parameters["sql_type"] in INEXACT else "."),
                sqlstate="22004",
            )

    @property
    def _deviation(self) -> float:
        return self.parameters["deviation"] or 1.0

    @property
    def _is_log(self) -> bool:
        return self.parameters.get("scale") == LOG

    @property
    def _limits(self) -> tuple[float, float] | None:
        """What predictions do not leave: the training range with a margin, and the sign of its numbers if they have one."""
        least, most = self.parameters.get("least"), self.parameters.get("most")
        if least is None or most is None:
            return None
        margin = MARGIN * (most - least)
        low, high = least - margin, most + margin
        return (low if least < 0 else max(low, 0.0)), (high if most > 0 else min(high, 0.0))

    def decode(self, outputs: numpy.ndarray) -> tuple[list[str | None], numpy.ndarray]:
        return self.labels(outputs.shape[1]), self.restored(outputs)

    def restored(self, outputs: numpy.ndarray, limited: bool = True) -> numpy.ndarray:
        numbers = outputs * self._deviation + self.parameters["mean"]
        if self._is_log:
            from pg_mop.columns.binary import np

            numbers = np.expm1(numbers.clip(None, MOST_LOG))
        return numbers.clip(*self._limits) if limited and self._limits is not None else numbers

    def to_keras(self) -> dict[str, Any]:
        return {
            "class_name": "Rescaling",
            "config": {"scale": self._deviation, "offset": self.parameters["mean"], "dtype": "float64"},
            "limits": self._limits,
            "log": self._is_log,
        }

    def target_sql(self, value: str, actual: str) -> str | None:
        return number_sql(value, actual) if "edges" in self.parameters and actual in NUMBERS else None

    def shares(self, targets: list[Any]) -> tuple[Sequence[float], Sequence[float]]:
        return self.parameters["shares"], shares(self.parameters["edges"], targets)

    def difference(self, other: Column) -> str | None:
        if not isinstance(other, TargetNumber) or (self.parameters["mean"], self._is_log) == (
            other.parameters["mean"],
            other._is_log,
        ):
            return None
        return f'for "{self.name}" another scale than that of training'

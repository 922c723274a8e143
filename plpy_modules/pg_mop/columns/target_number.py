"""Numbers to predict: standardised for training, and scaled back in predictions."""

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
INEXACT = ("numeric", "real", "double precision")  # types that have NaN


@dataclass
class TargetNumber(Column):
    """Parameters: `mean`, `deviation`, `least`, `most`, `sql_type`, `shape` ([1]), `edges` and `shares` (for mop_drift). Rows
    without a number are refused."""

    type_name = "target_number"

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> TargetNumber:
        kind = source.kind
        if kind.shown not in NUMBERS:
            raise MopError(
                f'target "{source.name}" has type {kind.shown}, which is no number',
                hint="Call with kind => 'classification', or cast the column in a view.",
                sqlstate="42804",
            )
        raw = number_sql(quote_identifier(source.name), kind.shown)
        found = source.db.one(
            f"SELECT count(*) FILTER (WHERE abs(v) > {MOST}) AS large, count(v) AS known, min(v) AS least, max(v) AS most, "
            f"avg(v) FILTER (WHERE abs(v) <= {MOST}) AS mean, stddev_pop(v) FILTER (WHERE abs(v) <= {MOST}) AS deviation "
            f"FROM (SELECT {raw} AS v FROM {source.table}) t"
        )
        assert found is not None
        if found["large"]:
            raise MopError(
                f'target "{source.name}" has numbers beyond {MOST:g} in {found["large"]} rows',
                hint=f"Leave them out: SELECT ... WHERE abs({quote_identifier(source.name)}) < {MOST:g}.",
                sqlstate="22003",
            )
        step = max(1, math.ceil(found["known"] / SAMPLE))
        sample = source.db.execute(
            f"SELECT v FROM (SELECT {raw} AS v, row_number() OVER () AS n FROM {source.table}) t WHERE n % {step} = 0"
        )
        parameters = {name: found[name] for name in ("mean", "deviation", "least", "most")}
        parameters.update(distribution([math.nan if row["v"] is None else row["v"] for row in sample]))
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
    def _limits(self) -> tuple[float, float] | None:
        """The training range, where its numbers have one sign: predictions do not leave it."""
        least, most = self.parameters.get("least"), self.parameters.get("most")
        return None if least is None or most is None or least < 0 < most else (least, most)

    def decode(self, outputs: numpy.ndarray) -> tuple[list[str | None], numpy.ndarray]:
        return self.labels(outputs.shape[1]), self.restored(outputs)

    def restored(self, outputs: numpy.ndarray, limited: bool = True) -> numpy.ndarray:
        numbers = outputs * self._deviation + self.parameters["mean"]
        return numbers.clip(*self._limits) if limited and self._limits is not None else numbers

    def to_keras(self) -> dict[str, Any]:
        return {
            "class_name": "Rescaling",
            "config": {"scale": self._deviation, "offset": self.parameters["mean"], "dtype": "float64"},
            "limits": self._limits,
        }

    def target_sql(self, value: str, actual: str) -> str | None:
        return number_sql(value, actual) if "edges" in self.parameters and actual in NUMBERS else None

    def shares(self, targets: list[Any]) -> tuple[Sequence[float], Sequence[float]]:
        return self.parameters["shares"], shares(self.parameters["edges"], targets)

    def difference(self, other: Column) -> str | None:
        if not isinstance(other, TargetNumber) or self.parameters["mean"] == other.parameters["mean"]:
            return None
        return f'for "{self.name}" another scale than that of training'

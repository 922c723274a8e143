"""Soft labels: the probability of each class as an array, in place of one class."""

from __future__ import annotations

from dataclasses import dataclass

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.columns.base import Column, Request, SourceColumn
from pg_mop.columns.identity import Identity
from pg_mop.plan import nets

TOLERANCE = 0.001  # by which the sum of a row's probabilities may differ from 1


@dataclass
class SoftLabels(Identity):
    """Parameters as of Identity. Raw values are vectors of one width, of numbers from 0 to 1 whose sum is 1.

    The classes have no names: predictions have their positions, from 0 on.
    """

    type_name = "soft_labels"
    in_madlib = False

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> SoftLabels:
        return cls.of(source, cls.others(source))

    @classmethod
    def of(cls, source: SourceColumn, others: int) -> SoftLabels:
        """The fitted column; `others`: see the function of that name. Raises MopError where there are any."""
        if others:
            name = quote_identifier(source.name)
            raise MopError(
                f'target "{source.name}" has no probabilities in {others} row{"s" if others > 1 else ""}',
                detail="Soft labels are arrays of numbers from 0 to 1 whose sum is 1.",
                hint=f"SELECT * FROM {source.table} WHERE abs((SELECT sum(p) FROM unnest({name}) p) - 1) > {TOLERANCE}; "
                "finds rows with another sum. For numbers to predict: kind => 'regression'.",
                sqlstate="22023",
            )
        return super().fit(source, Request(dependent_dtype="float32"))  # type: ignore[return-value]

    @classmethod
    def fit_like(cls, source: SourceColumn, request: Request, trained: Column, summary: object) -> SoftLabels:
        """Other rows may have any vectors of that width, such as one-hot ones."""
        own = Identity.fit_like(source, Request(dependent_dtype="float32"), trained, summary)  # type: ignore[arg-type]
        return cls(own.name, own.parameters, own.kind)

    def net_output(self) -> nets.Output:
        return nets.Output(self.name, self.shape[0])

    @staticmethod
    def others(source: SourceColumn) -> int:
        """The number of rows whose arrays are no probabilities of classes."""
        name = quote_identifier(source.name)
        return source.db.value(
            f"SELECT count(*) FROM {source.table} s WHERE s.{name} IS NOT NULL AND NOT (SELECT coalesce(min(p) >= 0 AND "
            f"abs(sum(p) - 1) <= {TOLERANCE} AND count(*) = count(p), false) FROM unnest(s.{name}::double precision[]) p)"
        )

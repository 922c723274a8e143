"""The base class of features: what one column of an ordinary table becomes in a packed column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal, written
from pg_mop.columns.features.conversion import UTC, family

if TYPE_CHECKING:
    import numpy

ON_NULL = ("indicator", "fill", "refuse")


@dataclass(frozen=True)
class Source:
    """A column of the source, or a field of a JSON column.

    `name`: the feature's name; `column`: the column's name; `path`: keys within the JSON value; `sql_type`: the column's
    type as format_type prints it, without the domain; `options`: the user's choices for this feature.
    """

    name: str
    column: str
    sql_type: str
    path: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def zone(self) -> str:
        """The time zone in which moments are taken."""
        return str(self.options.get("zone", UTC))


@dataclass(frozen=True)
class Statistics:
    """What the training rows say about one column. The fields that its feature does not need are empty.

    `rows`: all training rows; `nulls`: those without a value; `wild`: those with a number that is infinite or beyond MOST;
    `least`, `most`: of the other numbers; `mean`, `deviation`: of these, after the logarithm where the feature takes it;
    `values`: (text, rows) of the most frequent values; `distinct`: the number of different values; `sample`: values of evenly
    spaced rows, numbers (NaN: no value) or texts (None: no value).
    """

    rows: int = 0
    nulls: int = 0
    mean: float | None = None
    deviation: float | None = None
    least: float | None = None
    most: float | None = None
    values: tuple[tuple[str, int], ...] = ()
    distinct: int = 0
    sample: Any = ()
    wild: int = 0


@dataclass
class Feature(ABC):
    """One column of the source within a packed column (:class:`~pg_mop.columns.features_column.Features`).

    `parameters` are JSON-able and complete after `fit`. SQL turns a raw value into a wire, a number or a text; `encode`
    turns wires into elements. Elements never depend on other rows.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    type_name: ClassVar[str]  # in JSON
    wire: ClassVar[str] = "number"  # or "text"
    is_code: ClassVar[bool] = False  # whether the element is a code for an embedding

    # --- fitting ---

    @classmethod
    @abstractmethod
    def fit(cls, source: Source, statistics: Statistics) -> Feature:
        """The fitted feature. Pure. Raises MopError."""

    @classmethod
    def stored(cls, source: Source, statistics: Statistics, **parameters: Any) -> Feature:
        """The feature with the parameters that all features have, besides its own."""
        if statistics.nulls and source.options.get("on_null") == "refuse":
            raise MopError(
                f'column "{source.name}" is NULL in {statistics.nulls} of {statistics.rows} rows',
                detail="on_null is 'refuse'.",
                hint=f"Leave such rows out: SELECT ... WHERE {written(source.column)} IS NOT NULL. Or call with "
                "on_null => 'indicator'.",
                sqlstate="22004",
            )
        common: dict[str, Any] = {"column": source.column, "sql_type": source.sql_type}
        if source.path:
            common["path"] = list(source.path)
        if family(source.sql_type) == "moment":
            common["zone"] = source.zone
        return cls(source.name, {**common, **parameters, "rows": statistics.rows, "nulls": statistics.nulls})

    # --- SQL ---

    @property
    def column(self) -> str:
        """The column of the source."""
        return self.parameters["column"]

    @property
    def sql_type(self) -> str:
        return self.parameters["sql_type"]

    @property
    def zone(self) -> str:
        """The time zone in which moments are taken."""
        return str(self.parameters.get("zone", UTC))

    @classmethod
    @abstractmethod
    def wire_of(cls, source: Source) -> str:
        """SQL: a source's value as a double precision number, or as a text; NULL where there is none."""

    def wire_sql(self) -> str:
        """SQL: the same for the fitted feature."""
        path = tuple(self.parameters.get("path") or ())
        return self.wire_of(Source(self.name, self.column, self.sql_type, path, {"zone": self.zone}))

    # --- elements ---

    @property
    @abstractmethod
    def elements(self) -> list[str]:
        """The names of the elements that a value becomes."""

    @abstractmethod
    def encode(self, wires: Any) -> numpy.ndarray:
        """Wires -> elements [rows, len(elements)], float32. `wires`: float64 numbers (NaN: NULL), or a list of texts."""

    def unseen(self, wires: Any) -> list[str]:
        """Values that training rows did not have, of categories."""
        return []

    def piece_edges(self) -> list[tuple[float, ...]]:
        """The ends of the pieces in which a net reads each element, in the scale of elements; none for other features."""
        return []

    def nulls(self, wires: Any) -> int:
        """The number of NULLs."""
        import numpy as np

        return wires.count(None) if self.wire == "text" else int(np.isnan(wires).sum())

    def trained_shares(self) -> Sequence[float]:
        """The shares of training rows in each bin of values."""
        return self.parameters["shares"]

    def counts(self, wires: Any) -> numpy.ndarray:
        """The number of rows in each of these bins."""
        return bin_counts(self.parameters["edges"], wires)

    def described(self) -> str:
        """What becomes of the column, in a few words."""
        return self.type_name

    @abstractmethod
    def to_keras(self) -> dict[str, Any]:
        """The parameters by which layers of Keras compute the elements (mop_udf/training/raw_model.py); JSON-able."""

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type_name, "name": self.name, "parameters": self.parameters}


def bin_counts(edges: Sequence[float], values: Any) -> numpy.ndarray:
    """How many numbers are in each bin between `edges`; NaN and infinity do not count."""
    import numpy as np

    values = np.asarray(values, "f8")
    return np.bincount(np.searchsorted(edges, values[np.isfinite(values)], side="left"), minlength=len(edges) + 1)


def raw_sql(column: str, path: Any = None) -> str:
    """SQL: a column, or a field of a JSON column as text."""
    value = quote_identifier(column)
    if not path:
        return value
    keys = ", ".join(quote_literal(key) for key in path)
    return f"({value}::jsonb #>> ARRAY[{keys}]::text[])"


def with_indicator(wires: numpy.ndarray, elements: numpy.ndarray, indicator: bool) -> numpy.ndarray:
    """Elements [rows, n], with one more that is 1 where the wire is NULL."""
    import numpy as np

    if not indicator:
        return elements
    return np.concatenate([elements, np.isnan(wires).reshape(-1, 1).astype("<f4")], 1)


def wants_indicator(source: Source, statistics: Statistics) -> bool:
    """Whether the feature tells the net which values are NULL."""
    return bool(statistics.nulls) and source.options.get("on_null", "indicator") == "indicator"

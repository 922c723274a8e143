"""The base class of column types, and the values that a column type is fitted from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.sql_types import Kind
from pg_mop.plan import nets

if TYPE_CHECKING:  # sessions that only train do not import numpy
    import numpy

    from pg_mop.columns.features import Feature

WIRE_BYTES = {"real": 4, "smallint": 2, "double precision": 8}  # of an element; the keys are the SQL types of wires
ARRAY_HEADER = 20  # bytes before the elements of a vector in binary form


@dataclass
class SourceColumn:
    """A column of the table that is being packed: its name and its SQL type."""

    db: Database
    table: Table
    name: str
    kind: Kind


@dataclass(frozen=True)
class Request:
    """The arguments of a preprocessor that concern one column; `width`: its element of num_classes."""

    normalizing_const: float | None = None
    dependent_dtype: str = "int16"
    width: int | None = None


class WantedOutput(NamedTuple):
    """The output that a model needs for a dependent column: its width, the word for its units in errors, and whether one
    unit may stand for two classes."""

    width: int
    kind: str
    one_unit: bool = False


@dataclass
class Column(ABC):
    """One column of a packed table: how it is packed, trained on, predicted with and exported.

    `parameters` are JSON-able, and complete after `fit`: a session that reads them needs no source table. A value passes
    through four forms: raw (SQL), wire (as the packing query returns it), packed (a row of a buffer), decoded.

    A column type is a subclass in a file of its own, registered in ``columns/__init__.py``. This one packs positive numbers
    as their logarithms. Its wires are plain numbers, so that the example needs no database:

    >>> from dataclasses import dataclass
    >>> import numpy
    >>> @dataclass
    ... class Log(Column):
    ...     type_name = "log"
    ...
    ...     @classmethod
    ...     def fit(cls, source, request):
    ...         return cls(source.name, {"shape": [1]})
    ...
    ...     def wire_sql(self, value):
    ...         return f"({value})::float8"
    ...
    ...     def encode(self, values):
    ...         numbers = numpy.array(values, "f8").reshape(-1, 1)
    ...         return numpy.log(numbers).astype(self.dtype) if (numbers > 0).all() else None
    ...
    ...     def decode(self, outputs):
    ...         return self.labels(outputs.shape[1]), numpy.exp(outputs)
    >>> price = Log("price", {"shape": [1]})
    >>> price.wire_sql('q."price"')
    '(q."price")::float8'
    >>> packed = price.encode([1, 10, 100])
    >>> packed.dtype.str, packed.shape
    ('<f4', (3, 1))
    >>> labels, numbers = price.decode(packed)
    >>> labels, numbers.round(3).ravel().tolist()
    ([None], [1.0, 10.0, 100.0])
    >>> price.to_json()
    {'type': 'log', 'name': 'price', 'parameters': {'shape': [1]}}
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    kind: Kind | None = field(default=None, repr=False, compare=False)  # the source's SQL type, while it is packed

    type_name: ClassVar[str]  # in JSON
    in_madlib: ClassVar[bool] = False  # whether MADlib's summary columns hold all parameters
    flat: ClassVar[bool] = True  # whether models other than nets can take the elements as numbers
    kind_name: ClassVar[str] = (
        ""  # in the argument transform of mop_pack, of a type that packs one column of a table alone
    )
    takes: ClassVar[str] = ""  # the SQL type of such a column; "array": those of arrays of numbers
    options: ClassVar[Mapping[str, type]] = {}  # {option of such a column in transform: int, float or str}
    raw_type: ClassVar[str] = "real[]"  # of a raw value, where `sql_type` is not known
    takes_null: ClassVar[bool] = True  # as a raw value of a row to predict for

    @property
    def dtype(self) -> str:
        """numpy's dtype of a packed element: <f4 or <i2."""
        return "<f4"

    @property
    def wire(self) -> str:
        """The SQL type of a wire's elements, a key of WIRE_BYTES."""
        return "real"

    # --- fitting ---

    @classmethod
    def accepts(cls, kind: Kind, request: Request) -> bool:
        """Whether a column of the SQL type `kind` becomes a column of this type; the first type that accepts is used."""
        return True

    @classmethod
    def of_table(cls, source: SourceColumn, options: Mapping[str, Any]) -> Column | None:
        """The fitted column, with the options of mop_pack; None where the values are others. Raises MopError."""
        return cls.fit(source, Request())

    @classmethod
    @abstractmethod
    def fit(cls, source: SourceColumn, request: Request) -> Column:
        """The fitted column. Raises MopError where the source's type or values do not suit."""

    @classmethod
    def fit_like(cls, source: SourceColumn, request: Request, trained: Column, summary: Table) -> Column:
        """A column of validation rows, with the parameters of the training table's column, whose summary is `summary`.

        Raises MopError where the two columns do not match.
        """
        if cls is not type(trained):
            raise MopError(
                f'column "{source.name}" would be packed as {cls.type_name}, '
                f'but training column "{trained.name}" is packed as {trained.type_name}'
            )
        column = cls.fit(source, request)
        column.parameters = dict(trained.parameters)
        return column

    # --- packing ---

    @property
    def shape(self) -> list[int]:
        """The dimensions of one row."""
        return list(self.parameters["shape"])

    @property
    def packed_bytes(self) -> int:
        """Bytes of one packed row."""
        return math.prod(self.shape) * int(self.dtype[2:])

    @property
    def wire_bytes(self) -> int:
        """Bytes of one row as the packing query returns it."""
        return ARRAY_HEADER + (4 + WIRE_BYTES[self.wire]) * math.prod(self.shape)

    def raw_sql(self) -> str:
        """SQL for the raw value in the source table."""
        quoted = quote_identifier(self.name)
        return quoted if self.kind is None else f"{quoted}::{self.kind.sql}"  # (a domain becomes its base type)

    def raw_parts(self) -> list[str]:
        """SQL: what the packing query reads of a row of the source, one value or several. (Most types: the raw value.)"""
        return [self.raw_sql()]

    def numbers_and_texts(self) -> tuple[list[str], list[str]] | None:
        """SQL: the wires of a row as single numbers (double precision) and texts, whose arrays over many rows `encode` takes;
        None where they are of other types."""
        return None

    def wire_parts(self, values: list[str]) -> list[str]:
        """SQL: the parts, which are columns `values` now, as `encode` takes them, one argument each."""
        return [self.wire_sql(value) for value in values]

    def values_of(self, parts: list[list[Any]]) -> list[Any]:
        """The argument of `encode`, from the wires of each part."""
        return parts[0] if len(parts) == 1 else parts

    @property
    def needs_trainer(self) -> bool:
        """Whether `encode` needs a trainer (`decoded_by`)."""
        return False

    @property
    def sources(self) -> list[str]:
        """The columns of the source that the packed column is made of."""
        return [self.name]

    @property
    def features(self) -> Sequence[Feature]:
        """What the columns of the source have become, where the packed column is made of several."""
        return ()

    def source_types(self) -> dict[str, str]:
        """{column of the source: its SQL type}."""
        is_field = self.parameters.get("path")
        return {self.sources[0]: "jsonb" if is_field else str(self.sql_type or self.raw_type)}

    def lookup(self, db: Database, summary: str, value: str, alias: str) -> tuple[str, str]:
        """SQL: (a join that the raw `value` needs under the name `alias`, or "", and the expression that replaces it)."""
        return "", value

    def lookup_in_place(self, db: Database, summary: str, value: str) -> str:
        """SQL: the same expression without a join, as each shard of Citus computes it alone."""
        return value

    @abstractmethod
    def wire_sql(self, value: str) -> str:
        """SQL: a raw value, or the result of `lookup`, as `encode` takes it."""

    def hash_sql(self, value: str, seed: int) -> str:
        """SQL: a 64-bit hash of a raw value, which orders rows without a position."""
        return f'hashtextextended({value}::text COLLATE pg_catalog."C", {seed})'

    def segment_sql(self, value: str, schema: str) -> str:
        """SQL: the packed bytes of a group of wires in the order of `n`, computed on a segment of Greenplum."""
        raise MopError(f'columns of type {self.type_name} cannot be packed on Greenplum: column "{self.name}"')

    @abstractmethod
    def encode(self, values: list[Any]) -> numpy.ndarray | None:
        """Wires -> packed rows, each with the elements of `shape`; None where a value cannot be packed. `values`: a wire of
        each row or, where `wire_parts` are several, a list of them for each part. The array must have the dtype
        `self.dtype`: the buffer has its bytes as they are."""

    def explain_misfit(self, db: Database, source: Table, summary: str, training: str | None) -> None:
        """Raises the MopError that describes the values that `encode` refused; returns if no such value exists now.

        `training`: the packed training table (quoted), where validation rows are packed.
        """
        raise MopError(f'column "{self.name}" of {source} has a value that cannot be packed as {self.type_name}')

    # --- training and predicting ---

    def net_input(self) -> nets.Input:
        """The column as an input of a net that pg_mop makes."""
        return nets.Input(self.name, tuple(self.shape))

    def net_output(self) -> nets.Output:
        """The column as an output of such a net."""
        if self.classes is None:
            return nets.Output(self.name, numbers=self.shape[0])
        return nets.Output(self.name, self.shape[0])

    @property
    def is_numbers(self) -> bool:
        """Whether targets are numbers (or soft labels), not classes."""
        return self.dtype == "<f4"

    @property
    def classes(self) -> list[str | None] | None:
        """The class values as text, in the order of the model's units; None where there are no classes."""
        return None

    def wanted_output(self, width: int) -> WantedOutput:
        """The output that a model needs for this column; `width`: of its packed rows."""
        return WantedOutput(width, "numbers" if self.is_numbers else "classes")

    def encode_for_prediction(self, values: list[Any]) -> numpy.ndarray:
        """Wires -> float32 rows as the trained model takes them. NaN is allowed: its prediction is NULL."""
        rows = self.encode(values)
        if rows is None:
            raise MopError(f'column "{self.name}" has a value that the model cannot take')
        return rows.reshape(-1, *self.shape)

    def wires(self, values: list[Any]) -> dict[str, Any]:
        """{feature: its wires} from the column's wires."""
        return {}

    def unseen(self, values: list[Any]) -> dict[str, list[str]]:
        """{column of the source: values that training rows did not have}, from wires."""
        return {}

    def labels(self, width: int) -> list[str | None]:
        """The class value of each of a model's `width` units; a single number has none."""
        # (as class 0, its value would read as a probability)
        return [str(unit) for unit in range(width)] if width > 1 else [None]

    def decode(self, outputs: numpy.ndarray) -> tuple[list[str | None], numpy.ndarray]:
        """A model's outputs [rows, units] -> (the class value of each unit, the values in the user's terms)."""
        return self.labels(outputs.shape[1]), outputs

    def restored(self, outputs: numpy.ndarray, limited: bool = True) -> numpy.ndarray:
        """Outputs of a model of numbers, of any shape, in the user's terms; `limited`: within the limits of predictions."""
        return outputs

    def predicted(self, probabilities: numpy.ndarray) -> numpy.ndarray:
        """The number of the class that is predicted for each row of decoded outputs [rows, units]."""
        return probabilities.argmax(1)

    def to_keras(self) -> dict[str, Any] | None:
        """The config of the Keras layer between raw values and the model; None: no layer is needed.

        It is a plain dict, {"class_name", "config"}: Keras is not imported in a backend.
        """
        return None

    def decoded_by(self, trainer: Any) -> None:
        """Have `trainer` do from now on what a backend must not do in `encode`, if `needs_trainer`."""
        raise NotImplementedError

    def raw_inputs(self) -> list[dict[str, Any]]:
        """Descriptions of the raw values of the packed column, for an exported model (mop_udf/training/raw_model.py)."""
        return [{"kind": "array", "name": self.name, "shape": self.shape, "layer": self.to_keras()}]

    # --- reporting ---

    def described(self) -> str:
        """What a value becomes, in a few words."""
        return f"{self.kind_name or 'array'} of {self.shape}"

    def places(self) -> list[tuple[str, slice]]:
        """(column of the source, its elements on the last axis of a row) of each."""
        return [(self.name, slice(None))]

    def class_sql(self, value: str, actual: str) -> str:
        """SQL: the class of a row, from a `value` of SQL type `actual`."""
        return f"{value}::text"

    def target_sql(self, value: str, actual: str) -> str | None:
        """SQL: a `value` of SQL type `actual` as `shares` takes it; None where the targets of training are not known."""
        return None

    def shares(self, targets: list[Any]) -> tuple[Sequence[float], Sequence[float]]:
        """How targets were distributed in training, and how they are now: shares in the same bins."""
        raise NotImplementedError

    # --- comparing and storing ---

    @property
    def sql_type(self) -> str | None:
        """The SQL type of the source's column, where it is known."""
        return self.parameters.get("sql_type")

    def difference(self, other: Column) -> str | None:
        """How two columns of one position differ, as an error says it; an unknown parameter is no difference."""
        return None

    def with_parameters(self, name: str, **parameters: Any) -> Column:
        """The same column under another name, with more parameters."""
        return replace(self, name=name, parameters={**self.parameters, **parameters})

    def summary_sql(self) -> str | None:
        """SQL for the class values in the summary of a packed table; None: NULL."""
        return None

    def class_type(self) -> str:
        """The SQL type of a class value in the summary."""
        return "text"

    def to_json(self) -> dict[str, Any]:
        """A JSON-able value that `columns.from_json` reads."""
        return {"type": self.type_name, "name": self.name, "parameters": self.parameters}


def first_dimensions(source: SourceColumn) -> list[int]:
    """The dimensions of the array in the first row. Raises MopError where that is NULL or empty."""
    from pg_mop.columns import binary

    wire = source.db.value(f"SELECT array_send({quote_identifier(source.name)}) AS a FROM {source.table} LIMIT 1")
    return list(binary.dimensions(wire, source.name))

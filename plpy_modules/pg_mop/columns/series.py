"""Series: arrays of various lengths, of one or of several channels, padded to one length."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.columns.base import ARRAY_HEADER, Column, Request, SourceColumn
from pg_mop.columns.features.number import CLIP, spread
from pg_mop.plan import nets

if TYPE_CHECKING:
    import numpy

PADDING = CLIP + 1  # no scaled number; nets mask the steps that have it
MAX_LENGTH = 500  # steps, unless the user says it
MOST_RECURRENT = 100  # steps that GRU reads; longer series take convolutions, which are faster
SHARE = 0.98  # of the training rows whose series are not cut, unless they are longer than that


@dataclass(frozen=True)
class Shapes:
    """The arrays of a column: `rows`; `known`: rows with an array; dimensions; the least and the largest sizes."""

    rows: int
    known: int
    empty: int
    dimensions: tuple[int | None, int | None]
    steps: tuple[int | None, int | None]
    channels: tuple[int | None, int | None]

    @classmethod
    def of(cls, db: Database, table: Table, name: str) -> Shapes:
        """By one scan."""
        x = quote_identifier(name)
        row = db.one(
            f"SELECT count(*) AS rows, count({x}) AS known, count(*) FILTER (WHERE cardinality({x}) = 0) AS empty, "
            f"min(array_ndims({x})) AS d0, max(array_ndims({x})) AS d1, min(array_length({x}, 1)) AS s0, "
            f"max(array_length({x}, 1)) AS s1, min(array_length({x}, 2)) AS c0, max(array_length({x}, 2)) AS c1 FROM {table}"
        )
        assert row is not None
        return cls(
            row["rows"],
            row["known"],
            row["empty"],
            (row["d0"], row["d1"]),
            (row["s0"], row["s1"]),
            (row["c0"], row["c1"]),
        )

    @property
    def are_series(self) -> bool:
        """Whether the arrays have one or two dimensions, and not all of them the same number of steps."""
        least, most = self.dimensions
        if least is None or least != most or least > 2 or self.channels[0] != self.channels[1]:
            return False
        return self.steps[0] != self.steps[1] or self.known < self.rows or self.empty > 0


@dataclass
class Series(Column):
    """Parameters: `shape` ([steps, channels]), `means` and `deviations` (of each channel), `dimensions` (1 or 2 in SQL),
    `sql_type`, `nulls`, `rows`.

    Numbers are standardised by channel. Longer series keep their last steps; steps after the end have PADDING in all
    channels. A NULL or NaN element is the mean. NULL is a series without steps.
    """

    type_name = kind_name = "series"
    options = {"length": int}

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> Series:
        return cls.of(source, Shapes.of(source.db, source.table, source.name), None)

    @classmethod
    def takes(cls, sql_type: str, numeric_array: bool) -> bool:
        return numeric_array

    @classmethod
    def of_table(cls, source: SourceColumn, options: Mapping[str, Any]) -> Series | None:
        shapes = Shapes.of(source.db, source.table, source.name)
        if "kind" not in options and not shapes.are_series:
            return None
        return cls.of(source, shapes, int(options["length"]) if "length" in options else None)

    @classmethod
    def of(cls, source: SourceColumn, shapes: Shapes, length: int | None) -> Series:
        """The fitted column; `length`: steps, or None. Raises MopError where arrays are no series of one kind."""
        least, most = shapes.dimensions
        if least is None:
            raise MopError(f'column "{source.name}" has no array with an element', sqlstate="22004")
        if least != most or least > 2:
            raise MopError(
                f'column "{source.name}" has arrays of {least} to {most} dimensions',
                detail="A series has one dimension, or two: steps and channels.",
            )
        if shapes.channels[0] != shapes.channels[1]:
            raise MopError(
                f'column "{source.name}" has series of {shapes.channels[0]} to {shapes.channels[1]} channels',
                detail="The second dimension must be the same in all rows.",
            )
        channels, x = shapes.channels[0] or 1, quote_identifier(source.name)
        if length is None:
            length = source.db.value(
                f"SELECT percentile_disc({SHARE}) WITHIN GROUP (ORDER BY array_length({x}, 1)) FROM {source.table}"
            )
            length = min(MAX_LENGTH, length)
        rows = source.db.execute(
            f"SELECT (o - 1) % {channels} AS channel, avg(v) AS mean, stddev_pop(v) AS deviation, min(v) AS least, "
            f"max(v) AS most FROM {source.table}, "
            f"unnest({x}::double precision[]) WITH ORDINALITY AS u(v, o) WHERE abs(v) <= 1e30 GROUP BY 1"
        )
        sql_type = str(source.kind.element)
        deviations = {
            row["channel"]: spread(row["deviation"], sql_type, row["least"], row["most"]) or 1.0 for row in rows
        }
        means = {row["channel"]: row["mean"] for row in rows}
        parameters = {
            "means": [means.get(k, 0.0) for k in range(channels)],
            "deviations": [deviations.get(k, 1.0) for k in range(channels)],
            "dimensions": least,
            "shape": [int(length), channels],
            "rows": shapes.rows,
            "nulls": shapes.rows - shapes.known,
        }
        return cls(source.name, parameters)

    @property
    def wire_bytes(self) -> int:
        return ARRAY_HEADER + 12 * self.shape[0] * self.shape[1]

    @property
    def wire(self) -> str:
        return "double precision"

    def wire_sql(self, value: str) -> str:
        return f"pg_catalog.array_send(pg_catalog.array_replace({value}::double precision[], NULL, 'NaN'))"

    def encode(self, values: list[Any]) -> numpy.ndarray:
        from pg_mop.columns.binary import np

        steps, channels = self.shape
        means, deviations = (np.array(self.parameters[name], "f8") for name in ("means", "deviations"))
        packed = np.full((len(values), steps, channels), PADDING, "<f4")
        for row, wire in enumerate(values):
            series = _read(wire, channels, self.name)[-steps:]
            scaled = np.nan_to_num((series - means) / deviations, nan=0.0, posinf=CLIP, neginf=-CLIP)
            packed[row, : len(series)] = np.clip(scaled, -CLIP, CLIP)
        return packed

    def encode_for_prediction(self, values: list[Any]) -> numpy.ndarray:
        return self.encode(values)

    def described(self) -> str:
        return f"series of {self.shape}"

    def net_input(self) -> nets.Input:
        shape = tuple(self.shape)
        reader = [("GRU", {"units": 32})] if shape[0] <= MOST_RECURRENT else nets.layers_of(shape)
        return nets.Input(self.name, shape, [("Masking", {"mask_value": PADDING}), *reader])  # (padding becomes 0)

    def raw_inputs(self) -> list[dict[str, Any]]:
        own = {name: self.parameters[name] for name in ("shape", "means", "deviations")}
        return [{"kind": "series", "name": self.name, "padding": PADDING, "limit": CLIP, **own}]


def _read(wire: bytes | None, channels: int, name: str) -> numpy.ndarray:
    """One array of double precision in binary form -> [steps, channels]. Raises MopError."""
    from pg_mop.columns.binary import np

    dimensions = struct.unpack_from(">i", wire)[0] if wire else 0
    if not dimensions:
        return np.zeros((0, channels))
    assert wire is not None
    sizes = [struct.unpack_from(">i", wire, 12 + 8 * i)[0] for i in range(dimensions)]
    if dimensions > 2 or (sizes[1] if dimensions == 2 else 1) != channels:
        raise MopError(
            f'column "{name}" has an array of dimensions {sizes}: its series have {channels} channels', sqlstate="22000"
        )
    elements = np.frombuffer(wire, np.dtype([("length", ">i4"), ("value", ">f8")]), offset=12 + 8 * dimensions)
    return elements["value"].reshape(-1, channels)

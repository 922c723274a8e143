"""Predictions for raw rows, chunk by chunk.

A :class:`Reader` reads the rows in the caller's session, or in a worker session for a partition; on Greenplum's segments
the rows come one by one (at_segments.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mop_udf.pool.process import Trainer
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.columns import out_of_range
from pg_mop.inference.model import Model

NUMBER = re.compile(r"\s*[0-9]+(\.[0-9]*)?\s*")
CHUNK_BYTES = 16 << 20
PIECE_BYTES = 2 << 20
ROW_BYTES = 300  # of a prediction on its way into the table: Python objects, then an array of SQL
Rows = list[list[Any]]  # columns: ids (text), class names, class values, probabilities, ranks


class Predictor:
    """A :class:`~pg_mop.inference.model.Model` that a trainer holds. `count`: the rows of a chunk."""

    def __init__(self, trainer: Trainer, model: Model, choice: Choice) -> None:
        self.trainer, self.model, self.choice = trainer, model, choice
        counts = [math.prod(steps) for steps in model.steps]
        entries = sum(
            count * (width if choice.most is None else choice.most) for width, count in zip(model.widths, counts)
        )
        size = (
            sum(math.prod(n or 1 for n in shape) * 8 + 64 for shape in model.input_shapes)
            + 16 * sum(width * count for width, count in zip(model.widths, counts))
            + ROW_BYTES * entries
        )
        self.count = max(1, min(10_000, CHUNK_BYTES // size))

    def of(self, identifiers: list[str], values: Sequence[list[Any]], inputs: Sequence[str]) -> Rows:
        """The predictions for a chunk of rows: columns (lists) of ids (text), class names, class values, probabilities
        and ranks, with None for missing ones.

        `identifiers`: text; `values`: for each input its wires (see `Model.wires_sql`); `inputs`: their names. Raises
        MopError where the arrays do not fit the model.
        """
        columns = self.model.input_columns(inputs)
        arrays = [column.encode_for_prediction(wires) for column, wires in zip(columns, values)]
        self.trainer.send(
            {"op": "predict", "shapes": [list(a.shape) for a in arrays]},
            *(a.reshape(-1).view(np.uint8) for a in arrays),
        )
        _, payloads = self.trainer.receive()
        rows: Rows = [[], [], [], [], []]
        finite = np.all([np.isfinite(a.reshape(len(a), -1)).all(axis=1) for a in arrays], axis=0)
        for output, steps, data in zip(self.model.transform.outputs, self.model.steps, payloads):
            outputs = np.frombuffer(data, "<f4").astype("f8").reshape(len(identifiers), math.prod(steps), -1)
            for place, step in enumerate(np.ndindex(*steps)):
                labels, numbers = output.decode(outputs[:, place])
                row, column, rank = self.choice.of(numbers, finite & np.isfinite(numbers).all(axis=1))
                classes = [*labels, None]  # column -1: no prediction
                rows[0] += [identifiers[i] for i in row]
                rows[1] += [output.name + "".join(f"[{n + 1}]" for n in step)] * len(row)
                rows[2] += [classes[c] for c in column]
                rows[3] += [p if c >= 0 else None for p, c in zip(numbers[row, column].tolist(), column)]
                rows[4] += [r if r > 0 else None for r in rank.tolist()]
        return rows


def predictions(predictor: Predictor, reader: Reader) -> Iterator[Rows]:
    """The predictions for all rows of a Reader, in chunks as `Predictor.of` returns them."""
    for identifiers, values in reader.chunks(predictor.count):
        rows = predictor.of(identifiers, values, reader.inputs)
        if rows[0]:
            yield rows


def in_pieces(chunks: Iterable[Rows]) -> Iterator[Rows]:
    """Chunks of predictions in pieces of about PIECE_BYTES: each piece travels as one value."""
    for rows in chunks:
        first, size = 0, 0
        for last, identifier in enumerate(rows[0], start=1):
            size += len(identifier or "") + ROW_BYTES
            if size >= PIECE_BYTES or last == len(rows[0]):
                yield [column[first:last] for column in rows]
                first, size = last, 0


class Choice:
    """The selection of an example's classes by pred_type (docs/contract/fit_evaluate_predict.md, section 3.2).

    Raises MopError for an invalid pred_type.
    """

    @classmethod
    def for_model(cls, pred_type: str | float | None, model: Model) -> Choice:
        """The selection for a Model's outputs."""
        choice = cls(pred_type)
        if model.regression:
            choice.all_in_order()
        return choice

    def __init__(self, pred_type: str | float | None) -> None:
        self.pred_type = pred_type = "prob" if pred_type is None else pred_type
        self.most: int | None = None
        self.above: float | None = None
        if isinstance(pred_type, str) and NUMBER.fullmatch(pred_type):
            pred_type = float(pred_type)  # drivers that send no types send numbers as text
        if isinstance(pred_type, str):
            if pred_type not in ("prob", "response"):
                raise MopError(
                    f"pred_type must be 'prob', 'response', an integer or a double precision number, not {pred_type!r}"
                )
            if pred_type == "response":
                self.most = 1
        elif isinstance(pred_type, int) or 1 <= pred_type < 2**31 and pred_type == int(pred_type):
            pred_type = int(pred_type)  # drivers send integers as other types
            if pred_type < 1:
                raise MopError(f"pred_type must be at least 1 as an integer, not {pred_type}")
            self.most = pred_type
        else:
            if not 0 <= pred_type < 1:
                raise MopError(f"pred_type must be in [0, 1) as a double precision number, not {pred_type}")
            self.above = pred_type
        self.rank, self.sort = pred_type != "response", True

    def all_in_order(self) -> None:
        """Keep every output of a regression model, ranked by its position. Raises MopError for a choice of classes."""
        if self.above is not None or self.most is not None and self.rank:
            raise MopError("pred_type must be 'prob' or 'response' for a regression model, which has no classes")
        self.most, self.sort = None, False

    def of(self, probabilities: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, columns, ranks) of the kept entries of an array [examples, classes]; rank 1 = the best.

        An example that is not `known` (an array of booleans) has no prediction; its one entry has column and rank -1.
        """
        count, classes = probabilities.shape
        order = (
            np.argsort(-probabilities, axis=1, kind="stable") if self.sort else np.tile(np.arange(classes), (count, 1))
        )
        mask = np.ones((count, classes), bool)
        if self.most is not None:
            mask[:, self.most :] = False
        if self.above is not None:
            mask = np.take_along_axis(probabilities, order, 1) > self.above
        mask[~known] = np.arange(classes) == 0
        row, rank = np.nonzero(mask)
        return row, np.where(known[row], order[row, rank], -1), np.where(known[row], rank + 1, -1)


class Reader:
    """Chunks of a table's rows: (ids as text, [[wire, ...] for each input])."""

    def __init__(self, db: Database, table: Table | str, identifier: str, inputs: Sequence[str], model: Model) -> None:
        """`table`: quoted; the other names are not. `model`: decides the form of the wires."""
        self.db, self.table, self.inputs = db, table, inputs
        self.rows = 0  # read by now
        columns = ", ".join(f"{wire} AS c{i}" for i, wire in enumerate(model.wires_sql(inputs)))
        self.sql = f"SELECT {quote_identifier(identifier)}::text AS id, {columns} FROM {table}"

    def chunks(self, count: int) -> Iterator[tuple[list[str], list[list[Any]]]]:
        """Chunks of `count` rows, one after the other."""
        cursor = self.db.plpy.cursor(self.sql)
        try:
            while rows := self._fetch(cursor, count):
                self.rows += len(rows)
                yield [row["id"] for row in rows], [[row[f"c{i}"] for row in rows] for i in range(len(self.inputs))]
        finally:
            cursor.close()

    def _fetch(self, cursor: Any, count: int) -> Sequence[Mapping[str, Any]]:
        self.db.check_cancel()
        try:
            return cursor.fetch(count)
        except self.db.plpy.SPIError as error:
            check_range(self.db, error, self.table, self.inputs)
            raise


def check_range(db: Database, error: Exception, table: Table | str, inputs: Iterable[str]) -> None:
    """Raises MopError where an error of SPI says that a number is too large for type real."""
    if getattr(error, "sqlstate", None) == out_of_range.OUT_OF_RANGE:
        for name in inputs:
            out_of_range.check(db, table, name, "real", detail="The model takes float32.")


def check_shapes(dims: Iterable[str | None], inputs: Iterable[str], shapes: Iterable[list[int | None]]) -> None:
    """The inputs (names) of a row must have these shapes; `dims`: their array_dims. Raises MopError."""
    for text, name, shape in zip(dims, inputs, shapes):
        dimensions = [
            int(d.split(":")[1]) - int(d.split(":")[0]) + 1 for d in (text or "").strip("[]").split("][") if d
        ]
        if dimensions != shape:
            raise MopError(
                f"the model takes input of shape {shape}, column {quote_literal(name)} has {dimensions}: "
                f"input shape does not match"
            )

"""How the rows of a table, view or query become the inputs of a net: the columns of a named model, or of a packed table."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, understood
from pg_mop.backend.quoting import quote_literal
from pg_mop.backend.trusted import is_of_trusted_role, locked_of_any_role
from pg_mop.columns import Column
from pg_mop.columns.features.conversion import family
from pg_mop.packing.training import Training

CHUNK_BYTES = 16 << 20
CHUNK_ROWS = 10_000


class RowInputs:
    """The columns with which rows become the inputs of a net."""

    inputs: Sequence[Column]

    @property
    def output(self) -> Column | None:
        """The target's column; None where the rows have no target, or several."""
        raise NotImplementedError

    @property
    def wanted(self) -> str:
        """The beginning of an error's clause that ends with the type which a column must have."""
        raise NotImplementedError

    def reading(self) -> AbstractContextManager[None]:
        """In this block, an error in what is stored about the columns is a MopError."""
        raise NotImplementedError

    @property
    def chunk_rows(self) -> int:
        """How many rows are read at a time."""
        size = sum(math.prod(column.shape) * 8 + column.wire_bytes for column in self.inputs) + 200
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES // size))

    def types(self) -> dict[str, str]:
        """{column: its SQL type in training}."""
        return {name: sql_type for column in self.inputs for name, sql_type in column.source_types().items()}

    def zones(self) -> dict[str, str]:
        """{column: the time zone of its moments}, of the columns that have moments."""
        features = (f for column in self.inputs for f in column.features)
        return {feature.column: feature.zone for feature in features if family(feature.sql_type) == "moment"}

    @property
    def json_columns(self) -> list[str]:
        """The columns that hold JSON, whose fields are read."""
        features = (f for column in self.inputs for f in column.features)
        texts = [column.sources[0] for column in self.inputs if column.parameters.get("path")]
        return [feature.column for feature in features if feature.parameters.get("path")] + texts

    def wires_sql(self, names: Sequence[str] = ()) -> list[str]:
        """SQL: the wires of all inputs, of a row whose columns have their own names."""
        return [wire for column in self.inputs for wire in column.wire_parts(column.raw_parts())]

    @functools.cached_property
    def _wire_counts(self) -> list[int]:
        """How many wires each input has."""
        return [len(column.raw_parts()) for column in self.inputs]

    def numbers_and_texts(self) -> tuple[list[str], list[str]] | None:
        """SQL: the wires of all inputs as single numbers and texts (`Column.numbers_and_texts`); None where one has others."""
        found = [column.numbers_and_texts() for column in self.inputs]
        if None in found:
            return None
        numbers, texts = ([sql for own in found for sql in own[kind]] for kind in (0, 1))  # type: ignore[index]
        return numbers, texts

    def values_of_arrays(
        self, numbers: Sequence[Any] | None, texts: Sequence[Any] | None
    ) -> Iterator[tuple[Column, list[Any]]]:
        """What `values` yields, from the values of many rows: an array for each of `numbers_and_texts`."""
        first_number = first_text = 0
        for column in self.inputs:
            own_numbers, own_texts = column.numbers_and_texts() or ([], [])
            values: list[Any] = []
            if own_numbers:
                own = (numbers or ())[first_number : first_number + len(own_numbers)]
                values.append(np.array(own, "f8").T)
            values += (texts or ())[first_text : first_text + len(own_texts)]
            yield column, values
            first_number, first_text = first_number + len(own_numbers), first_text + len(own_texts)

    def values(self, rows: Sequence[Any]) -> Iterator[tuple[Column, list[Any]]]:
        """(input, its wires as `encode` takes them) of each input, from rows with wires w0, w1, ..."""
        first = 0
        for column, count in zip(self.inputs, self._wire_counts):
            end = first + count
            yield column, column.values_of([[row[f"w{i}"] for row in rows] for i in range(first, end)])
            first = end


class PackedInputs(RowInputs):
    """The columns of a packed table: other rows can be compared with those that it was packed from.

    `all_inputs`: also those whose values cannot be compared, such as images.
    """

    def __init__(self, name: str, all_inputs: Sequence[Column], outputs: Sequence[Column]) -> None:
        """`name`: as the caller calls the table."""
        self.name, self.all_inputs, self.outputs = name, all_inputs, outputs
        self.inputs = [column for column in all_inputs if column.features]

    @classmethod
    def find(cls, db: Database, name: str | None) -> PackedInputs | None:
        """The columns of the packed table that the caller calls `name`; None where the name is no packed table's.

        Raises MopError where to read the table or its summary would run functions of their owner with the caller's rights: one
        of them is another role's, no superuser's, and a view, or it has row security, triggers, rules, or expressions. Also
        where another session is about to change one of the two, and where what they say of the columns cannot be read.
        """
        table = db.find_table(name) if name and name.strip() else None
        if table is None or "buffer_id" not in db.columns(table):
            return None
        try:
            with db.undone():  # the end of the block gives back the locks and the settings
                return cls._find(db, str(name), table)
        except db.plpy.SPIError as error:
            if error.sqlstate != "55P03":
                raise
        summary = db.suffixed(str(table), "_summary")
        tables = ", ".join(f"{quote_literal(table_name)}::regclass" for table_name in (str(table), summary))
        raise MopError(
            f'another session changes "{name}" or its summary at this moment',
            hint=f"SELECT pid FROM pg_locks WHERE relation IN ({tables}); shows whose; then call again.",
            sqlstate="55P03",
        )

    @classmethod
    def _find(cls, db: Database, name: str, table: Table) -> PackedInputs:
        names = (str(table), db.suffixed(str(table), "_summary"))
        packed_table, summary = (locked_of_any_role(db, one) for one in names)
        if packed_table is None or summary is None:
            if db.find_table(names[1]) is None:
                raise MopError(
                    f'"{name}" has no summary',
                    hint=f"SELECT {db.extension}.mop_pack(...); packs a table of your own; or name a model.",
                    sqlstate="42P01",
                )
            raise _renamed(name)
        may_be_foreign = is_of_trusted_role(db, packed_table) and db.has_foreign_rows(packed_table)
        if may_be_foreign and not db.lacking_settings(("restrict_nonsystem_relation_kind",)):
            db.execute("SELECT set_config('restrict_nonsystem_relation_kind', 'view', true)")
        training = Training(db, str(packed_table))
        # a schema may have been renamed since: then these would be other relations
        if [training.packed.oid, training.summary.oid] != [packed_table.oid, summary.oid]:
            raise _renamed(name)
        with understood(f'the summary of "{name}" cannot be read'):
            return cls(name, training.transform.inputs, training.transform.outputs)

    @property
    def output(self) -> Column | None:
        return self.outputs[0] if len(self.outputs) == 1 else None

    def reading(self) -> AbstractContextManager[None]:
        return understood(f'the summary of "{self.name}" cannot be read')

    @property
    def wanted(self) -> str:
        return f'"{self.name}" was packed from'


def _renamed(name: str) -> MopError:
    return MopError(f'"{name}" or its summary has been replaced at this moment', hint="Call again.", sqlstate="55000")

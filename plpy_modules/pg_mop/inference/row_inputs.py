"""How the rows of a table, view or query become the inputs of a net: the columns of a named model, or of a packed table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.trusted import locked_of_any_role
from pg_mop.columns import Column
from pg_mop.columns.features_column import Features
from pg_mop.packing.training import Training

CHUNK_BYTES = 16 << 20
CHUNK_ROWS = 10_000


class RowInputs:
    """The columns that rows are read with. `inputs`: Columns; `wanted`: who wants their types, for errors."""

    inputs: Sequence[Column]

    @property
    def wanted(self) -> str:
        """Who asks for the types of the columns: a text before the type."""
        raise NotImplementedError

    @property
    def chunk_rows(self) -> int:
        """How many rows are read at a time."""
        size = sum(math.prod(column.shape) * 8 + column.wire_bytes for column in self.inputs) + 200
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES // size))

    def types(self) -> dict[str, str]:
        """{column: its SQL type in training}."""
        found: dict[str, str] = {}
        for column in self.inputs:
            if isinstance(column, Features):
                for feature in column.features:
                    is_field = feature.parameters.get("path")
                    found[feature.column] = "jsonb" if is_field else feature.sql_type
            elif len(column.sources) == 1:
                is_field = column.parameters.get("path")
                default = "text" if column.type_name == "words" else "real[]"
                found[column.sources[0]] = "jsonb" if is_field else str(column.parameters.get("sql_type") or default)
        return found

    def wires_sql(self, names: Sequence[str] = ()) -> list[str]:
        """SQL: the wires of all inputs, of a row whose columns have their own names."""
        return [wire for column in self.inputs for wire in column.wire_parts(column.raw_parts())]

    def values(self, rows: Sequence[Any]) -> Iterator[tuple[Column, list[Any]]]:
        """(input, its wires as `encode` takes them) of each input, from rows with wires w0, w1, ..."""
        first = 0
        for column in self.inputs:
            end = first + len(column.raw_parts())
            yield column, column.values_of([[row[f"w{i}"] for row in rows] for i in range(first, end)])
            first = end


class PackedInputs(RowInputs):
    """The columns of a packed table: other rows can be compared with those that it was packed from.

    `all_inputs`: also those whose values cannot be compared, such as images.
    """

    def __init__(self, name: str, all_inputs: Sequence[Column]) -> None:
        """`name`: as the caller calls the table."""
        self.name, self.all_inputs = name, all_inputs
        self.inputs = [column for column in all_inputs if isinstance(column, Features)]

    @classmethod
    def find(cls, db: Database, name: str | None) -> PackedInputs | None:
        """The columns of the packed table that the caller calls `name`; None where the name is no packed table's.

        Raises MopError where to read the table or its summary would run functions of their owner with the caller's rights: one
        of them is another role's, no superuser's, and a view, or it has row security, triggers, rules, or expressions. Raises
        SPIError where another session is about to change one of the two.
        """
        table = db.find_table(name) if name and name.strip() else None
        if table is None or "buffer_id" not in db.columns(table):
            return None
        with db.undone():  # (it gives the locks back, and the settings)
            tables = [locked_of_any_role(db, own) for own in (str(table), db.suffixed(str(table), "_summary"))]
            if tables[0] is None or tables[1] is None:
                raise MopError(
                    f'"{name}" has no summary, or another table has taken one of the two names at this moment',
                    hint=f"SELECT {db.extension}.mop_pack(...); packs a table of your own; or name a model.",
                    sqlstate="42P01",
                )
            if db.has_foreign_rows(tables[0]) and not db.lacking_settings(("restrict_nonsystem_relation_kind",)):
                db.execute("SELECT set_config('restrict_nonsystem_relation_kind', 'view', true)")
            found = Training(db, str(tables[0]))
            # (a schema may have been renamed since: then these would be other relations)
            if [found.packed.oid, found.summary.oid] != [own.oid for own in tables if own]:
                raise MopError(f'"{name}" has been renamed at this moment', hint="Call again.", sqlstate="55000")
            return cls(str(name), found.transform.inputs)

    @property
    def wanted(self) -> str:
        return f'"{self.name}" was packed from'

"""Tables of raw rows, one example a row, as predict reads them."""

from __future__ import annotations

from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, split_names
from pg_mop.backend.sql_types import column_kind

HINT = "predict takes raw rows, one example a row, not a packed table."


class RawTable:
    """A test table. `text`: its name as the caller writes it; `identifier` and `inputs`: names of its columns; `id_type`: the
    identifier's SQL type; `foreign`: rows are in foreign tables, or in shards of Citus; `in_parts`: the table has several
    partitions or shards."""

    outputs: tuple[()] = ()
    copies: tuple[()] = ()

    def __init__(self, db: Database, text: str | None, id_col: str | None, independent_varname: str | None) -> None:
        """Raises MopError where predictions cannot be made from the table or from one of the columns."""
        self.table = db.input_table(text, "test table", rows=False)
        self.text = str(text)
        columns = db.columns(self.table)
        identifier = db.find_column(columns, _unquoted((id_col or "").strip()))
        if identifier is None:
            raise MopError(f'invalid id column "{id_col}": test table "{text}" has no such column')
        self.identifier = identifier
        self.inputs: list[str] = []
        for name in split_names(independent_varname):
            column = db.find_column(columns, name)
            if column is None:
                raise MopError(
                    f'invalid independent_varname "{name}": test table "{text}" has no such column', hint=HINT
                )
            kind = column_kind(db, self.table, column)
            if not kind.numeric_array:
                raise MopError(
                    f'invalid independent_varname: column "{column}" of test table "{text}" has type '
                    f"{kind.shown}, not an array of numbers",
                    hint=HINT
                    if f"{column}_shape" in columns
                    else "Give a column of type real[], integer[] or the like.",
                )
            self.inputs.append(column)
        db.check_readable(self.table, self.columns)
        if self.identifier in ("class_name", "class_value", "prob", "rank"):
            raise MopError(
                f'id column "{self.identifier}" has the name of a column that the predictions have',
                hint="Give it another name in a view of the test table.",
            )
        self.id_type = db.value(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = $1 AND attname = $2",
            ["oid", "text"],
            [self.table.oid, self.identifier],
        )
        self.foreign = db.has_foreign_rows(self.table)
        self.in_parts = (
            self.foreign
            and self.table.kind == "r"
            or self.table.kind == "p"
            and db.value(
                "SELECT count(*) > 1 FROM pg_partition_tree($1::oid::regclass) WHERE isleaf", ["oid"], [self.table.oid]
            )
        )

    @property
    def columns(self) -> list[str]:
        return [self.identifier, *self.inputs]

    def shape_columns(self) -> str:
        """SQL: the dimensions of the inputs, as text."""
        return ", ".join(f"array_dims({quote_identifier(c)}) AS c{i}" for i, c in enumerate(self.inputs))


def _unquoted(name: str) -> str:
    """A column name without the double quotes of SQL, if it has them."""
    return name[1:-1].replace('""', '"') if len(name) > 1 and name[0] == name[-1] == '"' else name

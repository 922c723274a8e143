"""How the rows of a named model's table, its versions, are read: with the caller's rights, or for a caller who may only ask.

A role with whom the answers alone are shared has SELECT on no column but `tableoid`, which every table has. That is a right of
PostgreSQL's own: its dump keeps it, REVOKE takes it back, it goes with the table, and a new table of the name does not have it.

What such a role must not see never reaches its session's SQL. A function of the extension's owner checks the right of the role
whose capability token it gets, reads the row, and leaves it in this process's memory; it returns nothing. It reads with the
rights of the table's owner, as PostgreSQL's maintenance commands do: neither an expression of an index nor anything else of the
table runs with the rights of the extension's owner, or of the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pg_mop.backend import weights
from pg_mop.backend.acting import undone_as
from pg_mop.backend.caller import extension_schema
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import raising, sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal

# the columns of the table, in order
COLUMNS = {
    "version": "integer PRIMARY KEY",
    "in_use": "boolean NOT NULL",
    "created": "timestamptz NOT NULL DEFAULT now()",
    "target": "text NOT NULL",
    "kind": "text NOT NULL",
    "metrics": "jsonb",
    "description": "text",
    "statement": "text",
    "details": "jsonb",
    "transform": "json NOT NULL",
    "compile_params": "text",
    "fit_params": "text",
    "model_arch": "json NOT NULL",
    "model_weights": "bytea NOT NULL",
}
TYPES = {name: definition.split()[0] for name, definition in COLUMNS.items()}
# SQL: pg_class row c is a model: a plain table with the columns above, of PostgreSQL's own types. A value of another type
# would run its owner's functions with the reader's rights.
IS_MODEL = (
    "(c.relkind = 'r' AND NOT EXISTS (SELECT 1 FROM (VALUES "
    + ", ".join(f"('{name}', '{sql_type}'::regtype)" for name, sql_type in TYPES.items())
    + ") AS w(name, type) WHERE NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = w.name "
    "AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid = w.type "
    "AND (row_to_json(a)->>'attgenerated') IS DISTINCT FROM 'v')))"
)
MARK = "tableoid"  # the column whose SELECT is the right to ask
# SQL: whether role r may ask the model whose table is the row c of pg_class. A policy for the rows of a table cannot be kept
# where they are read with the owner's rights.
MAY_ASK = (
    f"({IS_MODEL} AND NOT c.relrowsecurity AND has_schema_privilege(r.role, c.relnamespace, 'USAGE') "
    f"AND has_column_privilege(r.role, c.oid, '{MARK}', 'SELECT'))"
)


class VersionRows:
    """The rows of a model's table, read with the caller's rights."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def place_sql(self, db: Database, version: int | None) -> str:
        """SQL: the number of a version, the place of its row in the table, the row's writer; None: of the version in use."""
        return _place_sql(self.table.sql, version)

    def hold_sql(self, db: Database) -> str:
        """SQL: lock the table ($1, an oid), so that the session hears of its changes."""
        return f"SELECT {db.extension}.mop_hold($1::oid::regclass)"

    def row(self, db: Database, version: int) -> dict[str, Any]:
        """What a model needs of a row besides the weights."""
        row = db.one(_row_sql(self.table.sql, version))
        assert row is not None
        return row

    def source(self, db: Database, version: int, reference: Any, what: str) -> weights.Source:
        """The weights of a row; `reference`: from `row`, `what`: the version's name in errors. Raises MopError."""
        return weights.find(db, self.table, f"version = {version}", reference, what, lock=False)


class SharedRows(VersionRows):
    """The same for a role that may only ask: read by functions of the extension's owner."""

    @classmethod
    def of(cls, db: Database, name: str | None) -> SharedRows | None:
        """The rows of the table that the caller calls `name`; None where that is not one that he may only ask."""
        table = db.find_table(name) if name and name.strip() else None
        if table is None or table.kind != "r":
            return None
        may_only_ask = db.value(
            f"SELECT {MAY_ASK} AND NOT (has_column_privilege(c.oid, t.attnum, 'SELECT') "
            "AND has_column_privilege(c.oid, w.attnum, 'SELECT')) "
            "FROM (SELECT oid AS role FROM pg_roles WHERE rolname = current_user) r, pg_class c "
            "JOIN pg_attribute t ON t.attrelid = c.oid AND t.attname = 'transform' "
            "JOIN pg_attribute w ON w.attrelid = c.oid AND w.attname = 'model_weights' WHERE c.oid = $1",
            ["oid"],
            [table.oid],
        )
        return cls(table) if may_only_ask else None

    def place_sql(self, db: Database, version: int | None) -> str:
        number = "NULL" if version is None else str(int(version))
        return f"SELECT * FROM {db.extension}.mop_place_of_version({self.table.oid}, {number})"

    def hold_sql(self, db: Database) -> str:
        return f"SELECT count(*) FROM {db.extension}.mop_place_of_version($1, NULL)"

    def row(self, db: Database, version: int) -> dict[str, Any]:
        row: dict[str, Any] = self.handed_over(db, version, False)
        return row

    def source(self, db: Database, version: int, reference: Any, what: str) -> weights.Source:
        return _SharedWeights("", what, weights.Reference.read(reference), rows=self, version=version)

    def handed_over(self, db: Database, version: int, is_weights: bool) -> Any:
        """A row, or its weights."""
        db.execute(
            f"SELECT {db.extension}.mop_hand_over($1, $2, $3)",
            ["oid", "integer", "boolean"],
            [self.table.oid, version, is_weights],
        )
        return _handed.pop()


@dataclass(frozen=True)
class _SharedWeights(weights.Source):
    """Weights that a function of the extension's owner reads."""

    rows: SharedRows | None = None
    version: int = 0

    def read(self, db: Database) -> Any:
        assert self.rows is not None
        return self.rows.handed_over(db, self.version, True)

    def pieces(self, db: Database) -> Iterator[bytes]:
        yield self.read(db)


# --- within functions of the extension's owner ---------------------------------------------------------------------------
_handed: list[Any] = []  # what `mop_hand_over` has read last
_plans: dict[str, Any] = {}  # prepared statements of this session


def place_of_version(plpy: Any, model: int | None, number: int | None, token: str) -> list[tuple[int, str, str]]:
    """What `VersionRows.place_sql` selects. `token`: the caller's."""
    return raising(plpy, _place_of_version, plpy, model, number, token)


def _place_of_version(plpy: Any, model: int | None, number: int | None, token: str) -> list[tuple[int, str, str]]:
    with _read_for(plpy, model, token) as table:
        return [(row["version"], row["place"], row["writer"]) for row in plpy.execute(_place_sql(table.sql, number))]


@sql_function
def mop_hand_over(db: Database, model: int | None, number: int | None, is_weights: bool | None, token: str) -> None:
    """Leave a version's row, or its weights, in this process's memory. `token`: the caller's."""
    _handed.clear()
    with _read_for(db.plpy, model, token) as table:
        what = f"version {number} of model {table}"
        row = None if number is None else db.one(_row_sql(table.sql, number))
        if row is None:
            raise MopError(f"there is no {what}")
        source = weights.find(db, table, f"version = {number}", row["reference"], what, lock=False)
        _handed.append(source.read(db) if is_weights else row)


@contextmanager
def _read_for(plpy: Any, model: int | None, token: str) -> Iterator[Table]:
    """In this block, the table of a model is read with its owner's rights, for a role that may ask. Raises MopError."""
    owner, table = _checked(plpy, model, token)
    with undone_as(plpy, owner):
        yield table
    _checked(plpy, model, token)  # the block has locked the table, so the session has heard of a REVOKE


def _checked(plpy: Any, model: int | None, token: str) -> tuple[int, Table]:
    """(owner, table) of a model that the role of the token may ask. Raises MopError."""
    if "check" not in _plans:
        _plans["check"] = plpy.prepare(
            f"SELECT c.relowner::bigint AS owner, n.nspname, c.relname, {MAY_ASK} AS may_ask "
            f"FROM (SELECT {quote_identifier(extension_schema(plpy))}.mop_caller($2) AS role OFFSET 0) r, pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1 AND c.relkind = 'r'",
            ["oid", "text"],
        )
    rows = plpy.execute(_plans["check"], [model, token])
    if model is None or not len(rows) or not rows[0]["may_ask"]:
        raise MopError("permission denied for the model", sqlstate="42501")
    return int(rows[0]["owner"]), Table(model, rows[0]["nspname"], rows[0]["relname"], "r")


def _place_sql(table: str, version: int | None) -> str:
    where = "in_use" if version is None else f"version = {version}"
    # a TRUNCATE within a transaction gives the next row the place and the writer of the one before
    return (
        "SELECT version, concat_ws(' ', pg_relation_filenode(tableoid), ctid, cmin) AS place, xmin::text AS writer "
        f"FROM {table} WHERE {where}"
    )


def _row_sql(table: str, version: int) -> str:
    return (
        "SELECT transform::text AS transform, model_arch::text AS arch, kind, target, details::text AS details, "
        f"{weights.reference_sql('model_weights')} AS reference, octet_length(model_weights) AS bytes, "
        f"{_lacking_sql()} AS lacking FROM {table} WHERE version = {version}"
    )


def _lacking_sql() -> str:
    """SQL: the first column of a model's row that is NULL and must not be."""
    needed = [column for column, definition in COLUMNS.items() if "NOT NULL" in definition]
    return f"CASE {' '.join(f'WHEN {column} IS NULL THEN {quote_literal(column)}' for column in needed)} END"

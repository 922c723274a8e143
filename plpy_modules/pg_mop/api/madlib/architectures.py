"""Architecture tables: load_keras_model and delete_keras_model (docs/contract/arch_and_objects.md, section 1)."""

from __future__ import annotations

import secrets
from typing import Any

from pg_mop.backend import trainers
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal

COLUMNS = {
    "model_id": "serial PRIMARY KEY",
    "model_arch": "json",
    "model_weights": "bytea",
    "name": "text",
    "description": "text",
    "__internal_madlib_id__": "text",
}


@sql_function
def load_keras_model(
    db: Database,
    keras_model_arch_table: str | None,
    model_arch: str | None,
    model_weights: bytes | None,
    name: str | None,
    description: str | None,
) -> None:
    """Append an architecture to a table, which is created if it does not exist. The JSON is stored unchanged."""
    append(db, keras_model_arch_table, model_arch, model_weights, name, description)


def append(
    db: Database,
    keras_model_arch_table: str | None,
    model_arch: str | None,
    model_weights: bytes | None,
    name: str | None,
    description: str | None,
) -> int:
    """Append an architecture as load_keras_model does; return its model_id. Raises MopError."""
    if keras_model_arch_table is None or not keras_model_arch_table.strip():
        raise MopError("NULL/empty output table name")
    if model_arch is None:
        raise MopError("model_arch must not be NULL", hint="It takes the JSON that Keras' Model.to_json() writes.")
    existing = db.find_table(keras_model_arch_table)
    if existing is None:
        table = db.output_table(keras_model_arch_table)
        columns = ", ".join(f"{quote_identifier(c)} {t}" for c, t in COLUMNS.items())
        db.execute(f"CREATE TABLE {table} ({columns})")
        db.info(f"Keras model architecture table {table} created")
    else:
        _check_columns(db, existing, keras_model_arch_table)
        table = str(existing)
    ids = "", ""
    if db.has_segments and (sequence := db.value("SELECT pg_get_serial_sequence($1, 'model_id')", ["text"], [table])):
        # On Greenplum, a sequence value taken by a segment costs 0.25 s. The coordinator takes it here.
        ids = "model_id, ", f"(SELECT nextval({quote_literal(sequence)})), "
    model_id = db.value(
        f"INSERT INTO {table} ({ids[0]}model_arch, model_weights, name, description, __internal_madlib_id__) "
        f"VALUES ({ids[1]}$1::json, $2, $3, $4, $5) RETURNING model_id",
        ["text", "bytea", "text", "text", "text"],
        [model_arch, model_weights, name, description, secrets.token_hex(16)],
    )
    trainers.expect(db)
    db.info(f"model id {model_id} added to table {table}")
    return model_id


@sql_function
def delete_keras_model(db: Database, keras_model_arch_table: str | None, model_id: int | None) -> None:
    """Delete an architecture; the table goes with its last row."""
    table = db.input_table(keras_model_arch_table, "model architecture table")
    _check_columns(db, table, keras_model_arch_table)
    if not db.execute(f"DELETE FROM {table} WHERE model_id = $1 RETURNING 1 AS x", ["integer"], [model_id]):
        raise MopError(
            f'model_id {model_id} is not in "{keras_model_arch_table}"', hint=f"SELECT model_id, name FROM {table};"
        )
    db.info(f"model id {model_id} deleted from table {table}")
    if db.one(f"SELECT 1 AS x FROM {table} LIMIT 1") is None:
        db.execute(f"DROP TABLE {table}")
        db.info(f"table {table} dropped, as it is empty")


def open_table(db: Database, text: str | None) -> Table:
    """The model architecture table (a Table) with the name `text`. Raises MopError."""
    table = db.input_table(
        text, "model architecture table", hint=f"To create one: SELECT {db.extension}.load_keras_model(...);"
    )
    if "model_id" not in db.columns(table):
        raise MopError(f'"{text}" is no model architecture table: it has no column model_id')
    db.check_built_in(table, COLUMNS)
    return table


def check_list(model_ids: list[Any] | None) -> None:
    """Raises MopError unless a list of ids is a one-dimensional array without NULLs."""
    if not model_ids or None in model_ids:
        raise MopError("model_id_list must not be NULL, empty or have NULLs")
    if any(isinstance(i, list) for i in model_ids):
        raise MopError("model_id_list must be an array of one dimension", hint="For instance: ARRAY[1, 2]")


def _check_columns(db: Database, table: Table, text: str | None) -> None:
    absent_columns = [c for c in COLUMNS if c not in db.columns(table)]
    if absent_columns:
        raise MopError(f'"{text}" is no model architecture table: it has no column {", ".join(absent_columns)}')

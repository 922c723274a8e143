"""Custom functions: load_custom_function, delete_custom_function, load_top_k_accuracy_function.

See docs/contract/arch_and_objects.md, section 2. Only superusers may call them. The check precedes unpickling, which
happens in a separate process.
"""

from __future__ import annotations

from pg_mop.backend import program
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.object_table import COLUMNS, table_name
from pg_mop.backend.quoting import quote_identifier


@sql_function
def load_custom_function(
    db: Database, object_table: str | None, data: bytes | None, name: str | None, description: str | None
) -> None:
    """Store a function pickled by dill (bytes) under a name. The table is created if it does not exist."""
    _superuser_only(db)
    if data is None:
        raise MopError("object must not be NULL", hint="It takes the bytes that Python's dill.dumps(function) gives.")
    if name is None or not name.strip():
        raise MopError("the name of a custom function must not be NULL or empty")
    table_name(db, object_table)
    _program("check", stdin=data)
    _insert(db, object_table, data, name, description)


@sql_function
def load_top_k_accuracy_function(db: Database, object_table: str | None, k: int | None) -> None:
    """Store the metric top_<k>_accuracy."""
    _superuser_only(db)
    if k is None or k < 1:
        raise MopError(f"k must be at least 1, not {k}")
    name = f"top_{k}_accuracy"
    _insert(db, object_table, _program("top_k", str(k), name), name, f"returns {name}")
    db.info(f"custom function {name} added to table {db.extension}.{quote_identifier(table_name(db, object_table))}")


def top_k_categorical_acc_pickled(n: int, name: str) -> bytes:
    """The pickle (bytes) of Keras' top_k_categorical_accuracy with k = `n`, as a function called `name`."""
    return _program("top_k", str(int(n)), str(name))


@sql_function
def delete_custom_function(db: Database, object_table: str | None, id: int | str | None) -> None:
    """Delete a function by id (int) or name (str); the table goes with its last row."""
    _superuser_only(db)
    if id is None:
        raise MopError("the id or name of a custom function must not be NULL")
    table = f"{db.extension}.{quote_identifier(table_name(db, object_table))}"
    existing = db.input_table(table, "object table")
    _check_columns(db, existing, object_table)
    column, kind = ("id", "integer") if isinstance(id, int) else ("name", "text")
    if not db.execute(f"DELETE FROM {table} WHERE {column} = $1 RETURNING 1 AS x", [kind], [id]):
        raise MopError(
            f'object table "{object_table}" has no function whose {column} is {id!r}',
            hint=f"SELECT id, name FROM {table};",
        )
    if db.one(f"SELECT 1 AS x FROM {table} LIMIT 1") is None:
        db.execute(f"DROP TABLE {table}")


def _insert(db: Database, object_table: str | None, data: bytes, name: str, description: str | None) -> None:
    table = f"{db.extension}.{quote_identifier(table_name(db, object_table))}"
    existing = db.find_table(table)
    if existing is None:
        db.output_table(table)
        db.execute(f"CREATE TABLE {table} (id serial, name text PRIMARY KEY, description text, object bytea)")
        db.execute(f"GRANT SELECT ON {table} TO PUBLIC")  # every role may train with the functions of superusers
    else:
        _check_columns(db, existing, object_table)
    if db.value(f"SELECT 1 FROM {table} WHERE name = $1", ["text"], [name]):
        raise MopError(
            f'a custom function "{name}" already exists in object table "{object_table}"',
            hint=f"To delete it: SELECT {db.extension}.delete_custom_function(...);",
        )
    db.execute(
        f"INSERT INTO {table} (name, description, object) VALUES ($1, $2, $3)",
        ["text", "text", "bytea"],
        [name, description, data],
    )


def _check_columns(db: Database, table: Table, text: str | None) -> None:
    absent_columns = [c for c in COLUMNS if c not in db.columns(table)]
    if absent_columns:
        raise MopError(f'"{text}" is no object table: it has no column {", ".join(absent_columns)}')


def _superuser_only(db: Database) -> None:
    if not db.is_superuser():
        raise MopError(
            "only a superuser may load or delete custom functions",
            detail="They run code on the server.",
            sqlstate="42501",
        )


def _program(*arguments: str, stdin: bytes = b"") -> bytes:
    """Run `python -m mop_udf.training.objects`, and return its output. Raises MopError if it fails."""
    return program.run(
        "mop_udf.training.objects",
        *arguments,
        stdin=stdin,
        what="the object is no custom function",
        hint="It takes the bytes that Python's dill.dumps(function) gives.",
    )

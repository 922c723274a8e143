"""The tables of single segments: their names, their SQL, and the comments that mark them as made by a preprocessor."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from pg_mop.backend.database import Database, Table
from pg_mop.backend.quoting import MAX_NAME, quote_identifier, quote_literal

PRIMARY_KEY = 'PRIMARY KEY ("__dist_key__", "buffer_id")'


def partition_name(table: str, segment: int, segments: int) -> str:
    """The name of one segment's partition. A long name is cut; then a hash of the whole keeps it unique."""

    def fits(stem: str) -> bool:
        return len(f"{stem}_segment_{segments - 1}".encode()) <= MAX_NAME

    stem = table
    if not fits(stem):
        suffix = "_" + hashlib.sha256(table.encode()).hexdigest()[:8]
        cut = table
        while not fits(cut + suffix):
            cut = cut[:-1]
        stem = cut + suffix
    return f"{stem}_segment_{segment}"


def columns_sql(columns: Iterable[tuple[str, str]]) -> str:
    """SQL for columns: [(name, type), ...]."""
    return ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns)


def external_sql(columns: Iterable[str]) -> str:
    """SQL of ALTER TABLE: columns (names) are stored uncompressed."""
    return ", ".join(f"ALTER {quote_identifier(name)} SET STORAGE EXTERNAL" for name in columns)


def quoted(table: tuple[str, str]) -> str:
    """A (schema, name), quoted."""
    return ".".join(map(quote_identifier, table))


def create_alone(table: str, columns: list[tuple[str, str]], segment: int) -> str:
    """SQL for a table (quoted) that holds one segment alone, uncompressed."""
    external = external_sql(name for name, kind in columns if kind == "bytea")
    return (
        f"CREATE TABLE {table} ({columns_sql(columns)}, {PRIMARY_KEY}, "
        f'CHECK ("__dist_key__" = {segment})); ALTER TABLE {table} {external}'
    )


def foreign_options(server: str, partition: tuple[str, str]) -> str:
    """SQL: the server and the options of a foreign table."""
    return (
        f"SERVER {quote_identifier(server)} OPTIONS (schema_name {quote_literal(partition[0])}, table_name "
        f"{quote_literal(partition[1])})"
    )


def mark(db: Database, subject: str) -> str:
    """The comment on a table that a preprocessor of this database has made; `subject`: 'segment 2 of ...'."""
    return f"{subject}, packed by pg_mop of {this_database(db)}"


def is_of(comment: str, db: Database, table: Table) -> bool:
    """True where a comment says that a preprocessor of this database has made its table for the packed `table`."""
    match = re.match(r"(copy of )?segment \d+", comment)
    return match is not None and comment == mark(db, f"{match[0]} of {table}")


def this_database(db: Database) -> str:
    """The identity of this database among all servers."""
    return db.value(f"SELECT {db.extension}.mop_identity()")

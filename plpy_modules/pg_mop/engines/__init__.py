"""Engines: the differences between PostgreSQL, postgres_fdw, Citus and Greenplum."""

from __future__ import annotations

from collections.abc import Sequence

from pg_mop.backend.database import Database
from pg_mop.engines.base import Engine, PackedRows
from pg_mop.engines.citus import Citus, placements
from pg_mop.engines.greenplum import Greenplum
from pg_mop.engines.postgres_fdw import PostgresFdw, foreign_partitions
from pg_mop.engines.postgresql import PostgreSQL


def find(db: Database, tables: Sequence[PackedRows], copied: bool = False) -> Engine:
    """The Engine for a call's packed tables; `copied`: use copies of segments.

    Raises MopError for a foreign table of another wrapper than postgres_fdw, or for a shard whose node has no foreign
    server.
    """
    if db.has_segments:
        return Greenplum(db, tables)
    foreign = {
        packed.table.oid: foreign_partitions(db, packed.table, packed.text) for packed in tables if packed.foreign
    }
    placed = {
        packed.table.oid: shards
        for packed in tables
        if packed.foreign and (shards := placements(db, packed.table, packed.text))
    }
    if placed:
        return Citus(db, foreign, placed, copied)
    return PostgresFdw(db, foreign, copied) if foreign else PostgreSQL(db)

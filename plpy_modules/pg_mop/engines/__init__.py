"""Where packed rows are: what differs between kinds of places."""

from pg_mop.engines.citus import Citus, placements
from pg_mop.engines.greenplum import Greenplum
from pg_mop.engines.postgres_fdw import PostgresFdw, foreign_partitions
from pg_mop.engines.postgresql import PostgreSQL


def find(db, tables, copied=False):
    """The Engine of a call's packed tables, found by looking at them; `copied`: copies of segments are of use.

    Raises MopError for a foreign table that is none of postgres_fdw's, or a shard that no server leads to.
    """
    if db.has_segments:
        return Greenplum(db, tables)
    foreign = {
        packed.table.oid: foreign_partitions(db, packed.table, packed.text) for packed in tables if packed.foreign
    }
    placed = {
        packed.table.oid: found
        for packed in tables
        if packed.foreign and (found := placements(db, packed.table, packed.text))
    }
    if placed:
        return Citus(db, foreign, placed, copied)
    return PostgresFdw(db, foreign, copied) if foreign else PostgreSQL(db)

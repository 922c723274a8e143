"""Plain PostgreSQL: all segments and worker sessions are on this server."""

from __future__ import annotations

from typing import Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections import targets
from pg_mop.connections.targets import Target
from pg_mop.engines.base import Engine, PackedRows, Rows, Segment


class PostgreSQL(Engine):
    """The engine for packed tables of this server alone, and the base of the other engines."""

    @property
    def shares_among_roles(self) -> bool:
        # the engines derived from this one keep rows where their owner's digests do not reach
        return type(self) is PostgreSQL

    def __init__(self, db: Database) -> None:
        self.db = db

    def target(self, server: str | None) -> Target:
        return targets.local(self.db)

    def share(self, packed: PackedRows) -> None:
        """Nothing to do: the call's own lock (connections/locks.py) covers the partitions."""

    def first_row(self, table: Rows, columns: str) -> list[Any] | None:
        row = self.db.one(f"SELECT {columns} FROM {table.table} LIMIT 1")
        return None if row is None else list(row.values())

    def parts(self, raw: Rows) -> list[Segment]:
        return [
            Segment(
                number,
                int(row["rows"]),
                int(row["bytes"]),
                row["fingerprint"],
                None,
                row["name"],
                identity_sql(row["name"]),
            )
            for number, row in enumerate(self._leaves(raw.table))
        ]

    def _leaves(self, table: Table) -> list[dict[str, Any]]:
        """The leaf partitions of a table on this server, as dicts: name (quoted), rows and bytes (estimates),
        fingerprint."""
        return self.db.execute(
            f"SELECT format('%I.%I', n.nspname, c.relname) AS name, {ESTIMATES} FROM "
            "pg_partition_tree($1::oid::regclass) t JOIN pg_class c ON c.oid = t.relid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE t.isleaf AND c.relkind = 'r' ORDER BY c.oid",
            ["oid"],
            [table.oid],
        )

    def segments(self, packed: PackedRows) -> list[Segment]:
        return self._segments_here(packed, str(packed.table), packed.keys_sql())

    def _segments_here(self, packed: PackedRows, table: str, keys_sql: str, read: str | None = None) -> list[Segment]:
        """The segments of `table` (quoted) whose keys `keys_sql` selects. Units read them from the table `read`, by
        default the packed table itself."""
        db, segments, read = self.db, list[Segment](), read or str(packed.table)
        keys = [row["key"] for row in db.execute(keys_sql)]
        if None in keys:
            raise MopError(f'{packed.table} has buffers whose "__dist_key__" is NULL')
        for key in keys:
            (sums,) = db.execute(f"SELECT {sizes(packed)} FROM {table} WHERE {packed.of_segment(key)}")
            if sums["rows"]:
                segments.append(
                    Segment(
                        int(key),
                        int(sums["rows"]),
                        int(sums["bytes"]),
                        db.value(f"SELECT {fingerprint(packed, read)} FROM {table} WHERE {packed.of_segment(key)}"),
                        None,
                        read,
                        fingerprint_sql(packed, read, key),
                    )
                )
        return segments

    def rows_sql(self, packed: PackedRows, segment: Segment, aggregate: str) -> str:
        def name(column: str) -> str:
            return quote_identifier(column).replace("%", "%%")

        columns_sql = ", ".join(
            f"{name(c)} AS c{i}, {name(c + '_shape')}::text AS s{i}" for i, c in enumerate(packed.columns)
        )
        values = ", ".join(f"c{i}" for i in range(len(packed.columns)))
        shapes = ", ".join(f"s{i}" for i in range(len(packed.columns)))
        aggregate, table = aggregate.replace("%", "%%"), segment.table.replace("%", "%%")
        # The sort moves references to out-of-line values, not the values.
        return (
            f"SELECT {aggregate}(epoch, buffer_id, ARRAY[{values}], ARRAY[{shapes}]) AS report FROM ("
            f"SELECT epoch, buffer_id, {columns_sql} FROM {table}, generate_series(1, %(epochs)s) AS epoch "
            f"WHERE {packed.of_segment(segment.key)} ORDER BY epoch, buffer_id OFFSET 0) AS buffers"
        )


# SQL about a leaf partition (pg_class as c): rows, bytes, and a fingerprint of its identity.
ESTIMATES = "greatest(c.reltuples, 0)::bigint AS rows, pg_relation_size(c.oid) AS bytes, c.oid::text AS fingerprint"
ROWS = (
    "count(*) || ':' || coalesce(md5(string_agg(concat_ws(',', tableoid, ctid, xmin), ';' "
    "ORDER BY tableoid, ctid)), '')"
)


def fingerprint(packed: PackedRows, table: str) -> str:
    """SQL for the fingerprint of rows of `table`: equal for the same rows, read as the same inputs and outputs.

    It contains the columns' numbers, for two columns may swap their names, and the summary's meaning of the columns.
    """
    names = ", ".join(quote_literal(c + more) for c in packed.columns for more in ("", "_shape"))
    columns = (
        f"SELECT string_agg(attname || '=' || attnum || ' ' || atttypid, ',' ORDER BY attnum) FROM "
        f"pg_catalog.pg_attribute WHERE attrelid = {quote_literal(table)}::regclass AND attname IN ({names})"
    )
    return f"{ROWS} || ':' || md5({quote_literal(packed.meaning())} || ({columns}))"


def fingerprint_sql(packed: PackedRows, table: str, key: int) -> str:
    """SQL for the fingerprint of a segment in `table`: each write to the segment and each new meaning of its columns
    changes it."""
    return f"SELECT {fingerprint(packed, table)} AS fingerprint FROM {table} WHERE {packed.of_segment(key)}"


def content_sql(packed: PackedRows, table: str, key: int) -> str:
    """SQL for a digest of all values of a segment in `table`."""
    values = ", ".join(f"{quote_identifier(c + '_shape')}, md5({quote_identifier(c)})" for c in packed.columns)
    return (
        f"SELECT md5(coalesce(string_agg(concat_ws(',', buffer_id, {values}), ';' ORDER BY buffer_id), '')) AS "
        f"digest FROM {table} WHERE {packed.of_segment(key)}"
    )


def identity_sql(table: str) -> str:
    """SQL for a fingerprint of the identity of `table` (quoted), not of its rows."""
    return f"SELECT {quote_literal(table)}::regclass::oid::text AS fingerprint"


def sizes(packed: PackedRows) -> str:
    """SQL over a segment's buffers: its rows and bytes."""
    size = " + ".join(f"octet_length({quote_identifier(c)})" for c in packed.columns)
    return f"sum({quote_identifier(packed.columns[0] + '_shape')}[1]) AS rows, sum({size}) AS bytes"

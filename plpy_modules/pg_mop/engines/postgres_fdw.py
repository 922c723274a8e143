"""Several PostgreSQL servers: a partition that is a postgres_fdw table is trained on its own server.

Worker sessions connect to that server directly, by the user mapping. postgres_fdw itself serves packing, queries of the
packed table, and the transfer of states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg2

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections import targets
from pg_mop.connections.links import Link, Links
from pg_mop.connections.sessions import CHECK_SECONDS, SessionLost, WorkerSession, wait
from pg_mop.connections.targets import Target
from pg_mop.engines.base import COPIES, PackedRows, Rows, Segment
from pg_mop.engines.postgresql import (
    ESTIMATES,
    PostgreSQL,
    content_sql,
    fingerprint,
    fingerprint_sql,
    identity_sql,
    sizes,
)

Tables = Sequence[tuple[str | None, str]]  # server (None: this one, as a node of Citus), quoted table there


class PostgresFdw(PostgreSQL):
    """`foreign`: {OID of a packed table: its tables on servers}; `links`: to the servers."""

    several_servers = True
    begins_without = True  # a run can start while servers are away: the catalog describes their segments

    def __init__(self, db: Database, foreign: Mapping[int, Tables], copied: bool = False) -> None:
        """`copied`: use copies of segments."""
        super().__init__(db)
        self.copied = copied
        self.away: dict[str | None, MopError] = {}
        self.foreign, self.links = foreign, Links(db)

    def target(self, server: str | None) -> Target:
        if server is None:
            return super().target(None)
        return self.links[server].target if server in self.links else targets.to(self.db, server)

    def share(self, packed: PackedRows) -> None:
        tables = self._tables(packed)
        self._reach(server for server, _ in tables)
        for server, table in tables:
            if server not in self.away:
                self.links[server].share(table)

    def _reach(self, servers: Iterable[str | None]) -> None:
        """Open the links to servers. Servers that do not answer become `away`, if copies can replace them; otherwise
        raises MopError."""
        away = self.away if self.copied and self.begins_without else None
        self.links.reach([server for server in servers if server not in self.away], away)

    def _is_away(self, server: str | None) -> bool:
        self._reach([server])
        return server in self.away

    def _tables(self, packed: PackedRows) -> Tables:
        """The tables of a packed table's partitions and copies on other servers."""
        copies = packed.copies if self.copied else ()
        return [
            *self.foreign.get(packed.table.oid, ()),
            *((server, table) for _, server, table in copies if server is not None),
        ]

    def reopen(self, server: str, tables: Iterable[PackedRows], check_interrupts: Callable[[], None]) -> Link:
        """Open the link to a server again that was away, and lock these packed tables on it against writers.

        `check_interrupts`: called while waiting. Raises MopError.
        """
        target = self.target(server)
        if server in self.links:
            self.links[server].session.close()
        link = self.links[server] = self.links.open(target, check_interrupts)
        for packed in tables:
            for name, table in self._tables(packed):
                if name == server:
                    link.share(table)
        return link

    def first_row(self, table: Rows, columns: str) -> list[Any] | None:
        # Not through postgres_fdw: the caller's transaction would depend on the server until its end.
        for leaf in self._leaves(table.table):
            if (values := self.db.one(f"SELECT {columns} FROM {leaf['name']} LIMIT 1")) is not None:
                return list(values.values())
        copies = [(server, name) for _, server, name in table.copies if server is not None] if self.copied else []
        for server, name in [*self.foreign.get(table.table.oid, ()), *copies]:
            if not self._is_away(server):
                for row in self._read(table, server, name, f"SELECT {columns} FROM {name} LIMIT 1"):
                    return list(row)
        return None

    def buffers(self, packed: PackedRows, segments: Sequence[Segment], columns: Sequence[str]) -> Iterator[list[Any]]:
        # Not through postgres_fdw: see first_row.
        if not self.foreign.get(packed.table.oid):
            yield from super().buffers(packed, segments, columns)
            return
        for segment in segments:
            yield from self._buffers_of(packed, segment, columns)

    def _buffers_of(self, packed: PackedRows, segment: Segment, columns: Sequence[str]) -> Iterator[list[Any]]:
        """As `buffers`, of one segment. Where its server is lost, the copies have the rest."""
        places = [segment, *(segment.copies if self.copied else ())]
        last, places_left = None, [place for place in places if place.server not in self.away]
        if not places_left:
            raise self.away[segment.server]
        while places_left:
            place = places_left.pop(0)
            try:
                if place.server is not None:
                    with self._reading(packed, place.server, place.table):
                        self._check_table(packed, place.server, place.table)
                while (row := self._buffer_after(packed, place, columns, last)) is not None:
                    last, *values = row
                    yield [bytes(value) if isinstance(value, memoryview) else value for value in values]
                return
            except MopError as error:
                if error.unreachable is None or not places_left:
                    raise

    def _buffer_after(
        self, packed: PackedRows, place: Segment, columns: Sequence[str], last: int | None
    ) -> Sequence[Any] | None:
        """[buffer_id, values of the columns ...] of the first buffer after `last` (None: of all) at one place of a segment;
        None at the end."""
        columns_sql = ", ".join(f"{column} AS c{number}" for number, column in enumerate(columns))
        after = "" if last is None else f"AND buffer_id > {int(last)} "
        sql = (
            f"SELECT buffer_id, {columns_sql} FROM {place.table} WHERE {packed.of_segment(place.key)} {after}"
            "ORDER BY buffer_id LIMIT 1"
        )
        if place.server is None:
            row = self.db.one(sql)
            return None if row is None else [row["buffer_id"], *(row[f"c{number}"] for number in range(len(columns)))]
        with self._reading(packed, place.server, place.table):
            return next(iter(self.links[place.server].run(sql)), None)

    def parts(self, raw: Rows) -> list[Segment]:
        segments = super().parts(raw)
        for server, table in self.foreign.get(raw.table.oid, ()):
            there = f"SELECT {ESTIMATES} FROM pg_class c WHERE c.oid = {quote_literal(table)}::regclass"
            ((rows, size, fingerprint),) = self._read(raw, server, table, there)
            segments.append(Segment(len(segments), rows, size, fingerprint, server, table, identity_sql(table)))
        return segments

    def segments(self, packed: PackedRows) -> list[Segment]:
        foreign = self.foreign.get(packed.table.oid, ())
        if not foreign:
            return super().segments(packed)
        self._reach(server for server, _ in foreign)
        segments = self._unread(packed) if self.away else []
        for leaf in self._leaves(packed.table):
            segments += self._segments_here(
                packed, leaf["name"], f"SELECT DISTINCT __dist_key__ AS key FROM {leaf['name']} ORDER BY 1"
            )
        for server, table in foreign:
            if server not in self.away:
                segments += self._segments_there(packed, server, table)
        return sorted(segments, key=lambda segment: segment.key)

    def with_copies(self, packed: PackedRows, segments: list[Segment]) -> list[Segment]:
        copies: dict[int, list[Segment]] = {}
        for copy in self._copies(packed):
            copies.setdefault(copy.key, []).append(copy)
        segments_with_copies = [
            dataclasses.replace(
                segment, copies=tuple(copy for copy in copies.get(segment.key, ()) if copy.server != segment.server)
            )
            for segment in segments
        ]
        return [self._measured(segment) for segment in segments_with_copies]

    def _unread(self, packed: PackedRows) -> list[Segment]:
        """The segments of a packed table on servers that are away, without rows, bytes and fingerprint."""
        segments = []
        for server, table, bound in partitions(self.db, packed.table, packed.text):
            if server in self.away:
                match = re.fullmatch(r"FOR VALUES IN \((.*)\)", bound or "")
                try:
                    keys = [int(key.strip(" '")) for key in (match[1] if match else "").split(",")]
                except ValueError:  # not a bound of the preprocessors: the keys are unknown
                    raise self.away[server] from None
                segments += [
                    Segment(key, 0, 0, None, server, table, fingerprint_sql(packed, table, key)) for key in keys
                ]
        return segments

    def _measured(self, segment: Segment) -> Segment:
        """The segment; if its server is away, with the size of a copy. Raises MopError if it has no copy."""
        if segment.server not in self.away:
            return segment
        if not segment.copies:
            raise self.away[segment.server]
        return dataclasses.replace(segment, rows=segment.copies[0].rows, bytes=segment.copies[0].bytes)

    def _copies(self, packed: PackedRows) -> list[Segment]:
        """All copies of a packed table's segments. Raises MopError."""
        copies: list[Segment] = []
        for key, server, table in packed.copies:
            if server is None:
                self._check_own(packed, table)
                copies += self._segments_here(packed, table, f"SELECT {key} AS key", table)
            elif not self._is_away(server):
                copies += (copy for copy in self._segments_there(packed, server, table) if copy.key == key)
        return copies

    def _check_own(self, packed: PackedRows, table: str) -> None:
        """Check that a local copy is a table of the packed table's owner, for a view could run its owner's functions with
        the reader's privileges. Raises MopError."""
        if not self.db.value(
            "SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_class p ON p.relowner = c.relowner WHERE "
            "c.oid = to_regclass($1) AND c.relkind = 'r' AND p.oid = $2)",
            ["text", "oid"],
            [table, packed.table.oid],
        ):
            raise MopError(
                f'{table}, which the summary of "{packed.text}" names, is no copy of a segment',
                hint=f"To give up the copies: UPDATE {packed.summary_table} SET {COPIES} = NULL;",
                sqlstate="42809",
            )

    def copy_there(self, packed: PackedRows, server: str, table: str, key: int) -> Segment | None:
        """A copy of a packed table's segment in a table (quoted) of another server; None if it has no rows.

        Raises MopError."""
        return next((copy for copy in self._segments_there(packed, server, table) if copy.key == key), None)

    def contents(self, wanted: Sequence[tuple[PackedRows, Segment]]) -> list[str]:
        # Servers work side by side; each reads its segments one after the other.
        digests = [""] * len(wanted)
        queues: dict[str | None, deque[int]] = {}
        busy: dict[WorkerSession, str | None] = {}
        for number, (_, segment) in enumerate(wanted):
            queues.setdefault(segment.server, deque()).append(number)
        here = queues.pop(None, deque())
        try:
            while queues or busy or here:
                for server in [server for server in queues if server not in busy.values()]:
                    packed, segment = wanted[queues[server][0]]
                    with self._reading(packed, server, segment.table):
                        self._check_table(packed, server, segment.table)
                        session = self.links[server].session
                        session.begin(content_sql(packed, segment.table, segment.key))
                    busy[session] = server
                if here:
                    packed, segment = wanted[number := here.popleft()]
                    digests[number] = self.db.value(content_sql(packed, segment.table, segment.key))
                for session, error in wait(list(busy), self.db.check_interrupts, 0 if here else CHECK_SECONDS):
                    server = busy.pop(session)
                    packed, segment = wanted[number := queues[server].popleft()]
                    with self._reading(packed, server, segment.table):
                        if error is not None:
                            raise error
                        digests[number] = session.rows()[0][0]
                    if not queues[server]:
                        del queues[server]
        except BaseException:
            for session in busy:
                session.close()  # a cancel request would wait for the server
            raise
        return digests

    def _buffers(self, packed: PackedRows, segment: Segment, column: str) -> Iterator[bytes]:
        if segment.server is None:
            return super()._buffers(packed, segment, column)
        return (
            bytes(data)
            for (data,) in self._read(
                packed,
                segment.server,
                segment.table,
                f"SELECT {column} FROM {segment.table} WHERE {packed.of_segment(segment.key)}",
            )
        )

    def _segments_there(self, packed: PackedRows, server: str | None, table: str) -> list[Segment]:
        key = "__dist_key__" if packed.keyed else "0"
        rows = self._read(
            packed,
            server,
            table,
            f"SELECT {key}, {sizes(packed)}, {fingerprint(packed, table)} FROM {table} GROUP BY 1 ORDER BY 1",
        )
        if any(row[0] is None for row in rows):
            raise MopError(f'{packed.table} has buffers whose "__dist_key__" is NULL')
        return [
            Segment(int(key), int(rows_), int(size), digest, server, table, fingerprint_sql(packed, table, key))
            for key, rows_, size, digest in rows
            if rows_
        ]

    def _read(self, packed: Rows, server: str | None, table: str, sql: str) -> list[tuple[Any, ...]]:
        """The rows (tuples) of a query about a table on a server. Raises MopError."""
        with self._reading(packed, server, table):
            self._check_table(packed, server, table)
            return self.links[server].run(sql)

    def _check_table(self, packed: Rows, server: str | None, table: str) -> None:
        """Check that a remote table is not a view, which could run its owner's functions with the reader's privileges.

        Raises MopError.
        """
        if self.links[server].run(
            f"SELECT 1 FROM pg_class WHERE oid = to_regclass({quote_literal(table)}) AND relkind NOT IN ('r', 'p')"
        ):
            raise MopError(
                f'"{packed.text}" has a partition on server {self.links[server].name}, where {table} is no table',
                sqlstate="42809",
                hint="It must be a table that the preprocessor has made, or a similar table.",
            )

    @contextlib.contextmanager
    def _reading(self, packed: Rows, server: str | None, table: str) -> Iterator[None]:
        """Turn errors of reading a table on a server into MopErrors."""
        try:
            yield
        except SessionLost as error:
            raise self.links[server].target.refused(error) from None
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName):
            raise MopError(
                f'"{packed.text}" has a partition on server {self.links[server].name}, which has no table {table}',
                hint="Create it on that server, or DROP FOREIGN TABLE the partition.",
            ) from None
        except psycopg2.Error as error:
            raise MopError(
                f"table {table} on server {self.links[server].name} cannot be read: {str(error).strip()}",
                sqlstate=error.pgcode or "58000",
            ) from None


def foreign_partitions(db: Database, table: Table, text: str) -> Tables:
    """The tables on servers of the leaf partitions that are foreign tables, of a packed table that the caller calls `text`.

    Raises MopError for a partition of another foreign data wrapper.
    """
    return [(server, remote) for server, remote, _ in partitions(db, table, text)]


def partitions(db: Database, table: Table, text: str) -> list[tuple[str, str, str | None]]:
    """As `foreign_partitions`, with SQL for each partition's bound, or None: (server, quoted remote table, bound)."""
    rows = db.execute(
        "SELECT c.relname, n.nspname, s.srvname, w.fdwhandler::regproc::text AS handler, f.ftoptions, "
        "pg_get_expr(c.relpartbound, c.oid) AS bound "
        "FROM (SELECT relid FROM pg_partition_tree($1::oid::regclass) WHERE isleaf UNION SELECT $1::oid::regclass) t "
        "JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_foreign_table f ON f.ftrelid = c.oid JOIN pg_foreign_server s ON s.oid = f.ftserver "
        "JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw ORDER BY c.oid",
        ["oid"],
        [table.oid],
    )
    tables = []
    for row in rows:
        if not targets.is_postgres_fdw(row["handler"] or ""):
            raise MopError(
                f'"{text}" has a partition "{row["relname"]}" on server '
                f"{quote_identifier(row['srvname'])}, which is not a server of postgres_fdw",
                detail="Worker sessions cannot connect to it.",
                sqlstate="42809",
            )
        options = dict(option.split("=", 1) for option in row["ftoptions"] or ())
        tables.append(
            (
                row["srvname"],
                quote_identifier(options.get("schema_name", row["nspname"]))
                + "."
                + quote_identifier(options.get("table_name", row["relname"])),
                row["bound"],
            )
        )
    return tables

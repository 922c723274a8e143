"""Several PostgreSQL servers: partitions of the packed table that are postgres_fdw tables are trained where they are.

A session on such a server is a straight connection, as the user mapping says; postgres_fdw itself only packs, shows
the rows to whoever selects them, and carries model states.
"""

import contextlib
import dataclasses
import json
import re
from collections import deque

import psycopg2

from pg_mop import __version__
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections import targets
from pg_mop.connections.sessions import CHECK_SECONDS, SessionLost, answer, open_sessions, run, wait
from pg_mop.engines.base import COPIES, Segment
from pg_mop.engines.postgresql import (
    ESTIMATES,
    PostgreSQL,
    content_sql,
    fingerprint,
    fingerprint_sql,
    identity_sql,
    sizes,
)


class PostgresFdw(PostgreSQL):
    """`foreign`: {oid of a packed table: [(server, quoted table there), ...]}; `links`: to their servers."""

    several_servers = True
    begins_without = True  # servers that are away: what is there is known without them

    def __init__(self, db, foreign, copied=False):
        """`copied`: copies of segments are of use."""
        super().__init__(db)
        self.copied, self.away = copied, {}
        self.foreign, self.links = foreign, Links(db)

    def target(self, server):
        if server is None:
            return super().target(None)
        return self.links[server].target if server in self.links else targets.to(self.db, server)

    def share(self, packed):
        tables = self._tables(packed)
        self._reach(server for server, _ in tables)
        for server, table in tables:
            if server not in self.away:
                self.links[server].share(table)

    def _reach(self, servers):
        """Open the links to servers. Those that do not answer are `away`, where copies may do. Raises MopError."""
        away = self.away if self.copied and self.begins_without else None
        self.links.reach([server for server in servers if server not in self.away], away)

    def _is_away(self, server):
        self._reach([server])
        return server in self.away

    def _tables(self, packed):
        """[(server, quoted table there), ...] of all that other servers have of a packed table."""
        copies = packed.copies if self.copied else ()
        return [
            *self.foreign.get(packed.table.oid, ()),
            *((server, table) for _, server, table in copies if server is not None),
        ]

    def reopen(self, server, tables, check_interrupts):
        """The link to a server that has been away, anew: it keeps writers from these packed tables; `tick`: called
        while it is waited for. Raises MopError."""
        target = self.target(server)
        if server in self.links:
            self.links[server].session.close()
        link = self.links[server] = self.links.open(target, check_interrupts)
        for packed in tables:
            for name, table in self._tables(packed):
                if name == server:
                    link.share(table)
        return link

    def first_row(self, table, columns):
        # never through postgres_fdw: the caller's transaction would depend on the server to its end
        for leaf in self._leaves(table.table):
            if (row := self.db.one(f"SELECT {columns} FROM {leaf['name']} LIMIT 1")) is not None:
                return list(row.values())
        copies = [(server, name) for _, server, name in table.copies if server is not None] if self.copied else []
        for server, name in [*self.foreign.get(table.table.oid, ()), *copies]:
            if not self._is_away(server):
                for row in self._read(table, server, name, f"SELECT {columns} FROM {name} LIMIT 1"):
                    return list(row)
        return None

    def parts(self, raw):
        found = super().parts(raw)
        for server, table in self.foreign.get(raw.table.oid, ()):
            there = f"SELECT {ESTIMATES} FROM pg_class c WHERE c.oid = {quote_literal(table)}::regclass"
            ((rows, size, fingerprint),) = self._read(raw, server, table, there)
            found.append(Segment(len(found), rows, size, fingerprint, server, table, identity_sql(table)))
        return found

    def segments(self, packed):
        foreign = self.foreign.get(packed.table.oid, ())
        if not foreign:
            return super().segments(packed)
        self._reach(server for server, _ in foreign)
        found = self._unread(packed) if self.away else []
        for leaf in self._leaves(packed.table):
            found += self._segments_here(
                packed, leaf["name"], f"SELECT DISTINCT __dist_key__ AS key FROM {leaf['name']} ORDER BY 1"
            )
        for server, table in foreign:
            if server not in self.away:
                found += self._segments_there(packed, server, table)
        return sorted(found, key=lambda segment: segment.key)

    def with_copies(self, packed, segments):
        copies = {}
        for copy in self._copies(packed):
            copies.setdefault(copy.key, []).append(copy)
        found = [
            dataclasses.replace(
                segment, copies=tuple(copy for copy in copies.get(segment.key, ()) if copy.server != segment.server)
            )
            for segment in segments
        ]
        return [self._measured(segment) for segment in found]

    def _unread(self, packed):
        """The segments of a packed table on servers that are away, as far as the coordinator knows of them: without
        rows, bytes, fingerprint."""
        found = []
        for server, table, bound in partitions(self.db, packed.table, packed.text):
            if server in self.away:
                listed = re.fullmatch(r"FOR VALUES IN \((.*)\)", bound or "")
                try:
                    keys = [int(key.strip(" '")) for key in listed[1].split(",")]
                except (TypeError, ValueError):  # not as the preprocessors make it: nobody knows what is there
                    raise self.away[server] from None
                found += [Segment(key, 0, 0, None, server, table, fingerprint_sql(packed, table, key)) for key in keys]
        return found

    def _measured(self, segment):
        """A segment on a server that is away, with what a copy says of its size. Raises MopError."""
        if segment.server not in self.away:
            return segment
        if not segment.copies:
            raise self.away[segment.server]
        return dataclasses.replace(segment, rows=segment.copies[0].rows, bytes=segment.copies[0].bytes)

    def _copies(self, packed):
        """All copies that there are of segments of a packed table, as Segments. Raises MopError."""
        found = []
        for key, server, table in packed.copies:
            if server is None:
                self._check_own(packed, table)
                found += self._segments_here(packed, table, f"SELECT {key} AS key", table)
            elif not self._is_away(server):
                found += (copy for copy in self._segments_there(packed, server, table) if copy.key == key)
        return found

    def _check_own(self, packed, table):
        """A copy here must be a table of who owns the packed table: a view may run its owner's functions as who reads
        it. Raises MopError."""
        if not self.db.value(
            "SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_class p ON p.relowner = c.relowner WHERE "
            "c.oid = to_regclass($1) AND c.relkind = 'r' AND p.oid = $2)",
            ["text", "oid"],
            [table, packed.table.oid],
        ):
            raise MopError(
                f'{table}, which the summary of "{packed.text}" names, is no copy of a segment',
                hint=f"UPDATE {packed.summary_table} SET {COPIES} = NULL; gives the copies up.",
                sqlstate="42809",
            )

    def contents(self, wanted):
        # each server reads its own, one after the other, while the others read theirs
        found, queues, busy = [None] * len(wanted), {}, {}
        for number, (_, segment) in enumerate(wanted):
            queues.setdefault(segment.server, deque()).append(number)
        here = queues.pop(None, ())
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
                    found[number] = self.db.value(content_sql(packed, segment.table, segment.key))
                for session, error in wait(list(busy), self.db.check_interrupts, 0 if here else CHECK_SECONDS):
                    server = busy.pop(session)
                    packed, segment = wanted[number := queues[server].popleft()]
                    with self._reading(packed, server, segment.table):
                        if error is not None:
                            raise error
                        found[number] = session.rows()[0][0]
                    if not queues[server]:
                        del queues[server]
        except BaseException:
            for session in busy:
                session.close()  # (a cancel would wait for its server)
            raise
        return found

    def _buffers(self, packed, segment, column):
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

    def _segments_there(self, packed, server, table):
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
            Segment(int(key), int(rows_), int(size), found, server, table, fingerprint_sql(packed, table, key))
            for key, rows_, size, found in rows
            if rows_
        ]

    def _read(self, packed, server, table, sql):
        """The rows (tuples) that some SQL gives of a table on a server. Raises MopError."""
        with self._reading(packed, server, table):
            self._check_table(packed, server, table)
            return self.links[server].run(sql)

    def _check_table(self, packed, server, table):
        """It must be no view, which may run its owner's functions as who reads it. Raises MopError."""
        if self.links[server].run(
            f"SELECT 1 FROM pg_class WHERE oid = to_regclass({quote_literal(table)}) AND relkind NOT IN ('r', 'p')"
        ):
            raise MopError(
                f'"{packed.text}" has a partition on server {quote_identifier(server)}, where {table} is no table',
                sqlstate="42809",
                hint="It must be a table that the preprocessor has made, or one like it.",
            )

    @contextlib.contextmanager
    def _reading(self, packed, server, table):
        """Within it errors of reading a table on a server are told as MopErrors."""
        try:
            yield
        except SessionLost as error:
            raise self.links[server].target.refused(error) from None
        except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName):
            raise MopError(
                f'"{packed.text}" has a partition on server {quote_identifier(server)}, where there is no '
                f"table {table}",
                hint="Make it there, or DROP FOREIGN TABLE the partition.",
            ) from None
        except psycopg2.Error as error:
            raise MopError(
                f"table {table} on server {quote_identifier(server)} cannot be read: {str(error).strip()}",
                sqlstate=error.pgcode or "58000",
            ) from None


class Links(dict):
    """{name of a server: its Link}, each opened when it is asked for. Raises MopError where a server does not serve.

    `first`: SQL that their sessions begin with."""

    def __init__(self, db, first=None):
        super().__init__()
        self.db, self.first = db, first
        db.at_end.append(self._close)  # whatever becomes of the call, no session holds locks on other servers

    def __missing__(self, server):
        self.reach([server])
        return self[server]

    def reach(self, servers, away=None):
        """Open the links to servers that have none yet, all at once. Raises MopError; but where there is a dict `away`,
        those that do not answer come into it: {name: MopError}."""
        missing = [server for server in dict.fromkeys(servers) if server not in self]
        opened = [targets.local(self.db) if server is None else targets.to(self.db, server) for server in missing]
        try:
            self.update(zip(missing, self._open(opened)))
        except MopError as error:
            if away is None or error.silent is None:
                raise
            away[error.silent.server] = error
            self.reach([server for server in missing if server not in away], away)

    def open(self, target, check_interrupts=None):
        """A new Link. Raises MopError."""
        return self._open([target], check_interrupts)[0]

    def _open(self, opened, check_interrupts=None):
        sessions = open_sessions(opened, None, "pg_mop link", check_interrupts or self.db.check_interrupts)
        try:
            links = [
                Link(self.db, target, session, check_interrupts, self.first)
                for target, session in zip(opened, sessions)
            ]
            for link in links:
                link.meet()
            return links
        except BaseException:
            for session in sessions:
                session.close()
            raise

    def _close(self):
        for link in self.values():
            link.session.close()


class Link:
    """A session of the call's own on another server, in one transaction to the call's end: it holds locks and reads.

    Raises MopError where the server cannot be reached, or has not what it takes.
    """

    def __init__(self, db, target, session, check_interrupts=None, first=None):
        """`session`: one that leads there; `first`: SQL to begin with; `tick`: called while it waits."""
        self.target, self.check_interrupts, self.lock_timeout = (
            target,
            check_interrupts or db.check_interrupts,
            db.setting("pg_mop.lock_timeout") or "10s",
        )
        self.session = session
        self.name = quoted = quote_identifier(target.server or targets.LOCAL)
        try:
            if first:
                self.run(first)
            schema = self.run(
                "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
                "WHERE e.extname = 'pg_mop'"
            )
            if not schema:
                raise MopError(
                    f'pg_mop is not there on server {quoted}, in database "{target.parameters["dbname"]}"',
                    hint="On that server: CREATE EXTENSION pg_mop SCHEMA madlib CASCADE;",
                    sqlstate="58P01",
                )
            self.schema = quote_identifier(schema[0][0])  # of the extension there
            session.begin(f"SELECT {self.schema}.mop_server_info()::text")
        except (psycopg2.Error, SessionLost) as error:
            raise target.refused(error) from None

    def meet(self):
        """Learn what the server says of itself (`info`), which it was asked for at the beginning: Python is started
        for it, on all servers at once. Raises MopError where that shows that it cannot be trained on."""
        target, quoted = self.target, self.name
        try:
            try:
                self.info = json.loads(answer(self.session, self.check_interrupts)[0][0])
            except psycopg2.errors.InsufficientPrivilege:
                raise MopError(
                    f"role {quote_identifier(target.role)} may not use pg_mop on server {quoted}",
                    hint=f"On that server: GRANT mop_user TO {quote_identifier(target.role)};",
                    sqlstate="42501",
                ) from None
            except psycopg2.errors.UndefinedFunction:
                self.info = {"pg_mop": "older"}
        except (psycopg2.Error, SessionLost) as error:
            raise target.refused(error) from None
        if self.info["pg_mop"] != __version__:
            raise MopError(
                f"server {quoted} has pg_mop {self.info['pg_mop']}, this one has {__version__}",
                hint="Where it is the older one: ALTER EXTENSION pg_mop UPDATE;",
                sqlstate="58000",
            )

    def run(self, sql):
        """The rows (tuples) that some SQL gives. Raises psycopg2.Error and SessionLost."""
        return run(self.session, sql, self.check_interrupts)

    def share(self, table):
        """Lock a table there against writers, where the role may, to the end of the call."""
        try:
            # (one that is not there is told of by who reads it)
            if self.run(f"SELECT has_table_privilege(to_regclass({quote_literal(table)}), 'UPDATE, DELETE, TRUNCATE')")[
                0
            ][0]:
                self.run(f"BEGIN; SET LOCAL lock_timeout = '{self.lock_timeout}'; LOCK TABLE {table} IN SHARE MODE")
        except psycopg2.errors.LockNotAvailable:
            raise MopError(
                f"{table} on server {self.name} is locked by another transaction",
                hint=f"There: SELECT pid, mode FROM pg_locks WHERE relation = {quote_literal(table)}::regclass;",
                sqlstate="55P03",
            ) from None
        except (psycopg2.Error, SessionLost) as error:
            raise self.target.refused(error) from None


def foreign_partitions(db, table, text):
    """[(server, quoted table there), ...] of the leaf partitions of a packed table that are foreign tables; `table`: a
    Table, which the caller calls `text`. Raises MopError for one that is none of postgres_fdw's."""
    return [(server, there) for server, there, _ in partitions(db, table, text)]


def partitions(db, table, text):
    """As `foreign_partitions`, and of each SQL for the partition's bound, or None."""
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
    found = []
    for row in rows:
        if not targets.is_postgres_fdw(row["handler"] or ""):
            raise MopError(
                f'"{text}" has a partition "{row["relname"]}" on server '
                f"{quote_identifier(row['srvname'])}, which is none of postgres_fdw",
                detail="No session can train on it.",
                sqlstate="42809",
            )
        options = dict(option.split("=", 1) for option in row["ftoptions"] or ())
        found.append(
            (
                row["srvname"],
                quote_identifier(options.get("schema_name", row["nspname"]))
                + "."
                + quote_identifier(options.get("table_name", row["relname"])),
                row["bound"],
            )
        )
    return found

"""The segments of a packed table, and copies of them, as partitions on this server and on other servers (pg_mop.servers,
pg_mop.replicas)."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg2

from pg_mop.backend import settings
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections.links import Link, Links
from pg_mop.packing.partitions import (
    PRIMARY_KEY,
    columns_sql,
    create_alone,
    external_sql,
    foreign_options,
    mark,
    partition_name,
    quoted,
    this_database,
)

LOCAL = "local"  # this server, in pg_mop.servers
Columns = list[tuple[str, str]]  # the name and the SQL type of each
Entry = tuple[int, str | None, str, str]  # a copy: segment, server (None: this one), schema and name


class ServerPlacement:
    """The servers of the segments.

    `servers`: the name of each segment's server; `copies`: the names of its copies' servers, empty where it has no copy;
    `links`: to the servers other than this one, empty where all segments are on this server; `keys`: the segments'
    `__dist_key__`.
    """

    distributed = False  # by Citus
    rules = gpu_config = "all_segments"  # see packing/segments.py
    INSERT = "INSERT INTO {} VALUES ({})"  # a row: table, parameters

    def __init__(self, db: Database, names: Sequence[str] | None, segments: int | None, replicas: int = 1) -> None:
        """`names`: of postgres_fdw servers, `local` for this one; None: this server alone. `segments`: their number; None:
        the number of GPUs or cores. `replicas`: 2: each segment on another server has a copy on yet another server, or on
        this one if there is no other; 3: on two further servers, and so on. Raises MopError."""
        self.db, self.links, strengths = db, Links(db), {}
        if replicas > (count := len(names or [LOCAL])):
            raise MopError(
                f"pg_mop.replicas is {replicas}, but the segments are on {count} server{'s' * (count > 1)}",
                hint=f"SET pg_mop.servers = '{', '.join(f'w{n}' for n in range(1, replicas + 1))}'; "
                f"or {f'SET pg_mop.replicas = {count}' if count > 1 else 'RESET pg_mop.replicas'};",
            )
        for name in names or ():
            if list(names or ()).count(name) > 1:
                raise MopError(f'pg_mop.servers names "{name}" twice', hint="RESET pg_mop.servers;")
        self.links.reach(name for name in names or () if name != LOCAL)
        for name in names or [LOCAL]:
            strengths[name] = strength(None if name == LOCAL else self.links[name])
        if replicas > 1:
            self._check_distinct()
        self.servers = deal(segments or sum(strengths.values()), strengths)
        self.copies = place_copies(self.servers, strengths, replicas - 1)
        self.keys = range(len(self.servers))

    def _check_distinct(self) -> None:
        """Raises MopError where two server names lead to one database: a copy on the same server protects nothing."""
        names: dict[str, str | None] = {this_database(self.db): LOCAL}
        for name, link in self.links.items():
            if (first := names.setdefault(link.info["identity"], name)) != name:
                raise MopError(
                    f'servers "{first}" and "{name}" are one: a copy there would be none',
                    hint="SET pg_mop.servers = ...; with servers that differ, or RESET pg_mop.replicas;",
                )

    def create(self, target: str, columns: Columns, external: list[str]) -> tuple[list[list[str]], list[Entry]]:
        """Create the packed table (quoted, with its schema).

        Returns the tables to fill for each segment (quoted, its partition first), and the copies for the summary.
        `external`: the columns that are stored uncompressed.
        """
        db, (schema, name) = self.db, self.db.parse_name(target)
        assert schema is not None
        # a table with foreign partitions cannot have a key
        key = "" if self.links else f", {PRIMARY_KEY}"
        db.execute(
            f'CREATE TABLE {target} ({columns_sql(columns)}{key}) PARTITION BY LIST ("__dist_key__"); '
            f"ALTER TABLE {target} {external_sql(external)}"
        )
        tables: list[list[str]] = []
        copies: list[Entry] = []
        segments = len(self.servers)
        for segment in range(segments):
            table = quoted((schema, partition_name(name, segment, segments)))
            if db.value("SELECT to_regclass($1) IS NOT NULL", ["text"], [table]):  # before other servers make tables
                raise MopError(
                    f"table {table} already exists",
                    detail=f"It would be segment {segment} of {target}.",
                    hint=f"DROP TABLE {table}; or choose another output table.",
                    sqlstate="42P07",
                )
        for segment, on_servers in enumerate(self.copies):
            partition = schema, partition_name(name, segment, segments)
            self.make(target, partition, segment, columns)
            tables.append([quoted(partition)])
            for number, copy_on in enumerate(on_servers, start=1):
                copy = schema, partition_name(copy_stem(name, number), segment, segments)
                tables[-1].append(self.make_copy(target, copy, segment, copy_on, columns))
                copies.append((segment, None if copy_on == LOCAL else copy_on, *copy))
        return tables, copies

    def make(self, target: str, partition: tuple[str, str], segment: int, columns: Columns) -> None:
        """Make a partition of the table `target` for a segment on its server; `partition`: (schema, name).

        Raises MopError.
        """
        db, table = self.db, quoted(partition)
        name = self.servers[segment]
        if name == LOCAL:
            db.execute(f"CREATE TABLE {table} PARTITION OF {target} FOR VALUES IN ({segment})")
            if self.links:  # then the parent cannot have the key
                db.execute(f"ALTER TABLE {table} ADD {PRIMARY_KEY}")
            return
        make_on(db, self.links[name], f"segment {segment} of {target}", partition, segment, columns)
        db.execute(
            f"CREATE FOREIGN TABLE {table} PARTITION OF {target} FOR VALUES IN ({segment}) "
            f"{foreign_options(name, partition)}"
        )

    def make_copy(self, target: str, partition: tuple[str, str], segment: int, name: str, columns: Columns) -> str:
        """Make the copy of a segment on the server `name`, likewise; returns the table (quoted) that loading fills."""
        table, subject = quoted(partition), f"copy of segment {segment} of {target}"
        if name == LOCAL:
            comment = self.db.value("SELECT obj_description(to_regclass($1), 'pg_class')", ["text"], [table])
            if comment == mark(self.db, subject):  # left from a packed table that was dropped
                self.db.execute(f"DROP TABLE {table}")
            self.db.execute(
                f"{create_alone(table, columns, segment)}; COMMENT ON TABLE {table} IS "
                f"{quote_literal(mark(self.db, subject))}"
            )
            return table
        make_on(self.db, self.links[name], subject, partition, segment, columns)
        foreign = f"pg_temp.{quote_identifier(partition[1])}"
        self.db.execute(f"CREATE FOREIGN TABLE {foreign} ({columns_sql(columns)}) {foreign_options(name, partition)}")
        return foreign

    def loaded(self, filled: list[list[str]]) -> None:
        """All rows are packed: drop the foreign tables among `filled` (quoted) that were made for the loading alone."""
        for table in (table for _, *copies in filled for table in copies):
            if table.startswith("pg_temp."):
                self.db.execute(f"DROP FOREIGN TABLE {table}")


def make_on(db: Database, link: Link, subject: str, partition: tuple[str, str], segment: int, columns: Columns) -> None:
    """Make a table on another server, with a comment that says that it is `subject`; `partition`: (schema, name). A table
    with this comment is replaced; the link's lock_timeout limits the wait for it. Raises MopError."""
    server, table = link.name, quoted(partition)
    comment = mark(db, subject)
    rows = link.run(
        f"SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = "
        f"c.relnamespace WHERE n.nspname = {quote_literal(partition[0])} AND c.relname = "
        f"{quote_literal(partition[1])}"
    )
    if rows and rows[0][0] != comment:
        raise MopError(
            f"table {table} already exists on server {server}",
            detail=f"It would be {subject}.",
            sqlstate="42P07",
            hint=f"Drop it there (DROP TABLE {table};) or choose another output table.",
        )
    if not link.run(
        f"SELECT 1 FROM pg_namespace WHERE nspname = {quote_literal(partition[0])} AND "
        f"has_schema_privilege(oid, 'CREATE')"
    ):
        raise MopError(
            f'there is no schema "{partition[0]}" on server {server} in which role '
            f"{quote_identifier(link.target.role)} may make tables",
            sqlstate="3F000",
            hint=f"There: CREATE SCHEMA IF NOT EXISTS {quote_identifier(partition[0])}; GRANT USAGE, "
            f"CREATE ON SCHEMA {quote_identifier(partition[0])} TO "
            f"{quote_identifier(link.target.role)};",
        )
    # an existing table with this comment is left from a transaction that was rolled back
    try:
        link.run(
            f"SET LOCAL lock_timeout = {quote_literal(link.lock_timeout)}; "
            f"DROP TABLE IF EXISTS {table}; {create_alone(table, columns, segment)}; "
            f"COMMENT ON TABLE {table} IS {quote_literal(comment)}"
        )
    except psycopg2.errors.LockNotAvailable:
        raise MopError(
            f"table {table} on server {server} is locked by another transaction",
            detail=f"It would be {subject}.",
            hint=f"On that server: SELECT pid, mode FROM pg_locks WHERE relation = {quote_literal(table)}::regclass;",
            sqlstate="55P03",
        ) from None


def copy_stem(table: str, number: int) -> str:
    """The stem of the names of the `number`-th copies of a packed table's segments (from 1 on)."""
    return f"{table}_copy" if number == 1 else f"{table}_copy_{number}"


def guest_stem(table: str, run_id: int) -> str:
    """The stem of the names of the copies that a run makes on a server that joins it: no other run makes such names."""
    return f"{table}_copy_run_{run_id}"


def place_copies(servers: Sequence[str], strengths: dict[str, int], count: int) -> list[list[str]]:
    """The servers of the `count` copies of each segment, each on a server of its own; none of segments on this server.

    `servers`: of each segment; `strengths`: as of `deal`, one server more than `count` at least. The first copies of a
    server's segments are dealt out by strength. Each further copy goes where the fewest segments and copies are by then, for
    the server's strength. This server has copies only where no other is left.
    """
    copies: list[list[str]] = [[] for _ in servers]
    if not count:
        return copies
    counts = {name: float(servers.count(name)) for name in strengths}
    for name in [name for name in strengths if name != LOCAL]:
        on_server = [segment for segment, server in enumerate(servers) if server == name]
        others = {other: strength for other, strength in strengths.items() if other not in (name, LOCAL)}
        for segment, other in zip(on_server, deal(len(on_server), others or {LOCAL: 1})):
            copies[segment].append(other)
            counts[other] += 1
    for _ in range(count - 1):
        for segment, server in enumerate(servers):
            if server == LOCAL:
                continue
            candidates = [name for name in strengths if name not in (server, *copies[segment])]
            place = min(candidates, key=lambda name: (name == LOCAL, (counts[name] + 1) / strengths[name]))
            copies[segment].append(place)
            counts[place] += 1
    return copies


def strength(link: Link | None) -> int:
    """How many segments suit the server of a link (None: this server): its GPUs, or else its cores."""
    info = {"gpus": settings.gpus(), "cores": settings.cores()} if link is None else link.info
    return info["gpus"] or info["cores"]


def deal(segments: int, strengths: dict[str, int]) -> list[str]:
    """The server of each segment; `strengths`: {name of a server: the number of segments that suit it}.

    Each server gets the whole part of its share; servers with the largest remainders get one more (Hamilton's method).
    Neighboring segments are on different servers as far as possible.
    """
    total = sum(strengths.values())
    shares = {name: segments * strength / total for name, strength in strengths.items()}
    counts = {name: int(share) for name, share in shares.items()}
    order = sorted(shares, key=lambda name: counts[name] - shares[name])
    for name in order[: segments - sum(counts.values())]:
        counts[name] += 1
    places = [((number + 0.5) / count, name) for name, count in counts.items() for number in range(count)]
    return [name for _, name in sorted(places, key=lambda d: d[0])]

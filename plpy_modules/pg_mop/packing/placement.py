"""Where the segments of a packed table, and copies of them, are made: here, or dealt out over other servers
(pg_mop.servers, pg_mop.replicas)."""

import hashlib
import re

from pg_mop.backend import settings
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import MAX_NAME, quote_identifier, quote_literal
from pg_mop.connections.links import Links

HERE = "local"  # this server, in pg_mop.servers
PRIMARY_KEY = 'PRIMARY KEY ("__dist_key__", "buffer_id")'


class Places:
    """The servers that segments are dealt out over: `servers`, the name of each segment's; `copies`: of its copy's,
    None where it has none; `links`: to those that are not this one, empty where all are here; `keys`: the segments'
    `__dist_key__`."""

    distributed = False  # by Citus
    rules = gpu_config = "all_segments"  # see packing/segments.py
    INSERT = "INSERT INTO {} VALUES ({})"  # a row: table, parameters

    def __init__(self, db, names, segments, replicas=1):
        """`names`: of postgres_fdw servers, `local` for this one; None: this one alone. `segments`: how many; None: as
        many as there are GPUs or cores. `replicas`: 2: each segment of another server has a copy on yet another one,
        or here if there is none. Raises MopError."""
        self.db, self.links, strengths = db, Links(db), {}
        if replicas > len(names or [HERE]):
            raise MopError(
                f"pg_mop.replicas is {replicas}, but the segments are on {len(names or [HERE])} server",
                hint="SET pg_mop.servers = 'w1, w2'; or RESET pg_mop.replicas;",
            )
        for name in names or ():
            if names.count(name) > 1:
                raise MopError(f'pg_mop.servers names "{name}" twice', hint="RESET pg_mop.servers;")
        self.links.reach(name for name in names or () if name != HERE)
        for name in names or [HERE]:
            strengths[name] = strength(None if name == HERE else self.links[name])
        if replicas > 1:
            self._check_distinct()
        self.servers = deal(segments or sum(strengths.values()), strengths)
        self.copies, self.keys = [None] * len(self.servers), range(len(self.servers))
        for name in strengths.keys() - {HERE} if replicas > 1 else ():
            own = [segment for segment, server in enumerate(self.servers) if server == name]
            others = {other: strength for other, strength in strengths.items() if other not in (name, HERE)}
            for segment, other in zip(own, deal(len(own), others or {HERE: 1})):
                self.copies[segment] = other

    def _check_distinct(self):
        """Two names of one database are no two servers. Raises MopError."""
        known = {this_database(self.db): HERE}
        for name, link in self.links.items():
            if (first := known.setdefault(link.info["identity"], name)) != name:
                raise MopError(
                    f'servers "{first}" and "{name}" are one: a copy there would be none',
                    hint="SET pg_mop.servers = ...; with servers that differ, or RESET pg_mop.replicas;",
                )

    def create(self, target, columns, external):
        """Create the packed table (quoted): (the tables to be filled with each segment, quoted, its partition first;
        what the summary says of copies). `columns`: [(name, type), ...]; `external`: those that are to be stored
        uncompressed."""
        db, (schema, name) = self.db, self.db.parse_name(target)
        # a table with foreign partitions can have no key
        key = "" if self.links else f", {PRIMARY_KEY}"
        db.execute(
            f'CREATE TABLE {target} ({columns_sql(columns)}{key}) PARTITION BY LIST ("__dist_key__"); '
            f"ALTER TABLE {target} {external_sql(external)}"
        )
        filled, copies, segments = [], [], len(self.servers)
        for segment in range(segments):
            own = _quoted((schema, partition_name(name, segment, segments)))
            if db.value("SELECT to_regclass($1) IS NOT NULL", ["text"], [own]):  # before anything is made elsewhere
                raise MopError(
                    f"table {own} already exists",
                    detail=f"It would be segment {segment} of {target}.",
                    hint=f"DROP TABLE {own}; or choose another output table.",
                    sqlstate="42P07",
                )
        for segment, copy_on in enumerate(self.copies):
            own = schema, partition_name(name, segment, segments)
            self.make(target, own, segment, columns)
            filled.append([_quoted(own)])
            if copy_on is not None:
                copy = schema, partition_name(f"{name}_copy", segment, segments)
                filled[-1].append(self.make_copy(target, copy, segment, columns))
                copies.append([segment, None if copy_on == HERE else copy_on, *copy])
        return filled, copies

    def make(self, target, partition, segment, columns):
        """Make a partition of the table `target` for a segment on its server; `partition`: (schema, name); `columns`:
        [(name, type), ...]. Raises MopError."""
        db, table = self.db, _quoted(partition)
        name = self.servers[segment]
        if name == HERE:
            db.execute(f"CREATE TABLE {table} PARTITION OF {target} FOR VALUES IN ({segment})")
            if self.links:  # which the parent cannot have then
                db.execute(f"ALTER TABLE {table} ADD {PRIMARY_KEY}")
            return
        self._make_there(name, f"segment {segment} of {target}", partition, segment, columns)
        db.execute(
            f"CREATE FOREIGN TABLE {table} PARTITION OF {target} FOR VALUES IN ({segment}) {_foreign(name, partition)}"
        )

    def make_copy(self, target, partition, segment, columns):
        """Make the copy of a segment on its server, likewise; what it is filled by here (quoted)."""
        name, table = self.copies[segment], _quoted(partition)
        what = f"copy of segment {segment} of {target}"
        if name == HERE:
            mark = self.db.value("SELECT obj_description(to_regclass($1), 'pg_class')", ["text"], [table])
            if mark == _marked(self.db, what):  # of a packed table that somebody has dropped
                self.db.execute(f"DROP TABLE {table}")
            self.db.execute(
                f"{_create_alone(table, columns, segment)}; COMMENT ON TABLE {table} IS "
                f"{quote_literal(_marked(self.db, what))}"
            )
            return table
        self._make_there(name, what, partition, segment, columns)
        filled = f"pg_temp.{quote_identifier(partition[1])}"
        self.db.execute(f"CREATE FOREIGN TABLE {filled} ({columns_sql(columns)}) {_foreign(name, partition)}")
        return filled

    def loaded(self, filled):
        """All is packed: drop those of the tables `filled`, lists of quoted names, that served for that alone."""
        for table in (table for _, *copies in filled for table in copies):
            if table.startswith("pg_temp."):
                self.db.execute(f"DROP FOREIGN TABLE {table}")

    def _make_there(self, name, what, partition, segment, columns):
        """Make a table on another server, which is told what it is."""
        link, quoted, table = self.links[name], quote_identifier(name), _quoted(partition)
        mark = _marked(self.db, what)
        there = link.run(
            f"SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = "
            f"c.relnamespace WHERE n.nspname = {quote_literal(partition[0])} AND c.relname = "
            f"{quote_literal(partition[1])}"
        )
        if there and there[0][0] != mark:
            raise MopError(
                f"table {table} already exists on server {quoted}",
                detail=f"It would be {what}.",
                sqlstate="42P07",
                hint=f"Drop it there (DROP TABLE {table};) or choose another output table.",
            )
        if not link.run(
            f"SELECT 1 FROM pg_namespace WHERE nspname = {quote_literal(partition[0])} AND "
            f"has_schema_privilege(oid, 'CREATE')"
        ):
            raise MopError(
                f'there is no schema "{partition[0]}" on server {quoted} in which role '
                f"{quote_identifier(link.target.role)} may make tables",
                sqlstate="3F000",
                hint=f"There: CREATE SCHEMA IF NOT EXISTS {quote_identifier(partition[0])}; GRANT USAGE, "
                f"CREATE ON SCHEMA {quote_identifier(partition[0])} TO "
                f"{quote_identifier(link.target.role)};",
            )
        # one that nobody has any more is what a transaction that was rolled back has left
        link.run(
            f"DROP TABLE IF EXISTS {table}; {_create_alone(table, columns, segment)}; "
            f"COMMENT ON TABLE {table} IS {quote_literal(mark)}"
        )


def partition_name(table, segment, segments):
    """The name of one segment's partition. A long name is cut; then a hash of the whole keeps it unique."""

    def fits(stem):
        return len(f"{stem}_segment_{segments - 1}".encode()) <= MAX_NAME

    stem = table
    if not fits(stem):
        mark = "_" + hashlib.sha256(table.encode()).hexdigest()[:8]
        cut = table
        while not fits(cut + mark):
            cut = cut[:-1]
        stem = cut + mark
    return f"{stem}_segment_{segment}"


def columns_sql(columns):
    """SQL for columns: [(name, type), ...]."""
    return ", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns)


def external_sql(columns):
    """SQL of ALTER TABLE: columns (names) are stored uncompressed."""
    return ", ".join(f"ALTER {quote_identifier(name)} SET STORAGE EXTERNAL" for name in columns)


def _quoted(table):
    return ".".join(map(quote_identifier, table))


def _create_alone(table, columns, segment):
    """SQL that makes a table (quoted) that holds a segment alone, uncompressed."""
    external = external_sql(name for name, kind in columns if kind == "bytea")
    return (
        f"CREATE TABLE {table} ({columns_sql(columns)}, {PRIMARY_KEY}, "
        f'CHECK ("__dist_key__" = {segment})); ALTER TABLE {table} {external}'
    )


def _foreign(server, partition):
    """SQL: what a foreign table is."""
    return (
        f"SERVER {quote_identifier(server)} OPTIONS (schema_name {quote_literal(partition[0])}, table_name "
        f"{quote_literal(partition[1])})"
    )


def is_of(mark, db, table):
    """True where a comment says that a preprocessor of this database has made what has it for the packed `table`."""
    what = re.match(r"(copy of )?segment \d+", mark)
    return what is not None and mark == _marked(db, f"{what[0]} of {table}")


def _marked(db, what):
    """The comment on a table that a preprocessor of this database has made."""
    return f"{what}, packed by pg_mop of {this_database(db)}"


def strength(link):
    """How many segments suit a server: the GPUs or else cores of a Link's; None: this one's."""
    info = {"gpus": settings.gpus(), "cores": settings.cores()} if link is None else link.info
    return info["gpus"] or info["cores"]


def this_database(db):
    """Names this very database among all servers."""
    return db.value(f"SELECT {db.extension}.mop_identity()")


def deal(segments, strengths):
    """So many segments over servers of these strengths ({name: number}): the name of each one's server.

    Each gets the whole part of its share, those with the largest rests one more (Hamilton's method); neighbours are on
    different servers as far as it goes.
    """
    total = sum(strengths.values())
    shares = {name: segments * strength / total for name, strength in strengths.items()}
    counts = {name: int(share) for name, share in shares.items()}
    order = sorted(shares, key=lambda name: counts[name] - shares[name])
    for name in order[: segments - sum(counts.values())]:
        counts[name] += 1
    dealt = [((number + 0.5) / count, name) for name, count in counts.items() for number in range(count)]
    return [name for _, name in sorted(dealt, key=lambda d: d[0])]

"""Where the segments of a packed table are made: here, or dealt out over other servers (pg_mop.servers)."""

from pg_mop import settings
from pg_mop.database import MopError, quote_identifier, quote_literal
from pg_mop.engines.postgres_fdw import Links

HERE = "local"  # this server, in pg_mop.servers


class Places:
    """The servers that segments are dealt out over: `servers`, the name of each segment's; `links`: to those that are
    not this one, empty where all are here."""

    def __init__(self, db, names, segments):
        """`names`: of postgres_fdw servers, `local` for this one; None: this one alone. `segments`: how many; None: as
        many as there are GPUs or cores. Raises MopError."""
        self.db, self.links, strengths = db, Links(db), {}
        for name in names or [HERE]:
            if name in strengths:
                raise MopError(f'pg_mop.servers names "{name}" twice', hint="RESET pg_mop.servers;")
            info = {"gpus": settings.gpus(), "cores": settings.cores()} if name == HERE else self.links[name].info
            strengths[name] = info["gpus"] or info["cores"]
        self.servers = deal(segments or sum(strengths.values()), strengths)

    def make(self, target, partition, segment, columns):
        """Make a partition of the table `target` for a segment on its server; `partition`: (schema, name); `columns`:
        SQL. Raises MopError."""
        db, table = self.db, ".".join(map(quote_identifier, partition))
        name = self.servers[segment]
        if name == HERE:
            db.execute(f"CREATE TABLE {table} PARTITION OF {target} FOR VALUES IN ({segment})")
            if self.links:  # which the parent cannot have then
                db.execute(f'ALTER TABLE {table} ADD PRIMARY KEY ("__dist_key__", "buffer_id")')
            return
        link, quoted = self.links[name], quote_identifier(name)
        mark = f"segment {segment} of {target}, {packed_by(db)}"
        there = link.run(f"SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = "
                         f"c.relnamespace WHERE n.nspname = {quote_literal(partition[0])} AND c.relname = "
                         f"{quote_literal(partition[1])}")
        if there and there[0][0] != mark:
            raise MopError(f"table {table} already exists on server {quoted}",
                           detail=f"It would be segment {segment} of {target}.", sqlstate="42P07",
                           hint=f"Drop it there (DROP TABLE {table};) or choose another output table.")
        if not link.run(f"SELECT 1 FROM pg_namespace WHERE nspname = {quote_literal(partition[0])} AND "
                        f"has_schema_privilege(oid, 'CREATE')"):
            raise MopError(f'there is no schema "{partition[0]}" on server {quoted} in which role '
                           f"{quote_identifier(link.way.role)} may make tables", sqlstate="3F000",
                           hint=f"There: CREATE SCHEMA IF NOT EXISTS {quote_identifier(partition[0])}; GRANT USAGE, "
                                f"CREATE ON SCHEMA {quote_identifier(partition[0])} TO "
                                f"{quote_identifier(link.way.role)};")
        # one that nobody has any more is what a transaction that was rolled back has left
        link.run(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({columns}, PRIMARY KEY (\"__dist_key__\", "
                 f"\"buffer_id\"), CHECK (\"__dist_key__\" = {segment})); COMMENT ON TABLE {table} IS "
                 f"{quote_literal(mark)}")
        for column in [row[0] for row in link.run(
                f"SELECT attname FROM pg_attribute WHERE attrelid = {quote_literal(table)}::regclass AND atttypid = "
                f"'bytea'::regtype AND attnum > 0")]:
            link.run(f"ALTER TABLE {table} ALTER {quote_identifier(column)} SET STORAGE EXTERNAL")
        db.execute(f"CREATE FOREIGN TABLE {table} PARTITION OF {target} FOR VALUES IN ({segment}) SERVER {quoted} "
                   f"OPTIONS (schema_name {quote_literal(partition[0])}, table_name {quote_literal(partition[1])})")


def packed_by(db):
    """What the comment on a table on another server ends with, which a preprocessor of this database has made."""
    return f"packed by pg_mop of {this_database(db)}"


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
    for name in order[:segments - sum(counts.values())]:
        counts[name] += 1
    dealt = [((number + 0.5) / count, name) for name, count in counts.items() for number in range(count)]
    return [name for _, name in sorted(dealt, key=lambda d: d[0])]

"""Segments in shards of Citus: where the source is distributed, what is packed of it is distributed, too."""

from pg_mop.backend.errors import MopError
from pg_mop.connections.links import Links
from pg_mop.engines import citus
from pg_mop.packing.placement import PRIMARY_KEY, Places, columns_sql, external_sql, strength
from pg_mop.packing.segments import Segments


def places_of(db, source, config, distribution_rules=None):
    """Where what is packed of a Table is to be: Places or, where its rows are in shards of Citus, Shards; on Greenplum
    Segments, which `distribution_rules` choose. `config`: the settings. Raises MopError."""
    if db.has_segments:
        for name in ("servers", "replicas"):
            if config[name] not in (None, 1):
                db.check_engine(f"pg_mop.{name}")
        return Segments(db, distribution_rules)
    if not citus.reads_shards(db, source):
        return Places(db, config["servers"], config["segments"], config["replicas"])
    if config["servers"]:
        raise MopError(
            f"pg_mop.servers is set, but rows of {source} are distributed by Citus",
            detail="What is packed of them is distributed by Citus, too.",
            hint="RESET pg_mop.servers;",
        )
    return Shards(db, config["segments"], config["replicas"])


class Shards:
    """A shard for each segment, which Citus puts on its nodes; as Places. `keys`: known once there is the table."""

    distributed = True
    rules = gpu_config = "all_segments"
    copies = ()  # Citus knows of them
    # (of VALUES Citus makes text, which it parses and sends: four times as slow)
    INSERT = "INSERT INTO {} SELECT {} FROM generate_series(1, 1)"

    def __init__(self, db, segments, replicas):
        """`segments`: how many; None: as many as the nodes have GPUs or cores. `replicas`: placements of each. Raises
        MopError, also where no server leads to a node: nobody could train there."""
        self.db, self.replicas, nodes = db, replicas, citus.nodes(db)
        if replicas > len(nodes):
            raise MopError(
                f"pg_mop.replicas is {replicas}, but Citus has {len(nodes)} node{'s' * (len(nodes) != 1)} for shards",
                hint="SELECT citus_add_node('host', port); or RESET pg_mop.replicas;",
            )
        links, servers = Links(db), [node.server(db) for node in nodes]
        strengths = [strength(links[name] if name else None) for name in servers]
        self.keys = range(segments or sum(strengths))

    def create(self, target, columns, external):
        """Create the packed table, as Places does."""
        db, count = self.db, len(self.keys)
        db.execute(
            f"CREATE TABLE {target} ({columns_sql(columns)}, {PRIMARY_KEY}); "
            f"ALTER TABLE {target} {external_sql(external)}"
        )
        before = db.setting("citus.shard_replication_factor")
        db.execute(f"SET LOCAL citus.shard_replication_factor = {self.replicas}")
        db.execute(
            "SELECT create_distributed_table($1::regclass, '__dist_key__', shard_count => $2, colocate_with => 'none')",
            ["text", "int4"],
            [target, count],
        )
        db.execute(f"SET LOCAL citus.shard_replication_factor = {before}")
        found, tried = [], count
        while len(found) < count:  # for each shard the smallest key that is in it
            tried *= 2
            found = db.execute(
                "SELECT min(key) AS key FROM generate_series(0, $2) AS key GROUP BY "
                "get_shard_id_for_distribution_column($1::regclass, key) ORDER BY 1",
                ["text", "int4"],
                [target, tried],
            )
        self.keys = [row["key"] for row in found]
        return [[target]] * count, []

    def loaded(self, filled):
        """Nothing served for the loading alone."""

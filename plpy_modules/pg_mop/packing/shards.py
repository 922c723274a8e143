"""Segments in shards of Citus: where the source is distributed, its packed table is distributed, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.connections.links import Links
from pg_mop.engines import citus
from pg_mop.packing.partitions import PRIMARY_KEY, columns_sql, external_sql
from pg_mop.packing.placement import Entry, ServerPlacement, strength
from pg_mop.packing.segments import SegmentPlacement


def placement_of(
    db: Database, source: Table, config: Mapping[str, Any], distribution_rules: str | None = None
) -> Placement:
    """The placement of the packed rows of `source`: on servers; in shards where Citus distributes the source; on Greenplum
    on the segments that `distribution_rules` select. `config`: the settings. Raises MopError."""
    if db.has_segments:
        for name in ("servers", "replicas"):
            if config[name] not in (None, 1):
                db.check_engine(f"pg_mop.{name}")
        return SegmentPlacement(db, distribution_rules)
    if not citus.reads_shards(db, source):
        return ServerPlacement(db, config["servers"], config["segments"], config["replicas"])
    if config["servers"]:
        raise MopError(
            f"pg_mop.servers is set, but rows of {source} are distributed by Citus",
            detail="Their packed table is distributed by Citus, too.",
            hint="RESET pg_mop.servers;",
        )
    return ShardPlacement(db, config["segments"], config["replicas"])


class ShardPlacement:
    """One shard for each segment, which Citus places on its nodes; the interface is that of ServerPlacement.

    `keys` are final once the table exists.
    """

    distributed = True
    rules = gpu_config = "all_segments"
    copies: tuple[()] = ()  # Citus itself knows the copies
    # Citus turns VALUES into text, and parses and sends that: four times as slow
    INSERT = "INSERT INTO {} SELECT {} FROM generate_series(1, 1)"

    def __init__(self, db: Database, segments: int | None, replicas: int) -> None:
        """`segments`: their number; None: the number of GPUs or cores of the nodes. `replicas`: placements of each shard.

        Raises MopError, also where no server leads to a node: no session could train on that node.
        """
        self.db, self.replicas, nodes = db, replicas, citus.nodes(db)
        if replicas > len(nodes):
            raise MopError(
                f"pg_mop.replicas is {replicas}, but Citus has {len(nodes)} node{'s' * (len(nodes) != 1)} for shards",
                hint="SELECT citus_add_node('host', port); or RESET pg_mop.replicas;",
            )
        links, servers = Links(db), [node.server(db) for node in nodes]
        strengths = [strength(links[name] if name else None) for name in servers]
        self.keys: Sequence[int] = range(segments or sum(strengths))

    def create(
        self, target: str, columns: list[tuple[str, str]], external: list[str]
    ) -> tuple[list[list[str]], list[Entry]]:
        """Create the packed table, as ServerPlacement does."""
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
        rows: list[dict[str, Any]] = []
        tried_keys = count
        while len(rows) < count:  # for each shard the smallest key that is in it
            tried_keys *= 2
            rows = db.execute(
                "SELECT min(key) AS key FROM generate_series(0, $2) AS key GROUP BY "
                "get_shard_id_for_distribution_column($1::regclass, key) ORDER BY 1",
                ["text", "int4"],
                [target, tried_keys],
            )
        self.keys = [row["key"] for row in rows]
        return [[target]] * count, []

    def loaded(self, filled: list[list[str]]) -> None:
        """No table was made for the loading alone."""


Placement = ServerPlacement | ShardPlacement | SegmentPlacement

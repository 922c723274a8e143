"""Citus: the shards of a distributed packed table are trained on their nodes.

Worker sessions connect to a node directly, as for postgres_fdw, by a foreign server with the node's address. Citus itself
serves packing and queries of the packed table, and lists the shards' placements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.connections.links import Links
from pg_mop.connections.targets import IS_POSTGRES_FDW
from pg_mop.engines.base import PackedRows, Segment
from pg_mop.engines.postgres_fdw import PostgresFdw, Tables

# These settings let a role see and lock the shards of its own tables.
OF_SHARDS = "SET citus.override_table_visibility = off; SET citus.enable_manual_changes_to_shards = on"
Shards = list[list[tuple["Node", str]]]  # of each shard its placements: the node, and the quoted table there

# SQL: node n is in use.
ACTIVE = "n.isactive AND n.noderole = 'primary' AND n.nodecluster = current_setting('citus.cluster_name')"


class Citus(PostgresFdw):
    """`placed`: {OID of a distributed table: its shards}.

    Units train on the first placement of a shard; the others are its copies.
    """

    begins_without = False

    def __init__(
        self, db: Database, foreign: Mapping[int, Tables], placed: Mapping[int, Shards], copied: bool = False
    ) -> None:
        """Raises MopError."""
        if db.value("SELECT transaction_number <> 0 FROM get_current_transaction_id()"):
            # Each of our queries, many of them while we wait, would set a savepoint on each node.
            raise MopError(
                "this transaction has used tables that Citus distributes",
                sqlstate="25001",
                hint="COMMIT; and call again.",
            )
        first = {oid: [(shard[0][0].server(db), shard[0][1]) for shard in shards] for oid, shards in placed.items()}
        super().__init__(db, {**foreign, **first}, copied)
        self.placed, self.links = placed, Links(db, OF_SHARDS)

    def _leaves(self, table: Table) -> list[dict[str, Any]]:
        return [] if table.oid in self.placed else super()._leaves(table)

    def _copies(self, packed: PackedRows) -> list[Segment]:
        copies = super()._copies(packed)
        for shard in self.placed.get(packed.table.oid, ()):
            for node, table in shard[1:]:
                copies += self._segments_there(packed, node.server(self.db), table)
        return copies


class Node:
    """A node of Citus. `here`: this server."""

    def __init__(self, host: str, port: int, here: bool) -> None:
        self.host, self.port, self.here = host, port, here

    def server(self, db: Database) -> str | None:
        """The name of the foreign server with the node's address; None: this server. Raises MopError."""
        if self.here:
            return None
        user, database = quote_identifier(db.current_user()), db.value("SELECT current_database()::text")
        options = {"host": self.host, "port": str(self.port), "dbname": database}
        row = db.one(
            "SELECT s.srvname::text AS name, has_server_privilege(s.oid, 'USAGE') AS usable "
            "FROM pg_foreign_server s JOIN pg_foreign_data_wrapper w ON w.oid = s.srvfdw "
            f"WHERE {IS_POSTGRES_FDW} AND s.srvoptions @> $1 "
            # hostaddr overrides host, and any role with USAGE on the wrapper can create a server.
            "AND NOT EXISTS (SELECT 1 FROM unnest(s.srvoptions) AS o WHERE o LIKE 'hostaddr=%') AND EXISTS (SELECT 1 "
            "FROM pg_roles a WHERE a.oid = s.srvowner AND (a.rolsuper OR a.rolname = current_user)) "
            "ORDER BY usable DESC, EXISTS (SELECT 1 FROM pg_user_mappings m WHERE m.srvid = s.oid "
            "AND m.usename = current_user) DESC, 1 LIMIT 1",
            ["text[]"],
            [[f"{o}={v}" for o, v in options.items()]],
        )
        name = quote_identifier(row["name"] if row else f"{self.host}:{self.port}")
        grant = f"GRANT USAGE ON FOREIGN SERVER {name} TO {user};"
        if row is None:
            options_sql = ", ".join(f"{option} {quote_literal(value)}" for option, value in options.items())
            raise MopError(
                f"no foreign server leads to node {self.host}:{self.port} of Citus",
                sqlstate="42704",
                detail="The server's options must have the host and port of pg_dist_node, and this dbname; libpq's "
                "defaults do not count.",
                hint=f"CREATE EXTENSION IF NOT EXISTS postgres_fdw; CREATE SERVER {name} FOREIGN DATA WRAPPER "
                f"postgres_fdw OPTIONS ({options_sql}); {grant} CREATE USER MAPPING FOR {user} SERVER {name} OPTIONS "
                f"(user {quote_literal(db.current_user())}, password '...');",
            )
        if not row["usable"]:
            raise MopError(
                f"permission denied for foreign server {name}, which leads to node {self.host}:{self.port} of Citus",
                hint=grant,
                sqlstate="42501",
            )
        return row["name"]


def nodes(db: Database) -> list[Node]:
    """The nodes for new shards."""
    return [
        Node(row["nodename"], row["nodeport"], row["here"])
        for row in db.execute(
            f"SELECT n.nodename, n.nodeport, n.groupid = l.groupid AS here FROM pg_dist_node n, pg_dist_local_group l "
            f"WHERE {ACTIVE} AND n.shouldhaveshards ORDER BY n.nodeid"
        )
    ]


def placements(db: Database, table: Table, text: str) -> Shards | None:
    """The shards of a table; None if Citus has not sharded the table.

    The caller calls the table `text`. Raises MopError for a shard that is on no active node.
    """
    if (db.distribution(table) or "n") == "n":
        return None
    shards: dict[int, list[tuple[Node, str]]] = {}
    nodes_by_address: dict[tuple[str, int], Node] = {}
    for row in db.execute(
        "SELECT s.shardid, parse_ident(shard_name(s.logicalrelid, s.shardid)) AS name, p.* FROM pg_dist_shard s "
        "LEFT JOIN (SELECT p.shardid, p.placementid, n.nodename, n.nodeport, n.groupid = l.groupid AS here "
        "FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid), pg_dist_local_group l "
        f"WHERE p.shardstate = 1 AND {ACTIVE}) p USING (shardid) "
        "WHERE s.logicalrelid = $1 ORDER BY s.shardid, p.placementid",
        ["oid"],
        [table.oid],
    ):
        if row["nodename"] is None:
            raise MopError(
                f'shard {row["shardid"]} of "{text}" is on no active node of Citus',
                sqlstate="55000",
                hint="SELECT nodename, nodeport FROM pg_dist_node WHERE NOT isactive; SELECT citus_activate_node(...);",
            )
        address = row["nodename"], row["nodeport"]
        node = nodes_by_address.setdefault(address, Node(*address, row["here"]))
        shards.setdefault(row["shardid"], []).append(
            (node, f"{quote_identifier(table.schema)}.{quote_identifier(row['name'][-1])}")
        )
    return list(shards.values())


def reads_shards(db: Database, table: Table) -> bool:
    """True if a table, or for a view any table below it, has rows in shards of Citus."""
    if not db.has_citus:
        return False
    methods = (
        db.value(
            "WITH RECURSIVE read(oid) AS (SELECT $1::oid UNION SELECT d.refobjid FROM read JOIN pg_rewrite r "
            "ON r.ev_class = read.oid JOIN pg_class v ON v.oid = read.oid AND v.relkind = 'v' JOIN pg_depend d "
            "ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass) "
            "SELECT array_agg(p.partmethod::text) FROM read JOIN pg_dist_partition p ON p.logicalrelid = read.oid",
            ["oid"],
            [table.oid],
        )
        or []
    )
    db.on_nodes = db.on_nodes or bool(methods)
    return any(method != "n" for method in methods)

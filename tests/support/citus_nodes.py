"""A coordinator and workers of Citus, each on a separate server of the tests."""

import pathlib

import pytest

from support.client import Client
from support.cluster import Cluster, programs, run_text


class Nodes:
    """`db`: a superuser's session on the coordinator; `workers`: the Clusters of its foreign servers w1, w2 and so on.

    Without Citus, the test is skipped.
    """

    def __init__(self, workers, settings=""):
        """`settings`: SQL with more settings for the session `db`."""
        share = run_text(programs() / "pg_config", "--sharedir")
        if not (pathlib.Path(share) / "extension" / "citus.control").exists():
            pytest.skip("Citus is not installed in the PostgreSQL of PG_CONFIG")
        self.coordinator, *self.workers = (
            Cluster(max_connections=80, shared_preload_libraries="citus", wal_level="logical")
            for _ in range(1 + workers)
        )
        for cluster in (self.coordinator, *self.workers):
            client = Client(cluster, "postgres")
            client.run("CREATE EXTENSION citus")
            client.close()
        self.db = Client(self.coordinator, "postgres")
        self.db.run(f"SELECT citus_set_coordinator_host('127.0.0.1', {self.coordinator.port})")
        for cluster in self.workers:
            self.db.run(f"SELECT citus_add_node('127.0.0.1', {cluster.port})")
        self.db.run(
            "CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE; "
            "CREATE EXTENSION postgres_fdw; SET citus.shard_replication_factor = 1; " + settings
        )
        for number, cluster in enumerate(self.workers, 1):
            self.db.run(
                f"CREATE SERVER w{number} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port "
                f"'{cluster.port}', dbname 'postgres'); CREATE USER MAPPING FOR postgres SERVER w{number} "
                f"OPTIONS (user 'postgres')"
            )

    def stop(self):
        self.db.close()
        for cluster in (self.coordinator, *self.workers):
            cluster.stop()

"""An existing Greenplum cluster with the extension installed (docs/greenplum.md).

The environment variable PG_MOP_GREENPLUM is a superuser's DSN of its coordinator.
"""

import os

import psycopg2.extensions
import pytest

from support.client import Client


def needed(tests):
    """Without a Greenplum cluster, skip the module; `tests` names its tests."""
    if "PG_MOP_GREENPLUM" not in os.environ:
        pytest.skip(f"{tests} was NOT RUN: PG_MOP_GREENPLUM names no coordinator", allow_module_level=True)


class Coordinator:
    """The server of a Client."""

    def dsn(self):
        given = psycopg2.extensions.parse_dsn(os.environ["PG_MOP_GREENPLUM"])
        return {"database" if name == "dbname" else name: value for name, value in given.items()}


class Database:
    """A new database with the extension in schema madlib; `db`: a superuser's session in it."""

    def __init__(self, name):
        self.name = name
        # (as support/cluster.py does)
        self._drop(f"CREATE DATABASE {name}", f"ALTER DATABASE {name} SET pg_mop.reuse = off")
        self.db = Client(Coordinator(), name)
        self.db.run("CREATE SCHEMA madlib; CREATE EXTENSION plpython3u; CREATE EXTENSION pg_mop SCHEMA madlib")

    def _drop(self, *then):
        maker = Client(Coordinator(), "postgres")
        # (the database may still list a session that has just ended)
        maker.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'")
        maker.run("SELECT pg_sleep(0.5)")
        maker.run(f"DROP DATABASE IF EXISTS {self.name}")
        for statement in then:
            maker.run(statement)
        maker.close()

    def close(self):
        self.db.close()
        self._drop()


def processes(db, pid):
    """Process IDs of a session's backends on the segments; `pid`: the session's process ID on the coordinator."""
    session = db.value("SELECT sess_id FROM pg_stat_activity WHERE pid = %s", [pid])
    return [
        row["pid"] for row in db.run("SELECT pid FROM gp_dist_random('pg_stat_activity') WHERE sess_id = %s", [session])
    ]

"""Real servers for the tests: one cluster for the session, a database of its own for each module."""

import pathlib
import subprocess
import time

import psycopg2
import psycopg2.extras
import pytest
import testing.postgresql

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / ".local" / "bindir"


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL cluster with this checkout's extension available."""
    bin_dir = pathlib.Path(BIN.read_text().strip())
    with testing.postgresql.Postgresql(
        initdb=str(bin_dir / "initdb"), postgres=str(bin_dir / "postgres"),
        initdb_args="-U postgres -A trust -E UTF8 --locale=C.UTF-8",
        postgres_args="-h 127.0.0.1 -F -c logging_collector=off -c max_connections=80",
    ) as postgresql:
        yield postgresql


def connect(server, database, user="postgres"):
    """An autocommit connection whose rows are dicts."""
    connection = psycopg2.connect(**{**server.dsn(), "database": database, "user": user},
                                  cursor_factory=psycopg2.extras.RealDictCursor)
    connection.autocommit = True
    return connection


class Client:
    """A user's session: `run(sql, args)` gives the rows as dicts, `value` the first column of the first."""

    def __init__(self, server, database, user="postgres"):
        self.server, self.database, self.user = server, database, user
        self.connection = connect(server, database, user)

    def run(self, sql, args=None):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)
            return [dict(row) for row in cursor.fetchall()] if cursor.description else []

    def value(self, sql, args=None):
        rows = self.run(sql, args)
        return next(iter(rows[0].values())) if rows else None

    def error(self, sql, args=None):
        """The psycopg2 error that `sql` raises; fails the test where it raises none."""
        with pytest.raises(psycopg2.Error) as caught:
            self.run(sql, args)
        if self.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
            self.run("ROLLBACK")
        return caught.value

    def another(self, user=None):
        """A second session on the same database."""
        return Client(self.server, self.database, user or self.user)

    def close(self):
        self.connection.close()


@pytest.fixture(scope="module")
def db(server, request):
    """A superuser's session in a fresh database with the extension in schema madlib."""
    name = "t_" + request.module.__name__.replace(".", "_")[-50:].lower()
    maker = connect(server, "postgres")
    maker.cursor().execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    maker.cursor().execute(f'CREATE DATABASE "{name}"')
    client = Client(server, name)
    client.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    yield client
    client.close()
    maker.cursor().execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    maker.close()


def trainers():
    """Process ids of this checkout's trainers."""
    found = subprocess.run(["pgrep", "-f", f"^{ROOT}/.* mop_udf.trainer"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def eventually(condition, seconds=10):
    """Wait until `condition()` is true; its last value."""
    deadline = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return result

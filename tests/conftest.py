"""Real servers for the tests: one cluster for the session, and a separate database for each module."""

import os
import re
import sys
import threading

import psycopg2
import psycopg2.extras
import pytest

from browser import browser, screen
from cluster import HOME, ROOT, Cluster, eventually
from served import page

__all__ = [
    "HOME",
    "ROOT",
    "Calling",
    "Client",
    "add_server",
    "all_trainers",
    "browser",
    "connect",
    "eventually",
    "of_backend",
    "page",
    "screen",
    "trainers",
]  # the names that tests use

LINES_OF_AN_ERROR = 12  # in the summary


# where CI is set, pytest prints every difference whole: thousands of lines of rows hide which tests have failed
os.environ.pop("CI", None)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """The last lines of a suite name each failed test and its error, because a log is often kept by its end."""
    for report in [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]:
        errors = [line for line in report.longreprtext.splitlines() if line.startswith(("E ", ">"))]
        terminalreporter.write_line(f"failed: {report.nodeid} ({report.when})")
        for line in errors[:LINES_OF_AN_ERROR]:
            terminalreporter.write_line(f"    {line[:200]}")


def pytest_collection_modifyitems(items):
    """`make check` also runs the tests in tests/unit, except those that train many models."""
    for item in items:
        if item.path.parent.name == "unit" and not item.get_closest_marker("thorough"):
            item.add_marker("slice")


@pytest.fixture(autouse=True)
def no_pictures_are_left():
    """matplotlib keeps every figure until it is closed, and warns when there are many."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL cluster with this checkout's extension available."""
    with Cluster(max_connections=80) as cluster:
        yield cluster


def connect(server, database, user="postgres", password=None):
    """An autocommit connection whose rows are dicts."""
    given = {"database": database, "user": user, **({"password": password} if password else {})}
    connection = psycopg2.connect(**{**server.dsn(), **given}, cursor_factory=psycopg2.extras.RealDictCursor)
    connection.autocommit = True
    return connection


class Client:
    """A user's session: `run(sql, args)` returns the rows as dicts, `value` the first column of the first row."""

    def __init__(self, server, database, user="postgres", password=None):
        self.server, self.database, self.user = server, database, user
        self.connection = connect(server, database, user, password)

    def run(self, sql, args=None):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)
            return [dict(row) for row in cursor.fetchall()] if cursor.description else []

    def value(self, sql, args=None):
        rows = self.run(sql, args)
        return next(iter(rows[0].values())) if rows else None

    def error(self, sql, args=None):
        """The psycopg2 error that `sql` raises; without an error, the test fails."""
        with pytest.raises(psycopg2.Error) as caught:
            self.run(sql, args)
        if self.connection.get_transaction_status() == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
            self.run("ROLLBACK")
        return caught.value

    def uri(self, user=None, database=None):
        """The URI of a database for programs, by default the session's database and user."""
        to = self.connection.info
        return f"postgresql://{user or self.user}@{to.host}:{to.port}/{database or self.database}"

    def another(self, user=None):
        """A second session in the same database, by default of the same user."""
        return Client(self.server, self.database, user or self.user)

    def close(self):
        self.connection.close()


def add_server(db, name, cluster, port=None):
    """Make a cluster a foreign server of `db`, a superuser's session with postgres_fdw; pg_mop is in its schema mop.

    Returns a superuser's session on the cluster. `port`: the port to connect to, by default the cluster's.
    """
    worker = Client(cluster, "postgres")
    worker.run("CREATE SCHEMA IF NOT EXISTS mop; CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA mop CASCADE")
    db.run(
        f"CREATE SERVER {name} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port "
        f"'{port or cluster.port}', dbname 'postgres'); "
        f"CREATE USER MAPPING FOR postgres SERVER {name} OPTIONS (user 'postgres')"
    )
    return worker


class Calling:
    """SQL that a session executes in a separate thread; `error` is the exception that it raised, or None."""

    def __init__(self, client, sql):
        self.client, self.error = client, None
        self.thread = threading.Thread(target=self._go, args=(sql,))
        self.thread.start()

    def _go(self, sql):
        try:
            self.client.run(sql)
        except psycopg2.Error as error:
            self.error = error

    def end(self, seconds=300):
        """Wait for the end of the thread. Returns the exception, or None."""
        self.thread.join(seconds)
        assert not self.thread.is_alive()
        return self.error


@pytest.fixture(scope="module")
def db(server, request):
    """A superuser's session in a new database with the extension in schema madlib."""
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


def all_trainers():
    """Process IDs of the trainers of this checkout's servers, and of a Greenplum that the tests are given."""
    homes = re.escape(str(HOME))
    if "PG_MOP_GREENPLUM" in os.environ:  # the packages are where `make install` has put them
        homes += r"|\S*/pg_mop-[0-9.]+"
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", errors="replace") as file:
                command = file.read().replace("\0", " ")
        except OSError:  # the process has ended
            continue
        if re.search(f"(?:{homes})/.*mop_udf\\.trainer ", command):
            found.append(int(pid))
    return found


def trainers():
    """Process IDs of the trainers that a session has: not of those that wait in the pool."""
    return [pid for pid in all_trainers() if of_backend(pid)]


def of_backend(pid):
    """The process ID of the backend that uses the trainer `pid`; None if the trainer has ended."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            words = file.read().replace(" ", "\0").split("\0")
        return int(words[words.index("mop_udf.trainer") + 1])
    except (OSError, ValueError):
        return None

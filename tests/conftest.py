"""Real servers for the tests: one cluster for the session, and a separate database for each module."""

import contextlib
import os

# as in trainers and backends: on busy cores, the threads of NumPy wait for each other most of the time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import psycopg2  # noqa: E402
import pytest  # noqa: E402
from psycopg2 import sql  # noqa: E402

pytest.register_assert_rewrite("support")

from support.browser import browser, screen  # noqa: E402
from support.client import Client, connect  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.served import page  # noqa: E402

__all__ = ["browser", "page", "screen"]  # fixtures
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


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL cluster with this checkout's extension available."""
    with Cluster(max_connections=80) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def template(server):
    """The name of a database with the extension in schema madlib, which the databases of the test files are copies of."""
    maker = connect(server, "postgres")
    maker.cursor().execute("CREATE DATABASE with_extension")
    client = Client(server, "with_extension")
    client.run("CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE")
    client.close()
    maker.close()
    return "with_extension"


@pytest.fixture(scope="module")
def db(server, template, request):
    """A superuser's session in a new database with the extension in schema madlib. The module's roles go with it."""
    name = "t_" + request.module.__name__.replace(".", "_")[-50:].lower()
    maker = Client(server, "postgres")
    maker.run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    maker.run(f'CREATE DATABASE "{name}" TEMPLATE {template}')
    before = roles(maker)
    client = Client(server, name)
    yield client
    client.close()
    maker.run(f'DROP DATABASE "{name}" WITH (FORCE)')
    # (a role would outlive the module; one that owns something in another database stays)
    for role in roles(maker) - before:
        with contextlib.suppress(psycopg2.errors.DependentObjectsStillExist):
            maker.run(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    maker.close()


def roles(client):
    """The names of all roles of a server."""
    return {row["rolname"] for row in client.run("SELECT rolname FROM pg_roles")}

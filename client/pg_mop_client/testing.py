"""Temporary PostgreSQL servers with pg_mop, for tests of your own SQL and Python code.

Install `pg_mop_client[testing]` on a machine where `make install` has installed the extension, and run the tests as a
user other than root (PostgreSQL refuses to run as root). In conftest.py:

    pytest_plugins = ["pg_mop_client.testing"]

In a test, with the fixture `mop_server`:

    def test_the_best_model_is_accurate(mop_server):
        with mop_server.database() as uri, Selection(uri, progress=False, seed=1) as s:
            s.pack(rows, "flowers", label="species")
            ...

All tests of a pytest session share one server. Each call of `database()` makes a new database with the extension, so
that tests do not see each other's tables. To choose the server's programs or settings, override the fixture
`mop_server_options`:

    @pytest.fixture(scope="session")
    def mop_server_options():
        return {"bindir": "/opt/postgresql/bin", "max_connections": 40}

Without pytest, `MopServer` is a context manager.
"""

import contextlib
import os
import pathlib
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from pg_mop_client.database import driver_errors, quote
from pg_mop_client.errors import ClientError
from pg_mop_client.selection import Selection

try:
    from testing.postgresql import Postgresql
except ImportError as error:
    raise ClientError(
        f"this needs the package testing.postgresql: {error}", hint="pip install 'pg_mop_client[testing]'"
    ) from None

SYSTEM = pathlib.Path("/usr/lib/postgresql")  # Debian's directory of PostgreSQL versions


class MopServer(Postgresql):
    """A temporary server with pg_mop. The end of a `with` block, or `stop()`, ends the server and removes its files.

    `bindir`: the directory of `initdb` and `postgres`; None: the directory of the program in the environment variable
    PG_CONFIG, else the newest PostgreSQL in /usr/lib/postgresql that has pg_mop. `schema`: the extension's schema.
    `settings` go to postgresql.conf, such as max_connections=40; a name with a dot is given as **{"pg_mop.seed": 1}.

    The server listens on a free port of 127.0.0.1, trusts all local users, and has no fsync. `url()` is the URI of its
    database `test`, for the superuser postgres; `url(database=..., user=...)` of others.

    Raises ClientError as root, and without an installed extension; RuntimeError, with the log, if the server does not
    start.
    """

    DEFAULT_BOOT_TIMEOUT = 60.0
    DEFAULT_KILL_TIMEOUT = 60.0

    def __init__(self, bindir: str | os.PathLike[str] | None = None, schema: str = "madlib", **settings: Any) -> None:
        self.child_process = None  # (the destructor of the base class needs it after an error below)
        self._use_tmpdir = False
        self.schema, self.configuration = schema, settings
        if os.geteuid() == 0:
            raise ClientError(
                "PostgreSQL does not run as root", hint="Run the tests as another user: runuser -u postgres -- pytest"
            )
        programs = _programs() if bindir is None else pathlib.Path(bindir)
        super().__init__(
            initdb=str(programs / "initdb"),
            initdb_args="-U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync",
            postgres=str(programs / "postgres"),
        )

    def initialize_database(self) -> None:
        super().initialize_database()
        with open(os.path.join(self.get_data_directory(), "postgresql.conf"), "a") as file:
            for name, value in self.configuration.items():
                written = str(value).replace("'", "''")
                file.write(f"{name} = '{written}'\n")

    def poststart(self) -> None:
        schema = quote(self.schema)
        self._execute(  # every new database is a copy of template1
            "template1",
            f"CREATE SCHEMA IF NOT EXISTS {schema}",
            f"CREATE EXTENSION IF NOT EXISTS pg_mop SCHEMA {schema} CASCADE",
        )
        super().poststart()

    def selection(self, database: str = "test", **settings: Any) -> Selection:
        """A Selection on a database of the server, without progress bars; `settings` are settings of pg_mop."""
        return Selection(self.url(database=database), progress=False, **settings)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A new database with the extension, for a `with` block, which gets its URI. The end of the block drops it."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self._execute("postgres", f"CREATE DATABASE {name}")
        try:
            yield self.url(database=name)
        finally:
            self._execute("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, database: str, *statements: str) -> None:
        with driver_errors(), contextlib.closing(psycopg2.connect(**self.dsn(database=database))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)


def _programs() -> pathlib.Path:
    """The directory of the programs of a PostgreSQL with pg_mop. Raises ClientError if none is installed."""
    if "PG_CONFIG" in os.environ:
        return pathlib.Path(_ask(os.environ["PG_CONFIG"], "--bindir"))
    versions = sorted((path for path in SYSTEM.glob("*") if path.name.isdecimal()), key=lambda path: -int(path.name))
    for config in (path / "bin" / "pg_config" for path in versions):
        if config.exists() and pathlib.Path(_ask(config, "--sharedir"), "extension", "pg_mop.control").exists():
            return pathlib.Path(_ask(config, "--bindir"))
    raise ClientError(
        f"no PostgreSQL in {SYSTEM} has the extension pg_mop",
        hint="sudo make install, in the sources of pg_mop; or PG_CONFIG, or bindir=...",
    )


def _ask(config: str | os.PathLike[str], option: str) -> str:
    try:
        return subprocess.run([config, option], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ClientError(f"{str(config)!r} cannot be executed: {error}") from None


@pytest.fixture(scope="session")
def mop_server_options() -> dict[str, Any]:
    """Arguments of MopServer for the fixture `mop_server`; override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def mop_server(mop_server_options: dict[str, Any]) -> Iterator[MopServer]:
    """A temporary server with pg_mop, shared by all tests of the session."""
    with MopServer(**mop_server_options) as server:
        yield server

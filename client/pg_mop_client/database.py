"""The connection to the server: an engine, quoted names, the extension's schema and version.

libpq reads the connection's parameters, as for psql: a URI, `host=... dbname=...`, PGHOST, PGSERVICE, ~/.pgpass.
"""

import contextlib
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pandas
import psycopg2
import sqlalchemy
from sqlalchemy import text

from pg_mop_client.errors import ClientError, LostError, ServerError

OLDEST = (0, 4)  # the oldest version of the extension that this client can use

# an SQLAlchemy engine or URL, a URI, or libpq's parameters
Where = sqlalchemy.Engine | sqlalchemy.URL | str


def make_engine(where: Where = "") -> sqlalchemy.Engine:
    """An SQLAlchemy engine for a URI or libpq's parameters ('': from the environment), or for the given engine.

    Its connections commit each statement. Raises ClientError for an engine with another driver than psycopg2, for a
    pool of fewer than two connections, and for malformed parameters; the last error does not show the parameters.
    """
    if isinstance(where, sqlalchemy.Engine):
        if where.driver != "psycopg2":
            raise ClientError(
                f"the engine's driver is {where.driver}, not psycopg2",
                hint="sqlalchemy.create_engine('postgresql+psycopg2://...'), or give the URI itself",
            )
        if _has_one(where.pool):
            raise ClientError(
                "the engine's pool has one connection, but a call and its progress need two",
                hint="sqlalchemy.create_engine(..., pool_size=2), or give the URI itself",
            )
        return where.execution_options(isolation_level="AUTOCOMMIT")
    if isinstance(where, sqlalchemy.URL):
        where = where.render_as_string(hide_password=False)
    if not isinstance(where, str):
        raise ClientError(
            f"a connection is an SQLAlchemy engine, a URI or libpq's parameters, not {type(where).__name__}"
        )
    parameters = _parameters(where)
    return sqlalchemy.create_engine(
        "postgresql+psycopg2://",
        isolation_level="AUTOCOMMIT",
        pool_pre_ping=True,
        creator=lambda: psycopg2.connect(**parameters),
    )


def _has_one(pool: sqlalchemy.Pool) -> bool:
    """True if an SQLAlchemy pool gives out only one connection at a time."""
    if isinstance(pool, sqlalchemy.QueuePool):
        return pool.size() == 1 and pool._max_overflow == 0
    return isinstance(pool, (sqlalchemy.StaticPool, sqlalchemy.AssertionPool, sqlalchemy.SingletonThreadPool))


def _parameters(where: str) -> dict[str, str]:
    """libpq's parameters from a URI or from libpq's own format. Raises ClientError.

    No message repeats any part of a malformed text, because that part may be the password. libpq's own message would,
    for example where a password with an @ makes libpq split the URI in the wrong place.
    """
    text_: str = where.strip()
    problem: tuple[str, str] | None = None
    parameters: dict[str, str] | None = None
    driver = re.match(r"postgres(?:ql)?\+psycopg2?(?=://)", text_)
    scheme = re.match(r"(?:jdbc:)?[A-Za-z][\w+.-]*(?=://)", text_)
    text_ = f"postgresql{text_[driver.end() :]}" if driver else text_
    is_uri = text_.startswith(("postgresql://", "postgres://"))
    if scheme and not is_uri:
        problem = f"the URI's scheme is {scheme[0]}, not postgresql", "postgresql://role@host/database"
    else:
        try:
            parameters = None if "\0" in text_ else psycopg2.extensions.parse_dsn(text_)
        except (psycopg2.Error, UnicodeError, ValueError, TypeError):
            parameters = None
        if parameters is None or is_uri and _is_split_wrongly(text_) or not _has_ports(parameters):
            problem = (
                "the connection's parameters cannot be read; they are not shown, for they may have a password",
                "postgresql://role:password@host/database, with / ? # @ : % of the password quoted by "
                "urllib.parse.quote(password, safe=''); or host=... dbname=... password='...'"
                if is_uri
                else "host=... dbname=... password='...', or postgresql://role@host/database",
            )
    if problem:  # (raised outside the except, where libpq's message would be its __context__)
        raise ClientError(problem[0], hint=problem[1])
    return {**(parameters or {}), "application_name": "pg_mop_client"}


def _is_split_wrongly(uri: str) -> bool:
    """True if a URI has an @ in its host or database: the @ of a password that was not quoted."""
    rest = uri.partition("://")[2]
    if "@" in rest.partition("/")[0]:  # (the role and its password stand before the first @)
        rest = rest.partition("@")[2]
    return "@" in rest.partition("?")[0]


def _has_ports(parameters: dict[str, str]) -> bool:
    """True if the ports are numbers. libpq checks this when it connects, and its message shows the text."""
    return all(re.fullmatch(r"\d{0,5}", port.strip()) for port in parameters.get("port", "").split(","))


@contextlib.contextmanager
def driver_errors() -> Iterator[None]:
    """Raise the driver's errors as ServerError or LostError, without the texts that SQLAlchemy and pandas add."""
    try:
        yield
    except sqlalchemy.exc.TimeoutError:
        raise ClientError(
            "all connections of the engine's pool are in use",
            hint="sqlalchemy.create_engine(..., pool_size=5), or give the URI itself",
        ) from None
    except (sqlalchemy.exc.StatementError, pandas.errors.DatabaseError, psycopg2.Error) as raised:
        error: Any = raised
        while error is not None and not isinstance(error, psycopg2.Error):
            error = getattr(error, "orig", None) or error.__cause__
        if error is None:
            raise
        # (no code: no connection was made, or it broke; 57P: the server shuts down or starts; 53: it has no capacity)
        lost = isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError)) and (
            (error.pgcode or "08").startswith(("08", "53", "57P"))
        )
        raise (LostError if lost else ServerError)(error) from None


@contextlib.contextmanager
def connected(engine: sqlalchemy.Engine) -> Iterator[sqlalchemy.Connection]:
    """A connection within a `with` block, where the driver's errors become ServerError and LostError."""
    with driver_errors(), engine.connect() as connection:
        yield connection


def without_jit(connection: sqlalchemy.Connection) -> None:
    """Turn off the server's just-in-time compiler for a session: a view of a large run looks dear to the planner, and its
    compilation takes many times as long as the view."""
    connection.execute(
        text("SELECT pg_catalog.set_config('jit', 'off', false) FROM pg_catalog.pg_settings WHERE name = 'jit'")
    )


def find_extension(connection: sqlalchemy.Connection, schema: str | None = None) -> str:
    """The schema of the extension pg_mop.

    Raises ClientError if the extension is missing, too old, in another schema than `schema`, or not granted to the role.
    """
    found = connection.execute(
        text(
            "SELECT n.nspname, e.extversion, current_database() AS database, current_user AS role, "
            "has_schema_privilege(n.oid, 'USAGE') AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_proc p WHERE p.pronamespace "
            "= n.oid AND p.proname = 'mop_functions' AND NOT has_function_privilege(p.oid, 'EXECUTE')) AS usable, "
            "(SELECT pg_has_role(o.oid, 'MEMBER') FROM pg_roles o WHERE o.rolname = 'mop_user') AS member, "
            "current_setting('server_version_num')::integer >= 160000 AS inherits_by_grant "
            "FROM (SELECT 1) AS one "
            "LEFT JOIN pg_catalog.pg_extension e ON e.extname = 'pg_mop' "
            "LEFT JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace"
        )
    ).one()
    if found.nspname is None:
        raise ClientError(
            f'there is no extension pg_mop in database "{found.database}"',
            hint="A superuser: CREATE SCHEMA madlib; CREATE EXTENSION pg_mop SCHEMA madlib CASCADE;",
        )
    if schema not in (None, found.nspname):
        raise ClientError(
            f'pg_mop is in schema "{found.nspname}", not in "{schema}"',
            hint=f"schema={found.nspname!r}, or no schema: the client finds it.",
        )
    if not found.usable:
        granted = f"GRANT mop_user TO {quote(found.role)}"
        inherit = (
            f"{granted} WITH INHERIT TRUE;" if found.inherits_by_grant else (f"ALTER ROLE {quote(found.role)} INHERIT;")
        )
        raise ClientError(
            f'role "{found.role}" may not use pg_mop',
            hint=f"{granted};"
            if not found.member
            else f"The role is a member of mop_user, but does not inherit its rights: {inherit}",
        )
    version = tuple(map(int, found.extversion.split(".")[:2]))
    if version < OLDEST:
        raise ClientError(
            f"the server has pg_mop {found.extversion}, and this client needs {'.'.join(map(str, OLDEST))} or later",
            hint="ALTER EXTENSION pg_mop UPDATE;",
        )
    if version[0] > OLDEST[0] or version > (OLDEST[0], OLDEST[1] + 1):
        warnings.warn(f"the server has pg_mop {found.extversion}, which is newer than this client")
    return found.nspname


def quote(name: str) -> str:
    """`name`, with any characters, as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any) -> str:
    """A value as a constant of SQL: None, a truth value, a number, a text, or a list of these. Raises ClientError.

    A dictionary becomes a text, as the functions of pg_mop read grids.

    >>> literal(["it's", None]), literal({"lr": [0.1]})
    ("ARRAY['it''s', NULL]", "'{''lr'': [0.1]}'")
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, (list, tuple)):
        return f"ARRAY[{', '.join(map(literal, value))}]"
    if isinstance(value, (int, float)) and math.isfinite(value):
        return repr(value)
    if isinstance(value, (str, dict)):
        within = str(value).replace("'", "''")
        return "E'" + within.replace("\\", "\\\\") + "'" if "\\" in within else f"'{within}'"
    raise ClientError(f"no constant of SQL for {type(value).__name__}")


def quote_table(name: str) -> str:
    """A table name in SQL's syntax, `table`, `schema.table` or `"Quoted Table"`, with all its parts quoted.

    Raises ClientError for an invalid name.
    """
    parts = re.findall(r'("(?:[^"]|"")+"|[^".]+)(?:\.|$)', name)
    if not 1 <= len(parts) <= 2 or ".".join(parts) != name:
        raise ClientError(
            f"invalid table name {name!r}", hint='Write the name as in SQL: table, schema.table or "Quoted Table".'
        )
    bad = [p for p in parts if not p.startswith('"') and not re.fullmatch(r"[^\W\d][\w$]*", p.strip())]
    if bad:
        raise ClientError(f"invalid table name {name!r}", hint=f"In double quotes: {quote(bad[0])}")
    return ".".join(p if p.startswith('"') else quote(p.strip().lower()) for p in parts)


def plain(sql: str) -> str:
    """SQL without parameters for SQLAlchemy's text(): colons, which would begin a parameter, are escaped."""
    return re.sub(r"(?<!:):(?=\w)", r"\\:", sql)


@driver_errors()
def exists(connection: sqlalchemy.Connection, name: str) -> bool:
    """True if a table or view exists; `name` is in SQL's syntax."""
    return connection.execute(
        text("SELECT pg_catalog.to_regclass(:name) IS NOT NULL"), {"name": quote_table(name)}
    ).scalar_one()


@driver_errors()
def where_made(connection: sqlalchemy.Connection, name: str) -> str:
    """A table name in SQL's syntax, quoted, and qualified with the schema that CREATE TABLE would use.

    Raises ClientError if no schema of the search_path exists.
    """
    quoted = quote_table(name)
    if re.search(r'^("(?:[^"]|"")+")\.', quoted):
        return quoted
    schema = connection.execute(text("SELECT current_schema()")).scalar()
    if schema is None:
        raise ClientError(f"there is no schema to make table {name} in", hint="SET search_path = ...")
    return f"{quote(schema)}.{quoted}"


def suffixed(name: str, suffix: str) -> str:
    """The name of a table that belongs to another: '"My t"' -> '"My t_info"'."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


def frame(connection: sqlalchemy.Connection, sql: str, cap: int | None = None, **values: Any) -> pandas.DataFrame:
    """The first `cap` rows of a query (None: all rows) as a DataFrame; warns if the query has more.

    Raises ClientError for a statement that returns no rows.
    """
    if cap is None:
        try:
            return pandas.read_sql_query(text(sql), connection, params=values)
        except sqlalchemy.exc.ResourceClosedError:
            raise ClientError(
                "the statement was executed, but returns no rows",
                hint="s.calls.execute(statement, {}) executes a statement without rows.",
            ) from None
    if not re.match(r"\s*(\(|SELECT|WITH|VALUES|TABLE|--|/\*)", sql, re.I):
        raise ClientError(
            "query() takes a SELECT",
            hint="cap=None executes any statement that returns rows, s.calls.execute(statement, {}) any other.",
        )
    sql = sql.rstrip().removesuffix(";")  # (the line break below ends a comment at the end of the query)
    found = pandas.read_sql_query(
        text(f"SELECT * FROM ({sql}\n) AS all_of_it LIMIT {int(cap) + 1}"), connection, params=values
    )
    if len(found) > cap:
        warnings.warn(f"these are the first {cap} rows; cap=... shows more, cap=None all")
        found = found.head(cap)
    return found

"""The way to the server: an engine, names quoted, where the extension is and which version.

libpq reads the connection's parameters, as for psql: a URI, `host=... dbname=...`, PGHOST, PGSERVICE, ~/.pgpass.
"""

import contextlib
import re
import warnings

import pandas
import psycopg2
import sqlalchemy
from sqlalchemy import text

from pg_mop_client.errors import ClientError, LostError, ServerError

OLDEST = (0, 4)  # version of the extension that has what the client asks for


def make_engine(where=""):
    """An SQLAlchemy engine for a URI or libpq's parameters ('': as the environment says); an engine stays as it is.

    Its connections commit each statement. Raises ClientError for an engine of another driver than psycopg2, for a
    pool of too few connections, and for parameters that cannot be read; this last error does not show the parameters.
    """
    if isinstance(where, sqlalchemy.Engine):
        if where.driver != "psycopg2":
            raise ClientError(
                f"the engine's driver is {where.driver}, not psycopg2",
                hint="sqlalchemy.create_engine('postgresql+psycopg2://...'), or give the URI itself",
            )
        if _has_one(where.pool):
            raise ClientError(
                "the engine's pool has one connection, and calls and looking at them take two",
                hint="sqlalchemy.create_engine(..., pool_size=2), or give the URI itself",
            )
        return where.execution_options(isolation_level="AUTOCOMMIT")
    if isinstance(where, sqlalchemy.URL):
        where = where.render_as_string(hide_password=False)
    if not isinstance(where, str):
        raise ClientError(
            f"a connection is an SQLAlchemy engine, a URI or libpq's parameters, and not {type(where).__name__}"
        )
    parameters = _parameters(where)
    return sqlalchemy.create_engine(
        "postgresql+psycopg2://",
        isolation_level="AUTOCOMMIT",
        pool_pre_ping=True,
        creator=lambda: psycopg2.connect(**parameters),
    )


def _has_one(pool):
    """True where an SQLAlchemy pool has no second connection beside one that is in use."""
    if isinstance(pool, sqlalchemy.QueuePool):
        return pool.size() == 1 and pool._max_overflow == 0
    return isinstance(pool, (sqlalchemy.StaticPool, sqlalchemy.AssertionPool, sqlalchemy.SingletonThreadPool))


def _parameters(where):
    """libpq's parameters of a URI or of a text of them. Raises ClientError.

    No message has any of it, nor has libpq's own one where it cannot be read or is split wrongly, as by a password with
    an @: that might be the password.
    """
    text_, problem = where.strip(), None
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
                "postgresql://role:password@host/database, where / ? # @ : % of the password are written as "
                "urllib.parse.quote(password, safe='') gives them; or host=... dbname=... password='...'"
                if is_uri
                else "host=... dbname=... password='...', or postgresql://role@host/database",
            )
    if problem:  # (raised outside the except: libpq's message would be its __context__)
        raise ClientError(problem[0], hint=problem[1])
    return {**parameters, "application_name": "pg_mop_client"}


def _is_split_wrongly(uri):
    """True where a URI has an @ in its host or database, as a password has it that was not quoted."""
    rest = uri.partition("://")[2]
    if "@" in rest.partition("/")[0]:  # (all before the first one is the role and its password)
        rest = rest.partition("@")[2]
    return "@" in rest.partition("?")[0]


def _has_ports(parameters):
    """True where the ports are numbers, as libpq would only find out, and say, when it connects."""
    return all(re.fullmatch(r"\d{0,5}", port.strip()) for port in parameters.get("port", "").split(","))


@contextlib.contextmanager
def told():
    """What the driver raises is raised as a ServerError, or a LostError, without SQLAlchemy's and pandas' words."""
    try:
        yield
    except sqlalchemy.exc.TimeoutError:
        raise ClientError(
            "all connections of the engine's pool are in use",
            hint="sqlalchemy.create_engine(..., pool_size=5), or give the URI itself",
        ) from None
    except (sqlalchemy.exc.StatementError, pandas.errors.DatabaseError, psycopg2.Error) as raised:
        error = raised
        while error is not None and not isinstance(error, psycopg2.Error):
            error = getattr(error, "orig", None) or error.__cause__
        if error is None:
            raise
        # (no code: no connection was made, or it broke; 57P: the server ends or begins; 53: it has no room)
        lost = isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError)) and (
            (error.pgcode or "08").startswith(("08", "53", "57P"))
        )
        raise (LostError if lost else ServerError)(error) from None


@contextlib.contextmanager
def connected(engine):
    """A connection for a while. Raises ServerError for what goes wrong with it, and LostError."""
    with told(), engine.connect() as connection:
        yield connection


def find_extension(connection, schema=None):
    """The schema that holds pg_mop. Raises ClientError: it is not there, or not in `schema`, or too old."""
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
            hint=f"schema={found.nspname!r}, or none at all: it is found.",
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
            else f"It is a member of mop_user, and does not inherit its rights: {inherit}",
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


def quote(name):
    """`name` as an SQL identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def quote_table(name):
    """A table's name as people write it in SQL, `table`, `schema.table`, `"Quoted Table"`, quoted in all its parts.

    Raises ClientError where it is none.
    """
    parts = re.findall(r'("(?:[^"]|"")+"|[^".]+)(?:\.|$)', name)
    if not 1 <= len(parts) <= 2 or ".".join(parts) != name:
        raise ClientError(
            f"invalid table name {name!r}", hint='Write it as in SQL: table, schema.table or "Quoted Table".'
        )
    bad = [p for p in parts if not p.startswith('"') and not re.fullmatch(r"[^\W\d][\w$]*", p.strip())]
    if bad:
        raise ClientError(f"invalid table name {name!r}", hint=f"In double quotes: {quote(bad[0])}")
    return ".".join(p if p.startswith('"') else quote(p.strip().lower()) for p in parts)


def plain(sql):
    """SQL without parameters for SQLAlchemy's text(), in which a colon would begin one."""
    return re.sub(r"(?<!:):(?=\w)", r"\\:", sql)


@told()
def exists(connection, name):
    """True where there is a table or view of a name, as people write it in SQL."""
    return connection.execute(
        text("SELECT pg_catalog.to_regclass(:name) IS NOT NULL"), {"name": quote_table(name)}
    ).scalar()


@told()
def where_made(connection, name):
    """A table's name as people write it, quoted and with the schema in which CREATE TABLE would make it. Raises
    ClientError where there is none."""
    quoted = quote_table(name)
    if re.search(r'^("(?:[^"]|"")+")\.', quoted):
        return quoted
    schema = connection.execute(text("SELECT current_schema()")).scalar()
    if schema is None:
        raise ClientError(f"there is no schema to make table {name} in", hint="SET search_path = ...")
    return f"{quote(schema)}.{quoted}"


def suffixed(name, suffix):
    """The name of a table that goes with another: '"My t"' -> '"My t_info"'."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


def frame(connection, sql, cap=None, **values):
    """The rows of a query as a DataFrame; beyond `cap` rows a warning says that there are more. Raises ClientError
    for a statement that gives none."""
    if cap is None:
        try:
            return pandas.read_sql_query(text(sql), connection, params=values)
        except sqlalchemy.exc.ResourceClosedError:
            raise ClientError(
                "the statement was carried out, and gives no rows", hint="s.calls.execute(statement, {}) is for such."
            ) from None
    if not re.match(r"\s*(\(|SELECT|WITH|VALUES|TABLE|--|/\*)", sql, re.I):
        raise ClientError(
            "query() takes a SELECT",
            hint="cap=None carries out any statement that gives rows, s.calls.execute(statement, {}) any other.",
        )
    sql = sql.rstrip().removesuffix(";")  # (and a comment at its end is ended)
    found = pandas.read_sql_query(
        text(f"SELECT * FROM ({sql}\n) AS all_of_it LIMIT {int(cap) + 1}"), connection, params=values
    )
    if len(found) > cap:
        warnings.warn(f"these are the first {cap} rows; cap=... shows more, cap=None all")
        found = found.head(cap)
    return found

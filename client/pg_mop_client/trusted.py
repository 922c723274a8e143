"""Tables that the live page may read although another role may have made them: it reads what a run names, unasked.

A run names its tables, but other roles may since have made other relations of these names. Reading a view, a foreign table or a
table with row security executes its owner's functions with the reader's rights; reading a plain table of one's own does not.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy
from sqlalchemy import text

from pg_mop_client.database import driver_errors, plain, quote_table
from pg_mop_client.errors import ClientError, LostError

# {schema, name} of a table of one of these kinds that the role or a superuser owns, without row security (Greenplum 6 lacks its
# column)
TRUSTED = text(
    "SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) AS sql, c.oid "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace "
    "JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) c.relowner "
    "WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(:name)::pg_catalog.oid "
    'AND c.relkind OPERATOR(pg_catalog.=) ANY (CAST(:kinds AS pg_catalog."char"[])) '
    "AND (o.rolname OPERATOR(pg_catalog.=) current_user OR o.rolsuper) "
    "AND coalesce(pg_catalog.row_to_json(c) OPERATOR(pg_catalog.->>) 'relrowsecurity', 'f') "
    "OPERATOR(pg_catalog.<>) 'true'".replace("::", r"\:\:")
)
# While a row is read: whatever takes the table's name between the check and the query is not executed. (PostgreSQL has the
# first setting since the minor versions of August 2024.)
WHILE_READING = text(
    "SELECT pg_catalog.set_config(s.name, v.value, true) FROM pg_catalog.pg_settings s JOIN (VALUES "
    "('restrict_nonsystem_relation_kind', 'view, foreign-table'), ('row_security', 'off')) AS v(name, value) "
    "ON v.name OPERATOR(pg_catalog.=) s.name"
)


@contextlib.contextmanager
def transaction(connection: sqlalchemy.Connection, read_only: bool = True) -> Iterator[None]:
    """A transaction of an engine that commits each statement; it is rolled back after an error, and always if `read_only`."""
    connection.execute(text("BEGIN READ ONLY" if read_only else "BEGIN"))
    done = False
    try:
        yield
        done = True
    finally:
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):  # (a lost connection has no transaction)
            connection.execute(text("COMMIT" if done and not read_only else "ROLLBACK"))


def locked(connection: sqlalchemy.Connection, name: str, partitioned: bool = False) -> str | None:
    """Lock the trusted table that `name` names until the transaction ends; its quoted name with its schema.

    `partitioned`: as packed tables are; else it is a plain table. None where the name has no relation or one of another kind.
    Raises ServerError where another session is about to change the table, and where the role may not read it.
    """
    with driver_errors():
        given = {"name": quote_table(name), "kinds": "{r,p}" if partitioned else "{r}"}
        before = connection.execute(TRUSTED, given).one_or_none()
        if before is None:
            return None
        connection.execute(text(f"LOCK TABLE ONLY {plain(before.sql)} IN ACCESS SHARE MODE NOWAIT"))
        after = connection.execute(TRUSTED, {**given, "name": before.sql}).one_or_none()
        return before.sql if after is not None and after.oid == before.oid else None


def row_of(connection: sqlalchemy.Connection, name: str) -> dict[str, Any] | None:
    """{column: value} of the first row of a trusted table, as JSON values; None where the role has no such table to read.

    The connection commits each statement, and is in no transaction. Raises LostError.
    """
    try:
        with driver_errors(), transaction(connection):
            sql = locked(connection, name)
            if sql is None:
                return None
            connection.execute(WHILE_READING)
            row = connection.execute(text(f"SELECT CAST(row_to_json(s) AS text) FROM ONLY {plain(sql)} s LIMIT 1"))
            found: dict[str, Any] = json.loads(row.scalar() or "{}")
            return found
    except LostError:
        raise
    except ClientError:
        return None

"""A blocking session (psycopg2's) beside the caller's."""

import psycopg2

from pg_mop.backend.session_settings import KEEPALIVES, SESSION_OPTIONS, first_sql


def connect(target, name):
    """A session (psycopg2's) beside the caller's, by a :class:`~pg_mop.connections.targets.Way`, with `name` as
    application_name. Raises MopError."""
    try:
        connection = psycopg2.connect(
            **target.parameters,
            connect_timeout=10,
            application_name=name,
            options=target.options(f"{SESSION_OPTIONS} {KEEPALIVES} -c statement_timeout=30000 -c lock_timeout=10000"),
        )
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(first_sql(target))
        return connection
    except psycopg2.Error as error:
        raise target.refused(error) from None

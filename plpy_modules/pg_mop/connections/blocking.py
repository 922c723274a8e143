"""A blocking psycopg2 session beside the caller's."""

from __future__ import annotations

from typing import Any

import psycopg2

from pg_mop.backend.session_settings import KEEPALIVES, SESSION_OPTIONS, first_sql
from pg_mop.connections.targets import Target


def connect(target: Target, name: str) -> Any:
    """Open a psycopg2 session in autocommit mode by a connection target; `name`: its application_name.

    Raises MopError.
    """
    try:
        connection = psycopg2.connect(
            **target.parameters,
            connect_timeout=10,
            application_name=name,
            options=target.options(f"{SESSION_OPTIONS} {KEEPALIVES} -c lock_timeout=10000"),
        )
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(first_sql(target))
        return connection
    except psycopg2.Error as error:
        raise target.refused(error) from None

"""Calls that the live page submits as jobs of the server: one call that trains, with constants for arguments.

`mop_explain` reads the text by a grammar in which nothing else can be written, makes all checks of the call, and trains
nothing. So a text that it refuses is never submitted.
"""

from typing import Any

import sqlalchemy
from sqlalchemy import text

from pg_mop_client.errors import ClientError

MOST_CHARACTERS = 20_000


def command_of(given: Any) -> str:
    """The text of a call from a request. Raises ClientError."""
    if not isinstance(given, str) or not given.strip():
        raise ClientError("no call is given", hint="One call that trains, such as mop_train or mop_search.")
    if len(given) > MOST_CHARACTERS or "\0" in given:
        raise ClientError(f"the call has more than {MOST_CHARACTERS} characters, or a character that SQL lacks")
    return given.strip().rstrip(";")


def explained(connection: sqlalchemy.Connection, schema: str, command: str) -> str:
    """The plan of the call and its expected time, as text (mop_explain). `schema` is quoted. Raises ServerError."""
    plan: str = connection.execute(text(f"SELECT {schema}.mop_explain(:command)"), {"command": command}).scalar_one()
    return plan


def submitted(connection: sqlalchemy.Connection, schema: str, command: str) -> int:
    """Submit the call as a job, if mop_explain accepts it; the job's number. `schema` is quoted. Raises ServerError."""
    explained(connection, schema, command)
    job: int = connection.execute(text(f"SELECT {schema}.mop_submit(:command)"), {"command": command}).scalar_one()
    return job

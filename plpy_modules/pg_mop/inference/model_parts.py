"""The parts of a source that mop_train has made for a version of a model: kept as queries in the version's row.

Functions about a model take the names <model>_train, <model>_valid and <model>_test, of a later version <model>_v2_test and so
on, wherever they take a source. A part comes before a relation of its name, which another role could have made.
"""

from __future__ import annotations

import re

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_literal


def signed(details: str) -> str:
    """SQL: what is signed in the details of a version (SQL). It counts for one model alone ($1: its table, an oid)."""
    return f"$1::oid || ' ' || jsonb_build_array({details}->'arguments', {details}->'parts')::text"


def is_callers(db: Database) -> str:
    """SQL on a version's row: whether mop_train wrote its arguments and parts for the caller, or for a superuser.

    They may then be read with the caller's rights ($1: the table of the model, an oid).
    """
    return (
        "EXISTS (SELECT 1 FROM pg_roles WHERE (rolname = current_user OR rolsuper) AND oid = "
        f"{db.extension}.mop_signer({signed('details')}, details->>'signature'))"
    )


def part_query(db: Database, model: str, table: Table, source: str) -> str | None:
    """The query of the part that a caller names, of the model that he calls `model`; None: it is no part of the model.

    The names in the query are qualified, or those of pg_catalog. Raises MopError where another role has written the query.
    """
    schema, name = db.parse_name(source)
    match = re.fullmatch(rf"{re.escape(db.parse_name(model)[1])}(?:_v(\d{{1,9}}))?_(train|valid|test)", name)
    if match is None or schema not in (None, table.schema):
        return None
    query, is_callers_own = stored_part(db, table, int(match[1] or 1), match[2])
    if query is None or is_callers_own:
        return query
    if db.find_table(source) is None:
        raise uncertain(model, source, query)
    return None


def uncertain(model: str, part: str, query: str) -> MopError:
    """The error for the query of a part that another role has written."""
    return MopError(
        f'it is not certain who gave model "{model}" the query of part "{part}"',
        detail="Your role did not. The stored query would be read with your rights. Name it if you trust it.",
        hint=f"source => {quote_literal(query)}",
        sqlstate="42501",
    )


def stored_part(db: Database, table: Table, version: int, part: str) -> tuple[str | None, bool]:
    """(the query of a version's part, or None; whether it may be read with the caller's rights)."""
    row = db.one(
        f"SELECT details->'parts'->>'{part}' AS query, {is_callers(db)} AS own FROM {table} WHERE version = {version}",
        ["oid"],
        [table.oid],
    )
    return (None, False) if row is None else (row["query"], row["own"])

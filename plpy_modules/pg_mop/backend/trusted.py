"""Tables that a caller may read although another role may have made them: a report reads what a run names, unasked.

A run names its tables, but other roles may since have made other relations of these names. Reading a view, a foreign table or a
table with row security executes its owner's functions with the reader's rights; reading a plain table of one's own does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pg_mop.backend import foreign_code
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.backend.quoting import quote_identifier

# A table of some kinds ($2) that the caller or a superuser owns, without row security (a column that Greenplum 6 lacks).
IS_TRUSTED = (
    f"SELECT coalesce((SELECT c.relkind::text = ANY ($2) AND {foreign_code.IS_OF_TRUSTED_ROLE} AND NOT EXISTS ("
    f"{foreign_code.code_sql('$1', 'NULL', [foreign_code.Place.POLICY])}) FROM pg_catalog.pg_class c WHERE c.oid = $1), false)"
)
# While the row is read: whatever takes the table's name between the check and the query is not executed. (PostgreSQL has the
# first setting since the minor versions of August 2024.)
PLAIN, PARTITIONED = ("r",), ("r", "p")
WHILE_READING = {"restrict_nonsystem_relation_kind": "view, foreign-table", "row_security": "off"}


def is_trusted(db: Database, name: str) -> bool:
    """True if `name` names a plain table for the caller that the caller or a superuser owns."""
    try:
        table = db.find_table(name)
    except MopError:
        return False
    return table is not None and _has_kind(db, table.oid, PLAIN)


def _has_kind(db: Database, oid: int, kinds: tuple[str, ...]) -> bool:
    return bool(db.value(IS_TRUSTED, ["oid", "text[]"], [oid, list(kinds)]))


def locked(db: Database, name: str, kinds: tuple[str, ...] = PLAIN) -> Table | None:
    """Lock the trusted table that `name` names for the caller until the transaction ends, and let it read plain tables alone.

    `kinds`: PLAIN, or PARTITIONED too, whose partitions only the owner attaches. None where there is no such table, or another
    kind of relation. Raises MopError, and SPIError where another session is about to change the table.
    """
    return _locked(db, name, lambda table: _has_kind(db, table.oid, kinds))


def locked_of_any_role(db: Database, name: str) -> Table | None:
    """The same for a table that the caller has named: also a table of another role that has nothing, nor has one of its
    partitions, that would run code of its owner when it is read. Raises MopError, which names what it has otherwise, too.

    Until the table is read, its owner may still add an index or a statistics object of an expression, as for any query of a
    table of another role.
    """

    def is_safe(table: Table) -> bool:
        if _has_kind(db, table.oid, PARTITIONED):
            return True
        found = foreign_code.find_in_parts(db, table.oid)
        if found is None:
            return True
        owner = db.value(
            "SELECT quote_ident(pg_get_userbyid(c.relowner)) FROM pg_catalog.pg_class c WHERE c.oid = $1",
            ["oid"],
            [table.oid],
        )
        raise MopError(
            f"{table} of role {owner} is not read: {found.what}",
            detail="Functions of its owner could run with your rights.",
            hint=f"Its owner can remove that: {found.command}",
            sqlstate="42501",
        )

    return _locked(db, name, is_safe)


def _locked(db: Database, name: str, accepts: Callable[[Table], bool]) -> Table | None:
    """Lock the table that `name` names if it is accepted, both before and under the lock."""
    table = db.find_table(name)
    if table is None or not accepts(table):
        return None
    db.execute(f"LOCK TABLE ONLY {table} IN ACCESS SHARE MODE NOWAIT")
    # The locked relation keeps its kind and its owner. But it may be another one than the checked one.
    if db.relation(table.sql) != table.oid or not accepts(table):
        return None
    lacking = db.lacking_settings(tuple(WHILE_READING))
    for setting, value in WHILE_READING.items():
        if setting not in lacking:
            db.execute("SELECT set_config($1, $2, true)", ["text", "text"], [setting, value])
    return table


def check_summary(db: Database, of: Table, summary: Table) -> None:
    """Raises MopError where the summary of a packed table, of a model table or of a selection table is not the caller's, a
    superuser's, or a plain table of that table's owner: the caller names that table alone, and another role's view would run
    with the caller's rights."""
    check_companion(db, of, summary, "summary", f"DROP TABLE {of}; and make it again, with its summary.")


def check_companion(db: Database, of: Table, companion: Table, what: str, hint: str | None = None) -> None:
    """The same for another table that belongs to the table `of`; `what` names its purpose in the message."""
    if not db.value(
        f"SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c WHERE c.oid = $1 AND ({foreign_code.IS_OF_TRUSTED_ROLE} "
        "OR c.relkind::text = 'r' AND c.relowner = (SELECT p.relowner FROM pg_catalog.pg_class p WHERE p.oid = $2)))",
        ["oid", "oid"],
        [companion.oid, of.oid],
    ):
        raise MopError(
            f"the {what} {companion} is another role's, and no plain table of the owner of {of}",
            detail="Reading a view, or a table of another role, can run functions of its owner with your rights.",
            hint=hint or f"Its owner can drop it: DROP {'VIEW' if companion.kind == 'v' else 'TABLE'} {companion};",
            sqlstate="42501",
        )


def companion(db: Database, of: Table, text: str, what: str, hint: str | None = None) -> Table:
    """The table `text`, which belongs to the table `of` and has rows, checked before it is read; `what`: as for
    `Database.input_table`. Raises MopError."""
    check_companion(db, of, db.input_table(text, what, hint=hint, rows=False), what)
    return db.input_table(text, what, hint=hint)


def row_of(db: Database, name: str, columns: Sequence[str]) -> dict[str, Any] | None:
    """{column: value} of the first row of a table that `name` names for the caller, as JSON values.

    None where there is no such table, where it lacks a column, where the caller may not read it, where another session is about
    to change it, and where it is no trusted table: nothing of it is executed then. {} for an empty table.
    """
    try:
        with db.undone():  # (it gives the lock back, and the settings)
            table = locked(db, name)
            if table is None or not set(columns) <= set(db.columns(table)):
                return None
            listed = ", ".join(map(quote_identifier, columns))
            found = db.value(f"SELECT row_to_json(s)::text FROM (SELECT {listed} FROM ONLY {table} LIMIT 1) s")
            return json.loads(found or "{}")
    except MopError:
        return None
    except db.plpy.SPIError as error:
        if is_cancel(error):
            raise
        return None

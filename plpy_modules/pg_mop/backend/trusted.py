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
        if not _has_kind(db, table.oid, PARTITIONED):
            _check_code(db, table, foreign_code.OF_PARTS)
        return True

    return _locked(db, name, is_safe)


def _check_code(db: Database, table: Table, places: Sequence[foreign_code.Place]) -> None:
    """Raises MopError where a table or one of its partitions has something, in these places, that would run code when the table
    is read, or is no plain table."""
    code = foreign_code.find_in_parts(db, table.oid, places)
    if code is None:
        return
    if is_of_trusted_role(db, table):  # the caller's own: nothing is said that would remove it
        problem = "it has row-level security" if table.kind in PARTITIONED else "it is no plain table"
        raise MopError(
            f"{table} is not read here: {problem}",
            detail="Where another role could have taken a table's name, only plain tables without policies are read.",
            sqlstate="42501",
        )
    owner = db.value(
        "SELECT quote_ident(pg_get_userbyid(c.relowner)) FROM pg_catalog.pg_class c WHERE c.oid = $1",
        ["oid"],
        [table.oid],
    )
    raise MopError(
        f"{table} of role {owner} is not read: {code.what}",
        detail="Functions of its owner could run with your rights.",
        hint=f"Its owner can remove that: {code.command}",
        sqlstate="42501",
    )


def is_of_trusted_role(db: Database, table: Table) -> bool:
    """True if the caller or a superuser owns the table."""
    return bool(
        db.value(
            f"SELECT {foreign_code.IS_OF_TRUSTED_ROLE} FROM pg_catalog.pg_class c WHERE c.oid = $1",
            ["oid"],
            [table.oid],
        )
    )


def check_of_run(db: Database, name: str, what: str) -> None:
    """Raises MopError where the relation that `name` names for the caller would run code of another role when it is read: the
    caller has named a run alone, and another role may have taken the name since. It keeps its name until the transaction ends.

    `what`: its purpose. Tables of the caller and of superusers pass, and so do names that no relation has: whoever reads it
    reports that.
    """
    table = db.find_table(name)
    if table is None or is_of_trusted_role(db, table):
        return
    table = db.input_table(name, what, rows=False)
    _check_code(db, table, foreign_code.OF_READING)
    _lock_as(db, name, table, what)
    _check_code(db, table, foreign_code.OF_READING)


def output_of_run(db: Database, text: str, what: str, hint: str) -> Table:
    """The output table `text` of a run, which has rows, to be read and written although the caller has named the run alone.

    It is the caller's, or a superuser's, or a plain table without code of a role whose member the caller is: what is trained
    goes into no other role's table. It keeps its name until the transaction ends. Raises MopError.
    """
    table = db.input_table(text, what, rows=False)
    check_output(db, table, what, hint)
    if not is_of_trusted_role(db, table):
        _lock_as(db, text, table, what)
        check_output(db, table, what, hint)
    if db.one(f"SELECT 1 AS x FROM {table} LIMIT 1") is None:
        raise MopError(f'{what} "{text}" is empty')
    return table


def check_output(db: Database, table: Table, what: str, hint: str, lock: bool = False) -> None:
    """Raises MopError where a table is none that `output_of_run` gives. `lock`: keep others from changing it from now on."""
    row = db.one(
        f"SELECT {foreign_code.IS_OF_TRUSTED_ROLE} AS is_trusted, quote_ident(pg_get_userbyid(c.relowner)) AS owner, "
        "pg_has_role(c.relowner, 'USAGE') AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = current_user "
        "AND r.rolsuper) AS is_member, c.relkind::text AS kind FROM pg_catalog.pg_class c WHERE c.oid = $1",
        ["oid"],
        [table.oid],
    )
    if row is not None and row["is_trusted"] and db.relation(table.sql) == table.oid:
        return
    if row is None or not row["is_member"]:
        raise MopError(
            f"the {what} {table} is another role's" + (f": {row['owner']} owns it" if row else ""),
            detail="Its functions could run with your rights, and its owner would get what is trained.",
            hint=hint,
            sqlstate="42501",
        )
    if lock and row["kind"] == "r":
        db.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    code = foreign_code.find(db, table.oid, str(table))
    if row["kind"] != "r" or code is not None or db.relation(table.sql) != table.oid:
        raise MopError(
            f"the {what} {table} of role {row['owner']} " + (f"has {code.owned}" if code else "is no plain table"),
            detail="Its functions could run with your rights.",
            hint=hint,
            sqlstate="42501",
        )


def _lock_as(db: Database, name: str, table: Table, what: str) -> None:
    """Lock a table so that it keeps its name until the transaction ends. Raises MopError where it has lost the name."""
    if table.kind in PARTITIONED:
        db.execute(f"LOCK TABLE ONLY {table} IN ACCESS SHARE MODE")
    now = db.find_table(name)
    if now is None or now.oid != table.oid:
        raise MopError(f'the {what} "{name}" has been replaced at this moment', hint="Call again.", sqlstate="55000")


def _locked(db: Database, name: str, accepts: Callable[[Table], bool]) -> Table | None:
    """Lock the table that `name` names if it is accepted, both before and under the lock."""
    table = db.find_table(name)
    if table is None or not accepts(table):
        return None
    db.execute(f"SELECT {db.extension}.mop_hold($1::oid::regclass)", ["oid"], [table.oid])
    # The locked relation keeps its kind and its owner. But it may be another one than the checked one.
    if db.relation(table.sql) != table.oid or not accepts(table):
        return None
    absent_settings = db.lacking_settings(tuple(WHILE_READING))
    for setting, value in WHILE_READING.items():
        if setting not in absent_settings:
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
    """The table `text`, which belongs to the table `of` and has rows, checked before it is read, and again under a lock;
    `what`: as for `Database.input_table`. Raises MopError."""
    table = db.input_table(text, what, hint=hint, rows=False)
    check_companion(db, of, table, what)
    _lock_as(db, text, table, what)
    check_companion(db, of, table, what)
    if db.one(f"SELECT 1 AS x FROM {table} LIMIT 1") is None:
        raise MopError(f'{what} "{text}" is empty', hint=hint)
    return table


def row_of(db: Database, name: str, columns: Sequence[str]) -> dict[str, Any] | None:
    """{column: value} of the first row of a table that `name` names for the caller, as JSON values.

    None where there is no such table, where it lacks a column, where the caller may not read it, where another session is about
    to change it, and where it is no trusted table: nothing of it is executed then. {} for an empty table.
    """
    try:
        with db.undone():  # it gives the lock back, and the settings
            table = locked(db, name)
            if table is None or not set(columns) <= set(db.columns(table)):
                return None
            columns_sql = ", ".join(map(quote_identifier, columns))
            text = db.value(f"SELECT row_to_json(s)::text FROM (SELECT {columns_sql} FROM ONLY {table} LIMIT 1) s")
            return json.loads(text or "{}")
    except MopError:
        return None
    except db.plpy.SPIError as error:
        if is_cancel(error):
            raise
        return None

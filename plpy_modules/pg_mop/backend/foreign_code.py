"""Code that a table would run with the rights of a role that reads or writes it: triggers, rules, policies, expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError

# SQL: rows (place, what, command) for all that could run code in a statement on the table $1 (its OID), named $2 (quoted);
# the command removes it. PostgreSQL's own triggers, of deferrable keys, run none of a user's. (Greenplum 6 has no policies.)
_FOUND = """
SELECT 1 AS place, 'trigger ' || quote_ident(t.tgname) AS what, format('DROP TRIGGER %I ON %s;', t.tgname, $2) AS command
FROM pg_trigger t WHERE t.tgrelid = $1 AND NOT t.tgisinternal
UNION ALL
SELECT 2, 'rule ' || quote_ident(r.rulename),
    format(CASE WHEN c.relkind = 'v' THEN 'DROP VIEW %2$s;' ELSE 'DROP RULE %1$I ON %2$s;' END, r.rulename, $2)
FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE r.ev_class = $1
UNION ALL
SELECT 3, 'row-level security', format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY;', $2)
FROM pg_class c WHERE c.oid = $1 AND row_to_json(c)->>'relrowsecurity' = 'true'
UNION ALL
SELECT 4, 'child table ' || i.inhrelid::regclass, format('DROP TABLE %s;', i.inhrelid::regclass)
FROM pg_inherits i WHERE i.inhparent = $1
UNION ALL
SELECT 5, 'parent table ' || i.inhparent::regclass, format(CASE WHEN row_to_json(c)->>'relispartition' = 'true'
    THEN 'ALTER TABLE %2$s DETACH PARTITION %1$s;' ELSE 'ALTER TABLE %1$s NO INHERIT %2$s;' END, $2, i.inhparent::regclass)
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhrelid = $1
UNION ALL
SELECT 6, 'default expression of column ' || quote_ident(a.attname), format(CASE WHEN
    coalesce(row_to_json(a)->>'attgenerated', '') = '' THEN 'ALTER TABLE %2$s ALTER %1$I DROP DEFAULT;'
    ELSE 'ALTER TABLE %2$s DROP %1$I;' END, a.attname, $2)
FROM pg_attribute a WHERE a.attrelid = $1 AND a.atthasdef AND NOT a.attisdropped
UNION ALL
SELECT 7, 'constraint ' || quote_ident(k.conname), format('ALTER TABLE %s DROP CONSTRAINT %I;', $2, k.conname)
FROM pg_constraint k WHERE k.conrelid = $1 AND k.contype NOT IN ('p', 'u', 'n')
UNION ALL
SELECT 8, 'index ' || i.indexrelid::regclass || ' of an expression', format('DROP INDEX %s;', i.indexrelid::regclass)
FROM pg_index i WHERE i.indrelid = $1 AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)
UNION ALL
SELECT 10, format('type %s of column %I, which is not built in', format_type(a.atttypid, NULL), a.attname),
    format('ALTER TABLE %1$s ALTER %2$I TYPE text USING %2$I::text;', $2, a.attname)
FROM pg_attribute a LEFT JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = $1 AND NOT a.attisdropped AND t.typnamespace IS DISTINCT FROM (
    SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'pg_catalog')
"""
_STATISTICS = """
UNION ALL
SELECT 9, 'statistics object ' || quote_ident(s.stxname), format('DROP STATISTICS %I.%I;', n.nspname, s.stxname)
FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE s.stxrelid = $1
"""
_KEYS = """
SELECT format('partition key %s', pg_get_partkeydef($1)) AS what, format('DROP TABLE %s;', $2) AS command
FROM pg_partitioned_table p WHERE p.partrelid = $1 AND p.partexprs IS NOT NULL
"""
# SQL: a table ($1) and its partitions, of all levels
_TREE = """
WITH RECURSIVE tree (relation) AS (
    SELECT $1::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.relation)
SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, c.relkind::text AS kind
FROM tree t JOIN pg_class c ON c.oid = t.relation JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY c.oid <> $1, 2
"""
EVERYWHERE = range(1, 11)
OF_WRITING = (1, 2, 3)  # these run a user's functions in any write, and are no ordinary part of a table
OF_PARTS = tuple(
    place for place in EVERYWHERE if place not in (4, 5)
)  # (a partition has a parent, and may have children)


class Found(NamedTuple):
    """Something of a table that could run code; `command`: SQL that removes it."""

    what: str
    command: str


def find(db: Database, oid: int, quoted: str, places: Sequence[int] = EVERYWHERE) -> Found | None:
    """The first thing of a table (its OID and quoted name) that could run code; `places`: where to look."""
    statistics = _STATISTICS if db.relation("pg_catalog.pg_statistic_ext") is not None else ""
    row = db.one(
        f"SELECT what, command FROM ({_FOUND}{statistics}) AS found WHERE place = ANY ($3) ORDER BY place, what LIMIT 1",
        ["oid", "text", "integer[]"],
        [oid, quoted, list(places)],
    )
    return row and Found(row["what"], row["command"])


def find_in_parts(db: Database, oid: int) -> Found | None:
    """The first thing of a table or of its partitions that could run code when the table is read; `what` is a sentence, with
    the name of the table that has it."""
    keys = db.relation("pg_catalog.pg_partitioned_table") is not None
    for part in db.execute(_TREE, ["oid"], [oid]):
        given = ["oid", "text"], [part["oid"], part["name"]]
        if part["kind"] not in ("r", "p"):
            kind = {"v": "VIEW", "f": "FOREIGN TABLE", "m": "MATERIALIZED VIEW"}.get(part["kind"], "TABLE")
            return Found(f"{part['name']} is no plain table", f"DROP {kind} {part['name']};")
        found = find(db, part["oid"], part["name"], OF_PARTS)
        if found is None and keys and (row := db.one(_KEYS, *given)) is not None:
            found = Found(row["what"], row["command"])
        if found is not None:
            return Found(f"{part['name']} has the {found.what}", found.command)
    return None


def check_writable(db: Database, table: Table) -> None:
    """Raises MopError where a table of another role, which is no superuser, has triggers, rules or policies: they would run
    with the rights of the caller, who writes to it."""
    owner = db.value(
        "SELECT quote_ident(r.rolname) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = $1 AND "
        "r.rolname <> current_user AND NOT r.rolsuper",
        ["oid"],
        [table.oid],
    )
    if owner is None:
        return
    found = find(db, table.oid, str(table), OF_WRITING)
    if found is not None:
        raise MopError(
            f"table {table} of role {owner} has the {found.what}",
            detail="Its functions would run with your rights.",
            hint=found.command,
            sqlstate="42501",
        )

"""Whether a table would run code of another role in a statement on it: triggers, rules, policies, expressions, types.

All checks of tables are made of the SQL here. (The client has a twin of `trusted.IS_TRUSTED`, since it is a package of its own,
and its sessions have the user's search_path; `mop_bare` asks the same within a function of the extension's owner.)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError

# SQL: the owner of pg_class row c is the caller or a superuser, whose code the caller trusts
IS_OF_TRUSTED_ROLE = (
    "EXISTS (SELECT 1 FROM pg_catalog.pg_roles u WHERE u.oid = c.relowner AND (u.rolname = current_user OR u.rolsuper))"
)


class Place(enum.IntEnum):
    """Where a table has code."""

    TRIGGER = 1  # PostgreSQL's own, of deferrable keys, run none of a user's
    RULE = 2
    POLICY = 3
    CHILD = 4
    PARENT = 5
    DEFAULT = 6
    CHECK = 7
    INDEX = 8
    STATISTICS = 9
    TYPE = 10
    OTHER_CONSTRAINT = 11
    PARTITION_KEY = 12


EVERYWHERE = tuple(Place)
OF_WRITING = (Place.TRIGGER, Place.RULE, Place.POLICY)  # in any write; no ordinary parts of a table
OF_PARTS = tuple(set(Place) - {Place.CHILD, Place.PARENT})  # a partition has a parent, and may have children
OF_READING = tuple(set(OF_PARTS) - {Place.TRIGGER, Place.DEFAULT, Place.OTHER_CONSTRAINT})  # no SELECT runs these

# SQL: (what it is, the command that removes it, FROM and WHERE) of a table's code; {oid} and {name}: of the table
_CODE = {
    Place.TRIGGER: (
        "'trigger ' || quote_ident(t.tgname)",
        "format('DROP TRIGGER %I ON %s;', t.tgname, {name})",
        "pg_catalog.pg_trigger t WHERE t.tgrelid = {oid} AND NOT t.tgisinternal",
    ),
    Place.RULE: (
        "'rule ' || quote_ident(r.rulename)",
        "format(CASE WHEN x.relkind = 'v' THEN 'DROP VIEW %2$s;' ELSE 'DROP RULE %1$I ON %2$s;' END, r.rulename, {name})",
        "pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class x ON x.oid = r.ev_class WHERE r.ev_class = {oid}",
    ),
    Place.POLICY: (  # Greenplum 6 has none, nor the column
        "'row-level security'",
        "format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY;', {name})",
        "pg_catalog.pg_class x WHERE x.oid = {oid} AND row_to_json(x)->>'relrowsecurity' = 'true'",
    ),
    Place.CHILD: (
        "'child table ' || i.inhrelid::regclass",
        "format('DROP TABLE %s;', i.inhrelid::regclass)",
        "pg_catalog.pg_inherits i WHERE i.inhparent = {oid}",
    ),
    Place.PARENT: (
        "'parent table ' || i.inhparent::regclass",
        "format(CASE WHEN row_to_json(x)->>'relispartition' = 'true' THEN 'ALTER TABLE %2$s DETACH PARTITION %1$s;' "
        "ELSE 'ALTER TABLE %1$s NO INHERIT %2$s;' END, {name}, i.inhparent::regclass)",
        "pg_catalog.pg_inherits i JOIN pg_catalog.pg_class x ON x.oid = i.inhrelid WHERE i.inhrelid = {oid}",
    ),
    Place.DEFAULT: (
        "'default expression of column ' || quote_ident(a.attname)",
        "format(CASE WHEN coalesce(row_to_json(a)->>'attgenerated', '') = '' THEN 'ALTER TABLE %2$s ALTER %1$I DROP DEFAULT;' "
        "ELSE 'ALTER TABLE %2$s DROP %1$I;' END, a.attname, {name})",
        # the column `created` of a named model has now() of PostgreSQL, on which no dependency is noted
        "pg_catalog.pg_attribute a JOIN pg_catalog.pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum WHERE "
        "a.attrelid = {oid} AND a.atthasdef AND NOT a.attisdropped AND (pg_get_expr(f.adbin, f.adrelid) <> 'now()' OR EXISTS "
        "(SELECT 1 FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid AND "
        "d.refclassid = 'pg_catalog.pg_proc'::regclass))",
    ),
    Place.CHECK: (
        "'constraint ' || quote_ident(k.conname)",
        "format('ALTER TABLE %s DROP CONSTRAINT %I;', {name}, k.conname)",
        "pg_catalog.pg_constraint k WHERE k.conrelid = {oid} AND k.contype = 'c'",
    ),
    Place.INDEX: (
        "'index ' || i.indexrelid::regclass || ' of an expression'",
        "format('DROP INDEX %s;', i.indexrelid::regclass)",
        # mop_deploy makes an index with the predicate in_use: a column, and no function. A column of another type than
        # boolean would have a cast, which pg_get_expr does not show.
        "pg_catalog.pg_index i WHERE i.indrelid = {oid} AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL AND NOT "
        "(pg_get_expr(i.indpred, i.indrelid) = 'in_use' AND EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a WHERE a.attrelid "
        "= i.indrelid AND a.attname = 'in_use' AND a.atttypid = 'pg_catalog.bool'::regtype)))",
    ),
    Place.STATISTICS: (
        "'statistics object ' || quote_ident(s.stxname)",
        "format('DROP STATISTICS %I.%I;', n.nspname, s.stxname)",
        "pg_catalog.pg_statistic_ext s JOIN pg_catalog.pg_namespace n ON n.oid = s.stxnamespace WHERE s.stxrelid = {oid}",
    ),
    Place.TYPE: (
        "format('type %s of column %I, which is not built in', format_type(a.atttypid, NULL), a.attname)",
        "format('ALTER TABLE %1$s ALTER %2$I TYPE text USING %2$I::text;', {name}, a.attname)",
        "pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_type y ON y.oid = a.atttypid WHERE a.attrelid = {oid} AND NOT "
        "a.attisdropped AND y.typnamespace IS DISTINCT FROM (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = "
        "'pg_catalog')",
    ),
    Place.OTHER_CONSTRAINT: (
        "'constraint ' || quote_ident(k.conname)",
        "format('ALTER TABLE %s DROP CONSTRAINT %I;', {name}, k.conname)",
        "pg_catalog.pg_constraint k WHERE k.conrelid = {oid} AND k.contype NOT IN ('c', 'p', 'u', 'n')",
    ),
    Place.PARTITION_KEY: (
        "'partition key ' || pg_get_partkeydef(p.partrelid)",
        "format('DROP TABLE %s;', {name})",
        "pg_catalog.pg_partitioned_table p WHERE p.partrelid = {oid} AND p.partexprs IS NOT NULL",
    ),
}
_CATALOGS = {Place.STATISTICS: "pg_catalog.pg_statistic_ext", Place.PARTITION_KEY: "pg_catalog.pg_partitioned_table"}
# SQL: a table ($1) and its partitions, of all levels
_TREE = """
WITH RECURSIVE tree (relation) AS (
    SELECT $1::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.relation)
SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, c.relkind::text AS kind
FROM tree t JOIN pg_class c ON c.oid = t.relation JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY c.oid <> $1, 2
"""


class Found(NamedTuple):
    """Something of a table that could run code; `command`: SQL that removes it."""

    what: str
    command: str

    @property
    def owned(self) -> str:
        """`what` as the object of "has"."""
        return self.what if self.what == "row-level security" else f"the {self.what}"


def code_sql(oid: str, name: str, places: Iterable[Place]) -> str:
    """SQL: rows (place, what, command) for all that could run code in a statement on a table. `oid`, `name`: SQL of the table's
    OID and of its quoted name, without the aliases of the query's tables below."""
    return " UNION ALL ".join(
        f"SELECT {place:d} AS place, {what} AS what, {command.format(name=name)} AS command FROM {rest.format(oid=oid)}"
        for place in places
        for what, command, rest in [_CODE[place]]
    )


def find(db: Database, oid: int, quoted: str, places: Iterable[Place] = EVERYWHERE) -> Found | None:
    """The first thing of a table (its OID and quoted name) that could run code; `places`: where to look."""
    there = [place for place in places if place not in _CATALOGS or db.relation(_CATALOGS[place]) is not None]
    row = db.one(
        f"SELECT what, command FROM ({code_sql('$1', '$2', there)}) AS found ORDER BY place, what LIMIT 1",
        ["oid", "text"],
        [oid, quoted],
    )
    return None if row is None else Found(row["what"], row["command"])


def find_in_parts(db: Database, oid: int, places: Iterable[Place] = OF_PARTS) -> Found | None:
    """The first thing of a table or of its partitions that could run code when the table is read; `what` is a sentence, with
    the name of the table that has it; `places`: where to look."""
    places = tuple(places)
    for part in db.execute(_TREE, ["oid"], [oid]):
        if part["kind"] not in ("r", "p"):
            kind = {"v": "VIEW", "f": "FOREIGN TABLE", "m": "MATERIALIZED VIEW"}.get(part["kind"], "TABLE")
            return Found(f"{part['name']} is no plain table", f"DROP {kind} {part['name']};")
        code = find(db, part["oid"], part["name"], places)
        if code is not None:
            return Found(f"{part['name']} has {code.owned}", code.command)
    return None


def check_writable(db: Database, table: Table) -> None:
    """Raises MopError where a table of another role, which is no superuser, has triggers, rules, policies, children,
    expressions or types of its own: they would run with the rights of the caller, who writes to it."""
    owner = db.value(
        "SELECT quote_ident(pg_get_userbyid(c.relowner)) FROM pg_catalog.pg_class c WHERE c.oid = $1 AND NOT "
        + IS_OF_TRUSTED_ROLE,
        ["oid"],
        [table.oid],
    )
    if owner is None:
        return
    code = find(db, table.oid, str(table))
    if code is not None:
        raise MopError(
            f"table {table} of role {owner} has {code.owned}",
            detail="Its functions would run with your rights.",
            hint=code.command,
            sqlstate="42501",
        )

"""Types of columns, without domains: element types, comparability, equality operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pg_mop.backend.quoting import quote_identifier

if TYPE_CHECKING:
    from pg_mop.backend.database import Database, Table

NUMBERS = {"smallint", "integer", "bigint", "numeric", "real", "double precision"}
STRINGS = {"text", "character varying", "character", '"char"', "name"}
# types whose text depends on a setting, and the functions of their binary form
SENT = {
    "real": "float4send",
    "double precision": "float8send",
    "date": "date_send",
    "time without time zone": "time_send",
    "time with time zone": "timetz_send",
    "timestamp without time zone": "timestamp_send",
    "timestamp with time zone": "timestamptz_send",
    "interval": "interval_send",
    "money": "cash_send",
    "bytea": "byteasend",
}


class Kind:
    """A type, which a domain is replaced by: `oid`, `shown` for messages, `sql` for SQL, and `element`, that of an array."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.oid, self.shown, self.sql = int(row["oid"]), row["shown"], row["sql"]
        self.typtype, self.has_array = row["typtype"], row["has_array"]
        self.collatable, self.element, self.element_oid = row["collatable"], row["element"], row["typelem"]

    @property
    def numeric_array(self) -> bool:
        """True for an array of numbers."""
        return self.element in NUMBERS

    def like(self, other: Kind) -> bool:
        """True if labels of the two types can be compared."""
        return self.oid == other.oid or {self.shown, other.shown} <= NUMBERS or {self.shown, other.shown} <= STRINGS

    def collated(self, expression: str) -> str:
        """`expression` of this type; text is compared by code point."""
        return f'({expression} COLLATE pg_catalog."C")' if self.collatable else expression


def kind_of(db: Database, oid: int) -> Kind:
    """The Kind of a type (OID)."""
    (row,) = db.execute(
        "WITH RECURSIVE b AS (SELECT $1::oid AS t UNION ALL SELECT d.typbasetype FROM b JOIN pg_type d "
        "ON d.oid = b.t WHERE d.typtype = 'd') "
        "SELECT t.oid, format_type(t.oid, NULL) AS shown, format_type(t.oid, -1) AS sql, t.typtype::text, "
        "t.typarray <> 0 AS has_array, t.typcollation <> 0 AS collatable, t.typelem, "
        "CASE WHEN t.typcategory = 'A' THEN (WITH RECURSIVE e AS (SELECT t.typelem AS t UNION ALL SELECT d.typbasetype "
        "FROM e JOIN pg_type d ON d.oid = e.t WHERE d.typtype = 'd') SELECT format_type(e.t, NULL) FROM e JOIN "
        "pg_type d ON d.oid = e.t WHERE d.typtype <> 'd') END AS element "
        "FROM b JOIN pg_type t ON t.oid = b.t WHERE t.typtype <> 'd'",
        ["oid"],
        [oid],
    )
    return Kind(row)


def column_kind(db: Database, table: Table, column: str) -> Kind:
    """The Kind of a column of `table`."""
    return kind_of(
        db,
        db.value(
            "SELECT atttypid FROM pg_attribute WHERE attrelid = $1 AND attname = $2 "
            "AND attnum > 0 AND NOT attisdropped",
            ["oid", "text"],
            [table.oid, column],
        ),
    )


def plain_name(kind: Kind) -> str:
    """The name of a type, without the schema of the extension citext."""
    return "citext" if kind.shown.rpartition(".")[2] == "citext" else kind.shown


def plain_types(db: Database, table: Table) -> dict[str, str]:
    """{column: its type's name} of a table, in the order of its columns; a domain is replaced by its base type."""
    names_by_oid, types = {}, {}
    for row in db.execute(
        "SELECT attname, atttypid::bigint AS oid FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 "
        "AND NOT attisdropped ORDER BY attnum",
        ["oid"],
        [table.oid],
    ):
        if row["oid"] not in names_by_oid:
            names_by_oid[row["oid"]] = plain_name(kind_of(db, row["oid"]))
        types[row["attname"]] = names_by_oid[row["oid"]]
    return types


def equality(db: Database, kind: Kind) -> str | None:
    """The equality operator of a type's default ordering, as OPERATOR(schema.=), or None."""
    row = db.one(
        "SELECT n.nspname, o.oprname FROM pg_opclass c JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree' "
        "JOIN pg_amop p ON p.amopfamily = c.opcfamily AND p.amoplefttype = c.opcintype "
        "AND p.amoprighttype = c.opcintype AND p.amopstrategy = 3 "
        "JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace "
        "JOIN pg_type t ON t.oid = c.opcintype "
        "WHERE c.opcdefault AND (c.opcintype = $1 "
        "OR c.opcintype = CASE $2 WHEN 'e' THEN 'anyenum'::regtype WHEN 'r' THEN 'anyrange'::regtype END "
        "OR EXISTS (SELECT 1 FROM pg_cast x WHERE x.castsource = $1 AND x.casttarget = c.opcintype "
        "AND x.castmethod = 'b' AND x.castcontext = 'i')) "
        "ORDER BY c.opcintype = $1 DESC, t.typispreferred DESC LIMIT 1",
        ["oid", "text"],
        [kind.oid, kind.typtype],
    )
    return None if row is None else f"OPERATOR({quote_identifier(row['nspname'])}.{row['oprname']})"


def stable_text(sql_type: str, value: str) -> str:
    """SQL: `value`, an expression of a type as `plain_types` names it, as a text that depends on no setting, and is equal for
    equal values."""
    send = SENT.get(sql_type)
    if sql_type == "numeric":  # 1.50 equals 1.5
        return f"CASE WHEN strpos({value}::text, '.') > 0 THEN rtrim(rtrim({value}::text, '0'), '.') ELSE {value}::text END"
    if send is None:
        return f"lower({value}::text)" if sql_type == "citext" else f"{value}::text"
    if sql_type in ("real", "double precision"):
        value = f"({value} + 0)"  # -0 becomes 0
    return f"encode({send}({value}), 'hex')"

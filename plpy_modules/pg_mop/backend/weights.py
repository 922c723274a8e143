"""The weights of a trained model in a table of users: one value, or parts in a table beside it.

A value of PostgreSQL has at most 1 GB. Weights that are larger (or larger than pg_mop.weights_value_mb) are rows of the
table `<table>_parts`, and `model_weights` holds a short text in their place, the reference: the number of bytes and a
digest of the contents, by which the rows are found. So rows of `<table>` may be copied into another table, if its table of
parts is copied along, and parts that were left behind by another table are never mistaken for those of this one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mop_udf.pool.channel import PART_BYTES
from pg_mop.backend import foreign_code
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import MAX_NAME, quote_identifier

SUFFIX = "_parts"
COLUMNS = {"digest": "text", "part": "integer", "data": "bytea"}
LARGEST = (1 << 30) - 1  # bytes of a row in memory when PostgreSQL writes it
OTHERS = 1 << 20  # generous size of a row without its weights and its architecture
LONGEST = 128  # bytes of a reference
# Before the digest of weights in parts, where a whole value has its MD5. The catalog's `weights_md5` has either.
IN_PARTS = "parts "
# SQL: pg_class row c is a plain table with these columns and no others, of PostgreSQL's own types. (An external table of
# Greenplum 6 is a plain one for its catalog.)
IS_PARTS = (
    "(c.relkind = 'r' AND coalesce(row_to_json(c)->>'relstorage', '') <> 'x' AND (SELECT coalesce(bool_and(coalesce("
    "a.atttypid = w.type, false)), false) AND count(*) = "
    f"{len(COLUMNS)} FROM pg_attribute a LEFT JOIN (VALUES "
    + ", ".join(f"('{name}', '{sql_type}'::regtype)" for name, sql_type in COLUMNS.items())
    + ") AS w(name, type) ON w.name = a.attname WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))"
)
# what a session that reads or writes parts holds until its transaction ends: nobody can change or replace the table then
READING, WRITING = "ACCESS SHARE", "ROW EXCLUSIVE"


class Reference(NamedTuple):
    """What `model_weights` holds in place of weights in parts."""

    digest: str
    size: int  # bytes of all parts

    def encode(self) -> bytes:
        """The bytes of the column. Weights are a multiple of four bytes, a reference never is.

        >>> Reference("0" * 32, 8).encode()
        b'pg_mop keeps these 8 bytes in parts: 00000000000000000000000000000000\\n'
        """
        text = f"pg_mop keeps these {self.size} bytes in parts: {self.digest}\n".encode()
        return text if len(text) % 4 else text + b"\n"

    @classmethod
    def read(cls, value: Any) -> Reference | None:
        """The reference that the column holds; None for whole weights, and for NULL.

        >>> Reference.read(Reference("0" * 32, 8).encode())
        Reference(digest='00000000000000000000000000000000', size=8)
        >>> Reference.read(bytes(8))
        """
        if value is None or len(value) >= LONGEST or not len(value) % 4:
            return None
        match = re.fullmatch(rb"pg_mop keeps these (\d{1,18}) bytes in parts: ([0-9a-f]{32})\n+", bytes(value))
        return match and cls(match[2].decode(), int(match[1]))


def digest_of(digests: Sequence[str]) -> str:
    """The digest of weights in parts, from the MD5s (hexadecimal) of their parts in order."""
    return hashlib.md5("".join(digests).encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Source:
    """Where the weights of a model are, for sessions that see the table.

    `sql` selects them: one row with one column, or, with a `reference`, a row for each part: its bytes, its number. `what`:
    the model's name in errors; `parts`: the table of parts (quoted).
    """

    sql: str
    what: str
    reference: Reference | None = None
    parts: str = ""

    def md5(self, db: Database) -> str | None:
        """The digest of the weights, as `weights_md5` of a configuration; None without weights."""
        if self.reference is not None:
            return IN_PARTS + self.reference.digest
        return db.value(f"SELECT md5(w) FROM ({self.sql}) AS model(w)")

    def pieces(self, db: Database) -> Iterator[bytes]:
        """The weights in pieces, in order. Raises MopError where the parts are not those that the reference names."""
        if self.reference is None:
            yield db.value(self.sql)
            return
        cursor = db.plpy.cursor(f"SELECT data FROM ({self.sql}) AS weights(data, part) ORDER BY part")
        digests: list[str] = []
        size = 0
        try:
            while rows := list(cursor.fetch(1)):
                data = rows[0]["data"]
                digests.append(hashlib.md5(data, usedforsecurity=False).hexdigest())
                size += len(data)
                yield data
        finally:
            cursor.close()
        self._compare(digests, size)

    def read(self, db: Database) -> Any:
        """The weights as one bytes-like value."""
        if self.reference is None:
            return db.value(self.sql)
        whole = bytearray()  # grows in place: a join would hold all parts twice
        for piece in self.pieces(db):
            whole += piece
        return whole

    def check(self, db: Database) -> None:
        """Raises MopError where the parts are not those that the reference names."""
        rows = db.execute(
            f"SELECT md5(data) AS digest, octet_length(data) AS size FROM ({self.sql}) AS weights(data, part) ORDER BY part"
        )
        self._compare([row["digest"] for row in rows], sum(row["size"] for row in rows))

    def _compare(self, digests: Sequence[str], size: int) -> None:
        reference = self.reference
        assert reference is not None
        if size != reference.size or digest_of(digests) != reference.digest:
            raise MopError(
                f"the weights of {self.what} are incomplete",
                detail=f"They have {reference.size} bytes, of which {self.parts} has {size}."
                if size != reference.size
                else f"The rows of {self.parts} have changed.",
                hint=f"SELECT digest, count(*), sum(octet_length(data)) FROM {self.parts} GROUP BY 1;",
                sqlstate="XX001",
            )


@dataclass(frozen=True)
class PartOf(Source):
    """So many bytes from `first` on of other weights, which are not in parts: those of one member of a version."""

    whole: Source | None = None
    first: int = 0
    size: int = 0

    def read(self, db: Database) -> Any:
        assert self.whole is not None
        return self.whole.read(db)[self.first : self.first + self.size]

    def pieces(self, db: Database) -> Iterator[bytes]:
        yield self.read(db)


# --- reading --------------------------------------------------------------------------------------------


def reference_sql(column: str) -> str:
    """SQL: the column where it may hold a reference, else NULL (so that large weights are not read)."""
    return f"CASE WHEN octet_length({column}) < {LONGEST} THEN {column} END"


def digest_sql(column: str) -> str:
    """SQL: two columns of a SELECT that `complete` takes."""
    return f"md5(nullif({column}, '')) AS weights_md5, {reference_sql(column)} AS reference"


def find(db: Database, table: Table, where: str, value: Any, what: str, lock: bool = True) -> Source:
    """The source of the weights in the row of `table` that `where` (SQL, perhaps empty) selects.

    `value`: the row's model_weights, or what `reference_sql` gives for it; `what`: the model's name in errors; `lock`: the
    table of parts stays as it is until the transaction ends (a STABLE function cannot lock). Raises MopError.
    """
    reference = Reference.read(value)
    if reference is None:
        return Source(f"SELECT model_weights FROM {table}{where and ' WHERE '}{where}", what)
    parts = existing(db, str(table))
    if parts is None:
        raise MopError(
            f"the weights of {what} are in parts, but there is no table {name(db, str(table))}",
            detail=f"{table} has only the number of their bytes ({reference.size}) and their digest.",
            hint="Copy, rename, restore and grant it together with the model table: "
            f"CREATE TABLE {name(db, str(table))} AS TABLE ...{SUFFIX};",
            sqlstate="42P01",
        )
    if not db.value("SELECT has_table_privilege($1::oid, 'SELECT')", ["oid"], [parts.oid]):
        raise MopError(
            f"permission denied for table {parts}",
            detail=f"It has the weights of {what}.",
            hint=f"GRANT SELECT ON {parts} TO {quote_identifier(db.current_user())};",
            sqlstate="42501",
        )
    if lock:
        parts = existing(db, str(table), READING)
    sql = f"SELECT data, part FROM {parts} WHERE digest = '{reference.digest}'"
    return Source(sql, what, reference, str(parts))


def complete(db: Database, table: Table, where: str, row: dict[str, Any], what: str) -> None:
    """Give a configuration its initial weights: `weights_md5` and, where there are weights, `weights_sql`.

    `row`: with the columns of `digest_sql`, of the row of `table` that `where` selects. Raises MopError, also where parts are
    missing or have changed.
    """
    value = row.pop("reference", None)
    if row["weights_md5"] is None:
        return
    source = find(db, table, where, value, what)
    row["weights_sql"] = source.sql
    if source.reference is not None:
        if source.sql not in db.checked:  # many configurations may start from one model
            source.check(db)
            db.checked.add(source.sql)
        row["weights_md5"] = IN_PARTS + source.reference.digest


def size_of(row: dict[str, Any]) -> int | None:
    """The bytes of a model's weights, from a row with `bytes`, of the column, and `reference`, which is taken out."""
    reference = Reference.read(row.pop("reference"))
    return row["bytes"] if reference is None else reference.size


# --- writing --------------------------------------------------------------------------------------------


def store(db: Database, table: str, arrays: Sequence[Any], most_mb: int, beside: int = 0) -> tuple[bytes, int]:
    """Store the weights of a model in parts, if that must be: (the value for model_weights, bytes of the weights).

    `table`: the model table, quoted; `arrays`: in get_weights() order; `most_mb`: pg_mop.weights_value_mb; `beside`: bytes of
    the row's architecture. Raises MopError.
    """
    from pg_mop.backend.arrays import state

    size = 4 * sum(array.size for array in arrays)
    if size <= min(most_mb << 20, LARGEST - OTHERS - beside):
        return state.weights_to_bytes(arrays), size
    # twice through the arrays, for the rows have the digest of all
    digests = []
    for part in state.weights_in_parts(arrays, PART_BYTES):
        digests.append(hashlib.md5(part, usedforsecurity=False).hexdigest())
    reference = Reference(digest_of(digests), size)
    parts = table_for(db, table)
    if not _has(db, parts, reference):
        for number, part in enumerate(state.weights_in_parts(arrays, PART_BYTES)):
            db.execute(
                f"INSERT INTO {parts} (digest, part, data) VALUES ($1, $2, $3)",
                ["text", "integer", "bytea"],
                [reference.digest, number, part],
            )
    return reference.encode(), size


def copy(db: Database, source: Source, table: str) -> bytes:
    """Copy weights in parts to the parts of another `table` (quoted); returns the value for its model_weights.

    Raises MopError where they are incomplete.
    """
    assert source.reference is not None
    source.check(db)
    parts = table_for(db, table)
    if not _has(db, parts, source.reference):
        db.execute(
            f"INSERT INTO {parts} (digest, part, data) SELECT $1, part, data FROM ({source.sql}) AS weights(data, part)",
            ["text"],
            [source.reference.digest],
        )
    return source.reference.encode()


def prune(db: Database, table: Table) -> None:
    """Delete parts that no row of a model table names, if the caller may. A table of parts that is none is left as it is."""
    try:
        parts = existing(db, str(table))
    except MopError as error:  # no SQL has failed
        db.warning(str(error), detail=error.detail, hint=error.hint)
        return
    if parts is None or not db.value("SELECT has_table_privilege($1::oid, 'DELETE')", ["oid"], [parts.oid]):
        return
    parts = existing(db, str(table), WRITING)
    rows = db.execute(f"SELECT {reference_sql('model_weights')} AS reference FROM {table}")
    digests = [reference.digest for row in rows if (reference := Reference.read(row["reference"])) is not None]
    db.execute(f"DELETE FROM ONLY {parts} WHERE digest <> ALL ($1)", ["text[]"], [digests])


def name(db: Database, table: str) -> str:
    """The name of the table of parts of a model table, both quoted. Raises MopError if it is too long."""
    schema, table_name = db.parse_name(table)
    if len((table_name + SUFFIX).encode()) > MAX_NAME:
        raise MopError(
            f'table name "{table_name + SUFFIX}" is longer than {MAX_NAME} bytes',
            detail=f"The weights of a model in {table} need a table of parts.",
        )
    assert schema is not None
    return f"{quote_identifier(schema)}.{quote_identifier(table_name + SUFFIX)}"


def table_for(db: Database, table: str) -> str:
    """The table of parts of a model table, both quoted; it is made if it does not exist. Raises MopError.

    It is locked, and the model table's owner's. Whoever may read the model's weights may read a new table of parts.
    """
    parts_now = existing(db, table, WRITING)
    if parts_now is not None:
        return str(parts_now)
    parts = name(db, table)
    model = db.one(
        "SELECT c.oid::bigint AS oid, c.relpersistence = 't' AS passing, o.rolname::text AS owner, "
        "o.rolname <> current_user AS another, pg_has_role(o.oid, 'USAGE') AND pg_has_role(o.oid, $2) AND "
        "has_schema_privilege(o.oid, c.relnamespace, 'CREATE') AS can_own "
        "FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner WHERE c.oid = $1",
        ["oid", "text"],
        [db.relation(table), "SET" if int(db.setting("server_version_num") or 0) >= 160000 else "MEMBER"],
    )
    if model is None:
        raise MopError(f"there is no model table {table}", sqlstate="42P01")
    if model["another"] and not model["can_own"]:
        raise MopError(
            f"the weights of a model in {table} need a table {parts}, which the owner of {table} must make",
            hint=f"Its owner: {definition(parts)}; GRANT SELECT, INSERT ON {parts} TO {quote_identifier(db.current_user())};",
            sqlstate="42501",
        )
    db.execute(
        f"{definition(parts, model['passing'])}; ALTER TABLE {parts} ALTER data SET STORAGE EXTERNAL; "
        f"COMMENT ON TABLE {parts} IS 'weights of pg_mop that are too large for one value'"
    )
    if model["another"]:
        db.execute(f"ALTER TABLE {parts} OWNER TO {quote_identifier(model['owner'])}")
    for row in db.execute(READERS, ["oid"], [model["oid"]]):
        role = "PUBLIC" if row["role"] is None else quote_identifier(row["role"])
        db.execute(f"GRANT SELECT ON {parts} TO {role}{' WITH GRANT OPTION' * row['may_grant']}")
    return str(existing(db, table, WRITING))


# SQL: the roles, but its owner, that may read the weights of the model table $1; NULL: all roles
READERS = """
SELECT r.rolname::text AS role, bool_or(g.is_grantable) AS may_grant FROM (
    SELECT x.grantee, x.privilege_type, x.is_grantable, c.relowner FROM pg_class c, aclexplode(c.relacl) x WHERE c.oid = $1
    UNION ALL
    SELECT x.grantee, x.privilege_type, x.is_grantable, c.relowner FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid,
        aclexplode(a.attacl) x WHERE c.oid = $1 AND a.attname = 'model_weights' AND NOT a.attisdropped
) g LEFT JOIN pg_roles r ON r.oid = g.grantee
WHERE g.privilege_type = 'SELECT' AND g.grantee <> g.relowner AND (g.grantee = 0 OR r.rolname IS NOT NULL)
GROUP BY 1 ORDER BY 1"""


def definition(parts: str, passing: bool = False) -> str:
    """SQL that makes a table of parts (quoted); `passing`: a temporary one."""
    columns = ", ".join(f"{column} {sql_type} NOT NULL" for column, sql_type in COLUMNS.items())
    return f"CREATE {'TEMPORARY ' * passing}TABLE {parts} ({columns}, PRIMARY KEY (digest, part))"


def check_free(db: Database, text: str) -> None:
    """Raises MopError where the table of parts of a new model table, which the caller calls `text`, exists already."""
    parts_left = db.find_table(db.suffixed(text, SUFFIX))
    if parts_left is not None:
        raise MopError(
            f'output table "{parts_left.name}" already exists',
            detail="It would have the weights of models that are too large for one value.",
            hint=f"DROP {db.kind_of_relation(str(parts_left))} {parts_left}; or choose another name.",
            sqlstate="42P07",
        )


def existing(db: Database, table: str, lock: str | None = None) -> Table | None:
    """The table of parts of a model table (quoted), or None; `lock`: READING or WRITING.

    Raises MopError if a relation of its name is none, or is another role's, or could run code: anybody who may create tables
    in the schema can make one of that name.
    """
    parts = _checked(db, table)
    if parts is None or lock is None:
        return parts
    db.execute(f"LOCK TABLE {parts} IN {lock} MODE")
    return _checked(db, table)  # as it is under the lock


def _checked(db: Database, table: str) -> Table | None:
    schema, own = db.parse_name(table)
    if len((own + SUFFIX).encode()) > MAX_NAME:
        return None
    parts = name(db, table)
    oid = db.relation(parts)
    if oid is None:
        return None
    row = db.one(
        f"SELECT {IS_PARTS} AS is_parts, quote_ident(o.rolname) AS owner, quote_ident(w.rolname) AS wanted FROM pg_class c "
        "JOIN pg_roles o ON o.oid = c.relowner LEFT JOIN pg_class m ON m.oid = $2 LEFT JOIN pg_roles w ON w.oid = m.relowner "
        "WHERE c.oid = $1",
        ["oid", "oid"],
        [oid, db.relation(table)],
    )
    drop = f"DROP {db.kind_of_relation(parts)} {parts};"
    if row is None or not row["is_parts"]:
        raise MopError(
            f"{parts} is no table of the weights' parts of {table}",
            detail=f"It would be a plain table with the columns {', '.join(COLUMNS)}, and no others"
            + (f"; role {row['owner']} owns the one that is there." if row else "."),
            hint=drop,
            sqlstate="42809",
        )
    if row["owner"] != row["wanted"]:
        raise MopError(
            f"table {parts} of role {row['owner']} is not used for the weights of {table}, which role {row['wanted']} owns",
            detail="Any role that may create tables in the schema can make a table of that name.",
            hint=f"ALTER TABLE {parts} OWNER TO {row['wanted']}; if its rows are of this model, else {drop}",
            sqlstate="42501",
        )
    code = foreign_code.find(db, oid, parts)
    if code is not None:
        raise MopError(
            f"table {parts} of role {row['owner']} is not used for the weights of {table}: it has {code.owned}",
            detail="Functions of its owner could run with your rights.",
            hint=code.command,
            sqlstate="42501",
        )
    assert schema is not None
    return Table(int(oid), schema, own + SUFFIX, "r")


def _has(db: Database, parts: str, reference: Reference) -> bool:
    """Whether a table of parts (quoted) has these weights already. Parts of an incomplete copy are deleted."""
    source = Source(f"SELECT data, part FROM {parts} WHERE digest = '{reference.digest}'", "", reference, parts)
    try:
        source.check(db)
        return True
    except MopError:
        db.execute(f"DELETE FROM ONLY {parts} WHERE digest = $1", ["text"], [reference.digest])
        return False

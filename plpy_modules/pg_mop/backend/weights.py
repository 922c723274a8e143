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

from mop_udf.channel import PART_BYTES
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
# SQL: pg_class row c is a table of parts, of PostgreSQL's own types
IS_PARTS = (
    "(c.relkind = 'r' AND NOT EXISTS (SELECT 1 FROM (VALUES "
    + ", ".join(f"('{name}', '{sql_type}'::regtype)" for name, sql_type in COLUMNS.items())
    + ") AS w(name, type) WHERE NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = w.name "
    "AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid = w.type)))"
)


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
        whole = bytearray()  # (grows in place: a join would hold all parts twice)
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


# --- reading --------------------------------------------------------------------------------------------


def reference_sql(column: str) -> str:
    """SQL: the column where it may hold a reference, else NULL (so that large weights are not read)."""
    return f"CASE WHEN octet_length({column}) < {LONGEST} THEN {column} END"


def digest_sql(column: str) -> str:
    """SQL: two columns of a SELECT that `complete` takes."""
    return f"md5(nullif({column}, '')) AS weights_md5, {reference_sql(column)} AS reference"


def find(db: Database, table: Table, where: str, value: Any, what: str) -> Source:
    """The source of the weights in the row of `table` that `where` (SQL, perhaps empty) selects.

    `value`: the row's model_weights, or what `reference_sql` gives for it; `what`: the model's name in errors. Raises
    MopError.
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
    sql = f"SELECT data, part FROM {parts} WHERE digest = '{reference.digest}'"
    return Source(sql, what, reference, str(parts))


def complete(db: Database, table: Table, where: str, row: dict[str, Any], what: str) -> None:
    """Give a configuration its initial weights: `weights_md5` and, where there are weights, `weights_sql`.

    `row`: with the columns of `digest_sql`, of the row of `table` that `where` selects. Raises MopError.
    """
    value = row.pop("reference", None)
    if row["weights_md5"] is None:
        return
    source = find(db, table, where, value, what)
    row["weights_sql"] = source.sql
    if source.reference is not None:
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
    """Delete parts that no row of a model table names, if the caller may."""
    parts = existing(db, str(table))
    if parts is None or not db.value("SELECT has_table_privilege($1::oid, 'DELETE')", ["oid"], [parts.oid]):
        return
    rows = db.execute(f"SELECT {reference_sql('model_weights')} AS reference FROM {table}")
    named = [found.digest for row in rows if (found := Reference.read(row["reference"])) is not None]
    db.execute(f"DELETE FROM {parts} WHERE digest <> ALL ($1)", ["text[]"], [named])


def name(db: Database, table: str) -> str:
    """The name of the table of parts of a model table, both quoted. Raises MopError if it is too long."""
    schema, own = db.parse_name(table)
    if len((own + SUFFIX).encode()) > MAX_NAME:
        raise MopError(
            f'table name "{own + SUFFIX}" is longer than {MAX_NAME} bytes',
            detail=f"The weights of a model in {table} need a table of parts.",
        )
    assert schema is not None
    return f"{quote_identifier(schema)}.{quote_identifier(own + SUFFIX)}"


def table_for(db: Database, table: str) -> str:
    """The table of parts of a model table, both quoted; it is made if it does not exist. Raises MopError."""
    present = existing(db, table)
    if present is not None:
        return str(present)
    parts = name(db, table)
    owner = db.one(
        "SELECT pg_has_role(c.relowner, 'USAGE') AS mine, c.relpersistence = 't' AS passing FROM pg_class c "
        "WHERE c.oid = $1",
        ["oid"],
        [db.relation(table)],
    )
    if owner is not None and not owner["mine"]:
        raise MopError(
            f"the weights of a model in {table} need a table {parts}, which the owner of {table} must make",
            hint=f"Its owner: {definition(parts)}; GRANT SELECT, INSERT ON {parts} TO {quote_identifier(db.current_user())};",
            sqlstate="42501",
        )
    db.execute(
        f"{definition(parts, owner is not None and owner['passing'])}; "
        f"ALTER TABLE {parts} ALTER data SET STORAGE EXTERNAL; "
        f"COMMENT ON TABLE {parts} IS 'weights of pg_mop that are too large for one value'"
    )
    return parts


def definition(parts: str, passing: bool = False) -> str:
    """SQL that makes a table of parts (quoted); `passing`: a temporary one."""
    columns = ", ".join(f"{column} {sql_type} NOT NULL" for column, sql_type in COLUMNS.items())
    return f"CREATE {'TEMPORARY ' * passing}TABLE {parts} ({columns}, PRIMARY KEY (digest, part))"


def check_free(db: Database, text: str) -> None:
    """Raises MopError where the table of parts of a new model table, which the caller calls `text`, exists already."""
    left = db.find_table(db.suffixed(text, SUFFIX))
    if left is not None:
        raise MopError(
            f'output table "{left.name}" already exists',
            detail="It would have the weights of models that are too large for one value.",
            hint=f"DROP {db.kind_of_relation(str(left))} {left}; or choose another name.",
            sqlstate="42P07",
        )


def existing(db: Database, table: str) -> Table | None:
    """The table of parts of a model table (quoted), or None. Raises MopError if a relation of its name is none."""
    schema, own = db.parse_name(table)
    if len((own + SUFFIX).encode()) > MAX_NAME:
        return None
    parts = name(db, table)
    found = db.relation(parts)
    if found is None:
        return None
    if not db.value(f"SELECT {IS_PARTS} FROM pg_class c WHERE c.oid = $1", ["oid"], [found]):
        raise MopError(
            f"{parts} is no table of the weights' parts of {table}",
            detail=f"It would be a table with the columns {', '.join(COLUMNS)}.",
            hint=f"ALTER {db.kind_of_relation(parts)} {parts} RENAME TO ...;",
            sqlstate="42809",
        )
    assert schema is not None
    return Table(int(found), schema, own + SUFFIX, "r")


def _has(db: Database, parts: str, reference: Reference) -> bool:
    """Whether a table of parts (quoted) has these weights already. Parts of an incomplete copy are deleted."""
    source = Source(f"SELECT data, part FROM {parts} WHERE digest = '{reference.digest}'", "", reference, parts)
    try:
        source.check(db)
        return True
    except MopError:
        db.execute(f"DELETE FROM {parts} WHERE digest = $1", ["text"], [reference.digest])
        return False

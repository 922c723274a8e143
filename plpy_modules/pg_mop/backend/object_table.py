"""Object tables: custom losses, metrics, layers and models (docs/contract/arch_and_objects.md, section 2).

Only trainers unpickle the objects, backends never do. An object runs code, so only superusers may provide objects: the
table must be in the extension's schema, and a superuser must own it. Each reader checks that, worker sessions included.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mop_udf.params import parameter_names, params
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal

if TYPE_CHECKING:
    from pg_mop.backend.database import Database

COLUMNS = ("id", "name", "description", "object")


def table_name(db: Database, text: str | None) -> str:
    """The name in `text`: a bare name, or a name in the extension's schema.

    The name keeps its case, as in MADlib. Raises MopError for another schema.
    """
    text = (text or "").strip()
    if not text:
        raise MopError("NULL/empty object table name")
    schema, name = db.parse_name(text)
    if schema not in (None, db.schema):
        raise MopError(
            f'object table "{text}" must be in schema "{db.schema}", where only superusers create tables',
            hint="Give its bare name.",
        )
    return name


def check(db: Database, text: str | None) -> str:
    """The quoted name of a usable object table. Raises MopError."""
    name = table_name(db, text)
    quoted = f"{db.extension}.{quote_identifier(name)}"
    table = db.input_table(
        db.bare(quoted), "object table", hint=f"As a superuser: SELECT {db.extension}.load_custom_function(...);"
    )
    absent_columns = [c for c in COLUMNS if c not in db.columns(table)]
    if absent_columns:
        raise MopError(f'object table "{text}" has no column "{absent_columns[0]}"')
    if not db.value(OWNER_IS_SUPERUSER, ["oid"], [table.oid]):
        raise MopError(
            f'the owner of object table "{text}" is no superuser',
            detail="Its objects run code.",
            hint=f"ALTER TABLE {quoted} OWNER TO ... (a superuser);",
            sqlstate="42501",
        )
    writers = db.execute(WRITERS, ["oid"], [table.oid])
    if writers:
        role = "PUBLIC" if writers[0]["role"] is None else quote_identifier(writers[0]["role"])
        raise MopError(
            f'object table "{text}" may be written by {role}, which is no superuser',
            detail="Its objects run code.",
            hint=f"REVOKE ALL ON {quoted} FROM {role};",
            sqlstate="42501",
        )
    return quoted


def check_unchanged(db: Database, text: str, digests: Mapping[str, str], what: str, hint: str, event: str) -> str:
    """The quoted name of the object table that `what` (a text for errors) needs, with the classes that it had.

    `digests`: {name: SHA-256 of its pickle} at the `event`, as in "after the training". Raises MopError where the table is no
    usable object table any more, or where one of the classes is another one now.
    """
    try:
        quoted = check(db, text)
    except MopError as error:
        problem = f"{what} needs code of an object table: {error.message}"
        raise MopError(problem, error.detail, error.hint, error.sqlstate) from None
    rows = db.execute(
        f"SELECT name, encode({db.extension}.mop_sha256(object), 'hex') AS digest FROM {quoted} "
        "WHERE name = ANY ($1) AND object IS NOT NULL",
        ["text[]"],
        [list(digests)],
    )
    now = {row["name"]: row["digest"] for row in rows}
    name_with_change = next((name for name, digest in digests.items() if now.get(name) != digest), None)
    if name_with_change is not None:
        raise MopError(
            f"the custom class {name_with_change!r} of {what} is not the one in {quoted}",
            detail=f"It was {'changed' if name_with_change in now else 'deleted'} after the {event}.",
            hint=hint,
            sqlstate="55000",
        )
    return quoted


def are_names(names: Iterable[str]) -> bool:
    """True where texts, perhaps of another role's table, can be names of an object table: texts as PostgreSQL has them."""
    try:
        return all("\0" not in name and name.encode() for name in names)
    except UnicodeEncodeError:  # JSON may have half of a character
        return False


def within_schema(quoted: str | None) -> str:
    """The quoted name of an object table (from `check`) without its schema."""
    match = re.fullmatch(r'(?:"(?:[^"]|"")*"|[^".]*)\.(.*)', quoted or "", re.DOTALL)
    assert match is not None
    return match[1]


# The roles with a privilege to write the table or one of its columns, except superusers; NULL: PUBLIC.
WRITERS = """
SELECT r.rolname AS role FROM (
    SELECT relacl FROM pg_catalog.pg_class WHERE oid = $1
    UNION ALL SELECT attacl FROM pg_catalog.pg_attribute WHERE attrelid = $1 AND NOT attisdropped) AS a(acl)
CROSS JOIN LATERAL pg_catalog.aclexplode(a.acl) AS g LEFT JOIN pg_catalog.pg_roles r ON r.oid = g.grantee
WHERE g.privilege_type IN ('INSERT', 'UPDATE', 'TRIGGER') AND r.rolsuper IS NOT TRUE"""
OWNER_IS_SUPERUSER = (
    "SELECT r.rolsuper FROM pg_catalog.pg_class c JOIN pg_catalog.pg_roles r ON r.oid = c.relowner "
    "WHERE c.oid = $1 AND c.relkind = 'r'"
)


def custom_names(compile_params: dict[str, Any]) -> list[str]:
    """The losses and metrics in parsed compile parameters that Keras does not have."""
    names = [loss for loss in params.losses(compile_params) if not parameter_names.is_builtin_loss(loss)]
    return list(dict.fromkeys(names)) + [
        m for m in compile_params["metrics"] if not parameter_names.is_builtin_metric(m)
    ]


def missing_names(db: Database, object_table: str | None, compile_params: dict[str, Any]) -> str | None:
    """The reason why the custom functions of parsed compile parameters are unusable, or None.

    `object_table`: quoted, or None.
    """
    names = custom_names(compile_params)
    if names and object_table is None:
        return f"{names[0]!r} is no loss or metric of Keras': object table missing"
    existing_names = names and {row["name"].lower() for row in db.execute(f"SELECT name FROM {object_table}")}
    absent_names = [n for n in names if n.lower() not in existing_names]
    return (
        f"{absent_names[0]!r} is no loss or metric of Keras', and {object_table} has no such function"
        if absent_names
        else None
    )


def layer_names(db: Database, object_table: str) -> dict[str, str]:
    """The names that layers of an architecture may have in an object table (quoted): {name: ''}, as architecture.check takes
    them. Only a trainer learns which of the objects are layers."""
    return {row["name"]: "" for row in db.execute(f"SELECT name FROM {object_table} WHERE name IS NOT NULL")}


def read(
    db: Database,
    object_table: str | None,
    compile_params: dict[str, Any] | None,
    digests: Any = None,
    layers: Iterable[str] = (),
) -> dict[str, bytes]:
    """{name: pickle} of the custom functions of parsed compile parameters, and of the custom layers of these names.

    With `digests` (as the function of this name gives them), all objects of their names are read. Raises MopError if an object
    is missing, or has another digest now.
    """
    pickles, names = {}, [*(custom_names(compile_params) if compile_params is not None else ()), *layers]
    if digests is not None:
        if not isinstance(digests, list) or not all(
            isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in digests
        ):
            raise MopError("the digests of custom functions must be a list of pairs")
        names += [name for name, _ in digests]
    for name in dict.fromkeys(names):
        if object_table is None:
            raise MopError(f"{name!r} is no loss or metric of Keras': object table missing")
        quoted = check(db, object_table)
        row = db.one(
            f"SELECT name, object FROM {quoted} WHERE lower(name) = lower($1) AND object IS NOT NULL "
            f"ORDER BY name = $1 DESC LIMIT 1",
            ["text"],
            [name],
        )
        if row is None:
            raise MopError(f"{name!r} is no loss or metric of Keras', and {quoted} has no such function")
        pickles[name] = row["object"]
        if digests is not None and [row["name"], hashlib.sha256(row["object"]).hexdigest()] not in digests:
            raise MopError(f"the custom function {name!r} in {quoted} is not the one that the run began with")
    return pickles


def digests(
    db: Database, object_table: str | None, compile_params: dict[str, Any] | None, layers: Iterable[str] = ()
) -> list[list[str]]:
    """[[name, SHA-256 of its pickle], ...] of the custom functions of parsed compile parameters, if any are given, and of the
    custom layers and models of these names."""
    names = [*(custom_names(compile_params) if compile_params is not None else ()), *layers]
    if not names:
        return []
    assert object_table is not None
    return [list(row.values()) for row in db.execute(digests_sql(object_table, names))]


def all_digests(db: Database, object_table: str) -> dict[str, str]:
    """{name: SHA-256 of its pickle} of all objects of an object table (quoted)."""
    rows = db.execute(
        f"SELECT name, encode({db.extension}.mop_sha256(object), 'hex') AS digest FROM {object_table} "
        "WHERE name IS NOT NULL AND object IS NOT NULL ORDER BY name"
    )
    return {row["name"]: row["digest"] for row in rows}


def digests_sql(object_table: str, names: Iterable[str]) -> str:
    """SQL for the digests of functions, by name."""
    schema = object_table[: -len(within_schema(object_table))]
    names_sql = ", ".join(quote_literal(name.lower()) for name in names)
    return (
        f"SELECT name, encode({schema}mop_sha256(object), 'hex') AS digest FROM {object_table} "
        f"WHERE lower(name) IN ({names_sql}) ORDER BY name"
    )

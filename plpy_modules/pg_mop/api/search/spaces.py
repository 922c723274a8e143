"""mop_space and its companions: tables that hold a model space (docs/spaces.md)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.explain import read_format
from pg_mop.api.common.output import insert
from pg_mop.api.common.session import with_trainer
from pg_mop.api.madlib import architectures
from pg_mop.api.search import space_layers
from pg_mop.backend import object_table
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import as_integer, sql_function
from pg_mop.spaces import Base, Member, ModelSpace, SpaceError, showing
from pg_mop.spaces.custom import NONE

# of a table that holds a space; it has one row
COLUMNS = {
    "base": "json",
    "mutators": "json",
    "adapt": "text",
    "members": "numeric",
    "made_at": "timestamptz DEFAULT clock_timestamp()",
    "object_table": "text",
    "custom_layers": "json",
}
MOST_SAMPLED = 100_000
MOST_CHARACTERS = 64 << 20  # of all base models


@with_trainer
def mop_space(
    db: Database,
    session: Session,
    space: str | None,
    arch_table: str | None,
    base: list[Any] | None,
    mutators: str | None,
    adapt: str | None,
    custom_table: str | None = None,
) -> Decimal:
    """Make a table with a model space; returns the number of its members.

    The table has the base models themselves, so that later changes of the architecture table do not change the space.
    `custom_table`: the object table of its custom layers. Raises MopError.
    """
    if mutators is None:
        raise MopError("mutators must not be NULL", hint="Without mutators: '[]'.")
    table = architectures.open_table(db, arch_table)
    if base is not None:
        if not base or any(one is None or isinstance(one, list) for one in base):
            raise MopError("base must be an array of one dimension, without NULLs", hint="For instance: ARRAY[1, 2]")
        base = [as_integer("base", one) for one in base]
    db.check_readable(table, [c for c in ("model_id", "model_arch", "name") if c in db.columns(table)])
    name_sql = "name::text" if "name" in db.columns(table) else "NULL::text"
    rows = {
        row["model_id"]: row
        for row in db.execute(
            f"SELECT model_id::integer AS model_id, model_arch::text AS model_arch, {name_sql} AS name FROM {table} "
            "WHERE $1 IS NULL OR model_id = ANY ($1) ORDER BY model_id",
            ["integer[]"],
            [base],
        )
    }
    unknown = next((one for one in base or () if one not in rows), None)
    if unknown is not None:
        raise MopError(f'model_id {unknown} is not in "{arch_table}"', hint=f"SELECT model_id, name FROM {table};")
    empty = next((key for key, row in rows.items() if row["model_arch"] is None), None)
    if empty is not None:
        raise MopError(f'model_id {empty} of "{arch_table}" has no architecture')
    bases = [
        Base(key, rows[key]["model_arch"], rows[key]["name"]) for key in (dict.fromkeys(rows) if base is None else base)
    ]
    if sum(len(one.architecture) for one in bases) > MOST_CHARACTERS:
        raise MopError(f"the base models have more than {MOST_CHARACTERS} characters")
    functions = None if custom_table is None else object_table.check(db, custom_table)
    new_table = db.output_table(space)
    with contextlib.ExitStack() as stack, errors_of_spaces():
        asking = None if functions is None else space_layers.Asking(db, session, functions, stack)
        layers = NONE if asking is None else asking.layers
        models = ModelSpace(bases, mutators, _adapt(adapt), db.hear_interrupts, layers)
        looked = models.check_some()
        custom = None if asking is None else asking.written(models)
    if looked.refused:
        reason = max(looked.refused, key=lambda text: looked.refused[text])
        count = sum(looked.refused.values())
        db.notice(
            f"{count} of {'all ' if looked.tried == models.size else ''}{looked.tried} members looked at do not fit together",
            detail=f"For instance: {reason}",
            hint=f"SELECT {db.extension}.mop_space_show(...); lists the reasons.",
        )
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    db.execute(f"CREATE TABLE {new_table} ({columns})")
    values = (
        "["
        + ", ".join(
            f'{{"model_id": {one.model_id}, "name": {json.dumps(one.name)}, "model_arch": {one.architecture}}}'
            for one in bases
        )
        + "]"
    )
    insert(
        db,
        new_table,
        {
            "base": ("json", values),
            "mutators": ("json", mutators),
            "adapt": ("text", models.adapt),
            "members": ("numeric", Decimal(models.size)),
            "object_table": ("text", None if custom is None else object_table.within_schema(functions)),
            "custom_layers": ("json", custom and json.dumps(custom)),
        },
    )
    db.identify_by_all(new_table)
    return Decimal(models.size)


@sql_function
def mop_space_size(db: Database, space: str | None) -> Decimal:
    """The exact number of members of a space. Raises MopError."""
    return Decimal(read(db, space).size)


@sql_function
def mop_space_sample(db: Database, space: str | None, n: Any, seed: Any) -> list[tuple[Any, ...]]:
    """Random members of a space that fit together, each once: rows of (member, model_id, choices, model_arch, parameters,
    primitives). Raises MopError."""
    count, seed = as_integer("n", n), as_integer("seed", seed)
    if count is None or not 1 <= count <= MOST_SAMPLED:
        raise MopError(f"n must be an integer from 1 to {MOST_SAMPLED}, not {'NULL' if count is None else count}")
    if seed is None:
        raise MopError("seed must not be NULL")
    models = read(db, space)
    with errors_of_spaces():
        members = models.sample(count, seed, _row)
    if members.refused or members.fitting < count:
        refused = sum(members.refused.values())
        reason = max(members.refused, key=lambda text: members.refused[text]) if members.refused else None
        db.notice(
            f"{refused} of {members.tried} members drawn do not fit together"
            + (f"; there are {members.fitting} others" if members.fitting < count else ""),
            detail=reason and f"For instance: {reason}",
        )
    return members.members


def _row(one: Member) -> dict[str, Any]:
    """A member as a row of mop_space_sample."""
    return {
        "member": Decimal(one.number),
        "model_id": one.model_id,
        "choices": json.dumps(one.choices),
        "model_arch": one.architecture,
        "parameters": one.parameters,
        "primitives": json.dumps(one.record),
    }


@sql_function
def mop_space_show(db: Database, space: str | None, format: str | None) -> str:
    """A space as text, or as JSON (`format` 'json'): its base models' layers with their choice points, and what of it fits.
    Raises MopError."""
    format_name = read_format(format)
    models = read(db, space)
    with errors_of_spaces():
        looked = models.check_some()
        return showing.text(models, looked) if format_name == "text" else json.dumps(showing.data(models, looked))


def read(db: Database, text: str | None) -> ModelSpace:
    """The space in a table, checked again: its owner may have changed the table by hand. Raises MopError."""
    table = db.input_table(
        text,
        "model space",
        hint=f"To make one: SELECT {db.extension}.mop_space('name', 'architectures', ARRAY[1], '[...]');",
    )
    absent_columns = [name for name in ("base", "mutators", "adapt") if name not in db.columns(table)]
    if absent_columns:
        raise MopError(
            f'"{text}" is no model space: it has no column {absent_columns[0]}',
            hint=f"SELECT {db.extension}.mop_space(...) makes one.",
        )
    custom = [name for name in ("object_table", "custom_layers") if name in db.columns(table)]
    if len(custom) < 2:  # a table that was made by hand may lack them
        custom = []
    db.check_readable(table, ["base", "mutators", "adapt", *custom])
    db.check_built_in(table, ["base", "mutators", "adapt", *custom])
    values = ", ".join(f"{name}::text AS {name}" for name in ("base", "mutators", "adapt", *custom))
    rows = db.execute(f"SELECT {values} FROM {table} LIMIT 2")
    if len(rows) != 1:
        raise MopError(f'"{text}" is no model space: it has several rows, or none that you may see')
    (row,) = rows
    if row["base"] is None or row["mutators"] is None:
        raise MopError(f'model space "{text}" has a NULL in place of its base models or mutators')
    layers = space_layers.read(db, text or "", row.get("object_table"), row.get("custom_layers"))
    with errors_of_spaces():
        return ModelSpace(_bases(row["base"]), row["mutators"], _adapt(row["adapt"]), db.hear_interrupts, layers)


def _bases(text: str) -> list[Base]:
    """The base models of a table of a space. Raises SpaceError."""
    if len(text) > 2 * MOST_CHARACTERS:
        raise SpaceError(f"the base models have more than {2 * MOST_CHARACTERS} characters")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpaceError(f"the base models are not JSON: {str(error)[:200]}") from None
    if not isinstance(entries, list) or not all(
        isinstance(one, dict)
        and isinstance(one.get("model_id"), int)
        and not isinstance(one["model_id"], bool)
        and abs(one["model_id"]) < 2**31
        and isinstance(one.get("model_arch"), dict)
        and isinstance(one.get("name"), (str, type(None)))
        for one in entries
    ):
        raise SpaceError("the base models must be a list of objects with model_id, name and model_arch")
    try:
        return [Base(one["model_id"], json.dumps(one["model_arch"]), one.get("name")) for one in entries]
    except (ValueError, RecursionError) as error:
        raise SpaceError(f"the base models cannot be read: {str(error)[:200]}") from None


def _adapt(text: str | None) -> str | None:
    return None if text is None or text.strip().lower() in ("", "none") else text.strip().lower()


@contextlib.contextmanager
def errors_of_spaces() -> Iterator[Any]:
    """What a space refuses, as errors of SQL."""
    try:
        yield
    except SpaceError as error:
        raise MopError(str(error), hint=error.hint) from None

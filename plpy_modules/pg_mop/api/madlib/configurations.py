"""Model selection tables: load_model_selection_table and generate_model_configs.

See docs/contract/arch_and_objects.md, sections 3 to 6.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random
from typing import Any

from mop_udf.params import params
from pg_mop.api.madlib import architectures
from pg_mop.backend import object_table as objects
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier
from pg_mop.search import grids
from pg_mop.search.space import Space

MOST_TRIES = 1000  # consecutive random draws without a new configuration


Row = tuple[Any, ...]  # model_id, compile_params, fit_params


@sql_function
def load_model_selection_table(
    db: Database,
    model_arch_table: str | None,
    model_selection_table: str | None,
    model_id_list: list[int] | None,
    compile_params_list: list[str | None] | None,
    fit_params_list: list[str | None] | None,
    object_table: str | None,
) -> None:
    """Create a selection table with all combinations of the given ids and parameter strings."""
    ids = _check_arch_table(db, model_arch_table, model_id_list)
    functions = None if object_table is None else objects.check(db, object_table)
    table, summary = db.output_table(model_selection_table, "_summary")
    if not compile_params_list:
        raise MopError("compile_params_list must not be NULL or empty")
    if not fit_params_list:
        raise MopError("fit_params_list must not be NULL or empty")
    # Strings of equal meaning count once, in their last spelling.
    compiles, fits = {}, {}
    for text in compile_params_list:
        check_compile(db, text, functions)
        compiles[params.canonical_compile(text)] = text
    for text in fit_params_list:
        check_fit(db, text)
        fits[params.canonical_fit(text)] = text
    _make_table(db, table)
    for row in itertools.product(ids, compiles.values(), fits.values()):
        _insert(db, table, row)
    _make_summary(db, summary, model_arch_table, functions)


@sql_function
def generate_model_configs(
    db: Database,
    model_arch_table: str | None,
    model_selection_table: str | None,
    model_id_list: list[int] | None,
    compile_params_grid: str | None,
    fit_params_grid: str | None,
    search_type: str | None,
    num_configs: int | None,
    random_state: int | None,
    object_table: str | None,
) -> None:
    """Create a selection table, or append to one, from a grid of parameters or a random sample of the grid."""
    ids = _check_arch_table(db, model_arch_table, model_id_list)
    functions = None if object_table is None else objects.check(db, object_table)
    search = next((s for s in ("grid", "random") if s.startswith((search_type or "").strip().lower())), None)
    if search is None:
        raise MopError(f"search_type must be 'grid' or 'random', not {search_type!r}")
    try:
        compile_grid = grids.parse(compile_params_grid, "compile_params_dict", grids.COMPILE_KEYS)
        fit_grid = grids.parse(fit_params_grid, "fit_params_dict", grids.FIT_KEYS)
        if search == "grid":
            if num_configs is not None or random_state is not None:
                raise MopError(
                    "num_configs and random_state must be NULL in grid search",
                    hint="Call with search_type => 'random'.",
                )
            rows: Iterable[Row] = grids.grid_search(ids, compile_grid, fit_grid)
        else:
            if num_configs is None or num_configs < 1:
                raise MopError(f"num_configs must be at least 1 in random search, not {num_configs}")
            space, random = Space({"model_id": ids, **compile_grid, **fit_grid}), Random(random_state)
            rows = (space.configuration(space.sample(random)) for _ in itertools.count())
    except grids.GridError as error:
        raise MopError(str(error)) from None
    table, existing_rows = _open_table(db, model_selection_table, model_arch_table, functions)
    if search == "grid":
        for row in rows:
            _check_row(db, row, functions)
            if row in existing_rows:
                raise MopError(
                    f"the configuration {row} is in {table} already",
                    hint="Delete it there, or generate into another table.",
                )
            existing_rows.add(row)
            _insert(db, table, row)
        return
    row_count = tries = 0
    for row in rows:
        if row_count == num_configs:
            break
        if row in existing_rows:
            tries += 1
            if tries > MOST_TRIES:
                raise MopError(
                    f"the grids have no {num_configs} different configurations that are new: found {row_count}",
                    hint="Ask for fewer, or use search_type => 'grid'.",
                )
            continue
        _check_row(db, row, functions)
        existing_rows.add(row)
        _insert(db, table, row)
        row_count, tries = row_count + 1, 0


def check_compile(db: Database, text: str | None, functions: str | None) -> None:
    """Raises MopError unless a compile_params string is valid and the object table `functions` (quoted, or None) has its
    custom functions."""
    try:
        parsed = params.parse_compile_params(text)
    except params.ParameterError as error:
        raise MopError(f"invalid compile_params {text!r}: {error}") from None
    if problem := objects.missing_names(db, functions, parsed):
        raise MopError(f"invalid compile_params {text!r}: {problem}")


def check_fit(db: Database, text: str | None) -> None:
    """Raises MopError unless a fit_params string is valid; only superusers may use callbacks."""
    try:
        parsed = params.parse_fit_params(text)
    except params.ParameterError as error:
        raise MopError(f"invalid fit_params {text!r}: {error}") from None
    if parsed["callbacks"] and not db.is_superuser():
        raise MopError("only a superuser may use callbacks", detail="They write files on the server.", sqlstate="42501")


def architecture_table(db: Database, summary: Table) -> tuple[str | None, str | None]:
    """The architecture table named by the summary of a selection table: (name as given, name to look up).

    A name without a schema is looked up in the schema that had the table when the summary was made, not in the present
    search_path. A handmade summary may lack this schema (column `model_arch_schema`).
    """
    row = db.one(f"SELECT * FROM {summary} LIMIT 1") or {}
    text: str | None = row.get("model_arch_table")
    schema: str | None = row.get("model_arch_schema")
    if text is None or not text.strip() or schema is None or db.parse_name(text)[0] is not None:
        return text, text
    return text, db.bare(f"{quote_identifier(schema)}.{text}")


def _check_row(db: Database, row: Row, functions: str | None) -> None:
    check_compile(db, row[1], functions)
    check_fit(db, row[2])


def _check_arch_table(db: Database, text: str | None, model_ids: list[int] | None) -> list[int]:
    """The different ids, in order. Raises MopError for one that is not in the architecture table."""
    table = architectures.open_table(db, text)
    architectures.check_list(model_ids)
    ids = sorted(set(model_ids or ()))
    existing_ids = {row["model_id"] for row in db.execute(f"SELECT model_id FROM {table}")}
    unknown = [model_id for model_id in ids if model_id not in existing_ids]
    if unknown:
        raise MopError(
            f'model_id {", ".join(map(str, unknown))} is not in "{text}"', hint=f"SELECT model_id, name FROM {table};"
        )
    return ids


def _open_table(
    db: Database, text: str | None, model_arch_table: str | None, functions: str | None
) -> tuple[str, set[Row]]:
    """(the selection table, created if it does not exist; the set of its configurations)."""
    existing = db.find_table(text) if text and text.strip() else None
    if existing is None:
        table, new_summary = db.output_table(text, "_summary")
        _make_table(db, table)
        _make_summary(db, new_summary, model_arch_table, functions)
        return table, set()
    absent_columns = [
        c for c in ("mst_key", "model_id", "compile_params", "fit_params") if c not in db.columns(existing)
    ]
    if absent_columns:
        raise MopError(f'"{text}" is no model selection table: it has no column {absent_columns[0]}')
    suffixed = db.suffixed(str(text), "_summary")
    summary = db.find_table(suffixed)
    if summary is None:
        _make_summary(db, db.output_table(suffixed), model_arch_table, functions)
    else:
        theirs, where = architecture_table(db, summary)
        if theirs is None or str(db.find_table(str(where))) != str(db.find_table(str(model_arch_table))):
            raise MopError(
                f'model selection table "{text}" was made for the architecture table "{theirs}", '
                f'not "{model_arch_table}"',
                hint="Generate into another table.",
            )
        if functions is not None:
            theirs = db.value(f"SELECT object_table FROM {summary} LIMIT 1")
            if theirs is not None and objects.check(db, theirs) != functions:
                raise MopError(
                    f'model selection table "{text}" was made with the object table "{theirs}", not {functions}',
                    hint="Generate into another table.",
                )
            db.execute(f"UPDATE {summary} SET object_table = $1", ["text"], [_readable(db, functions)])
    rows = db.execute(f"SELECT model_id, compile_params, fit_params FROM {existing}")
    return str(existing), {(r["model_id"], r["compile_params"], r["fit_params"]) for r in rows}


def _make_table(db: Database, table: str) -> None:
    db.execute(
        f"CREATE TABLE {table} (mst_key serial, model_id integer, compile_params varchar, fit_params varchar, "
        f"UNIQUE (model_id, compile_params, fit_params))"
    )
    db.identify_by_all(table)  # MADlib's columns have no primary key, and users delete rows


def _make_summary(db: Database, summary: str, model_arch_table: str | None, functions: str | None) -> None:
    schema = architectures.open_table(db, model_arch_table).schema
    db.execute(f"CREATE TABLE {summary} (model_arch_table varchar, object_table varchar, model_arch_schema varchar)")
    db.identify_by_all(summary)
    db.execute(
        f"INSERT INTO {summary} VALUES ($1, $2, $3)",
        ["text", "text", "text"],
        [
            model_arch_table,
            functions and _readable(db, functions),
            "pg_temp" if schema.startswith("pg_temp_") else schema,
        ],
    )


def _readable(db: Database, quoted: str) -> str:
    """A quoted name without needless quotes."""
    return db.bare(quoted)


def _insert(db: Database, table: str, row: Row) -> None:
    db.execute(
        f"INSERT INTO {table} (model_id, compile_params, fit_params) VALUES ($1, $2, $3)",
        ["integer", "text", "text"],
        list(row),
    )

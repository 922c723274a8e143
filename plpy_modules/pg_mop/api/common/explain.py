"""mop_explain: what a call would do, and what it would take, without doing it."""

from __future__ import annotations

import functools
import json
from typing import Any

from mop_udf.errors import raise_error
from pg_mop.backend import explaining
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError, error_of
from pg_mop.backend.explaining import SUPPORTED, Explaining
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier
from pg_mop.explain import call_text, plan_text, preview

FORMATS = ("text", "json")
PROCEDURES = {
    "mop_fit_multiple_model": "madlib_keras_fit_multiple_model"
}  # procedure -> the function of the same arguments


@sql_function
def mop_explain(db: Database, command: str | None, output_format: str | None, measure: bool | None) -> str | None:
    """The plan of a call (text), as text or JSON. The call makes all its checks, and nothing else; with `measure`, a few
    mini-batches of each net are timed in a trial that is rolled back.

    Raises MopError for a text that is not one call of a function that can be explained, and the call's own error where the
    call would fail.
    """
    format_name = read_format(output_format)
    call = call_text.parse(command, db.extension)
    statement = f"SELECT {db.extension}.{quote_identifier(_function(db, call))}({call.arguments})"
    plan = planned(db, statement, bool(measure))
    return json.dumps(plan) if format_name == "json" else plan_text.render(plan)


def read_format(text: str | None) -> str:
    """The wanted format, of FORMATS. Raises MopError."""
    format_name = (text or "text").strip().lower()
    if format_name not in FORMATS:
        raise MopError(
            f"format must be 'text' or 'json', not {text!r}",
            hint="format => 'json', or leave it out.",
            sqlstate="22023",
        )
    return format_name


def _function(db: Any, call: call_text.Call) -> str:
    """The name of our function that a call names. Raises MopError."""
    name = call.name[-1]
    if len(call.name) == 2:
        ours = call.name[0] == db.schema
    else:
        with db.caller_path():
            rows = db.execute(
                "SELECT DISTINCT n.nspname::text AS schema FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n "
                "ON n.oid OPERATOR(pg_catalog.=) p.pronamespace WHERE p.proname OPERATOR(pg_catalog.=) $1::pg_catalog.name "
                "AND pg_catalog.pg_function_is_visible(p.oid)",
                ["pg_catalog.text"],
                [name],
            )
        ours = [row["schema"] for row in rows] == [db.schema]
    target = PROCEDURES.get(name, name) if call.procedure else name
    if not ours or target not in SUPPORTED or call.procedure != (name in PROCEDURES):
        shown = ".".join(call.name)
        exists = (
            "SELECT EXISTS (SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
            "WHERE p.proname = $1::name AND n.nspname = $2::name)"
        )
        if ours and db.value(exists, ["text", "text"], [name, db.schema]):
            raise explaining.unsupported(shown)
        where = "" if ours or len(call.name) == 2 else f", or {db.extension} is not in your search_path"
        raise MopError(
            f"{shown} is no function of pg_mop{where}",
            detail=f"Calls of these functions can be explained: {', '.join(SUPPORTED)}.",
            hint=f"SELECT {db.extension}.mop_explain($$ SELECT {db.extension}.{SUPPORTED[0]}(...) $$);",
            sqlstate="42883",
        )
    return target


def planned(db: Any, statement: str, measure: bool = False) -> dict[str, Any]:
    """The plan of a statement that calls one of our functions with constants. Raises the error of the call."""
    begun = Explaining(functools.partial(preview.explain, measure=measure), db.callers_path)
    problem: MopError | None = None
    try:
        with explaining.begun(begun, db):
            db.check_cancel()
            db.plpy.execute(statement)
    except db.plpy.SPIError as error:
        problem = error_of(error)
    if problem is not None:  # (as it is: a MopError would have the name of mop_explain before it)
        raise_error(db.plpy, problem.message, problem.sqlstate, problem.detail, problem.hint)
    if begun.made is None:
        raise MopError(
            "this call shows help and trains nothing", hint="Give all its arguments, as the call that trains has them."
        )
    return begun.made

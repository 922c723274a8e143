"""The SQL functions as Python functions, made from the server's description, so that they always fit the server.

`mop_functions()` on the server returns the purpose and usage of each function; the catalog has the arguments.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import pandas
import sqlalchemy
from sqlalchemy import text

from pg_mop_client.database import plain, quote

ARGUMENTS = """
SELECT p.proname AS name, p.prokind = 'p' AS is_procedure, p.proretset AS is_set, p.pronargdefaults AS defaults,
       coalesce(p.proargnames[1:p.pronargs], '{}') AS arguments,
       ARRAY(SELECT pg_catalog.format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a(t, i) ORDER BY i)
           AS types
FROM pg_catalog.pg_proc p WHERE p.pronamespace = CAST(:schema AS text)::pg_catalog.regnamespace
AND p.proname = ANY (:names) AND coalesce(p.proargnames[1:p.pronargs], '{}') <> ARRAY['message'] ORDER BY p.oid
"""
OF_JSON = ("transform",)  # arguments of type text whose dictionaries are JSON

# call(function's row of mop_functions, statement, values, form) executes a statement
Call = Callable[[Any, str, Mapping[str, Any], Any], Any]


def methods(connection: sqlalchemy.Connection, schema: str, call: Call) -> dict[str, Callable[..., Any]]:
    """{name: function} of all SQL functions for users; `call` executes them."""
    described = {
        row.name: row for row in connection.execute(text(f"SELECT * FROM {plain(quote(schema))}.mop_functions()"))
    }
    forms: dict[str, list[Any]] = {}
    for row in connection.execute(text(ARGUMENTS), {"schema": quote(schema), "names": list(described)}):
        forms.setdefault(row.name, []).append(row)
    return {name: _method(schema, described[name], forms[name], call) for name in described if name in forms}


def _method(schema: str, function: Any, forms: list[Any], call: Call) -> Callable[..., Any]:
    """The Python function of an SQL function; `forms` are its overloaded forms, rows of ARGUMENTS.

    Its signature is the signature of the form with the most arguments. A call that names other arguments uses the form
    with all of these names.
    """
    longest = max(forms, key=lambda form: len(form.arguments))
    required = min(len(form.arguments) - form.defaults for form in forms)
    kinds = inspect.Parameter
    signature = inspect.Signature(
        [
            kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if i < required else None)
            for i, name in enumerate(longest.arguments)
        ]
    )

    def bind(*args: Any, **named: Any) -> dict[str, Any]:
        try:
            return signature.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{function.name}() {error}") from None

    def method(*args: Any, **named: Any) -> Any:
        if named.keys() - set(longest.arguments):
            form = next((f for f in forms if named.keys() <= set(f.arguments)), longest)
            bound = dict(zip(form.arguments, args))
            if named.keys() - set(form.arguments) or bound.keys() & named.keys() or len(args) > len(form.arguments):
                bind(*args, **named)  # raises the TypeError that names the mistake
            given = {**bound, **named}
        else:
            form, given = longest, bind(*args, **named)
        types = dict(zip(form.arguments, form.types))
        values = {name: adapt(value, "json" if name in OF_JSON else types[name]) for name, value in given.items()}
        listed = ", ".join(f"{quote(name)} => :{name}" for name in values)
        verb = "CALL" if form.is_procedure else "SELECT * FROM" if form.is_set else "SELECT"
        return call(function, f"{verb} {plain(quote(schema))}.{quote(function.name)}({listed})", values, form)

    method.__name__ = method.__qualname__ = function.name
    method.__doc__ = f"{function.about}\n\n{function.usage}"
    vars(method).update(__signature__=signature, bind=bind)
    return method


def adapt(value: Any, kind: str) -> Any:
    """A Python value as psycopg2 can pass it for an argument of the SQL type `kind`.

    A dictionary becomes JSON for json and jsonb, and Python's notation for other types.
    """
    value = _native(value)
    if isinstance(value, dict) or isinstance(value, list) and not kind.endswith("[]"):
        return json.dumps(value) if kind in ("json", "jsonb") else repr(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def _native(value: Any) -> Any:
    """A value with Python's types in place of numpy's and pandas', at any depth."""
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, (numpy.ndarray, pandas.Series, pandas.Index)):
        return [_native(own) for own in value.tolist()]
    if isinstance(value, dict):
        return {_native(key): _native(own) for key, own in value.items()}
    return type(value)(map(_native, value)) if type(value) in (list, tuple) else value

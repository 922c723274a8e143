"""The SQL functions as methods: made from what the server says of them, so that both are always the same.

`mop_functions()` on the server has each function's purpose and usage, the catalog its arguments.
"""

import inspect
import json

import numpy
import pandas
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


def methods(connection, schema, call):
    """{name: function} of all SQL functions for users. `call(function, statement, values, types)` carries one out."""
    told = {row.name: row for row in connection.execute(text(f"SELECT * FROM {plain(quote(schema))}.mop_functions()"))}
    forms = {}
    for row in connection.execute(text(ARGUMENTS), {"schema": quote(schema), "names": list(told)}):
        forms.setdefault(row.name, []).append(row)
    return {name: _method(schema, told[name], forms[name], call) for name in told if name in forms}


def _method(schema, told, forms, call):
    """A function with the signature of the form with the most arguments; of arguments that forms call otherwise, that
    of the form that has all names which are given."""
    longest = max(forms, key=lambda form: len(form.arguments))
    required = min(len(form.arguments) - form.defaults for form in forms)
    kinds = inspect.Parameter
    signature = inspect.Signature(
        [
            kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=kinds.empty if i < required else None)
            for i, name in enumerate(longest.arguments)
        ]
    )

    def bind(*args, **named):
        try:
            return signature.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{told.name}() {error}") from None

    def method(*args, **named):
        if named.keys() - set(longest.arguments):
            form = next((f for f in forms if named.keys() <= set(f.arguments)), longest)
            bound = dict(zip(form.arguments, args))
            if named.keys() - set(form.arguments) or bound.keys() & named.keys() or len(args) > len(form.arguments):
                bind(*args, **named)  # raises the TypeError that says what is wrong
            given = {**bound, **named}
        else:
            form, given = longest, bind(*args, **named)
        types = dict(zip(form.arguments, form.types))
        values = {name: adapt(value, types[name]) for name, value in given.items()}
        listed = ", ".join(f"{quote(name)} => :{name}" for name in values)
        verb = "CALL" if form.is_procedure else "SELECT * FROM" if form.is_set else "SELECT"
        return call(told, f"{verb} {plain(quote(schema))}.{quote(told.name)}({listed})", values, form)

    method.__name__ = method.__qualname__ = told.name
    method.__doc__ = f"{told.about}\n\n{told.usage}"
    method.__signature__, method.bind = signature, bind
    return method


def adapt(value, kind):
    """A Python value as psycopg2 passes it for an argument of an SQL type: dictionaries are written out."""
    value = _native(value)
    if isinstance(value, dict) or isinstance(value, list) and not kind.endswith("[]"):
        return json.dumps(value) if kind in ("json", "jsonb") else repr(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def _native(value):
    """A value without numpy's and pandas' types, at any depth."""
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, (numpy.ndarray, pandas.Series, pandas.Index)):
        return [_native(own) for own in value.tolist()]
    if isinstance(value, dict):
        return {_native(key): _native(own) for key, own in value.items()}
    return type(value)(map(_native, value)) if type(value) in (list, tuple) else value

"""SQL that trains configurations anew, in a new selection table and new output tables. Pure Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mop_udf.params import ParameterError, split
from pg_mop.backend.quoting import quote_literal

MOST_ROWS = 20  # configurations of a statement


def named_anew(table: str, suffix: str) -> str:
    """A table's name with a suffix, inside its closing quote.

    >>> named_anew("models", "_again"), named_anew('s."My t"', "_again")
    ('models_again', 's."My t_again"')
    """
    text = table.strip()
    return f'{text[:-1]}{suffix}"' if text.endswith('"') else text + suffix


def literal(value: Any) -> str:
    """A Python value as a literal of SQL."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"ARRAY[{', '.join(map(literal, value))}]" if value else "'{}'"
    return quote_literal(str(value))


def call(schema: str, function: str, arguments: Mapping[str, Any], gets: str) -> str:
    """A call of a function by the names of its arguments. Arguments that are None are left out; `schema` is as SQL
    writes it; `gets`: the server's operator between a name and its value."""
    given = [f"    {name} {gets} {literal(value)}" for name, value in arguments.items() if value is not None]
    return "\n".join([f"SELECT {schema}.{function}(", ",\n".join(given), ");"])


def train_rows(
    run: Mapping[str, Any], arch_table: str, rows: Sequence[tuple[int, str, str]], suffix: str, schema: str, gets: str
) -> str | None:
    """SQL that trains rows of (model_id, compile_params, fit_params) as the run did, into tables of another name; None
    where one selection table cannot have these rows and no others.

    load_model_selection_table crosses its lists: so the rows must be all combinations of their parts.
    """
    rows = list(dict.fromkeys(rows))[:MOST_ROWS]
    models, compiles, fits = ([*dict.fromkeys(parts)] for parts in zip(*rows))
    if len(models) * len(compiles) * len(fits) != len(rows):
        first = rows[0][0], rows[0][2]
        rows = [row for row in rows if (row[0], row[2]) == first]
        models, compiles, fits = [first[0]], [*dict.fromkeys(row[1] for row in rows)], [first[1]]
    output = named_anew(run["model_output_table"], suffix)
    selection = named_anew(run["model_output_table"], f"{suffix}_mst")
    return (
        f"SELECT {schema}.load_model_selection_table({literal(arch_table)}, {literal(selection)}, {literal(models)},\n"
        f"    {literal(compiles)},\n    {literal(fits)});\n"
        + call(
            schema,
            "madlib_keras_fit_multiple_model",
            {
                "source_table": run["source_table"],
                "model_output_table": output,
                "model_selection_table": selection,
                "num_iterations": run["num_iterations"],
                "use_gpus": False,
                "validation_table": run["validation_table"],
            },
            gets,
        )
    )


def clipped(compile_params: str) -> str | None:
    """Compile parameters whose optimizer clips its gradients; None where it clips already, or where they do not parse.

    >>> clipped("loss='mse', optimizer='SGD(lr=9.0)'")
    "loss='mse', optimizer='SGD(lr=9.0, clipnorm=1.0)'"
    >>> clipped("loss='mse', optimizer='SGD'")
    "loss='mse', optimizer='SGD(clipnorm=1.0)'"
    """
    return with_parameter(compile_params, "clipnorm", 1.0)


def with_parameter(compile_params: str, name: str, value: float) -> str | None:
    """Compile parameters with one more argument of the optimizer; None where it has it, or where they do not parse."""
    try:
        given = split(compile_params)
        text = given["optimizer"].strip()
        found = re.fullmatch(r"""(['"]?)(\w+)(?:\((.*)\))?\1""", text, re.DOTALL)
        if found is None or found[3] and name in split(found[3]):
            return None
    except (ParameterError, KeyError):
        return None
    quote, optimizer, arguments = found[1], found[2], (found[3] or "").strip()
    new = f"{quote}{optimizer}({arguments}{', ' if arguments else ''}{name}={value!r}){quote}"
    return compile_params.replace(text, new, 1)


def with_value(text: str, name: str, value: float) -> str | None:
    """Parameters (compile or fit) with another number for `name`, which is `learning_rate` for lr, too; None where they
    have no such number.

    >>> with_value("loss='mse', optimizer='SGD(lr=0.1)'", "learning_rate", 0.3)
    "loss='mse', optimizer='SGD(lr=0.3)'"
    >>> with_value("batch_size=8", "batch_size", 16)
    'batch_size=16'
    """
    names = "lr|learning_rate" if name == "learning_rate" else re.escape(name)
    pattern = re.compile(rf"(?<![\w'\"])((?:{names})\s*=\s*)[-+]?[\d.]+(?:[eE][-+]?\d+)?(?=\s*(?:[,)]|$))")
    changed, count = pattern.subn(lambda found: f"{found[1]}{value!r}", text)
    return changed if count == 1 else None

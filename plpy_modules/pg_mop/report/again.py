"""SQL that trains configurations anew, in a new selection table and new output tables. Pure Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mop_udf.params.params import ParameterError, split
from pg_mop.backend.quoting import MAX_NAME, quote_literal

MOST_ROWS = 20  # configurations of a statement
ROOM = len("_summary")  # bytes at the end of a name, for the names of the tables that belong to it
CARRIED = ("metrics_compute_frequency", "folds")  # arguments that a new call of the same kind has, too

ModelRow = tuple[int, str, str]  # model_id, compile_params, fit_params


def named_anew(table: str, suffix: str) -> str:
    """A table's name with a suffix, inside its closing quote. The name is shortened where it would be too long, with
    ROOM for the names of the tables that belong to the new one.

    >>> named_anew("models", "_again"), named_anew('s."My t"', "_again")
    ('models_again', 's."My t_again"')
    >>> named_anew("s." + "m" * 55, "_again") == "s." + "m" * 49 + "_again"
    True
    """
    text = table.strip()
    match = re.fullmatch(r'(.*?)("(?:[^"]|"")*"|[^".]*)', text, re.DOTALL)
    schema, last = (match[1], match[2]) if match is not None else ("", text)
    quoted = last.startswith('"')
    name = last[1:-1].replace('""', '"') if quoted else last
    most = MAX_NAME - ROOM - len(suffix.encode())
    short = name.encode()[:most].decode(errors="ignore")
    if short + suffix == name:  # the name ended so before it was shortened
        short = short[:-1]
    new = short + suffix
    return schema + (f'"{new.replace(chr(34), chr(34) * 2)}"' if quoted else new)


def suffixed(table: str, suffix: str) -> str:
    """The name of a table that belongs to another.

    >>> suffixed("models", "_info"), suffixed('s."My t"', "_info")
    ('models_info', 's."My t_info"')
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
    lines = [f"    {name} {gets} {literal(value)}" for name, value in arguments.items() if value is not None]
    return "\n".join([f"SELECT {schema}.{function}(", ",\n".join(lines), ");"])


def train_rows(
    run: Mapping[str, Any],
    arch_table: str,
    rows: Sequence[ModelRow],
    suffix: str,
    schema: str,
    gets: str,
    arguments: Mapping[str, Any],
    object_table: str | None = None,
) -> tuple[str, set[ModelRow]]:
    """(SQL that trains rows of (model_id, compile_params, fit_params) as the run did, into tables of another name; the rows
    that it trains). `arguments`: of the run's call; `object_table`: of its custom functions.

    load_model_selection_table crosses its lists, so the trained rows are all combinations of their parts: some rows may be left
    out. MOST_ROWS are trained at most.
    """
    rows = list(dict.fromkeys(rows))[:MOST_ROWS]
    models, compiles, fits = ([*dict.fromkeys(parts)] for parts in zip(*rows))
    if len(models) * len(compiles) * len(fits) != len(rows):
        first = rows[0][0], rows[0][2]
        rows = [row for row in rows if (row[0], row[2]) == first]
        models, compiles, fits = [first[0]], [*dict.fromkeys(row[1] for row in rows)], [first[1]]
    selection = named_anew(run["model_output_table"], f"{suffix}_mst")
    functions = "" if object_table is None else f",\n    {literal(object_table)}"
    sql = (
        f"SELECT {schema}.load_model_selection_table({literal(arch_table)}, {literal(selection)}, {literal(models)},\n"
        f"    {literal(compiles)},\n    {literal(fits)}{functions});\n"
        + call(
            schema,
            "madlib_keras_fit_multiple_model",
            {
                "source_table": run["source_table"],
                "model_output_table": named_anew(run["model_output_table"], suffix),
                "model_selection_table": selection,
                "num_iterations": run["num_iterations"],
                "use_gpus": bool(arguments.get("use_gpus")),
                "validation_table": run["validation_table"],
                **{name: arguments.get(name) for name in CARRIED},
            },
            gets,
        )
    )
    return sql, set(rows)


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
        parameters = split(compile_params)
        text = parameters["optimizer"].strip()
        match = re.fullmatch(r"""(['"]?)(\w+)(?:\((.*)\))?\1""", text, re.DOTALL)
        if match is None or match[3] and name in split(match[3]):
            return None
    except (ParameterError, KeyError):
        return None
    quote, optimizer, arguments = match[1], match[2], (match[3] or "").strip()
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
    new, count = pattern.subn(lambda match: f"{match[1]}{value!r}", text)
    return new if count == 1 else None

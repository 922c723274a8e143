"""Parameter strings of configurations as a flat {name: value}, for tables and axes."""

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mop_udf.params.params import ParameterError, split


def flat(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """{name: number or text} of a configuration, a dict with model_id, compile_params and fit_params.

    The optimizer's arguments are on the same level as the other parameters. A string that does not parse is one value.
    """
    parameters = {"model_id": configuration["model_id"]}
    for argument in ("compile_params", "fit_params"):
        try:
            parameters.update(_read(configuration[argument] or ""))
        except ParameterError:
            parameters[argument] = configuration[argument]
    return parameters


def varied(configurations: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """(names of the parameters that differ between configurations, {name: value} of the others), in order of occurrence.

    A configuration is a dict with `parameters`, as `flat` gives them.
    """
    names = dict.fromkeys(name for c in configurations for name in c["parameters"])
    differ = [n for n in names if len({repr(c["parameters"].get(n)) for c in configurations}) > 1]
    return differ, {n: configurations[0]["parameters"][n] for n in names if n not in differ}


@functools.lru_cache(maxsize=4096)  # configurations have many texts in common
def _read(text: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for name, value in split(text).items() if text.strip() else ():
        optimizer = re.fullmatch(r"(\w+)\((.*)\)", value.strip("'\" "), re.DOTALL) if name == "optimizer" else None
        parameters[name] = optimizer[1] if optimizer else _literal(value)
        for argument, text_of_value in split(optimizer[2]).items() if optimizer and optimizer[2].strip() else ():
            parameters["learning_rate" if argument == "lr" else argument] = _literal(text_of_value)
    return parameters


def _literal(text: str) -> Any:
    """The number or string that a text means; for other values, such as a list or a sequence, the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (int, float, str)) else text

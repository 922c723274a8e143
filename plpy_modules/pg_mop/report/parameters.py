"""Parameter strings of configurations as a flat {name: value}, for tables and axes."""

import ast
import re

from mop_udf.params import ParameterError, split


def flat(configuration):
    """{name: number or text} of a configuration, a dict with model_id, compile_params and fit_params.

    The optimizer's arguments stand beside the others. A string that does not parse stands as it is.
    """
    found = {"model_id": configuration["model_id"]}
    for which in ("compile_params", "fit_params"):
        try:
            found.update(_read(configuration[which] or ""))
        except ParameterError:
            found[which] = configuration[which]
    return found


def varied(configurations):
    """Names of `parameters` in the order in which they are met: those that differ somewhere, and {name: value} of those
    that do not."""
    names = dict.fromkeys(name for c in configurations for name in c["parameters"])
    differ = [n for n in names if len({repr(c["parameters"].get(n)) for c in configurations}) > 1]
    return differ, {n: configurations[0]["parameters"][n] for n in names if n not in differ}


def _read(text):
    found = {}
    for name, value in split(text).items() if text.strip() else ():
        optimizer = re.fullmatch(r"(\w+)\((.*)\)", value.strip("'\" "), re.DOTALL) if name == "optimizer" else None
        found[name] = optimizer[1] if optimizer else _literal(value)
        for argument, given in split(optimizer[2]).items() if optimizer and optimizer[2].strip() else ():
            found["learning_rate" if argument == "lr" else argument] = _literal(given)
    return found


def _literal(text):
    """A number or a string that the text stands for; else, such as a list or a sequence, the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (int, float, str)) else text

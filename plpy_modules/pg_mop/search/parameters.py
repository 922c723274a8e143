"""Parameters of search procedures: their texts, defaults and checks."""

import ast
from collections.abc import Callable, Sequence
from typing import Any

from mop_udf.params import params

ON, OFF = ("on", "true", "yes"), ("off", "false", "no")
MOST_TRIALS, MOST_ITERATIONS = 1_000_000, 1_000_000


class SearchError(ValueError):
    """An error in the use of a procedure: the text names the wrong value, `hint` says how to correct it."""

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        self.hint = hint


class Parameter:
    """A parameter of a procedure."""

    def __init__(self, accepts: Callable[[Any], bool], wanted: str, default: Any, meaning: str) -> None:
        """`accepts`: checks a value; `wanted`: describes the accepted values; `meaning`: describes the parameter."""
        self.accepts, self.wanted, self.default, self.meaning = accepts, wanted, default, meaning


def integer(low: int, high: int, default: int | None, meaning: str) -> Parameter:
    """A parameter that is an integer; where the default is None, None is accepted, too."""

    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Parameter(accepts, f"an integer from {low} to {high}", default, meaning)


def number(low: float, high: float, default: float, meaning: str) -> Parameter:
    """A parameter that is a number."""

    def accepts(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high

    return Parameter(accepts, f"a number from {low} to {high}", default, meaning)


def word(words: Sequence[str], default: str, meaning: str) -> Parameter:
    """A parameter that is one of some words, in any case."""
    return Parameter(lambda value: value in words, "one of " + ", ".join(words), default, meaning)


def switch(default: str, meaning: str) -> Parameter:
    """A parameter that is on or off."""
    return Parameter(
        lambda value: isinstance(value, bool) or value in (*ON, *OFF),
        "one of " + ", ".join((*ON, *OFF)),
        default,
        meaning,
    )


def is_on(value: Any) -> bool:
    """True for the value of a switch that is on."""
    return value is True or value in ON


def read_parameters(text: str | None) -> dict[str, Any]:
    """The values of a text: 'iterations=27, sampler=tpe' -> {'iterations': 27, 'sampler': 'tpe'}.

    Raises SearchError for a text of another form.
    """
    values: dict[str, Any] = {}
    try:
        parts = params.split(text) if text and text.strip() else {}
    except params.ParameterError as error:
        raise SearchError(str(error), "Write name = value, name = value.") from None
    for name, value in parts.items():
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            values[name] = value
    return values

"""The grammar of parameter strings: reading and writing `key = value` pairs and literals.

Grammar (docs/contract/fit_multiple.md, section 4): `key = value, key = value`. Commas and equals signs inside brackets
do not separate; quotes do not protect them. Standard library only.
"""

import ast
import math
import re
import warnings
from typing import Any

from mop_udf.errors import abbreviated


class ParameterError(ValueError):
    """A parameter string is invalid; the text names the offending part."""


MOST_CHARACTERS = 100_000


def split(text: str) -> dict[str, str]:
    """'a = 1, b = [2, 3]' -> {'a': '1', 'b': '[2, 3]'}; the last value of a repeated key wins. Raises ParameterError."""
    if len(text) > MOST_CHARACTERS:
        raise ParameterError(f"a parameter string of {len(text)} characters is longer than {MOST_CHARACTERS}")
    values, depth, start, key = {}, 0, 0, None
    for position, character in enumerate(text + ","):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                raise ParameterError(f"unmatched {character!r} in {abbreviated(text)}")
        elif depth == 0 and character == "=" and key is None:
            key, start = text[start:position].strip(), position + 1
        elif character == "," and (depth == 0 or position == len(text)):
            if depth:
                raise ParameterError(f"an open bracket in {abbreviated(text)}")
            value = text[start:position].strip()
            if not key or not value:
                part = text[start:position].strip()
                raise ParameterError(f"{abbreviated(part)} in {abbreviated(text)} is not of the form key = value")
            values[key], start, key = value, position + 1, None
    return values


class Verbatim(str):
    """A text that is written as it is, without quotes."""


def write_literal(value: Any) -> str:
    """A literal as text, with brackets and quotes inside strings escaped: `split` would count them."""
    if isinstance(value, Verbatim):
        return str(value)
    if isinstance(value, str):
        return "'" + re.sub(r"[^\w ./:%+*-]", _escaped, value) + "'"
    if isinstance(value, dict):
        return "{" + ",".join(f"{write_literal(k)}:{write_literal(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(write_literal, value)) + "]"
    return repr(value + 0.0 if isinstance(value, float) else value)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def strip_quotes(text: str) -> str:
    return text.strip("'\"").strip()


def evaluate_literal(key: str, text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about odd literals
            value = ast.literal_eval(text)
        if not _is_plain(value):
            raise ValueError
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, IndexError, ArithmeticError):
        raise ParameterError(f"{abbreviated(key)} must be a literal, not {abbreviated(text)}") from None
    return value


def _is_plain(value: Any) -> bool:
    """True for None, booleans, strings, finite 64-bit numbers, and lists, tuples and dictionaries of these."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, str)) or is_number(value)


def literal_of(key: str, text: str | None, kinds: tuple[type, ...]) -> Any:
    """A literal of one of the types `kinds`, or None. Raises ParameterError."""
    if text is None:
        return None
    value = evaluate_literal(key, text)
    if value is not None and not isinstance(value, kinds):
        raise ParameterError(
            f"{key} must be a {' or '.join(k.__name__ for k in kinds)} or None, not {abbreviated(text)}"
        )
    return value


def check_integer(key: str, value: Any, low: int) -> None:
    if not is_integer(value) or not low <= value < 2**31:
        raise ParameterError(f"{key} must be an integer of at least {low}, not {abbreviated(value)}")


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_integer(value) and abs(value) < 2**63 or isinstance(value, float) and math.isfinite(value)

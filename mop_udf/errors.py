"""Errors: raising PostgreSQL's from Python, and shortening Keras'. Standard library only."""

import re
from typing import Any, NoReturn

# beginnings of lines in TensorFlow's and Keras' errors that precede the informative line
SAY_LITTLE = (
    "Graph execution error",
    "Detected at node",
    'File "',
    "<stack traces",
    "Exception encountered when calling",
)
# errors of Keras that repeat a whole config around the informative error
UNWRAPPED = re.compile("could not be deserialized properly|Error when deserializing class")
MADE_FROM = re.compile(r"class '(\w+)' using config=\{(?:'name': '([^']*)')?")


def raise_error(plpy: Any, message: str, sqlstate: str, detail: str | None = None, hint: str | None = None) -> NoReturn:
    """Raise a PostgreSQL error with DETAIL and HINT."""
    message, detail, hint = sendable(message), detail and sendable(detail), hint and sendable(hint)
    try:
        plpy.error(message, sqlstate=sqlstate, **{k: v for k, v in (("detail", detail), ("hint", hint)) if v})
    except TypeError:  # before PostgreSQL 9.6, plpy.error takes only a text
        hint = as_before_9_5(hint)
        problem = type("pg_mop", (plpy.SPIError,), {"__module__": "__main__"})(message)
        problem.sqlstate, problem.spidata = sqlstate, (_sqlcode(sqlstate), detail, hint, None, 0)
        raise problem from None
    raise AssertionError("plpy.error raises")


def sendable(message: str) -> str:
    """A message that PL/Python can send: half of a surrogate pair, as JSON and literals of Python may have it, is written as an
    escape. (PL/Python would raise its own error past Python's frames, and the next call would end the server.)

    >>> sendable("half " + chr(0xD800)) == "half " + chr(92) + "ud800"
    True
    """
    return message.encode("utf-8", "backslashreplace").decode()


def as_before_9_5(hint: str | None) -> str | None:
    """A hint with arguments named as PostgreSQL 9.4 and Greenplum 6 understand it: with := instead of =>.

    >>> as_before_9_5("session_counts => ARRAY[1, 2]")
    'session_counts := ARRAY[1, 2]'
    """
    return hint and hint.replace(" => ", " := ")


def sqlstate_of(error: Exception) -> str:
    """The SQLSTATE of an SPI error. (Before PostgreSQL 9.6, an error raised from Python has only the SQLSTATE's
    number.)
    """
    number = (getattr(error, "spidata", None) or (0,))[0]
    return getattr(error, "sqlstate", None) or "".join(chr((number >> 6 * i & 0x3F) + ord("0")) for i in range(5))


def _sqlcode(sqlstate: str) -> int:
    """The number of an SQLSTATE in PostgreSQL's C code."""
    return sum((ord(c) - ord("0") & 0x3F) << 6 * i for i, c in enumerate(sqlstate))


def first_line(error: BaseException) -> str:
    """The first informative line of an exception's text, short enough for an error message.

    For an object that Keras cannot make, that is the error of the object's constructor, without the enclosing configs.
    """
    where = ""
    while UNWRAPPED.search(str(error)) and error.__context__ is not None:
        if made := MADE_FROM.search(str(error)):
            where = f"{made[1]}{' ' + repr(made[2]) if made[2] else ''}: "
        error = error.__context__
    text = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
    lines = [re.sub(r"\x1b\[\d+m|\{\{function_node \S+\}\} ?", "", line).strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith(SAY_LITTLE)] or [type(error).__name__]
    if len(said) > 1 and said[0].endswith("Error encountered:"):  # (Keras names the cause in the next line)
        said = said[1:]
    return (where + said[0])[:500]


def refusal(error: BaseException) -> str:
    """The class and the shortened text of an exception: the reason why a kernel or prefix is not used."""
    return f"{type(error).__name__}: {first_line(error)[:200]}"


def abbreviated(value: Any) -> str:
    """The repr of a value, cut to 200 characters for an error message."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."

"""Errors: PostgreSQL's, raised from Python, and what Keras' say. Standard library only."""

import re

# how lines of TensorFlow's and Keras' errors begin that come before the one that says what is wrong
SAY_LITTLE = (
    "Graph execution error",
    "Detected at node",
    'File "',
    "<stack traces",
    "Exception encountered when calling",
)
# Keras' errors that repeat a whole config around the one that says what is wrong
UNWRAPPED = re.compile("could not be deserialized properly|Error when deserializing class")
MADE_FROM = re.compile(r"class '(\w+)' using config=\{(?:'name': '([^']*)')?")


def raise_error(plpy, message, sqlstate, detail=None, hint=None):
    """Raise an error of PostgreSQL's, with its DETAIL and HINT."""
    try:
        plpy.error(message, sqlstate=sqlstate, **{k: v for k, v in (("detail", detail), ("hint", hint)) if v})
    except TypeError:  # before PostgreSQL 9.6 it takes a text alone: what tells more is an error of SPI's
        problem = type("pg_mop", (plpy.SPIError,), {"__module__": "__main__"})(message)
        problem.sqlstate, problem.spidata = sqlstate, (_sqlcode(sqlstate), detail, hint, None, 0)
        raise problem from None


def sqlstate_of(error):
    """The SQLSTATE of an error of SPI's. (Before PostgreSQL 9.6 one of our own has only its number.)"""
    number = (getattr(error, "spidata", None) or (0,))[0]
    return getattr(error, "sqlstate", None) or "".join(chr((number >> 6 * i & 0x3F) + ord("0")) for i in range(5))


def _sqlcode(sqlstate):
    """The number by which PostgreSQL's C code knows an SQLSTATE."""
    return sum((ord(c) - ord("0") & 0x3F) << 6 * i for i, c in enumerate(sqlstate))


def first_line(error):
    """The first line of an exception's text that says something, short enough for an error message.

    Of an object that Keras cannot make, it is what its own constructor says, not the configs of all that it is in.
    """
    where = ""
    while UNWRAPPED.search(str(error)) and error.__context__ is not None:
        if made := MADE_FROM.search(str(error)):
            where = f"{made[1]}{' ' + repr(made[2]) if made[2] else ''}: "
        error = error.__context__
    text = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
    lines = [re.sub(r"\x1b\[\d+m|\{\{function_node \S+\}\} ?", "", line).strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith(SAY_LITTLE)] or [type(error).__name__]
    return (where + said[0])[:500]


def refusal(error):
    """The kind of an exception and what it says, short: why something is not used."""
    return f"{type(error).__name__}: {first_line(error)[:200]}"


def abbreviated(value):
    """The repr of a value, cut to 200 characters for an error message."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."

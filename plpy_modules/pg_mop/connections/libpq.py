"""Functions of libpq that psycopg2 does not offer, called in the libpq that psycopg2 has loaded."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import psycopg2

_LIBPQ = ctypes.PyDLL(psycopg2._psycopg.__file__)
DEFAULT, VERBOSE = 1, 2  # PGVerbosity


def take_rows_singly(connection: Any) -> None:
    """Receive the rows of the command just sent one by one. psycopg2 drops each row at the next, so a result of any size
    needs little memory."""
    _call("PQsetSingleRowMode", connection)


def set_verbosity(connection: Any, verbosity: int) -> None:
    """Set the verbosity of error messages. A refused connection has its SQLSTATE only in a VERBOSE message."""
    _call("PQsetErrorVerbosity", connection, verbosity)


def _call(name: str, connection: Any, *arguments: int) -> None:
    """(A psycopg2 linked otherwise may not export libpq's functions. Only memory use and wording depend on them.)"""
    if (function := getattr(_LIBPQ, name, None)) is not None:
        function(ctypes.c_void_p(connection.pgconn_ptr), *arguments)


def refusal(error: Exception) -> tuple[str, str | None]:
    """(message, SQLSTATE or None) of a VERBOSE connection error; the message loses VERBOSE's additions."""
    # After several attempts, such as with and without TLS, the text has the messages of all.
    text = re.sub(r"\n[^\n:]+: +\w+, \w+\.c:\d+(?=\n|$)", "", str(error).strip())
    codes = re.findall(r"(?<=:  )([0-9A-Z]{5}): ", text)
    return re.sub(r"(?<=:  )[0-9A-Z]{5}: ", "", text), codes[-1] if codes else None

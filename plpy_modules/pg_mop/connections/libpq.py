"""What libpq can do and psycopg2 has no word for: by the libpq that psycopg2 itself has loaded."""

import ctypes
import re

import psycopg2

_LIBPQ = ctypes.PyDLL(psycopg2._psycopg.__file__)
DEFAULT, VERBOSE = 1, 2  # PGVerbosity


def take_rows_singly(connection):
    """Of what has just been sent each row is a result of its own, which psycopg2 forgets when the next one comes: rows
    without end take no memory."""
    _call("PQsetSingleRowMode", connection)


def set_verbosity(connection, verbosity):
    """What the server refuses while a session is opened has its SQLSTATE in the text alone, and there if VERBOSE."""
    _call("PQsetErrorVerbosity", connection, verbosity)


def _call(name, connection, *arguments):
    """(A psycopg2 that is linked otherwise may not show libpq's functions: memory and words alone depend on it.)"""
    if (function := getattr(_LIBPQ, name, None)) is not None:
        function(ctypes.c_void_p(connection.pgconn_ptr), *arguments)


def refusal(error):
    """(text, SQLSTATE or None) of such an error, the text without what VERBOSE adds."""
    # (of several tries, as with TLS and without, the text has all)
    text = re.sub(r"\n[^\n:]+: +\w+, \w+\.c:\d+(?=\n|$)", "", str(error).strip())
    codes = re.findall(r"(?<=:  )([0-9A-Z]{5}): ", text)
    return re.sub(r"(?<=:  )[0-9A-Z]{5}: ", "", text), codes[-1] if codes else None

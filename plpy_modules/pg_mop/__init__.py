"""pg_mop: a query optimizer and executor for model selection, inside PostgreSQL."""

import ctypes
import os
import sys

if hasattr(ctypes.CDLL(None), "PQconnectdb"):
    # Greenplum's backends contain another libpq, which psycopg2 must not use.
    _flags = sys.getdlopenflags()
    sys.setdlopenflags(_flags | os.RTLD_DEEPBIND)
    try:
        import psycopg2  # noqa: F401
    finally:
        sys.setdlopenflags(_flags)

__version__ = "0.4.0"

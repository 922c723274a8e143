"""Queries that leave nothing behind: with the caller's rights, or with those of another role."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RESTRICTED = 2  # SECURITY_RESTRICTED_OPERATION of PostgreSQL's miscadmin.h


@functools.cache
def _switch() -> tuple[Any, Any]:
    """PostgreSQL's functions that tell and set whose rights are in force, and how."""
    library = ctypes.CDLL(None)
    tell, put = library.GetUserIdAndSecContext, library.SetUserIdAndSecContext
    tell.restype, tell.argtypes = None, [ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_int)]
    put.restype, put.argtypes = None, [ctypes.c_uint32, ctypes.c_int]
    return tell, put


@contextmanager
def undone(plpy: Any) -> Iterator[None]:
    """Roll the block's changes back at its end, which also releases its locks. Exceptions pass."""
    part = plpy.subtransaction()
    part.__enter__()
    try:
        yield
    finally:
        part.__exit__(Exception, None, None)  # rolls back, as after an exception


@contextmanager
def undone_as(plpy: Any, role: int) -> Iterator[None]:
    """Run the block with the rights of a role (its OID), and roll back at its end whatever it has changed.

    It is a security-restricted operation, as those of REINDEX and ANALYZE: the role's code can leave nothing behind in the
    session. (SET ROLE is forbidden within a function of another owner.) An error that PostgreSQL raises past Python's frames
    aborts a transaction or subtransaction, and that gives the rights back, too.
    """
    tell, put = _switch()
    with undone(plpy):
        before, context = ctypes.c_uint32(), ctypes.c_int()
        tell(before, context)
        put(role, context.value | RESTRICTED)
        try:
            yield
        finally:
            put(before, context)

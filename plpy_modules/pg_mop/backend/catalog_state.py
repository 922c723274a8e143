"""Whether anything that a name or a right depends on may have changed since an earlier moment of the session."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import NamedTuple


class CatalogState(NamedTuple):
    """Two equal states of a session: names mean the same relations, and the role has the same rights.

    `user`: whose rights are in force (of a SECURITY DEFINER function, its owner's); `messages`: how many messages about changes
    of the catalog the session has received, which PostgreSQL's own lookup of names compares, too; `transaction`,
    `subtransaction`, `command`: of a transaction that has written, since its own changes send messages at its commit alone.
    All three are 0 for a transaction that has written nothing.
    """

    user: int
    messages: int
    transaction: int
    subtransaction: int
    command: int


@functools.cache
def _functions() -> tuple[Callable[[], int], ctypes.c_uint64, Callable[[], int], Callable[[], int], Callable[..., int]]:
    """The server's functions and variable. Raises AttributeError, ValueError where the process is no server with them."""
    server = ctypes.CDLL(None)
    user, transaction, subtransaction, command = (
        getattr(server, name)
        for name in ("GetUserId", "GetTopTransactionIdIfAny", "GetCurrentSubTransactionId", "GetCurrentCommandId")
    )
    for function in (user, transaction, subtransaction, command):
        function.restype = ctypes.c_uint32
    command.argtypes = (ctypes.c_bool,)
    return user, ctypes.c_uint64.in_dll(server, "SharedInvalidMessageCounter"), transaction, subtransaction, command


def catalog_state() -> CatalogState | None:
    """The state of this session; None where the server does not tell it. Call it in a backend's own thread."""
    try:
        user, messages, transaction, subtransaction, command = _functions()
    except (AttributeError, ValueError):
        return None
    number = transaction()
    if not number:
        return CatalogState(user(), messages.value, 0, 0, 0)
    return CatalogState(user(), messages.value, number, subtransaction(), command(False))

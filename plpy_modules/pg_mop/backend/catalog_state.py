"""Whether anything that a name or a right depends on may have changed since an earlier moment of the session."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from pg_mop.backend.acting import undone


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


class _Server(NamedTuple):
    """The server's functions, and its variable."""

    user: Callable[[], int]
    messages: ctypes.c_uint64
    transaction: Callable[[], int]
    subtransaction: Callable[[], int]
    command: Callable[[bool], int]
    begin: Callable[[], int]
    statement: Callable[[], int]


@functools.cache
def _server() -> _Server | None:
    """None where the process is no server that has them."""
    library = ctypes.CDLL(None)

    def function(name: str, result: type, *arguments: type) -> Callable[..., int]:
        found = getattr(library, name)
        found.restype, found.argtypes = result, arguments
        return found

    try:
        return _Server(
            function("GetUserId", ctypes.c_uint32),
            ctypes.c_uint64.in_dll(library, "SharedInvalidMessageCounter"),
            function("GetTopTransactionIdIfAny", ctypes.c_uint32),
            function("GetCurrentSubTransactionId", ctypes.c_uint32),
            function("GetCurrentCommandId", ctypes.c_uint32, ctypes.c_bool),
            function("GetCurrentTransactionStartTimestamp", ctypes.c_int64),
            function("GetCurrentStatementStartTimestamp", ctypes.c_int64),
        )
    except (AttributeError, ValueError):
        return None


def catalog_state() -> CatalogState | None:
    """The state of this session; None where the server does not tell it. Call it in a backend's own thread."""
    server = _server()
    if server is None:
        return None
    number = server.transaction()
    if not number:
        return CatalogState(server.user(), server.messages.value, 0, 0, 0)
    return CatalogState(server.user(), server.messages.value, number, server.subtransaction(), server.command(False))


def lock_scope() -> tuple[int, int] | None:
    """What holds the locks that are taken now: (begin of the transaction, its subtransaction)."""
    server = _server()
    return server and (server.begin(), server.subtransaction())


def statement_begin() -> int | None:
    """When the client's statement began; all statements of functions within it have its moment."""
    server = _server()
    return server and server.statement()


def hear(plpy: Any) -> None:
    """Let the session hear of what others have committed: at a lock that it does not hold yet, PostgreSQL reads the messages
    about changes of the catalog. The lock ends with this call."""
    global _any_lock
    with undone(plpy):
        if _any_lock is None:
            _any_lock = plpy.prepare("SELECT 1 FROM pg_catalog.pg_ts_template LIMIT 0")
        plpy.execute(_any_lock)


_any_lock: Any = None  # a plan; the table is one that no other statement reads

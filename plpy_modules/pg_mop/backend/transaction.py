"""The transaction of the calling session, as far as SQL does not tell."""

import ctypes


def is_in_block() -> bool:
    """Whether the statement is within BEGIN ... COMMIT, or one of several of a command: its end does not commit."""
    server = ctypes.PyDLL(None)
    if not hasattr(server, "IsTransactionBlock"):
        return False
    server.IsTransactionBlock.restype = ctypes.c_bool
    return bool(server.IsTransactionBlock())

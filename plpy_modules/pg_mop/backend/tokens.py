"""Greenplum: capability tokens and owners of runs in the memory of a coordinator's process.

Each query of a table visits a segment, so this memory saves queries. Only sql/greenplum/12_tokens.sql calls this module, and
only superusers can run other code in the process. The memory belongs to one installation of the extension: `home` is
the OID of its table mop_secret, and DROP EXTENSION and CREATE EXTENSION give another OID.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import struct
from collections.abc import Callable
from typing import Any

_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, the start of PostgreSQL's timestamps

_home: int | None = None
_secret: bytes | None = None
_owned: set[tuple[int, int]] = set()  # run and role: the role owns the run, for ever
_known: tuple[int, str | None, bytes] | None = None  # run, token and moment: checked in this transaction


def secret(plpy: Any, home: int) -> bytes | None:
    """The secret, which never changes. The first call reads the table, so its user needs the right to do so."""
    global _home, _secret, _known
    if _home != home:
        secret_here = plpy.execute(f"SELECT s.secret FROM {_name(plpy, home)} s")[0]["secret"]
        _owned.clear()
        _home, _secret, _known = home, secret_here, None
    return _secret


def _name(plpy: Any, home: int) -> str:
    return plpy.execute(f"SELECT {int(home)}::pg_catalog.oid::pg_catalog.regclass::pg_catalog.text AS name")[0]["name"]


def make(plpy: Any, home: int, learn: str) -> tuple[str, str]:
    """The two tokens of mop_tokens in this transaction: of the role whose rights are in force, and of the session.

    `learn`: SQL that loads the secret with its owner's rights. current_user and now() are read from the server's
    functions, since SQL would begin a subtransaction on all segments.
    """
    if _home != home:
        plpy.execute(learn)
    role, began, pid = (
        _server("GetUserId", ctypes.c_uint32)(),
        _server("GetCurrentTransactionStartTimestamp", ctypes.c_int64)(),
        os.getpid(),
    )
    return (
        f"{role} {_digest(b'caller', role, pid, struct.pack('>q', began))}",
        f"{pid} {began + _EPOCH} {_digest(b'backend', role, pid, struct.pack('>q', began + _EPOCH))}",
    )


@functools.cache
def _server(name: str, kind: type) -> Callable[[], int]:
    """A C function of the server without arguments; `kind`: the type of its result."""
    function = getattr(ctypes.CDLL(None), name)
    function.restype = kind
    return function


def _digest(kind: bytes, role: int, pid: int, moment: bytes) -> str:
    assert _secret is not None
    return hashlib.sha256(_secret + kind + struct.pack(">Ii", role, pid) + moment).hexdigest()


def caller(plpy: Any, home: int, token: str | None, pid: int, moment: bytes) -> int | None:
    """The OID of the role that received the token in this transaction, or None if the token is invalid."""
    secret(plpy, home)
    match = re.fullmatch(r"([0-9]{1,10}) ([0-9a-f]{64})", token or "")
    if match is None:
        return None
    role = int(match[1])
    return role if role < 1 << 32 and match[2] == _digest(b"caller", role, pid, moment) else None


def standing(plpy: Any, home: int, run: int, token: str | None, pid: int, moment: bytes) -> int:
    """The process's knowledge of a run and a token.

    2: the token's role owns the run, which exists in this transaction; 1: the role owns the run; 0: nothing.
    """
    if _home == home and _known == (run, token, moment):
        return 2
    role = caller(plpy, home, token, pid, moment)
    return int(role is not None and (run, role) in _owned)


def know(home: int, run: int, token: str, moment: bytes) -> None:
    """Remember that the token's role owns the run, which exists in this transaction."""
    global _known
    if _home == home:
        _owned.add((run, int(token.split()[0])))
        _known = run, token, moment

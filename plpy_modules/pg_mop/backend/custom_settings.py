"""Settings with a point in their name that no loaded library defines: applications use them, and we do.

No view of PostgreSQL lists them, but the server's memory has their names.
"""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pg_mop.backend.database import Database

OWN = "pg_mop."
NAME = re.compile(rb"[A-Za-z_\x80-\xff][\w$\x80-\xff]*(?:\.[A-Za-z_\x80-\xff][\w$\x80-\xff]*)+\Z")
MOST = 256  # bytes of a name; a longer text is a value
STRAY = 4  # bytes of the OID of a role, which may stand before a name


def own_names(db: Database) -> set[str]:
    """The names after `pg_mop.` that are set in this session.

    `current_setting` separates settings from other text, and from names that were reset.
    """
    names = {name.lower() for name in _names_in(_settings_in_memory())}
    return {name.removeprefix(OWN) for name in names if name.startswith(OWN) and db.setting(name)}


def of_applications(db: Database) -> tuple[tuple[str, str], ...]:
    """(name, value) of the settings of the caller's application, such as app.tenant: policies and views may read them."""
    names = sorted(name for name in _names_in(_settings_in_memory()) if not name.lower().startswith(OWN))
    if not names:
        return ()
    if db.has("current_setting", "text, bool"):  # an empty value differs from none: a policy may ask for NULL
        rows = db.execute("SELECT n, current_setting(n, true) AS text FROM unnest($1) AS n", ["text[]"], [names])
        values = {row["n"]: row["text"] for row in rows}
    else:
        values = {name: db.setting(name) for name in names}
    known = db.execute("SELECT lower(name) AS name FROM pg_settings WHERE name LIKE '%.%'")
    defined = {row["name"] for row in known}
    return tuple((name, value) for name, value in values.items() if value is not None and name.lower() not in defined)


def _names_in(text: bytes) -> set[str]:
    """All texts that may be such a setting's name.

    PostgreSQL 15 and later write the OID of a role before a name. Its last byte may look like a letter of the name, so each
    name is among the texts with and without its first letters.

    >>> role = (1100000000).to_bytes(4, "little")
    >>> names = _names_in(b"work_mem\\0004MB\\0app.Tenant\\0001\\0a.b-c\\0" + role + b"pg_mop.seed\\0")
    >>> "app.Tenant" in names, "pg_mop.seed" in names, "work_mem" in names
    (True, True, False)
    """
    # a search in all of a long value would take a time that grows with its square
    ends = (part[-MOST:] for part in text.split(b"\0") if b"." in part)
    longest = [match[0] for end in ends if (match := NAME.search(end))]
    shorter = (name[count:] for name in longest for count in range(STRAY + 1))
    return {name.decode("utf-8", "replace") for name in shorter if NAME.fullmatch(name)}


def _settings_in_memory() -> bytes:
    """Bytes with the names of at least those settings that differ from their defaults, each name before a zero byte.

    PostgreSQL writes these settings for parallel workers. PostgreSQL 9.4, the base of Greenplum 6, cannot: there, the names of
    all settings are read from the server's array.
    """
    server = ctypes.PyDLL(None)  # PyDLL keeps Python's lock, which an error of the server would need
    if hasattr(server, "SerializeGUCState"):
        server.EstimateGUCStateSpace.restype = ctypes.c_size_t
        server.SerializeGUCState.argtypes = [ctypes.c_size_t, ctypes.c_char_p]
        server.SerializeGUCState.restype = None
        # with too little room the server would raise an error, which jumps over Python's frames
        room = 2 * server.EstimateGUCStateSpace() + 1024
        copy = ctypes.create_string_buffer(room)
        server.SerializeGUCState(room, copy)
        return copy.raw
    return _names_of_all(server)


def _names_of_all(server: Any) -> bytes:
    """The names of all settings, each before a zero byte. The name is the first C member of a setting."""
    server.get_guc_variables.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_char_p))
    variables = server.get_guc_variables()
    return b"".join(variables[i][0] + b"\0" for i in range(server.GetNumConfigOptions()))

"""Greenplum: what a process of the coordinator knows of the catalog, where each look at a table is one at a segment.

It is asked by sql/greenplum/13_own.sql alone. (No role but superusers has code of its own in the process.) All belongs
to the extension as it was made once: `home` is the number of its table mop_secret, which a later one has not.
"""

import ctypes
import functools
import hashlib
import os
import re
import struct

_EPOCH = 946_684_800_000_000  # PostgreSQL counts from 2000

_home = None
_secret = None
_owned = set()  # (run, role): that the run is the role's, which it stays
_known = None  # (run, token, moment): what has been found in this transaction


def secret(plpy, home):
    """The secret, which stays as it was made. For those alone who may read it of its table."""
    global _home, _secret, _known
    if _home != home:
        found = plpy.execute(f"SELECT s.secret FROM {_name(plpy, home)} s")[0]["secret"]
        _owned.clear()
        _home, _secret, _known = home, found, None
    return _secret


def _name(plpy, home):
    return plpy.execute(f"SELECT {int(home)}::pg_catalog.oid::pg_catalog.regclass::pg_catalog.text AS name")[0]["name"]


def make(plpy, home, learn):
    """The ticket of the role whose rights are in force, in this transaction, and what tells others of the role that the
    session exists. `learn`: SQL that reads the secret first, with its owner's rights.

    (What PostgreSQL calls current_user and now() is asked without SQL, which would take a subtransaction on all
    segments.)
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
def _server(name, kind):
    """A function of the server's own, without arguments; `kind`: what it gives."""
    function = getattr(ctypes.CDLL(None), name)
    function.restype = kind
    return function


def _digest(kind, role, pid, moment):
    return hashlib.sha256(_secret + kind + struct.pack(">Ii", role, pid) + moment).hexdigest()


def caller(plpy, home, token, pid, moment):
    """The role that a ticket was given to in this transaction, or None: it is none of that."""
    secret(plpy, home)
    found = re.fullmatch(r"([0-9]{1,10}) ([0-9a-f]{64})", token or "")
    role = int(found[1]) if found else 1 << 32
    return role if role < 1 << 32 and found[2] == _digest(b"caller", role, pid, moment) else None


def standing(plpy, home, run, token, pid, moment):
    """What is known of a run and a ticket: 2, that they are the same role's, and the run is there, in this very
    transaction; 1, that they are the same role's; 0, nothing."""
    if _home == home and _known == (run, token, moment):
        return 2
    role = caller(plpy, home, token, pid, moment)
    return int(role is not None and (run, role) in _owned)


def know(home, run, token, moment):
    """That a run is the role's of a ticket has just been found."""
    global _known
    if _home == home:
        _owned.add((run, int(token.split()[0])))
        _known = run, token, moment

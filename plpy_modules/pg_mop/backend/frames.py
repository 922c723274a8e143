"""Greenplum: keep Python usable after a database error that skips Python's frames.

PL/Python sets and releases a savepoint around each query, and the coordinator does so on all segments. If that fails (a
cancel arrives at this instant, or a segment is lost), PL/Python does not catch the error: it jumps to the caller of
Python as if no frames existed. CPython 3.11 and 3.12 keep the current frame in a structure on the C stack, which is
overwritten after such a jump. The next call into Python then crashed the coordinator's process, and so ended all
sessions of the cluster.

So, during a query, the thread state points to a heap copy of that structure without a frame. After a jump, Python starts
from the copy. The skipped frames keep their objects until the session ends, run no `finally`, and their depth stays
subtracted from the recursion limit. 3.10 keeps a similar structure elsewhere and is not changed. Versions before 3.10
and from 3.13 on survive the jump.

Only functions on Greenplum import this module (tools/build_sql.py): it reads the thread state of CPython at an offset.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any

from pg_mop.backend.server_kind import ON_GREENPLUM

_POINTER = ctypes.c_void_p
_Structure = _POINTER * 3  # _PyCFrame
_OFFSET = 56  # of the pointer to the _PyCFrame in PyThreadState, in these versions
# The word of the _PyCFrame that points to the frame (_PyInterpreterFrame), and the code object's offset in the frame.
_FRAME, _CODE = {(3, 11): (1, 32), (3, 12): (0, 0)}.get(sys.version_info[:2], (-1, -1))
_state = ctypes.pythonapi.PyThreadState_Get
_state.restype = _POINTER


def _is_known() -> bool:
    """True if this Python has the structure at the expected offsets."""
    if _FRAME < 0 or platform.python_implementation() != "CPython" or ctypes.sizeof(_POINTER) != 8:
        return False
    frame = _word(_word(_state() + _OFFSET) + 8 * _FRAME)
    return _word(frame + _CODE) == id(sys._getframe().f_code)


def _word(address: int) -> int:
    """The pointer at an address; 0: NULL."""
    return _POINTER.from_address(address).value or 0


def safely(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return `function(*arguments)`, which a database error may skip.

    The function must be implemented in C: CPython may run a Python function without a C call, so that it would not use
    the copy.
    """
    pointer = _POINTER.from_address(_state() + _OFFSET)
    before = pointer.value or 0
    copy = _Structure.from_buffer_copy(_Structure.from_address(before))
    copy[_FRAME] = 0  # older frames may lie on the C stack
    pointer.value = ctypes.addressof(copy)
    try:
        return function(*arguments)
    finally:
        pointer.value = before


class Careful:
    """`plpy` with queries run by :func:`safely`."""

    def __init__(self, plpy: Any) -> None:
        self._plpy = plpy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plpy, name)

    def execute(self, *arguments: Any) -> Any:
        return safely(self._plpy.execute, *arguments)

    def prepare(self, *arguments: Any) -> Any:
        return safely(self._plpy.prepare, *arguments)

    def cursor(self, *arguments: Any) -> _Cursor:
        return _Cursor(safely(self._plpy.cursor, *arguments))

    def subtransaction(self) -> _Subtransaction:
        return _Subtransaction(self._plpy.subtransaction())


class _Cursor:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def fetch(self, count: int) -> Any:
        return safely(self._cursor.fetch, count)

    def __iter__(self) -> _Cursor:
        return self

    def __next__(self) -> Any:
        return safely(next, self._cursor)

    def close(self) -> None:
        safely(self._cursor.close)


class _Subtransaction:
    def __init__(self, part: Any) -> None:
        self._part = part

    def __enter__(self) -> _Subtransaction:
        safely(self._part.__enter__)
        return self

    def __exit__(self, *raised: Any) -> Any:
        return safely(self._part.__exit__, *raised)


_NEEDED = ON_GREENPLUM and _is_known()


def careful(plpy: Any) -> Any:
    """`plpy` for this server: on Greenplum, an error that skips Python's frames does no harm."""
    return Careful(plpy) if _NEEDED else plpy

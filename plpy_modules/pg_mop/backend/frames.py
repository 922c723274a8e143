"""Greenplum: an error of the database's that goes past Python's frames leaves Python in order.

PL/Python begins and ends each query with a savepoint, which the coordinator makes on all segments. Where that fails
(a cancel comes in this very instant, or a segment has gone), PL/Python is not prepared for it: the error goes to who
called Python as if there were no frames between. CPython 3.11 and 3.12 note where the frames are in a structure on C's
stack, which is written over then; the next call of anything in Python ended the coordinator's process, and with it all
sessions of the cluster. So, for the time of a query, a copy stands in its place that stays where it is, and names no
frame: what is called then has none before it. What the frames held is kept until the session ends, no `finally` of
theirs is run, and what they were deep is lost of what Python allows. (3.10 has the like elsewhere and is as it was;
before, and from 3.13 on, calls go on.)
"""

import ctypes
import platform
import sys

ON_GREENPLUM = hasattr(ctypes.CDLL(None), "cancel_pending_hook")
_POINTER = ctypes.c_void_p
_Structure = _POINTER * 3  # _PyCFrame
_PLACE = 56  # of the pointer to it in a PyThreadState of these versions
# in which word of it the frame is (_PyInterpreterFrame), and where that has its code
_FRAME, _CODE = {(3, 11): (1, 32), (3, 12): (0, 0)}.get(sys.version_info[:2], (None, None))
_state = ctypes.pythonapi.PyThreadState_Get
_state.restype = _POINTER


def _is_known():
    """Whether this Python has the structure, and has it where it is looked for."""
    if _FRAME is None or platform.python_implementation() != "CPython" or ctypes.sizeof(_POINTER) != 8:
        return False
    frame = _POINTER.from_address(_POINTER.from_address(_state() + _PLACE).value + 8 * _FRAME).value
    return _POINTER.from_address(frame + _CODE).value == id(sys._getframe().f_code)


def safely(function, *arguments):
    """What `function(*arguments)` gives, past which an error may go. It is one of C's (one in Python may be run without
    a call in C, and then does not see the copy)."""
    place = _POINTER.from_address(_state() + _PLACE)
    before = place.value
    copy = _Structure.from_buffer_copy(_Structure.from_address(before))
    copy[_FRAME] = None  # (on the way to older frames there may be some on C's stack)
    place.value = ctypes.addressof(copy)
    try:
        return function(*arguments)
    finally:
        place.value = before


class Careful:
    """`plpy` whose queries are run by :func:`safely`."""

    def __init__(self, plpy):
        self._plpy = plpy

    def __getattr__(self, name):
        return getattr(self._plpy, name)

    def execute(self, *arguments):
        return safely(self._plpy.execute, *arguments)

    def prepare(self, *arguments):
        return safely(self._plpy.prepare, *arguments)

    def cursor(self, *arguments):
        return _Cursor(safely(self._plpy.cursor, *arguments))

    def subtransaction(self):
        return _Subtransaction(self._plpy.subtransaction())


class _Cursor:
    def __init__(self, cursor):
        self._cursor = cursor

    def fetch(self, count):
        return safely(self._cursor.fetch, count)

    def __iter__(self):
        return self

    def __next__(self):
        return safely(next, self._cursor)

    def close(self):
        safely(self._cursor.close)


class _Subtransaction:
    def __init__(self, part):
        self._part = part

    def __enter__(self):
        safely(self._part.__enter__)
        return self

    def __exit__(self, *raised):
        return safely(self._part.__exit__, *raised)


_NEEDED = ON_GREENPLUM and _is_known()


def careful(plpy):
    """`plpy`, with which an error that goes past Python does no harm."""
    return Careful(plpy) if _NEEDED else plpy

"""Uninterruptible imports of modules with shared libraries: numpy (`np`), and `state`, our module for model states.

On Greenplum, a cancel raises KeyboardInterrupt at any point of Python code. A half-imported numpy would stay broken until
the process ends, for its shared libraries cannot be loaded twice.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import os
import signal
import time
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from pg_mop.backend.server_kind import ON_GREENPLUM

THREADS = "OPENBLAS_NUM_THREADS"
MAX_SECONDS = 60  # for one import


def import_whole(name: str, in_thread: bool = ON_GREENPLUM) -> ModuleType:
    """Import a module completely, and return it.

    `in_thread`: import in a thread, where no KeyboardInterrupt is raised; an interrupt of this thread is raised after
    the import.
    """
    with _one_thread():
        if in_thread:
            _import_in_thread(name)
        return importlib.import_module(name)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """OpenBLAS, if loaded within the block, has one thread: further threads would spin, and would receive the backend's
    signals."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before


def _import_in_thread(name: str) -> None:
    """Import in a thread, and poll a list: an interrupted Thread.join releases the thread's lock, and then returns too early
    or never."""
    interrupt: KeyboardInterrupt | None = None
    done: list[str] = []
    deadline = time.monotonic() + MAX_SECONDS
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, signal.valid_signals()
    )  # PostgreSQL's signals are for its own thread
    try:
        _thread.start_new_thread(_import, (name, done))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        try:
            while not done and time.monotonic() < deadline:
                time.sleep(0.002)
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _import(name: str, done: list[str]) -> None:
    try:
        importlib.import_module(name)
    except Exception:
        pass  # import_whole raises it again
    finally:
        done.append(name)


if TYPE_CHECKING:
    import numpy as np
else:
    np = import_whole("numpy")

from mop_udf import state  # noqa: E402

__all__ = ["import_whole", "np", "state"]

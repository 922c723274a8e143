"""Uninterruptible imports of modules with shared libraries: numpy (`np`), and `state`, our module for model states.

On Greenplum, a cancel raises KeyboardInterrupt at any point of Python code. A half-imported numpy would stay broken until
the process ends, for its shared libraries cannot be loaded twice.
"""

import _thread
import contextlib
import importlib
import os
import signal
import time

from pg_mop.backend.frames import ON_GREENPLUM

THREADS = "OPENBLAS_NUM_THREADS"
MAX_SECONDS = 60  # for one import


def import_whole(name, in_thread=ON_GREENPLUM):
    """Import a module completely, and return it.

    `in_thread`: import in a thread, where no KeyboardInterrupt is raised; an interrupt of this thread is raised after
    the import.
    """
    with _one_thread():
        if in_thread:
            _import_in_thread(name)
        return importlib.import_module(name)


@contextlib.contextmanager
def _one_thread():
    """OpenBLAS, if loaded within the block, has one thread: further threads would spin, and would receive the backend's
    signals."""
    given = os.environ.get(THREADS)
    os.environ[THREADS] = given or "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = given


def _import_in_thread(name):
    """(An interrupted Thread.join releases the thread's lock, and then returns too early or never. So poll a list.)"""
    raised, done, deadline = None, [], time.monotonic() + MAX_SECONDS
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
            raised = error
    if raised is not None:
        raise raised


def _import(name, done):
    try:
        importlib.import_module(name)
    except Exception:
        pass  # import_whole raises it again
    finally:
        done.append(name)


np = import_whole("numpy")

from mop_udf import state  # noqa: E402

__all__ = ["import_whole", "np", "state"]

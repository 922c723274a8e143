"""numpy (`np`), and what else has libraries such as it has, imported whole; and what a backend has of our own that uses
it (`state`: of models).

Greenplum raises KeyboardInterrupt in Python, wherever that is, when a cancel comes. A numpy that is half imported then
stays so until its process ends, since its libraries cannot be loaded again.
"""

import _thread
import contextlib
import importlib
import os
import signal
import time

from pg_mop.backend.frames import ON_GREENPLUM

THREADS = "OPENBLAS_NUM_THREADS"
MOST_SECONDS = 60  # that such an import takes


def import_whole(name, in_thread=ON_GREENPLUM):
    """The module of that name. `in_thread`: it is imported in a thread, in which nothing is raised from outside; what
    has been raised here follows."""
    with _one_thread():
        if in_thread:
            _import_in_thread(name)
        return importlib.import_module(name)


@contextlib.contextmanager
def _one_thread():
    """Within it OpenBLAS is loaded with a thread alone: those for other cores would wait busily, and take signals that
    are for the backend's."""
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
    """(Thread.join, interrupted, lets go of the thread's own lock: it returns too early, or waits for ever.)"""
    raised, done, until = None, [], time.monotonic() + MOST_SECONDS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # PostgreSQL's are for its own thread
    try:
        _thread.start_new_thread(_import, (name, done))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        try:
            while not done and time.monotonic() < until:
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
        pass  # it is raised once more by who asked
    finally:
        done.append(name)


np = import_whole("numpy")

from mop_udf import state  # noqa: E402

__all__ = ["import_whole", "np", "state"]

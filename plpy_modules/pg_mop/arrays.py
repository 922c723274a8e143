"""numpy (`np`), whole; and what a backend has of our own that uses it (`state`: of models).

Greenplum raises KeyboardInterrupt in Python, wherever that is, when a cancel comes. A numpy that is half imported then
stays so until its process ends, since its libraries cannot be loaded again.
"""

import contextlib
import ctypes
import os
import signal
import threading

# its own: those of other cores would wait busily, and take signals that are for the backend's thread
THREADS = "OPENBLAS_NUM_THREADS"


def _import_whole():
    """Import numpy in a thread, in which nothing is raised from outside; what has been raised here follows."""
    raised = None
    thread = threading.Thread(target=_import, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # PostgreSQL's are for its own thread
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt as error:
            raised = error
    if raised is not None:
        raise raised


def _import():
    given = os.environ.get(THREADS)
    os.environ[THREADS] = given or "1"
    try:
        with contextlib.suppress(Exception):  # it is raised once more below
            import numpy  # noqa: F401
    finally:
        if given is None:
            del os.environ[THREADS]


(_import_whole if hasattr(ctypes.CDLL(None), "cancel_pending_hook") else _import)()

import numpy as np  # noqa: E402

from mop_udf import state  # noqa: E402

__all__ = ["np", "state"]

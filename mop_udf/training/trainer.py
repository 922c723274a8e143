"""The trainer process, with frames on stdin and stdout.

`python -m mop_udf.training.trainer BACKEND LIFE SINCE IDLE_MS THREADS CACHE_MB MEMORY_MB MODEL_MB`; IDLE_MS, MEMORY_MB and
MODEL_MB are 0 for no limit. BACKEND, a process id, and SINCE, when its lease began, are only for readers of the process
list: 0 and 0 for a trainer that waits in the pool. LIFE is a descriptor: see lease.py. A fork of mop_udf.pool.fork_server
becomes a trainer under the same name.

Standard library only until `live` imports the framework.
"""

import contextlib
import gc
import importlib
import os
import sys
from typing import Any

from mop_udf.pool.child_process import die_with_pipe, prefer_oom_kill
from mop_udf.pool.lease import Lease


def import_frameworks() -> None:
    """Import Keras and its framework (KERAS_BACKEND), without optional packages that a trainer does not use.

    Keras and the frameworks import these packages if they are installed, which would cost a third of the import time
    and 60 MB. Custom functions may import the packages afterwards.
    """
    gc.disable()  # imported objects stay: looking for garbage among them takes a fifth of the time
    framework = os.environ.get("KERAS_BACKEND", "tensorflow")
    needed = {framework, "scipy"} if framework == "jax" else {framework}
    unused = [
        name
        for name in ("sklearn", "scipy", "pandas", "matplotlib", "IPython", "torch", "jax", "tensorflow")
        if name not in needed and name not in sys.modules
    ]
    for name in unused:
        sys.modules[name] = None  # type: ignore[assignment]
    import keras  # noqa: F401

    importlib.import_module(framework)
    if framework != "tensorflow":
        _do_without_tensorflow()
    for name in unused:
        del sys.modules[name]
    gc.freeze()
    gc.enable()


def _do_without_tensorflow() -> None:
    """Let Keras find TensorFlow missing, for the life of this process.

    Otherwise Keras imports TensorFlow, if it is installed, to set random seeds and to write JSON: 2.4 seconds and 300 MB. To be
    called while the import of TensorFlow fails.
    """
    with contextlib.suppress(ImportError, AttributeError):  # (Keras may keep this elsewhere one day)
        from keras.src.utils.module_utils import tensorflow

        _ = tensorflow.available  # Keras keeps the first answer


def import_own() -> None:
    """Import this package's modules for trainers and serving processes, and the parts of SciPy and LightGBM for training.

    Otherwise each trainer would import these parts, for a second, before its first model of a table.
    """
    from mop_udf.training import boosting, linear, serving, trainer_server  # noqa: F401

    for load in (linear.load_scipy, boosting.imported):
        with contextlib.suppress(ImportError):  # a request that needs the package tells that it is absent
            load()
    gc.freeze()


def live(
    backend: int,
    life: int,
    since: int,
    idle_ms: int,
    threads: int,
    cache_mb: int,
    memory_mb: int,
    model_mb: int,
    control: Any = None,
) -> None:
    """Run as the trainer of the process that holds the writing end of the pipe `life`; ends this process.

    `control`: the descriptor of the socket to the pool, for a trainer that returns there (mop_udf/pool/pool.py).
    """
    die_with_pipe(life)
    prefer_oom_kill()
    lease = Lease(life, control, idle_ms, (threads, cache_mb, memory_mb, model_mb))
    import faulthandler

    faulthandler.enable()
    from mop_udf.pool.channel import Channel, ChannelClosed

    channel = Channel(lease.read_fd, lease.write_fd)
    import_frameworks()
    from mop_udf.kernels.framework import framework

    device_error = framework.begin(threads)
    from mop_udf.training.trainer_server import TrainerServer

    server = TrainerServer(channel, threads, cache_mb, memory_mb, model_mb, device_error)
    lease.at_rest()
    try:
        while True:
            server.serve(lease.idle_seconds, lease.at_work)
            lease.release()
            if not (lease.is_renewable() and server.may_be_leased_again):
                break
            lease.renew(server.reset(), gc.collect)
            channel.begin_anew()
    except ChannelClosed:  # within a request
        pass
    # without clean-up: nothing needs it, and TensorFlow's takes time
    os._exit(0)


def serve(control: Any, quiet_ms: int, *arguments: Any) -> None:
    """Run as a serving process (serving.py), with the other arguments of `live`; `control`: the socket to the pool."""
    prefer_oom_kill()
    import faulthandler

    faulthandler.enable()
    from mop_udf.training import serving

    serving.live(control, quiet_ms, *arguments)


if __name__ == "__main__":
    live(*map(int, sys.argv[1:9]))

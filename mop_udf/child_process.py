"""Setting up a process that a backend, or its fork server, has started: a trainer or a relay.

Standard library only.
"""

import fcntl
import os
import select
import signal

F_SETSIG = 10  # Linux; Python's fcntl has no name for it


def die_with_pipe(life):
    """Be killed by the kernel, whatever this process does, as soon as nobody has the other end of the pipe `life`."""
    fcntl.fcntl(life, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it has gone before
        os._exit(0)


def prefer_oom_kill():
    """Be the kernel's first choice when memory ends."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("900")
    except OSError:
        pass


def take_stdio():
    """Keep stdin and stdout for frames alone: the descriptors to read and to write those."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    return read_fd, write_fd
